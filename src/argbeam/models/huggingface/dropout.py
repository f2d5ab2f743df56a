"""Dropout of transformers' modules with masks of our noise: search and replay see one network.

Every call of `dropout` in a pass is a site, counted from the pass's first. A mask belongs to a site, a sentence and a
position, so that all rows of a sentence have the same one, in a step as in a pass over all tokens. Dropout of attention
weights is left out: a row has other keys than its neighbour.
"""

import itertools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from argbeam.models.noise import Noise

# First sites of the passes over sources (or prompts) and over outputs.
SOURCE_SITE, OUTPUT_SITE = 0x480000, 0x490000


class DropsUnits(Protocol):
    def drop(self, x_NTH: Tensor, site: int, rate: float, before: int) -> Tensor:
        """The hidden units of rows that have read so many tokens before."""


@dataclass(frozen=True)
class PassMasks:
    """Masks of all passes over the same tokens, drawn for all positions when a site is met first."""

    noise: Noise
    first_site: int
    steps: int
    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def drop(self, x_NTH: Tensor, site: int, rate: float, before: int) -> Tensor:
        rows, tokens, width = x_NTH.shape
        if (site, width) not in self.masks:
            drawn_BSH = self.noise.mask(
                self.first_site + site, steps=self.steps, width=width, rate=rate, dtype=x_NTH.dtype
            )
            self.masks[site, width] = drawn_BSH
        mask_B1TH = self.masks[site, width][:, None, before : before + tokens].to(x_NTH.dtype)
        assert mask_B1TH.shape[2] == tokens, "noise was drawn for fewer steps"
        sentences = len(mask_B1TH)
        return (x_NTH.reshape(sentences, rows // sentences, tokens, width) * mask_B1TH).view(x_NTH.shape)


@dataclass(frozen=True)
class JoinedMasks:
    """Masks of a pass whose first `columns` tokens are those of another."""

    first: DropsUnits
    columns: int
    then: DropsUnits

    def drop(self, x_NTH: Tensor, site: int, rate: float, before: int) -> Tensor:
        parts = x_NTH[:, : self.columns], x_NTH[:, self.columns :]
        return torch.cat([self.first.drop(parts[0], site, rate, 0), self.then.drop(parts[1], site, rate, before)], 1)


def dropping(masks: DropsUnits | None, before: int = 0) -> AbstractContextManager[object]:
    """Within it, every dropout of hidden units takes its mask from here; without masks there is none."""
    return nullcontext() if masks is None else _Sites(masks, before)


class _Sites(TorchFunctionMode):
    def __init__(self, masks: DropsUnits, before: int) -> None:
        super().__init__()
        self.masks, self.before, self.sites = masks, before, itertools.count()

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is not F.dropout:
            return func(*args, **named)
        x, rate = args[0] if args else named["input"], named.get("p", 0.5) if len(args) < 2 else args[1]
        site = next(self.sites)
        return x if rate == 0 or x.dim() != 3 else self.masks.drop(x, site, rate, self.before)
