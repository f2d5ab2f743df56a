"""What a search leaves behind, and how sequences are read back from it through their parents."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.vocabulary import PAD
from argbeam.search.score_rules import NEVER
from argbeam.search.stop_rules import Finished


@dataclass(frozen=True)
class Beams:
    """The successors kept at every step, best first: their newest word, their parent's row, their rank.

    Sentences that are over have PAD as their newest words when decoding, and no meaning at all when training.
    """

    tokens_TBJ: Int[Tensor, "T B J"]
    parents_TBJ: Int[Tensor, "T B J"]
    scores_TBJ: Float[Tensor, "T B J"]


@dataclass(frozen=True)
class Found:
    """The J best successors of a beam, best first: parent's row, newest word, rank (minus infinity: there is none)."""

    parents_BJ: Tensor
    tokens_BJ: Tensor
    ranks_BJ: Tensor


@dataclass(frozen=True)
class Beam:
    """The prefixes on the beam: the row each came from, its newest word, its rank; whether it is the gold prefix."""

    parents_BK: Tensor
    tokens_BK: Tensor
    total_BK: Tensor
    is_gold_BK: Tensor


@dataclass(frozen=True)
class Verdict:
    """One step of the search judged against gold. `rival_B` is the rival's place among the successors found."""

    violation_B: Tensor
    rival_B: Tensor
    rival_rank_B: Tensor
    rival_ended_B: Tensor
    is_gold_BJ: Tensor
    gold_rank_B: Tensor


@dataclass(frozen=True)
class Violations:
    """What a search with gold found, at the violations that its policy trains on. Column t is the paper's time t + 1.

    `rival_BT` holds every rival's words since the last restart, on the columns up to its violation: the segments
    between restarts do not overlap, so one row holds them all. Columns after the last violation repeat gold. `stop_B`
    is the column at which a search without restarts has lost gold; where it has not, and with restarts, the last one.
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
    """The sequences found, best first (PAD behind their end), with their ranks.

    `finished` tells a sequence that ended properly from one cut off at the length limit; `dead` a sentence whose search
    met prefixes with no valid successor at all, and which is therefore a prefix. `violations` is there when gold was.
    """

    tokens_BNT: Int[Tensor, "B N T"]
    score_BN: Float[Tensor, "B N"]
    length_BN: Int[Tensor, "B N"]
    finished_BN: Bool[Tensor, "B N"]
    dead_B: Bool[Tensor, " B"]
    beams: Beams
    violations: Violations | None


def rival_words(
    beams: Beams,
    gold_BT: Int[Tensor, "B T"],
    violation_TB: Bool[Tensor, "T B"],
    rival_TB: Int[Tensor, "T B"],
) -> Int[Tensor, "B T"]:
    """Every rival's words, read back from its violation to the restart before it; gold's where there is no rival.

    `rival_TB` is the rival's place among the successors of each step.
    """
    words: list[Tensor] = []
    place_B1 = torch.zeros_like(rival_TB[0, :, None])
    for t in reversed(range(len(violation_TB))):
        # A violation starts a segment's reading; it overrides what the later segment would read on into.
        place_B1 = torch.where(violation_TB[t, :, None], rival_TB[t, :, None], place_B1)
        words.append(beams.tokens_TBJ[t].gather(1, place_B1))
        place_B1 = beams.parents_TBJ[t].gather(1, place_B1)
    rival_BT = torch.cat(words[::-1], 1)
    # Columns from which a violation is still to come belong to its segment.
    ahead_BT = violation_TB.T.flip(1).cummax(1).values.flip(1)
    return torch.where(ahead_BT, rival_BT, gold_BT)


def prefix_words(beams: Beams, places_BN: Int[Tensor, "B N"], time_BN: Int[Tensor, "B N"]) -> Int[Tensor, "B N T"]:
    """The words of the prefixes at these places of these steps, read back to the first; PAD behind them."""
    words: list[Tensor] = []
    for t in reversed(range(len(beams.tokens_TBJ))):
        words.append(beams.tokens_TBJ[t].gather(1, places_BN).masked_fill(t > time_BN, PAD))
        places_BN = torch.where(t <= time_BN, beams.parents_TBJ[t].gather(1, places_BN), places_BN)
    return torch.stack(words[::-1], 2)


def read_result(
    beams: Beams,
    finished: Finished,
    total_BK: Float[Tensor, "B K"],
    dead_B: Bool[Tensor, " B"],
    violations: Violations | None,
    *,
    n_best: int,
    open_length: bool,
) -> SearchResult:
    """The finished sequences; where there are none, the final beam: all of it at fixed length, else its top."""
    steps, batch = beams.tokens_TBJ.shape[:2]
    if open_length:
        ended_BN = finished.score_BN > NEVER
        dead_B = dead_B & ~ended_BN.any(1)  # what died after something had finished took nothing away
        best_B1, place_B1 = total_BK.max(1, keepdim=True)
        # The top of the beam takes the first place where nothing has finished.
        top_BN = ~ended_BN.any(1, keepdim=True) & (torch.arange(n_best, device=dead_B.device) == 0)
        score_BN = torch.where(top_BN, best_B1, finished.score_BN)
        places_BN = torch.where(top_BN, place_B1, finished.place_BN)
        time_BN = torch.where(top_BN, steps - 1, finished.time_BN)
    else:
        score_BN = total_BK[:, :n_best]
        ended_BN = ~dead_B[:, None] & (score_BN > NEVER)
        places_BN = torch.arange(score_BN.shape[1], device=dead_B.device).expand(batch, -1)
        time_BN = torch.full_like(places_BN, steps - 1)
    if n_best:
        tokens_BNT = prefix_words(beams, places_BN, time_BN).masked_fill((score_BN == NEVER)[..., None], PAD)
    else:
        tokens_BNT = beams.tokens_TBJ[..., :0].permute(1, 2, 0)
    return SearchResult(
        tokens_BNT=tokens_BNT,
        score_BN=score_BN,
        length_BN=(tokens_BNT != PAD).sum(2),
        finished_BN=ended_BN,
        dead_B=dead_B,
        beams=beams,
        violations=violations,
    )
