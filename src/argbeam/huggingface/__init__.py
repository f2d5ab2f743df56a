"""Hugging Face models: bring yours, take it home.

Read `argbeam.models.huggingface` first: `adapt` makes argbeam's `Model` of a model of transformers. Here are the ways
in that need more than a model: a `Trainer`, and what `generate` takes. The extra `argbeam[hf]` installs what it needs.
`SearchTrainer` is imported at its first use: it is a class of transformers' own.
"""

from typing import TYPE_CHECKING, Any

from argbeam.huggingface.generation import AllowedByFunction, SuccessorsProcessor, search_by
from argbeam.models.huggingface.adapt import Texts, adapt

if TYPE_CHECKING:
    from argbeam.huggingface.trainer import SearchTrainer

__all__ = ["AllowedByFunction", "SearchTrainer", "SuccessorsProcessor", "Texts", "adapt", "search_by"]


def __getattr__(name: str) -> Any:
    if name != "SearchTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from argbeam.huggingface.trainer import SearchTrainer

    return SearchTrainer
