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

from argbeam.data.batches import Batch
from argbeam.data.vocabulary import EOS, PAD
from argbeam.models.contract import Model, Scorer, Shortcuts
from argbeam.models.state import State
from argbeam.search.fused_step import advanced, kernel_fits, kernel_step, step_from
from argbeam.search.gold import Gold, GoldStep, violations_of
from argbeam.search.live_rows import first_step, live_rows
from argbeam.search.result import Beam, Beams, Found, SearchResult, Verdict, read_result
from argbeam.search.score_rules import NEVER, ScoreRule
from argbeam.search.stop_rules import Finished, Stop
from argbeam.search.successors import Choices, Successors
from argbeam.search.top_k import AllWords, LiveWords, score_words

# Steps between two looks at whether all sentences are over. Each look costs a round trip to the device.
_LOOK_EVERY = 8


@dataclass(frozen=True)
class SearchSettings:
    """How to search, whatever the model and the sentences.

    Outputs have a fixed length without `stop`. `end_early` asks the device every few steps whether all sentences are
    over, which a training step must not do.
    """

    beam_size: int
    rule: ScoreRule
    stop: Stop | None = None
    n_best: int = 1
    end_early: bool = True


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
    settings = SearchSettings(beam_size, rule, stop, n_best, end_early)
    return result_of(search_in_parts(model, state, choices, settings, length_B=length_B, steps=steps, gold=gold))


@dataclass(frozen=True)
class Search:
    """A search without gold, complete but for the sentences."""

    model: Model
    successors: Successors
    settings: SearchSettings

    @torch.no_grad()
    def __call__(self, batch: Batch, length_B: Int[Tensor, " B"], *, steps: int) -> SearchResult:
        """`beam_search`, from the sources on."""
        return result_of(self.parts(batch, length_B, steps=steps))

    def parts(self, batch: Batch, length_B: Int[Tensor, " B"], *, steps: int) -> Iterator[Pause]:
        """The same in parts; the encoder belongs to the first."""
        state, choices = self.model.encode(batch, None), self.successors.start(batch)
        yield from search_in_parts(self.model, state, choices, self.settings, length_B=length_B, steps=steps)


def result_of(pauses: Iterator[Pause]) -> SearchResult:
    """The result at the first pause at which the search is over."""
    return next(pause.result() for pause in pauses if pause.over is None or bool(pause.over))


