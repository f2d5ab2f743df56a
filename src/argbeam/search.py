"""The beam search. There is one: greedy is beam 1, and constraints, gold sequences and stop rules are arguments.

It runs without gradient. A loss replays, with gradient, the little it needs of what was found here.
Letters: B sentences, K beam, R = K rows per sentence (K + 1 with gold), C candidates, J successors kept, T steps.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.models.contract import Model
from argbeam.rules import Finished, ScoreRule, Stop
from argbeam.state import State
from argbeam.successors import Choices
from argbeam.vocabulary import BOS, EOS, PAD

NEVER = -torch.inf


@dataclass(frozen=True)
class Restart:
    """The gold policy of BSO (Wiseman & Rush 2016, section 4.1): after a violation the beam is gold's prefix alone."""

    margin: float = 1.0


@dataclass(frozen=True)
class Gold:
    """The gold sequences of a training search, padded, and what happens when the search violates them."""

    tokens_BT: Int[Tensor, "B T"]
    length_B: Int[Tensor, " B"]
    policy: Restart


@dataclass(frozen=True)
class Violations:
    """What a search with gold found. Column t is the paper's time t + 1.

    `rival_BT` holds every rival's words since the last restart, on the columns up to its violation: the segments
    between restarts do not overlap, so one row holds them all. Columns after the last violation repeat gold.
    """

    violation_BT: Bool[Tensor, "B T"]
    rival_BT: Int[Tensor, "B T"]
    rival_is_gold_BT: Bool[Tensor, "B T"]
    rival_ended_BT: Bool[Tensor, "B T"]
    gold_score_BT: Float[Tensor, "B T"]
    rival_score_BT: Float[Tensor, "B T"]
    gold_on_beam_B: Bool[Tensor, " B"]


@dataclass(frozen=True)
class Beams:
    """The successors kept at every step, best first: their newest word, their parent's row, their rank."""

    tokens_TBJ: Int[Tensor, "T B J"]
    parents_TBJ: Int[Tensor, "T B J"]
    ranks_TBJ: Float[Tensor, "T B J"]


@dataclass(frozen=True)
class SearchResult:
    """The sequences found, best first (PAD behind their end), with their ranks.

    `finished` tells a sequence that ended properly from one cut off at the length limit; `dead` a sentence whose search
    met prefixes with no valid successor at all, and which is therefore a prefix. `violations` is there when gold was.
    """

    tokens_BNT: Int[Tensor, "B N T"]
    rank_BN: Float[Tensor, "B N"]
    length_BN: Int[Tensor, "B N"]
    finished_BN: Bool[Tensor, "B N"]
    dead_B: Bool[Tensor, " B"]
    beams: Beams
    violations: Violations | None


@dataclass(frozen=True)
class _Successors:
    """The J best successors of a beam, best first: parent's row, newest word, rank (minus infinity: there is none)."""

    parents_BJ: Tensor
    tokens_BJ: Tensor
    ranks_BJ: Tensor


@dataclass(frozen=True)
class _Verdict:
    """One step of the search judged against gold."""

    violation_B: Tensor
    rival_B: Tensor
    is_gold_BJ: Tensor
    rival_ended_B: Tensor
    gold_rank_B: Tensor
    rival_rank_B: Tensor


