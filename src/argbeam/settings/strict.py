"""Base of all tables of settings."""

import math
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, WrapValidator

# Larger sizes are typing errors: no machine has the memory.
MOST_BEAM, MOST_LAYERS, MOST_WIDTH = 10_000, 1000, 10**6


class Settings(BaseModel):
    """A table of a recipe: strict types, no unknown keys, no change after loading."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def number_or(word: str, *, below: float = math.inf) -> WrapValidator:
    """One error for a setting that is a number or a word, instead of one for each half of the union."""
    bound = "" if below == math.inf else f" and less than {below:g}"

    def check(value: Any, accept: Callable[[Any], Any]) -> Any:
        try:
            accepted = accept(value)
        except ValidationError:
            accepted = -1.0
        if accepted != word and not 0 <= accepted < below:
            raise ValueError(f'must be a number at least 0{bound}, or "{word}"')
        return accepted

    return WrapValidator(check)
