"""The beam search. There is one: greedy is beam 1, and constraints, gold sequences and stop rules are arguments.

It runs without gradient. A loss replays, with gradient, the little it needs of what was found here.
Letters: B sentences, K beam, R = K rows per sentence (K + 1 with gold), C candidates, J successors kept, T steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.beams import Beam, Beams, Found, SearchResult, Verdict, Violations, read_result, rival_words
from argbeam.live import first_step, live_rows
from argbeam.models.contract import Lists, Model
from argbeam.policies import Gold, Policy
from argbeam.rules import NEVER, Finished, ScoreRule, Stop
from argbeam.selection import best_live_successors, best_successors, live_words, live_worth_of, of_beam, worth_of
from argbeam.shortcuts import advanced, kernel_fits, kernel_step, step_from
from argbeam.state import State
from argbeam.successors import Choices
from argbeam.vocabulary import EOS, PAD

# Steps between two looks at whether all sentences are over. Each look costs a round trip to the device.
_LOOK_EVERY = 8


@dataclass(frozen=True)
class Pause:
    """A point at which a search may end, and what it has found if it does.

    `over` says, on the device, that no sentence goes on; it is None where no step is left.
    """

    over: Bool[Tensor, ""] | None
    result: Callable[[], SearchResult]


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
    end_early: bool = True,
) -> SearchResult:
    """Search from the states and choices of the empty prefixes, one row per sentence.

    `length_B` is the exact length in tasks of fixed length (no `stop`), the limit in tasks of open length; `steps` is
    at least its maximum, known without asking the device. With `gold` this is the training search of section 4.
    `end_early` looks at the device every few steps, which a training step must not do.
    """
    pauses = searching(
        model,
        state,
        choices,
        beam_size=beam_size,
        length_B=length_B,
        steps=steps,
        rule=rule,
        stop=stop,
        gold=gold,
        n_best=n_best,
        end_early=end_early,
    )
    return next(pause.result() for pause in pauses if pause.over is None or bool(pause.over))


def searching(
    model: Model,
    state: State,
    choices: Choices,
    *,
    beam_size: int,
    length_B: Int[Tensor, " B"],
    steps: int,
    rule: ScoreRule,
    stop: Stop | None,
    gold: Gold | None,
    n_best: int,
    end_early: bool,
) -> Iterator[Pause]:
    """The search of `beam_search`, which goes on from pause to pause as it is asked to; the last one is its end.

    Who asks sees to it that no gradient is kept.
    """
    batch, device = length_B.shape[0], length_B.device
    lanes = beam_size + (gold is not None)  # the gold prefix rides along as the last row
    # The last step's rival is the best wrong sequence: the second best of all where gold is the best.
    kept = max(beam_size, 2) if gold is not None else beam_size
    first_row_B1 = (torch.arange(batch, device=device) * lanes)[:, None]
    gold_row_B1 = torch.full_like(first_row_B1, beam_size)
    only_first_K = torch.arange(beam_size, device=device) == 0

    rows_N = torch.arange(batch * lanes, device=device) // lanes
    state, choices = first_step(model, state, rows_N, sentences=batch), choices.select(rows_N)
    alone_K = torch.zeros_like(only_first_K, dtype=model.output(state).dtype).masked_fill(~only_first_K, NEVER)
    nothing_BK = torch.zeros_like(rows_N).view(batch, lanes)[:, :beam_size]
    beam = Beam(nothing_BK, nothing_BK, alone_K.expand(batch, -1), only_first_K.expand(batch, -1))
    gold_total_B1 = torch.zeros_like(beam.total_BK[:, :1])
    over_B = dead_B = torch.zeros_like(length_B, dtype=torch.bool)
    finished = Finished.empty(batch, n_best, like=beam.total_BK)
    active_TB = torch.arange(steps, device=device)[:, None] < length_B
    last_TB = torch.arange(1, steps + 1, device=device)[:, None] == length_B
    # The rival is the best wrong prefix at the last step, and without restarts at every step.
    restarts = gold is not None and gold.policy.restarts
    best_wrong_TB = last_TB if restarts else torch.ones_like(last_TB)
    history: list[Found] = []
    verdicts: list[Verdict] = []
    read = partial(_result, gold=gold, stop=stop, n_best=n_best)

    scorer = model
    if choices.candidates_BC is not None and isinstance(model, Lists):
        scorer = model.listed(choices.candidates_BC)

    live = live_rows(beam, active_TB[0], over_B, dead_B, lanes=lanes)
    for t in range(steps):
        output_BRH = model.output(state).view(batch, lanes, -1)
        gold_B = None if gold is None else gold.tokens_BT[:, t]
        gold_word_B = None
        if live is not None and choices.candidates_BC is None:
            words_XV = live_words(rule, scorer, output_BRH, live)
            found = best_live_successors(rule, beam, words_XV, choices.allowed(), live, kept=kept)
            if gold_B is not None:
                gold_word_B = live_worth_of(gold_B, rule, scorer, output_BRH, words_XV, live)
        else:
            words_BRC = rule.words(scorer, output_BRH, choices.candidates_BC)
            if gold is not None and gold_B is not None and kernel_fits(rule, words_BRC, beam_size, kept):
                found, verdict, beam, rows_N, tokens_N = kernel_step(
                    rule,
                    beam,
                    words_BRC,
                    choices,
                    gold.policy,
                    gold_B,
                    gold_total_B1,
                    active_TB[t],
                    best_wrong_TB[t],
                    stop,
                    kept=kept,
                )
                gold_total_B1 = verdict.gold_rank_B[:, None]
                verdicts.append(verdict)
                history.append(found)
                if t + 1 < steps:
                    choices = advanced(choices, rows_N, tokens_N)
                    state = step_from(model, state, rows_N, tokens_N, None)
                continue
            allowed_BKC = of_beam(choices.allowed(), batch, beam_size)
            found = best_successors(rule, beam, words_BRC[:, :beam_size], allowed_BKC, choices.candidates_BC, kept=kept)
            if gold_B is not None:
                gold_word_B = worth_of(gold_B, words_BRC[:, -1], choices.candidates_BC)
            del words_BRC  # a search may pause for long, and this is the widest of its tensors
        if gold is not None and gold_B is not None and gold_word_B is not None:
            gold_total_B1 = rule.rank(gold_total_B1, gold_word_B[:, None, None])[:, :, 0]
            verdict = _judge(
                found, beam, gold_B, gold_total_B1[:, 0], active_TB[t], best_wrong_TB[t], gold.policy, stop
            )
            verdicts.append(verdict)
            beam = _going_on(found, verdict, beam_size)
            if restarts:
                beam = _restarted(beam, verdict, gold_B, alone_K, only_first_K)
            if stop is not None and stop.ended_gives_up_place:
                beam = _without_ended(beam, beam.tokens_BK == EOS)
            parents_BR = torch.cat([beam.parents_BK, gold_row_B1], 1)
            tokens_BR = torch.cat([beam.tokens_BK, gold_B[:, None]], 1)
        else:
            active_B = active_TB[t] & ~over_B & ~dead_B
            dead_B = dead_B | (active_B & (found.ranks_BJ[:, 0] == NEVER))
            active_B = active_B & ~dead_B
            found = _frozen(found, beam.total_BK, ~active_B)
            beam = Beam(found.parents_BJ, found.tokens_BJ, found.ranks_BJ, beam.is_gold_BK)
            parents_BR, tokens_BR = beam.parents_BK, beam.tokens_BK
            if stop is not None:
                ended_BK = (beam.tokens_BK == EOS) & active_B[:, None] & (beam.total_BK > NEVER)
                rank_BK = rule.finished(beam.total_BK, t + 1)
                finished = finished.add(stop.priority(rule, beam.total_BK, ended_BK, t), rank_BK, t)
                beam = _without_ended(beam, ended_BK)
                over_B = over_B | finished.over(stop, rule, beam.total_BK, length_B)
        history.append(found)
        if end_early and gold is None and stop is not None and (t + 1) % _LOOK_EVERY == 0 and t + 1 < steps:
            over = (over_B | dead_B | (length_B <= t + 1)).all()
            yield Pause(over, partial(read, tuple(history), (), finished, beam.total_BK, dead_B))
        if t + 1 < steps:
            rows_N = (first_row_B1 + parents_BR).flatten()
            choices = advanced(choices, rows_N, tokens_BR.flatten())
            live = live_rows(beam, active_TB[t + 1], over_B, dead_B, lanes=lanes)
            state = step_from(model, state, rows_N, tokens_BR.flatten(), live)

    yield Pause(None, partial(read, history, verdicts, finished, beam.total_BK, dead_B))


def _result(
    history: Sequence[Found],
    verdicts: Sequence[Verdict],
    finished: Finished,
    total_BK: Tensor,
    dead_B: Tensor,
    *,
    gold: Gold | None,
    stop: Stop | None,
    n_best: int,
) -> SearchResult:
    """What was found in all steps up to now; the beam's prefixes rank by `total_BK`."""
    beams = Beams(
        torch.stack([found.tokens_BJ for found in history]),
        torch.stack([found.parents_BJ for found in history]),
        torch.stack([found.ranks_BJ for found in history]),
    )
    violations = None if gold is None else _violations(beams, verdicts, gold, total_BK.shape[1], stop)
    open_length = stop is not None and gold is None
    return read_result(beams, finished, total_BK, dead_B, violations, n_best=n_best, open_length=open_length)


