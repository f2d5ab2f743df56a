"""The live rows of a search: those that a step and a product over the vocabulary are worth.

After a restart a beam is one prefix and empty rows, gold's prefix is in its own lane and mostly on the beam too, and
some sentences are over before others. Where shapes may depend on values, all other rows are left out.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.data.vocabulary import BOS
from argbeam.models.contract import Model
from argbeam.models.state import Places, State
from argbeam.search.result import Beam
from argbeam.search.score_rules import NEVER


@dataclass(frozen=True)
class Live:
    """X live rows among all N = B * R: first `beam_rows` of the beams, then the gold lanes that equal no row of a beam.

    `row_BR` says for each of the N which live row has its prefix; those without a prefix are given any.

    Worked example, two sentences, K = 2 and gold's lane, the first one restarted: its row 0 and both rows of the second
    one are live, at places [0, 3, 4]. If gold is the second one's row 1, rows are [0, 0, 0] and [1, 2, 2].
    """

    places: Places
    beam_rows: int
    row_BR: Int[Tensor, "B R"]

    @property
    def beam_place_X(self) -> Int[Tensor, " X"]:
        """The places of the beams' rows."""
        return self.places.place_X[: self.beam_rows]

    @property
    def all_on_beams(self) -> bool:
        """Whether no gold lane had to be added."""
        return self.beam_rows == len(self.places.place_X)


def first_step(model: Model, state: State, rows_N: Int[Tensor, " N"], *, sentences: int) -> State:
    """The states of all rows after the start symbol, from one of each sentence; `rows_N` says which."""
    if not host_may_look(rows_N):
        return model.step(state.select(rows_N), torch.full_like(rows_N, BOS))
    # The rows of a sentence are still the same.
    return model.step(state, rows_N.new_full((sentences,), BOS)).select(rows_N)


def live_rows(
    beam: Beam,
    active_B: Bool[Tensor, " B"],
    over_B: Bool[Tensor, " B"],
    dead_B: Bool[Tensor, " B"],
    *,
    lanes: int,
) -> Live | None:
    """The live rows of the next step; None: all of them. With gold there is one lane more than the beam has rows."""
    if not host_may_look(active_B):
        return None
    batch, beam_size = beam.total_BK.shape
    goes_on_B = active_B & ~over_B & ~dead_B
    place_BR = torch.arange(batch * lanes, device=active_B.device).view(batch, lanes)
    live_BK = (beam.total_BK > NEVER) & goes_on_B[:, None]
    gold_BK = live_BK & beam.is_gold_BK
    live_BK[0, 0] = True  # so that there is a row to be given where all sentences are over
    places_X = place_BR[:, :beam_size][live_BK]
    beam_rows = len(places_X)
    row_BR = live_BK.flatten().cumsum(0).view_as(live_BK) - 1
    if lanes > beam_size:
        alone_B = goes_on_B & ~gold_BK.any(1)
        places_X = torch.cat([places_X, place_BR[:, -1][alone_B]])
        on_beam_B1 = row_BR.gather(1, gold_BK.long().argmax(1, keepdim=True))
        own_B1 = (beam_rows + alone_B.cumsum(0) - 1)[:, None]
        row_BR = torch.cat([row_BR, torch.where(alone_B[:, None], own_B1, on_beam_B1)], 1)
    if len(places_X) == batch * lanes:
        return None
    return Live(Places(places_X, lanes), beam_rows, row_BR)


def host_may_look(x: Tensor) -> bool:
    """Whether shapes may depend on values: on a device the host would have to wait, and nothing could be captured."""
    return not x.is_cuda
