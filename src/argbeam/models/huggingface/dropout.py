"""Dropout of transformers' modules with masks of our noise: search and replay see one network.

Every call of `dropout` in a pass is a site, counted from the pass's first. A mask belongs to a site, a sentence and a
position, so that all rows of a sentence have the same one, in a step as in a pass over all tokens. Adapters of peft may
drop units of the encoded source in cross-attention, whose keys are computed in the first step alone: these sites are
counted apart. Dropout of attention weights is left out: a row has other keys than its neighbour.
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

# First sites of the passes over sources (or prompts), over outputs, and of the encoded source within the latter.
SOURCE_SITE, OUTPUT_SITE, MEMORY_SITE = 0x480000, 0x490000, 0x4A0000


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


@dataclass(frozen=True)
class MemoryMasks:
    """The encoded source that a decoder reads in cross-attention, and its masks."""

    memory_BSH: Tensor
    masks: DropsUnits


def dropping(
    masks: DropsUnits | None, before: int = 0, memory: MemoryMasks | None = None
) -> AbstractContextManager[object]:
    """Within it, every dropout of hidden units takes its mask from here; without masks there is none."""
    return nullcontext() if masks is None else _Sites(masks, before, memory)


class _Sites(TorchFunctionMode):
    def __init__(self, masks: DropsUnits, before: int, memory: MemoryMasks | None) -> None:
        super().__init__()
        self.masks, self.before, self.memory = masks, before, memory
        self.sites, self.memory_sites = itertools.count(), itertools.count()
        # The memory, and casts of it: adapters may have another precision than the model.
        self.casts = [] if memory is None else [memory.memory_BSH]

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is torch.Tensor.to and self._of_memory(args[0]):
            self.casts.append(func(*args, **named))
            return self.casts[-1]
        if func is not F.dropout:
            return func(*args, **named)
        x, rate = args[0] if args else named["input"], named.get("p", 0.5) if len(args) < 2 else args[1]
        if self.memory is not None and self._of_memory(x):
            site = next(self.memory_sites)
            return x if rate == 0 else self.memory.masks.drop(x, site, rate, 0)
        site = next(self.sites)
        return x if rate == 0 or x.dim() != 3 else self.masks.drop(x, site, rate, self.before)

    def _of_memory(self, x: Any) -> bool:
        return any(x is one for one in self.casts)
