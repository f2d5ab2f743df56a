"""The beam search. There is one: greedy is beam 1, and constraints, gold sequences and stop rules are arguments.

It runs without gradient: a loss replays with gradient the few tokens that it needs.
Letters: B sentences, K beam, R = K rows per sentence (K + 1 with gold), C candidates, J successors kept, T steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.data.vocabulary import STANDARD, SpecialTokens
from argbeam.errors import ConfigError
from argbeam.models.contract import Model, Scorer, Shortcuts
from argbeam.models.state import State
from argbeam.runtime import device as devices
from argbeam.search.fused_step import kernel_fits, kernel_step
from argbeam.search.gold import Gold, Verdict, gold_step, gold_tokens, violations_of
from argbeam.search.live_rows import first_state, live_rows, next_state
from argbeam.search.recorder import StepSeen
from argbeam.search.result import (
    Beam,
    Beams,
    SearchResult,
    SearchStep,
    StepMemory,
    TopSuccessors,
    prefix_tokens,
    stacked,
)
from argbeam.search.score_rules import NEVER, ScoreRule
from argbeam.search.stop_rules import Endings, Finished, Stop, ended_last
from argbeam.search.successors import AdvancesFrom, Choices, Successors, check_end_symbol
from argbeam.search.top_k import TokenScores, score_successors

# Steps between two looks at whether all sentences are over. Each look costs a round trip to the device.
_LOOK_EVERY = 8


@dataclass(frozen=True)
class SearchSettings:
    """How to search, whatever the model and the sentences.

    Outputs have a fixed length without `stop`. At most `n_best` outputs are returned, and at most the beam. `end_early`
    asks the device every few steps whether all sentences are over, which a training step must not do. `specials` are
    those of the target vocabulary: a batch and a task have them.
    """

    beam_size: int
    rule: ScoreRule
    stop: Stop | None = None
    n_best: int = 1
    end_early: bool = True
    specials: SpecialTokens = STANDARD

    def __post_init__(self) -> None:
        if self.beam_size < 1 or self.n_best < 0:
            raise ConfigError(f"beam {self.beam_size}, n_best {self.n_best}: a beam is at least 1, n_best at least 0")

    @property
    def outputs(self) -> int:
        """The most outputs that are returned for a sentence."""
        return min(self.n_best, self.beam_size)


@dataclass(frozen=True)
class Pause:
    """A point at which a search may end. `over`, on the device: all sentences are over; None: no step is left."""

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
    specials: SpecialTokens = STANDARD,
) -> SearchResult:
    """Search from the states and choices of the empty prefixes, one row per sentence.

    `length_B` is the exact length in tasks of fixed length (no `stop`), the limit in tasks of open length; `steps` is
    at least its maximum, known without asking the device. With `gold` this is the training search of Wiseman & Rush
    2016, section 4. The other arguments are those of `SearchSettings`.
    """
    settings = SearchSettings(beam_size, rule, stop, n_best, end_early, specials)
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
    watch: Callable[[StepSeen], None] | None = None,
) -> Iterator[Pause]:
    """Generator form of `beam_search`: a `Pause` every 8 steps and one at the end. Call it under `torch.no_grad()`.

    `watch` is called after every step.
    """
    check_end_symbol(choices, open_length=settings.stop is not None)
    if steps < 1:
        raise ConfigError(f"steps = {steps}: must be at least 1, and at least the longest of length_B")
    if gold is not None and settings.rule.valid_only:
        raise ConfigError(f"{settings.rule.name} in a search with gold: it is for decoding; logprob_sum is accepted")
    batch, on_host = length_B.shape[0], devices.host_may_look(length_B)
    if on_host and batch and steps < int(length_B.max()):
        raise ConfigError(f"steps = {steps}: must be at least the longest of length_B, {int(length_B.max())}")
    lanes = settings.beam_size + (gold is not None)  # the gold prefix rides along as the last row
    rows_N = torch.arange(batch * lanes, device=length_B.device) // lanes
    bos, choices = settings.specials.bos, choices.select(rows_N)
    state = first_state(model, state, rows_N, bos=bos, sentences=batch)
    scorer: Scorer = model.scorer_of(choices.candidates_BC) if isinstance(model, Shortcuts) else model
    beam = start = _empty_prefix(batch, settings.beam_size, like=model.output(state))
    endings = _no_endings(beam, settings, None if gold is None else length_B)
    active_TB = torch.arange(steps, device=length_B.device)[:, None] < length_B
    golds = [] if gold is None else gold_tokens(gold, active_TB, length_B, settings.stop, settings.specials)
    pauses = settings.end_early and gold is None and settings.stop is not None
    # A training search compares prefixes of gold's length, not outputs: they have the whole limit of decoding to end.
    limited = gold is None and settings.stop is not None and not settings.stop.cut_off
    limit_N = length_B[rows_N] if limited else None
    history: list[TopSuccessors] = []
    verdicts: list[Verdict] = []
    memory = StepMemory(steps)
    # On the host no kernel leaves its steps side by side.
    read = partial(_result, settings=settings, gold=gold, stack=torch.stack if on_host else stacked)

    live = live_rows(beam, active_TB[0], lanes=lanes) if on_host else None
    for t in range(steps):
        output_BRH = model.output(state).view(batch, lanes, -1)
        left_N = None if limit_N is None else limit_N - t
        scores, allowed_NC = score_successors(settings.rule, scorer, output_BRH, choices, live, left_N)
        active_B = active_TB[t]
        if gold is None:
            active_B = active_B & ~endings.over_B
            step, endings = decode_step(beam, scores, allowed_NC, endings, settings, active_B, length_B, t)
        else:
            if not on_host and kernel_fits(scores, settings.beam_size, golds[t]):
                step, verdict = kernel_step(beam, scores, allowed_NC, golds[t], memory, t)
            else:
                step, verdict = gold_step(beam, scores, allowed_NC, golds[t], start)
            verdicts.append(verdict)
        if watch is not None:
            verdict_now = None if gold is None else verdicts[-1]
            watch(StepSeen(beam, output_BRH, live, scores, allowed_NC, active_B, step, verdict_now))
        beam = step.beam
        history.append(step.successors)
        del scores  # a search may pause for long, and this is the widest of its tensors
        if t + 1 == steps:
            break
        if pauses and (t + 1) % _LOOK_EVERY == 0:
            over = (endings.over_B | (length_B <= t + 1)).all()
            yield Pause(over, partial(read, tuple(history), (), beam, endings))
        if isinstance(choices, AdvancesFrom):
            choices = choices.advance_from(step.rows_N, step.tokens_N)
        else:
            choices = choices.select(step.rows_N).advance(step.tokens_N)
        if on_host:
            live = live_rows(beam, active_TB[t + 1] & ~endings.over_B, lanes=lanes)
        state = next_state(model, state, step.rows_N, step.tokens_N, live)
    yield Pause(None, partial(read, history, verdicts, beam, endings))


def decode_step(
    beam: Beam,
    scores: TokenScores,
    allowed_NC: Bool[Tensor, "N C"],
    endings: Endings,
    settings: SearchSettings,
    active_B: Bool[Tensor, " B"],
    limit_B: Int[Tensor, " B"],
    t: int,
) -> tuple[SearchStep, Endings]:
    """Step t of decoding: the K best successors. Ended prefixes leave the beam; sentences that are over hold still.

    Where the stop rule refills the beam, the 2K best successors are taken. Each of the K parents has one that has
    ended, so that K others are left for the next beam. The ended ones lie behind them, at places K to 2K - 1; they are
    set aside if they are among the K best. With E end symbols it is (1 + E) K instead of 2K.
    """
    (batch, beam_size), rule, stop, specials = beam.score_BK.shape, settings.rule, settings.stop, settings.specials
    refills = stop is not None and stop.refills(rule, beam_size)
    kept = beam_size * (1 + len(specials.ends) if refills else 1)
    best = scores.top_successors(beam, allowed_NC, kept=kept)
    died_B = active_B & (best.scores_BJ[:, 0] == NEVER)
    active_B = active_B & ~died_B
    ended_BJ = specials.ended(best.tokens_BJ)
    if stop is not None and stop.cut_off:
        ended_BJ = ended_BJ | (limit_B == t + 1)[:, None]
    if refills:
        best, ended_BJ = ended_last(best, ended_BJ, beam_size)
    # Sentences that are over keep their beam: every place is its own parent, with PAD as its newest token.
    place_J, still_B1 = torch.arange(best.scores_BJ.shape[1], device=limit_B.device), ~active_B[:, None]
    held_BJ = torch.nn.functional.pad(beam.score_BK, (0, kept - beam_size), value=NEVER)
    best = TopSuccessors(
        torch.where(still_B1, place_J % beam_size, best.parents_BJ),
        best.tokens_BJ.masked_fill(still_B1, specials.pad),
        torch.where(still_B1, held_BJ, best.scores_BJ),
    )
    score_BJ, over_B, finished = best.scores_BJ, endings.over_B | died_B, endings.finished
    if stop is not None and finished is not None:
        ended_BJ = ended_BJ & active_B[:, None] & (score_BJ != NEVER)
        priority_BJ = stop.priority(rule, score_BJ, ended_BJ, t)
        finished = finished.add(priority_BJ, rule.finished_scores(score_BJ, t + 1), t)
        score_BJ = score_BJ.masked_fill(ended_BJ, NEVER)
        over_B = over_B | finished.over(stop, rule, score_BJ, limit_B)
    first_row_B1 = beam_size * torch.arange(batch, device=limit_B.device)[:, None]
    after = Beam(score_BJ[:, :beam_size], beam.is_gold_BK, beam.gold_score_B)
    rows_BK, tokens_BK = first_row_B1 + best.parents_BJ[:, :beam_size], best.tokens_BJ[:, :beam_size]
    step = SearchStep(best, after, rows_BK.flatten(), tokens_BK.flatten())
    return step, Endings(over_B, endings.dead_B | died_B, endings.steps_B + active_B, finished)


def _empty_prefix(batch: int, beam_size: int, *, like: Tensor) -> Beam:
    """Place 0 holds the empty prefix, which is gold's too; the others are empty."""
    first_BK = (torch.arange(beam_size, device=like.device) == 0).expand(batch, -1)
    score_BK = torch.zeros_like(first_BK, dtype=like.dtype).masked_fill(~first_BK, NEVER)
    return Beam(score_BK, first_BK, torch.zeros_like(score_BK[:, 0]))