def search_in_parts(
    model: Model,
    state: State,
    choices: Choices,
    settings: SearchSettings,
    *,
    length_B: Int[Tensor, " B"],
    steps: int,
    gold: Gold | None = None,
) -> Iterator[Pause]:
    """Generator form of `beam_search`: yields a `Pause` every 8 steps and one at the end (`over=None`).

    Call it under `torch.no_grad()`.
    """
    beam_size, rule, stop, n_best = settings.beam_size, settings.rule, settings.stop, settings.n_best
    batch, device = length_B.shape[0], length_B.device
    lanes = beam_size + (gold is not None)  # the gold prefix rides along as the last row
    # The last step's rival is the best wrong sequence: the second best of all where gold is the best.
    kept = max(beam_size, 2) if gold is not None else beam_size
    rows_N = torch.arange(batch * lanes, device=device) // lanes
    state, choices = first_step(model, state, rows_N, sentences=batch), choices.select(rows_N)
    beam = start = _only_the_empty_prefix(batch, beam_size, like=model.output(state))
    gold_total_B = torch.zeros_like(beam.total_BK[:, 0])
    over_B = dead_B = torch.zeros_like(length_B, dtype=torch.bool)
    finished = Finished.empty(batch, n_best, like=beam.total_BK)
    active_TB = torch.arange(steps, device=device)[:, None] < length_B
    last_TB = torch.arange(1, steps + 1, device=device)[:, None] == length_B
    # The rival is the best wrong prefix at the last step, and without restarts at every step.
    best_wrong_TB = last_TB if gold is not None and gold.policy.restarts else torch.ones_like(last_TB)
    history: list[Found] = []
    verdicts: list[Verdict] = []
    read = partial(_result, gold=gold, stop=stop, n_best=n_best)

    scorer: Scorer = model
    if choices.candidates_BC is not None and isinstance(model, Shortcuts):
        scorer = model.scorer_of(choices.candidates_BC)

    live = live_rows(beam, active_TB[0], over_B, dead_B, lanes=lanes)
    for t in range(steps):
        output_BRH = model.output(state).view(batch, lanes, -1)
        words = score_words(rule, scorer, output_BRH, choices.candidates_BC, live)
        allowed_NC = choices.allowed()
        if gold is not None:
            here = GoldStep(gold.policy, stop, gold.tokens_BT[:, t], gold_total_B, active_TB[t], best_wrong_TB[t])
            if kernel_fits(words, beam_size, kept):
                found, verdict, beam, rows_N, tokens_N = kernel_step(beam, words, allowed_NC, here, kept=kept)
            else:
                found, verdict, beam, rows_N, tokens_N = gold_step(beam, words, allowed_NC, here, start, kept=kept)
            gold_total_B = verdict.gold_rank_B
            verdicts.append(verdict)
        else:
            found = words.best_successors(beam, allowed_NC, kept=kept)
            active_B = active_TB[t] & ~over_B & ~dead_B
            dead_B = dead_B | (active_B & (found.ranks_BJ[:, 0] == NEVER))
            active_B = active_B & ~dead_B
            found = _frozen(found, beam.total_BK, ~active_B)
            beam = Beam(found.parents_BJ, found.tokens_BJ, found.ranks_BJ, beam.is_gold_BK)
            rows_N, tokens_N = _rows(beam.parents_BK), beam.tokens_BK.flatten()
            if stop is not None:
                ended_BK = (beam.tokens_BK == EOS) & active_B[:, None] & (beam.total_BK > NEVER)
                rank_BK = rule.finished(beam.total_BK, t + 1)
                finished = finished.add(stop.priority(rule, beam.total_BK, ended_BK, t), rank_BK, t)
                beam = _without_ended(beam, ended_BK)
                over_B = over_B | finished.over(stop, rule, beam.total_BK, length_B)
        history.append(found)
        del words  # a search may pause for long, and this is the widest of its tensors
        if settings.end_early and gold is None and stop is not None and (t + 1) % _LOOK_EVERY == 0 and t + 1 < steps:
            over = (over_B | dead_B | (length_B <= t + 1)).all()
            yield Pause(over, partial(read, tuple(history), (), finished, beam.total_BK, dead_B))
        if t + 1 < steps:
            choices = advanced(choices, rows_N, tokens_N)
            live = live_rows(beam, active_TB[t + 1], over_B, dead_B, lanes=lanes)
            state = step_from(model, state, rows_N, tokens_N, live)

    yield Pause(None, partial(read, history, verdicts, finished, beam.total_BK, dead_B))


def gold_step(
    beam: Beam,
    words: AllWords | LiveWords,
    allowed_NC: Bool[Tensor, "N C"],
    gold: GoldStep,
    start: Beam,
    *,
    kept: int,
) -> tuple[Found, Verdict, Beam, Tensor, Tensor]:
    """One step of the training search (Wiseman & Rush 2016, section 4.2): successors, rival, verdict, restart.

    Returns what was found and judged, the next beam, and for each row of it, gold's last, the row it goes on from and
    its newest word. `start` is the beam of the empty prefix.
    """
    beam_size = beam.total_BK.shape[1]
    found = words.best_successors(beam, allowed_NC, kept=kept)
    gold_word_B = words.in_last_row(gold.word_B)
    verdict = _judge(found, beam, gold, words.rule.rank(gold.total_B[:, None], gold_word_B[:, None, None])[:, 0, 0])
    beam = Beam(
        found.parents_BJ[:, :beam_size],
        found.tokens_BJ[:, :beam_size],
        found.ranks_BJ[:, :beam_size],
        verdict.is_gold_BJ[:, :beam_size],
    )
    if gold.policy.restarts:
        beam = _restarted(beam, verdict, gold.word_B, start)
    if gold.ended_gives_up_place:
        beam = _without_ended(beam, beam.tokens_BK == EOS)
    gold_row_B1 = torch.full_like(beam.parents_BK[:, :1], beam_size)
    rows_N = _rows(torch.cat([beam.parents_BK, gold_row_B1], 1))
    return found, verdict, beam, rows_N, torch.cat([beam.tokens_BK, gold.word_B[:, None]], 1).flatten()


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
    violations = None
    if gold is not None:
        violations = violations_of(beams, verdicts, gold, beam_size=total_BK.shape[1], stop=stop)
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