@torch.no_grad()
def beam_search(
    model: Model,
    state: State,
    choices: Choices,
    *,
    beam_size: int,
    length_B: Int[Tensor, " B"],
    steps: int,
    rule: ScoreRule,
    stop: Stop | None = None,
    gold: Gold | None = None,
    n_best: int = 1,
) -> SearchResult:
    """Search from the states and choices of the empty prefixes, one row per sentence.

    `length_B` is the exact length in tasks of fixed length (no `stop`), the limit in tasks of open length; `steps` is
    at least its maximum, known without asking the device. With `gold` this is the training search of section 4.
    """
    batch, device = length_B.shape[0], length_B.device
    lanes = beam_size + (gold is not None)  # the gold prefix rides along as the last row
    first_B = torch.arange(batch, device=device)
    only_first_K = torch.arange(beam_size, device=device) == 0

    rows_N = first_B.repeat_interleave(lanes)
    state, choices = state.select(rows_N), choices.select(rows_N)
    tokens_BR = torch.full((batch, lanes), BOS, device=device)
    dtype = model.output(state).dtype
    alone_K = torch.zeros(beam_size, dtype=dtype, device=device).masked_fill(~only_first_K, NEVER)
    total_BK = alone_K.expand(batch, -1)
    is_gold_BK = only_first_K.expand(batch, -1)
    gold_total_B = torch.zeros(batch, dtype=dtype, device=device)
    over_B = torch.zeros(batch, dtype=torch.bool, device=device)
    dead_B = over_B
    finished = Finished.empty(batch, n_best, like=total_BK)
    history: list[_Successors] = []
    verdicts: list[_Verdict] = []

    for t in range(steps):
        state = model.step(state, tokens_BR.flatten())
        output_BRH = model.output(state).view(batch, lanes, -1)
        words_BRC = rule.words(model, output_BRH, choices.candidates_BC)
        ranks_BKC = _masked(rule.rank(total_BK, words_BRC[:, :beam_size]), choices.allowed(), beam_size)
        # The last step's rival is the best wrong sequence: the second best of all where gold is the best.
        found = _best(ranks_BKC, choices.candidates_BC, kept=max(beam_size, 2) if gold else beam_size)

        active_B = (t < length_B) & ~over_B
        dead_B = dead_B | (active_B & (found.ranks_BJ[:, 0] == NEVER))
        active_B = active_B & ~dead_B if gold is None else active_B
        found = _frozen(found, total_BK, ~active_B)
        history.append(found)
        parents_BK, tokens_BK, total_BK = (
            found.parents_BJ[:, :beam_size],
            found.tokens_BJ[:, :beam_size],
            found.ranks_BJ[:, :beam_size],
        )

        if gold is not None:
            gold_B = gold.tokens_BT[:, t]
            gold_word_B = _score_of(gold_B, words_BRC[:, -1], choices.candidates_BC)
            gold_total_B = rule.rank(gold_total_B[:, None], gold_word_B[:, None, None])[:, 0, 0]
            last_B = gold.length_B == t + 1
            verdict = _judge(found, is_gold_BK, gold_B, gold_total_B, active_B, last_B, beam_size, gold.policy, stop)
            verdicts.append(verdict)
            # Restart: row 0 becomes the gold lane, the other rows die.
            restart_B1 = verdict.violation_B[:, None]
            parents_BK = torch.where(restart_B1, beam_size, parents_BK)
            tokens_BK = torch.where(restart_B1, gold_B[:, None], tokens_BK)
            total_BK = torch.where(restart_B1, gold_total_B[:, None] + alone_K, total_BK)
            is_gold_BK = torch.where(restart_B1, only_first_K, verdict.is_gold_BJ[:, :beam_size])
            if stop is not None and stop.ended_gives_up_place:
                ended_BK = (tokens_BK == EOS) & active_B[:, None]
                total_BK = total_BK.masked_fill(ended_BK, NEVER)
            parents_BR = torch.cat([parents_BK, torch.full_like(parents_BK[:, :1], beam_size)], 1)
            tokens_BR = torch.cat([tokens_BK, gold_B[:, None]], 1)
        else:
            parents_BR, tokens_BR = parents_BK, tokens_BK
            if stop is not None:
                ended_BK = (tokens_BK == EOS) & active_B[:, None] & (total_BK > NEVER)
                finished = finished.add(stop.priority(rule, total_BK, ended_BK, t), total_BK, t)
                total_BK = total_BK.masked_fill(ended_BK, NEVER)
                over_B = over_B | finished.over(stop, rule, total_BK, length_B)
                # A look at the device costs a round trip: one every few steps is enough to end early.
                if t % 8 == 7 and bool((over_B | dead_B).all()):
                    break
        if t + 1 < steps:
            rows_N = (first_B[:, None] * lanes + parents_BR).flatten()
            state, choices = state.select(rows_N), choices.select(rows_N).advance(tokens_BR.flatten())

    beams = Beams(
        torch.stack([s.tokens_BJ for s in history]),
        torch.stack([s.parents_BJ for s in history]),
        torch.stack([s.ranks_BJ for s in history]),
    )
    violations = None if gold is None else _violations(beams, verdicts, gold, beam_size)
    return _result(beams, finished, total_BK, dead_B, violations, n_best=n_best, open_length=stop is not None)