def _no_endings(beam: Beam, settings: SearchSettings, gold_length_B: Int[Tensor, " B"] | None) -> Endings:
    none_B = torch.zeros_like(beam.gold_score_B, dtype=torch.bool)
    steps_B = torch.zeros_like(none_B, dtype=torch.int64) if gold_length_B is None else gold_length_B
    open_length = gold_length_B is None and settings.stop is not None
    # One finished prefix ends a search whose outputs nobody asks for.
    finished = Finished.empty(len(none_B), max(settings.outputs, 1), like=beam.score_BK) if open_length else None
    return Endings(none_B, none_B, steps_B, finished)


def _result(
    history: Sequence[TopSuccessors],
    verdicts: Sequence[Verdict],
    beam: Beam,
    endings: Endings,
    *,
    settings: SearchSettings,
    gold: Gold | None,
    stack: Callable[[list[Tensor]], Tensor],
) -> SearchResult:
    """The finished sequences; where there are none, the beam: all of it at fixed length, else its top."""
    beams = Beams(
        stack([best.tokens_BJ for best in history]),
        stack([best.parents_BJ for best in history]),
        stack([best.scores_BJ for best in history]),
    )
    dead_B, finished, pad = endings.dead_B, endings.finished, settings.specials.pad
    if finished is not None:
        ended_BN = finished.score_BN != NEVER
        dead_B = dead_B & ~ended_BN.any(1)  # a beam that died after something had finished took nothing away
        best_B1, place_B1 = beam.score_BK.max(1, keepdim=True)
        # The top of the beam takes the first place where nothing has finished.
        top_BN = ~ended_BN.any(1, keepdim=True) & (torch.arange(settings.outputs, device=dead_B.device) == 0)
        score_BN = torch.where(top_BN, best_B1, finished.score_BN)
        places_BN = torch.where(top_BN, place_B1, finished.place_BN)
        time_BN = torch.where(top_BN, endings.steps_B[:, None] - 1, finished.time_BN)
        ended_BN = ended_BN[:, : settings.outputs]
    else:
        score_BN = beam.score_BK[:, : settings.outputs]
        ended_BN = ~dead_B[:, None] & (score_BN != NEVER)
        places_BN = torch.arange(score_BN.shape[1], device=dead_B.device).expand_as(score_BN)
        time_BN = (endings.steps_B[:, None] - 1).expand_as(places_BN)
    length_BN = (time_BN + 1).masked_fill(score_BN == NEVER, 0)
    tokens_BNT = beams.tokens_TBJ[..., :0].permute(1, 2, 0)
    if settings.outputs:
        tokens_BNT = prefix_tokens(beams, places_BN, length_BN - 1, pad=pad)
    violations = None
    if gold is not None:
        violations = violations_of(beams, verdicts, gold, stop=settings.stop, specials=settings.specials, stack=stack)
    if settings.stop is not None and settings.stop.cut_off:
        ended_BN = ended_BN & settings.specials.ended(tokens_BNT).any(2)
    if finished is not None:  # an unfinished output is scored by the rule for finished ones
        as_finished_BN = settings.rule.finished_scores(score_BN, length_BN.clamp(min=1).to(score_BN.dtype))
        score_BN = torch.where(top_BN, as_finished_BN, score_BN)
    return SearchResult(tokens_BNT, score_BN, length_BN, ended_BN, dead_B, endings.steps_B, beams, violations)