def _frozen(found: Found, total_BK: Tensor, still_B: Tensor) -> Found:
    """Sentences that are over keep their beam: every row is its own parent, PAD its newest word."""
    own_K = torch.arange(total_BK.shape[1], device=total_BK.device)
    still_B1 = still_B[:, None]
    return Found(
        torch.where(still_B1, own_K, found.parents_BJ),
        found.tokens_BJ.masked_fill(still_B1, PAD),
        torch.where(still_B1, total_BK, found.ranks_BJ),
    )


def _judge(
    found: Found,
    beam: Beam,
    gold_B: Tensor,
    gold_rank_B: Tensor,
    active_B: Tensor,
    best_wrong_B: Tensor,
    policy: Policy,
    stop: Stop | None,
) -> Verdict:
    """The rival and whether it violates the margin (Wiseman & Rush 2016, section 4.2, and its Algorithm 1)."""
    beam_size = beam.total_BK.shape[1]
    # A successor is gold if its parent was and its newest word is; one token alone does not tell.
    is_gold_BJ = beam.is_gold_BK.gather(1, found.parents_BJ) & (found.tokens_BJ == gold_B[:, None])
    first_wrong_B = is_gold_BJ[:, 0].long()  # place 1 if gold is first, else place 0
    rival_B = torch.where(best_wrong_B, first_wrong_B, beam_size - 1)
    ended_violates_B = torch.zeros_like(best_wrong_B)
    if stop is not None and stop.ended_gives_up_place:
        # An ended prefix that comes too near to gold would end the search: it is the rival before the K-th is.
        ended_BK = found.tokens_BJ[:, :beam_size] == EOS
        ended_rank_B, ended_B = found.ranks_BJ[:, :beam_size].masked_fill(~ended_BK, NEVER).max(1)
        ended_violates_B = ~best_wrong_B & (gold_rank_B < ended_rank_B + policy.margin)
        rival_B = torch.where(ended_violates_B, ended_B, rival_B)
    rival_rank_B = found.ranks_BJ.gather(1, rival_B[:, None])[:, 0]
    violation_B = active_B & (gold_rank_B < rival_rank_B + policy.margin)
    return Verdict(violation_B, rival_B, rival_rank_B, ended_violates_B, is_gold_BJ, gold_rank_B)