def _masked(
    ranks_BKC: Float[Tensor, "B K C"], allowed_NC: Bool[Tensor, "N C"], beam_size: int
) -> Float[Tensor, "B K C"]:
    """Minus infinity for successors that are not valid. A mask of one row holds for all."""
    if allowed_NC.shape[0] == 1:
        return ranks_BKC.masked_fill(~allowed_NC[None], NEVER)
    allowed_BRC = allowed_NC.view(ranks_BKC.shape[0], -1, allowed_NC.shape[1])
    return ranks_BKC.masked_fill(~allowed_BRC[:, :beam_size], NEVER)


def _best(ranks_BKC: Tensor, candidates_BC: Tensor | None, *, kept: int) -> _Successors:
    """The best successors of all rows: first within each row, then across them."""
    per_row = min(kept, ranks_BKC.shape[2])
    row_ranks_BKP, row_columns_BKP = ranks_BKC.topk(per_row, dim=2)
    flat_ranks_BX, flat_columns_BX = row_ranks_BKP.flatten(1), row_columns_BKP.flatten(1)
    if flat_ranks_BX.shape[1] < kept:  # fewer candidates than places: the rest are empty
        flat_ranks_BX = torch.nn.functional.pad(flat_ranks_BX, (0, kept - flat_ranks_BX.shape[1]), value=NEVER)
        flat_columns_BX = torch.nn.functional.pad(flat_columns_BX, (0, kept - flat_columns_BX.shape[1]))
    ranks_BJ, places_BJ = flat_ranks_BX.topk(kept, dim=1)
    columns_BJ = flat_columns_BX.gather(1, places_BJ)
    tokens_BJ = columns_BJ if candidates_BC is None else candidates_BC.gather(1, columns_BJ)
    # Worked example, K = 3 rows with P = 2 each: places [0, 1, 5] have parents [0, 0, 2].
    parents_BJ = (places_BJ // per_row).clamp(max=ranks_BKC.shape[1] - 1)
    return _Successors(parents_BJ, tokens_BJ, ranks_BJ)


def _frozen(found: _Successors, total_BK: Tensor, still_B: Tensor) -> _Successors:
    """Sentences that are over keep their beam: every row is its own parent, PAD its newest word."""
    kept = found.parents_BJ.shape[1]
    own_J = torch.arange(kept, device=total_BK.device).clamp(max=total_BK.shape[1] - 1)
    total_BJ = torch.nn.functional.pad(total_BK, (0, kept - total_BK.shape[1]), value=NEVER)
    still_B1 = still_B[:, None]
    return _Successors(
        torch.where(still_B1, own_J, found.parents_BJ),
        found.tokens_BJ.masked_fill(still_B1, PAD),
        torch.where(still_B1, total_BJ, found.ranks_BJ),
    )


def _score_of(word_B: Tensor, words_BC: Tensor, candidates_BC: Tensor | None) -> Tensor:
    """The score of one word per sentence. Columns that list the same word have the same score."""
    if candidates_BC is None:
        return words_BC.gather(1, word_B[:, None])[:, 0]
    return words_BC.masked_fill(candidates_BC != word_B[:, None], NEVER).amax(1)


def _judge(
    found: _Successors,
    is_gold_BK: Tensor,
    gold_B: Tensor,
    gold_rank_B: Tensor,
    active_B: Tensor,
    last_B: Tensor,
    beam_size: int,
    policy: Restart,
    stop: Stop | None,
) -> _Verdict:
    """The rival and whether it violates the margin (Wiseman & Rush 2016, section 4.1, and its Algorithm 1)."""
    # A successor is gold if its parent was and its newest word is; one token alone does not tell.
    is_gold_BJ = is_gold_BK.gather(1, found.parents_BJ) & (found.tokens_BJ == gold_B[:, None])
    is_gold_BJ = is_gold_BJ & (found.ranks_BJ > NEVER)
    best_wrong_B = is_gold_BJ[:, 0].long()  # 1 if gold is first, else 0
    rival_B = torch.where(last_B, best_wrong_B, beam_size - 1)
    ended_violates_B = torch.zeros_like(last_B)
    if stop is not None and stop.ended_gives_up_place:
        # An ended prefix that comes too near to gold would end the search: it is the rival before the K-th is.
        ended_BK = (found.tokens_BJ == EOS)[:, :beam_size]
        ended_ranks_BK = found.ranks_BJ[:, :beam_size].masked_fill(~ended_BK, NEVER)
        ended_rank_B, ended_B = ended_ranks_BK.max(1)
        ended_violates_B = ~last_B & (gold_rank_B < ended_rank_B + policy.margin)
        rival_B = torch.where(ended_violates_B, ended_B, rival_B)
    rival_rank_B = found.ranks_BJ.gather(1, rival_B[:, None])[:, 0]
    return _Verdict(
        violation_B=active_B & (gold_rank_B < rival_rank_B + policy.margin),
        rival_B=rival_B,
        is_gold_BJ=is_gold_BJ,
        rival_ended_B=ended_violates_B,
        gold_rank_B=gold_rank_B,
        rival_rank_B=rival_rank_B,
    )


def _violations(beams: Beams, verdicts: list[_Verdict], gold: Gold, beam_size: int) -> Violations:
    """Read every rival's words back through its parents, from its violation to the restart before it."""
    violation_TB = torch.stack([v.violation_B for v in verdicts])
    rivals_TB: list[Tensor] = []
    is_rival_TB: list[Tensor] = []
    place_B = torch.zeros_like(verdicts[0].rival_B)
    on_B = torch.zeros_like(verdicts[0].violation_B)
    for t in reversed(range(len(verdicts))):
        place_B = torch.where(violation_TB[t], verdicts[t].rival_B, place_B)
        on_B = on_B | violation_TB[t]
        word_B = beams.tokens_TBJ[t].gather(1, place_B[:, None])[:, 0]
        rivals_TB.append(torch.where(on_B, word_B, gold.tokens_BT[:, t]))
        place_B = beams.parents_TBJ[t].gather(1, place_B[:, None])[:, 0]
        is_rival_TB.append(verdicts[t].is_gold_BJ.gather(1, verdicts[t].rival_B[:, None])[:, 0])
    violation_BT = violation_TB.T
    last_B = (gold.length_B - 1).clamp(min=0)
    on_beam_TB = torch.stack([v.is_gold_BJ[:, :beam_size].any(1) for v in verdicts])
    return Violations(
        violation_BT=violation_BT,
        rival_BT=torch.stack(rivals_TB[::-1], 1),
        rival_is_gold_BT=torch.stack(is_rival_TB[::-1], 1) & violation_BT,
        rival_ended_BT=torch.stack([v.rival_ended_B for v in verdicts], 1) & violation_BT,
        gold_score_BT=torch.stack([v.gold_rank_B for v in verdicts], 1),
        rival_score_BT=torch.stack([v.rival_rank_B for v in verdicts], 1),
        gold_on_beam_B=on_beam_TB.gather(0, last_B[None])[0],
    )


def _result(
    beams: Beams,
    finished: Finished,
    total_BK: Tensor,
    dead_B: Tensor,
    violations: Violations | None,
    *,
    n_best: int,
    open_length: bool,
) -> SearchResult:
    """The finished sequences; where there are none, the final beam: all of it at fixed length, else its top."""
    steps = beams.tokens_TBJ.shape[0]
    rank_BN, places_BN = total_BK.topk(min(n_best, total_BK.shape[1]), dim=1)
    time_BN = torch.full_like(places_BN, steps - 1)
    ended_BN = ~dead_B[:, None] & (rank_BN > NEVER)
    if open_length:
        none_B1 = (finished.rank_BN > NEVER).sum(1, keepdim=True) == 0
        top_B1 = none_B1 & (torch.arange(n_best, device=dead_B.device) == 0)
        pad = (0, n_best - places_BN.shape[1])
        live_rank_BN = torch.nn.functional.pad(rank_BN, pad, value=NEVER)
        ended_BN = finished.rank_BN > NEVER
        rank_BN = torch.where(top_B1, live_rank_BN, finished.rank_BN)
        places_BN = torch.where(top_B1, torch.nn.functional.pad(places_BN, pad), finished.place_BN)
        time_BN = torch.where(top_B1, steps - 1, finished.time_BN)
    words: list[Tensor] = []
    for t in reversed(range(steps)):
        word_BN = beams.tokens_TBJ[t].gather(1, places_BN)
        words.append(word_BN.masked_fill((t > time_BN) | (rank_BN == NEVER), PAD))
        places_BN = torch.where(t <= time_BN, beams.parents_TBJ[t].gather(1, places_BN), places_BN)
    tokens_BNT = torch.stack(words[::-1], 2)
    return SearchResult(
        tokens_BNT=tokens_BNT,
        rank_BN=rank_BN,
        length_BN=(tokens_BNT != PAD).sum(2),
        finished_BN=ended_BN,
        dead_B=dead_B,
        beams=beams,
        violations=violations,
    )