def _judge(found: Found, beam: Beam, gold: GoldStep, gold_rank_B: Tensor) -> Verdict:
    """The rival, and whether it violates the margin."""
    beam_size = beam.total_BK.shape[1]
    # A successor is gold if its parent was and its newest word is; one token alone does not tell.
    is_gold_BJ = beam.is_gold_BK.gather(1, found.parents_BJ) & (found.tokens_BJ == gold.word_B[:, None])
    first_wrong_B = is_gold_BJ[:, 0].long()  # place 1 if gold is first, else place 0
    rival_B = torch.where(gold.best_wrong_B, first_wrong_B, beam_size - 1)
    ended_violates_B = torch.zeros_like(gold.best_wrong_B)
    if gold.ended_gives_up_place:
        # An ended prefix that comes too near to gold would end the search: it is the rival before the K-th is.
        ended_BK = found.tokens_BJ[:, :beam_size] == EOS
        ended_rank_B, ended_B = found.ranks_BJ[:, :beam_size].masked_fill(~ended_BK, NEVER).max(1)
        ended_violates_B = ~gold.best_wrong_B & (gold_rank_B < ended_rank_B + gold.policy.margin)
        rival_B = torch.where(ended_violates_B, ended_B, rival_B)
    rival_rank_B = found.ranks_BJ.gather(1, rival_B[:, None])[:, 0]
    violation_B = gold.active_B & (gold_rank_B < rival_rank_B + gold.policy.margin)
    return Verdict(violation_B, rival_B, rival_rank_B, ended_violates_B, is_gold_BJ, gold_rank_B)


def _restarted(beam: Beam, verdict: Verdict, gold_B: Tensor, start: Beam) -> Beam:
    """After a violation the gold prefix in row 0 and nothing else; the beam as it is where there is none."""
    restart_B1 = verdict.violation_B[:, None]
    return Beam(
        parents_BK=torch.where(restart_B1, beam.total_BK.shape[1], beam.parents_BK),  # gold's row is behind the beam's
        tokens_BK=torch.where(restart_B1, gold_B[:, None], beam.tokens_BK),
        total_BK=torch.where(restart_B1, verdict.gold_rank_B[:, None] + start.total_BK, beam.total_BK),
        is_gold_BK=torch.where(restart_B1, start.is_gold_BK, beam.is_gold_BK),
    )


def _only_the_empty_prefix(batch: int, beam_size: int, *, like: Tensor) -> Beam:
    """Row 0 holds the empty prefix, which is gold's too; the others hold nothing."""
    nothing_BK = torch.zeros(batch, beam_size, dtype=torch.int64, device=like.device)
    first_BK = (torch.arange(beam_size, device=like.device) == 0).expand(batch, -1)
    return Beam(
        nothing_BK, nothing_BK, torch.zeros_like(first_BK, dtype=like.dtype).masked_fill(~first_BK, NEVER), first_BK
    )


def _rows(parents_BR: Int[Tensor, "B R"]) -> Int[Tensor, " N"]:
    """The rows of parents that are counted within their sentence."""
    batch, lanes = parents_BR.shape
    return (lanes * torch.arange(batch, device=parents_BR.device)[:, None] + parents_BR).flatten()


def _without_ended(beam: Beam, ended_BK: Tensor) -> Beam:
    """An ended prefix never continues and gives its place up."""
    total_BK = beam.total_BK.masked_fill(ended_BK, NEVER)
    return Beam(beam.parents_BK, beam.tokens_BK, total_BK, beam.is_gold_BK)
