"""What all tables of settings share."""

from pydantic import BaseModel, ConfigDict

# Sizes beyond these are slips of the keyboard: no machine has the memory.
MOST_BEAM, MOST_LAYERS, MOST_WIDTH = 10_000, 1000, 10**6


class Settings(BaseModel):
    """What all tables of a recipe share: strict types, no unknown keys, no change after loading."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