def _going_on(found: Found, verdict: Verdict, beam_size: int) -> Beam:
    """The beam after a step: the K best successors, gold among them or not."""
    return Beam(
        found.parents_BJ[:, :beam_size],
        found.tokens_BJ[:, :beam_size],
        found.ranks_BJ[:, :beam_size],
        verdict.is_gold_BJ[:, :beam_size],
    )


def _restarted(beam: Beam, verdict: Verdict, gold_B: Tensor, alone_K: Tensor, only_first_K: Tensor) -> Beam:
    """After a violation the gold prefix in row 0 and nothing else; the beam as it is where there is none."""
    restart_B1 = verdict.violation_B[:, None]
    return Beam(
        parents_BK=torch.where(restart_B1, alone_K.shape[0], beam.parents_BK),
        tokens_BK=torch.where(restart_B1, gold_B[:, None], beam.tokens_BK),
        total_BK=torch.where(restart_B1, verdict.gold_rank_B[:, None] + alone_K, beam.total_BK),
        is_gold_BK=torch.where(restart_B1, only_first_K, beam.is_gold_BK),
    )


def _without_ended(beam: Beam, ended_BK: Tensor) -> Beam:
    """An ended prefix never continues and gives its place up."""
    total_BK = beam.total_BK.masked_fill(ended_BK, NEVER)
    return Beam(beam.parents_BK, beam.tokens_BK, total_BK, beam.is_gold_BK)


