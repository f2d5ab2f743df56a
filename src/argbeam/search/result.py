"""What a step of the search finds and what a search returns, and how sequences are read back through their parents."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Beam:
    """Scores of the prefixes on the beam (minus infinity: an empty place), and which of them is gold's prefix.

    `gold_score_B` is the score of gold's prefix in its own lane, less what the margin has grown by; zero when decoding.
    """

    score_BK: Float[Tensor, "B K"]
    is_gold_BK: Bool[Tensor, "B K"]
    gold_score_B: Float[Tensor, " B"]


@dataclass(frozen=True)
class TopSuccessors:
    """The J best successors of a beam, best first: parent's place, newest token, score (minus infinity: none).

    Where decoding refills its beam, the K best that have not ended come first and the ended ones lie behind them.
    """

    parents_BJ: Int[Tensor, "B J"]
    tokens_BJ: Int[Tensor, "B J"]
    scores_BJ: Float[Tensor, "B J"]


@dataclass(frozen=True)
class SearchStep:
    """One step of a search: successors and the next beam. Row n of it continues row `rows_N[n]` by `tokens_N[n]`.

    N = B * R rows, R = K, or K + 1 with gold's lane as the last row of each sentence.
    """

    successors: TopSuccessors
    beam: Beam
    rows_N: Int[Tensor, " N"]
    tokens_N: Int[Tensor, " N"]


@dataclass(frozen=True)
class Beams:
    """The `TopSuccessors` of every step: newest token, parent's place, score.

    A sentence that is over has padding as its newest tokens when decoding, and no meaning at all when training.
    """

    tokens_TBJ: Int[Tensor, "T B J"]
    parents_TBJ: Int[Tensor, "T B J"]
    scores_TBJ: Float[Tensor, "T B J"]


@dataclass(frozen=True)
class Violations:
    """The violations that the policy of a search with gold trains on. Column t is the paper's time t + 1.

    `rival_BT` holds every rival's tokens since the last restart, on the columns up to its violation: the segments
    between restarts do not overlap, so one row holds them all. Columns after the last violation repeat gold. If the
    margin grows, `gold_score_BT` is less than gold's score by its growth since the last restart, and both scores by its
    growth before that. `stop_B` is the column at which a search without restarts has lost gold; where it has not, and
    with restarts, the last one.
    """

    violation_BT: Bool[Tensor, "B T"]
    rival_BT: Int[Tensor, "B T"]
    rival_is_gold_BT: Bool[Tensor, "B T"]
    rival_ended_BT: Bool[Tensor, "B T"]
    gold_score_BT: Float[Tensor, "B T"]
    rival_score_BT: Float[Tensor, "B T"]
    gold_on_beam_B: Bool[Tensor, " B"]
    stop_B: Int[Tensor, " B"]


@dataclass(frozen=True)
class SearchResult:
    """The sequences of a search, best first (padding behind their end), with their scores.

    `finished` is false for a sequence cut off at the length limit. `dead` marks a sentence whose search met prefixes
    without any valid successor: its output is a prefix. `steps_B` counts the steps of `beams` that a sentence took.
    `violations` is there with gold.
    """

    tokens_BNT: Int[Tensor, "B N T"]
    score_BN: Float[Tensor, "B N"]
    length_BN: Int[Tensor, "B N"]
    finished_BN: Bool[Tensor, "B N"]
    dead_B: Bool[Tensor, " B"]
    steps_B: Int[Tensor, " B"]
    beams: Beams
    violations: Violations | None


@dataclass(frozen=True)
class StepMemory:
    """Memory for what the steps of a search leave, of all steps side by side: `stacked` then copies nothing."""

    steps: int
    _kinds: dict[str, Tensor] = field(default_factory=dict)

    def row(self, t: int, kind: str, *shape: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Uninitialised memory for what step t leaves of a kind."""
        size = math.prod(shape)
        if kind not in self._kinds:
            # A kernel is compiled once more for rows that do not begin at a multiple of 16 bytes.
            self._kinds[kind] = like.new_empty(self.steps, size + -size % 16, dtype=dtype)
        return self._kinds[kind][t, :size].view(shape)


def stacked(rows: Sequence[Tensor]) -> Tensor:
    """`torch.stack`; of rows that lie in one memory at equal distances, such as those of a `StepMemory`, a view."""
    first, offsets = rows[0], [row.storage_offset() for row in rows]
    between = offsets[1] - offsets[0] if len(rows) > 1 else first.numel()
    memory = first.untyped_storage().data_ptr()
    if between < first.numel() or offsets != [offsets[0] + t * between for t in range(len(rows))]:
        return torch.stack(list(rows))
    alike = (row.shape == first.shape and row.is_contiguous() for row in rows)
    if not all(alike) or any(row.untyped_storage().data_ptr() != memory for row in rows):
        return torch.stack(list(rows))
    return first.as_strided((len(rows), *first.shape), (between, *first.stride()))


def prefix_tokens(
    beams: Beams, places_BN: Int[Tensor, "B N"], time_BN: Int[Tensor, "B N"], *, pad: int
) -> Int[Tensor, "B N T"]:
    """Tokens of the prefixes at these places of these steps, read back to the first; `pad` behind them."""
    columns: list[Tensor] = []
    for t in reversed(range(len(beams.tokens_TBJ))):
        columns.append(beams.tokens_TBJ[t].gather(1, places_BN).masked_fill(t > time_BN, pad))
        places_BN = torch.where(t <= time_BN, beams.parents_TBJ[t].gather(1, places_BN), places_BN)
    return torch.stack(columns[::-1], 2)
