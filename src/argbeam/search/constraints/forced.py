"""Outputs that begin with given tokens: what would the search have found after them?"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.search.successors import NO_END, Choices, KnowsEnd, Successors


@dataclass(frozen=True)
class Forced:
    """Outputs that begin with `prefix`, in every sentence of a batch, and go on as `successors` allow."""

    successors: Successors
    prefix: tuple[int, ...]

    def start(self, batch: Batch) -> "ForcedChoices":
        return ForcedChoices(self.successors.start(batch), self.prefix)


@dataclass(frozen=True)
class ForcedChoices:
    """The choices of `Forced` with the tokens that are still to come."""

    choices: Choices
    left: tuple[int, ...]

    @property
    def candidates_BC(self) -> Int[Tensor, "B C"] | None:
        return self.choices.candidates_BC

    def to_end(self) -> Int[Tensor, "N V"] | Int[Tensor, "1 V"] | None:
        to_end_NV = self.choices.to_end() if isinstance(self.choices, KnowsEnd) else None
        return to_end_NV if to_end_NV is None else to_end_NV.masked_fill(~self.allowed(), NO_END)

    def allowed(self) -> Bool[Tensor, "N C"] | Bool[Tensor, "1 C"]:
        allowed_NC, candidates_BC = self.choices.allowed(), self.choices.candidates_BC
        if not self.left:
            return allowed_NC
        if candidates_BC is None:
            return allowed_NC & (torch.arange(allowed_NC.shape[1], device=allowed_NC.device) == self.left[0])
        same_BC = candidates_BC == self.left[0]
        return allowed_NC & same_BC.repeat_interleave(len(allowed_NC) // len(same_BC), 0)

    def advance(self, tokens_N: Int[Tensor, " N"]) -> "ForcedChoices":
        return ForcedChoices(self.choices.advance(tokens_N), self.left[1:])

    def select(self, rows_N: Int[Tensor, " N"]) -> "ForcedChoices":
        return ForcedChoices(self.choices.select(rows_N), self.left)