def _violations(beams: Beams, verdicts: Sequence[Verdict], gold: Gold, beam_size: int, stop: Stop | None) -> Violations:
    """All verdicts together, those that the policy trains on, and their rivals' words."""
    gold_score_TB = torch.stack([v.gold_rank_B for v in verdicts])
    rival_score_TB = torch.stack([v.rival_rank_B for v in verdicts])
    rival_TB = torch.stack([v.rival_B for v in verdicts])
    rival_ended_TB = torch.stack([v.rival_ended_B for v in verdicts])
    is_gold_TBJ = torch.stack([v.is_gold_BJ for v in verdicts]) & (beams.ranks_TBJ > NEVER)
    rival_is_gold_TB = is_gold_TBJ.gather(2, rival_TB[..., None])[..., 0]
    on_beam_TB = is_gold_TBJ[:, :, :beam_size].any(2)
    last_B = stop_B = (gold.length_B - 1).clamp(min=0)
    if not gold.policy.restarts:
        lost_TB = ~on_beam_TB
        if stop is not None and stop.ended_gives_up_place:
            before_last_TB = torch.arange(len(verdicts), device=last_B.device)[:, None] < last_B
            ended_TBJ = (beams.tokens_TBJ == EOS) & before_last_TB[..., None]
            rival_ended_TB = ended_TBJ.gather(2, rival_TB[..., None])[..., 0]
            lost_TB = lost_TB | ended_TBJ[:, :, 0]  # decoding would end here
        stop_B = torch.minimum((~lost_TB).long().cumprod(0).sum(0), last_B)
    violation_TB = torch.stack([v.violation_B for v in verdicts])
    violation_TB = gold.policy.trained(violation_TB, rival_score_TB - gold_score_TB, stop_B)
    return Violations(
        violation_BT=violation_TB.T,
        rival_BT=rival_words(beams, gold.tokens_BT, violation_TB, rival_TB),
        rival_is_gold_BT=(rival_is_gold_TB & violation_TB).T,
        rival_ended_BT=(rival_ended_TB & violation_TB).T,
        gold_score_BT=gold_score_TB.T,
        rival_score_BT=rival_score_TB.T,
        gold_on_beam_B=on_beam_TB.gather(0, last_B[None])[0],
        stop_B=stop_B,
    )
