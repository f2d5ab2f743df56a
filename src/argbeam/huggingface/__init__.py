"""Hugging Face models: bring yours, take it home.

Read `argbeam.models.huggingface` first: `adapt` makes argbeam's `Model` of a model of transformers. Here are the ways
in that need more than a model: a `Trainer`, and what `generate` takes. The extra `argbeam[hf]` installs what it needs.
"""

from argbeam.models.huggingface.adapt import Texts, adapt

__all__ = ["Texts", "adapt"]
