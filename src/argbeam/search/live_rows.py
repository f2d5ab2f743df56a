"""Live rows of a search, the rows worth computing on a CPU: not empty, not finished, not a copy of gold.

After a restart a beam is one prefix and empty places, gold's prefix is in its own lane and mostly on the beam too, and
some sentences are over before others. On a GPU shapes must not depend on values, and all rows are computed.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.models.contract import Model, Shortcuts
from argbeam.models.state import Places, State
from argbeam.search.result import Beam
from argbeam.search.score_rules import NEVER


@dataclass(frozen=True)
class Live:
    """X live rows of all N = B * R: `beam_rows` rows of the beams, then the gold lanes that equal no row of a beam.

    `row_BR` gives for each of the N rows the live row with its prefix; any live row where there is no prefix.

    Worked example, two sentences, K = 2 and gold's lane, the first one restarted: its row 0 and both rows of the second
    one are live, at places [0, 3, 4]. If gold is the second one's row 1, rows are [0, 0, 0] and [1, 2, 2].
    """

    places: Places
    beam_rows: int
    row_BR: Int[Tensor, "B R"]

    @property
    def beam_place_X(self) -> Int[Tensor, " X"]:
        """Places of the beams' rows."""
        return self.places.place_X[: self.beam_rows]

    @property
    def all_on_beams(self) -> bool:
        """Whether every gold lane equals a row of its beam."""
        return self.beam_rows == len(self.places.place_X)


def first_state(model: Model, state: State, rows_N: Int[Tensor, " N"], *, bos: int, sentences: int) -> State:
    """States of all rows after the start symbol, from one row per sentence; `rows_N` says which."""
    # The rows of a sentence are still the same.
    return model.step(state, rows_N.new_full((sentences,), bos)).select(rows_N)


def live_rows(beam: Beam, active_B: Bool[Tensor, " B"], *, lanes: int) -> Live | None:
    """Live rows of the next step of the active sentences; None: all rows. With gold, `lanes` is the beam and one."""
    batch, beam_size = beam.score_BK.shape
    place_BR = torch.arange(batch * lanes, device=active_B.device).view(batch, lanes)
    # A score that is not a number counts: its row must not read the scores of another sentence.
    live_BK = (beam.score_BK != NEVER) & active_B[:, None]
    gold_BK = live_BK & beam.is_gold_BK
    live_BK[0, 0] = True  # where all sentences are over, one row remains
    places_X = place_BR[:, :beam_size][live_BK]
    beam_rows = len(places_X)
    row_BR = live_BK.flatten().cumsum(0).view_as(live_BK) - 1
    if lanes > beam_size:
        alone_B = active_B & ~gold_BK.any(1)
        places_X = torch.cat([places_X, place_BR[:, -1][alone_B]])
        on_beam_B1 = row_BR.gather(1, gold_BK.long().argmax(1, keepdim=True))
        own_B1 = (beam_rows + alone_B.cumsum(0) - 1)[:, None]
        row_BR = torch.cat([row_BR, torch.where(alone_B[:, None], own_B1, on_beam_B1)], 1)
    if len(places_X) == batch * lanes:
        return None
    return Live(Places(places_X, lanes), beam_rows, row_BR)


def next_state(model: Model, state: State, rows_N: Tensor, tokens_N: Tensor, live: Live | None) -> State:
    """States after one more token: row n continues row `rows_N[n]` by `tokens_N[n]`. Only live rows are right."""
    stepped = None
    if isinstance(model, Shortcuts) and live is not None:
        place_X = live.places.place_X
        some = model.step_from(state, rows_N[place_X], tokens_N[place_X], live.places)
        stepped = None if some is None else some.select(live.row_BR.flatten())
    elif isinstance(model, Shortcuts):
        stepped = model.step_from(state, rows_N, tokens_N, None)
    return model.step(state.select(rows_N), tokens_N) if stepped is None else stepped
