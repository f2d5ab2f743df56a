"""Base of all tables of settings."""

from pydantic import BaseModel, ConfigDict

# Larger sizes are typing errors: no machine has the memory.
MOST_BEAM, MOST_LAYERS, MOST_WIDTH = 10_000, 1000, 10**6


class Settings(BaseModel):
    """A table of a recipe: strict types, no unknown keys, no change after loading."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
