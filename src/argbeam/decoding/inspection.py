"""Searches of sentences with a record of every step: the plain search, the training search, and gold's path in both."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from argbeam.data.batches import Batch, Example, in_order_of_length, make_batch
from argbeam.decoding.batch_decoder import BatchDecoder, Hypothesis, hypotheses_of
from argbeam.losses.replay import shifted
from argbeam.models.contract import Attends
from argbeam.search.constraints.forced import Forced
from argbeam.search.gold import EarlyUpdate, Gold, Policy
from argbeam.search.recorder import SearchRecorder, TreeStep, WithoutConstraint, gold_kept, tree_of
from argbeam.search.result import SearchResult
from argbeam.search.search import SearchSettings, result_of, search_in_parts
from argbeam.search.successors import Successors, allowed_tokens, along_gold, gold_is_valid

# Successors that are looked at beyond those kept, so that a rank can be told; of them so many are shown.
_LOOKED_AT, _SHOWN = 20, 3


@dataclass(frozen=True)
class TrainingSearch:
    """The search that training does with gold."""

    successors: Successors
    settings: SearchSettings
    policy: Policy


Weights = list[list[float]]  # of a step, of a token of the source


@dataclass(frozen=True)
class Inspected:
    """The searches of one sentence. `hypotheses` are the outputs of the plain search, best first.

    `training` is empty where there is no gold, or where training may not reach it. `gold_score` is that of the whole
    gold output, as an output; None without gold. `lost` is the step, counted from 1, after which gold's prefix was not
    on the beam (0: it never was lost). `forbidden` is the step at which the constraint forbids gold's token (0: none).
    `attention` has the attention weights of the best output and of gold, where they were asked for and there are some.
    """

    decoding: list[TreeStep]
    training: list[TreeStep]
    hypotheses: tuple[Hypothesis, ...]
    dead: bool
    gold_score: float | None
    lost: int
    forbidden: int
    attention: tuple[Weights, Weights] | None = None


@torch.no_grad()
def inspect_examples(
    decoder: BatchDecoder,
    examples: Sequence[Example],
    *,
    beam: int,
    training: TrainingSearch | None = None,
    attention: bool = False,
    prefix: Sequence[int] = (),
    done: Callable[[int], None] = lambda count: None,
) -> Iterator[Inspected]:
    """Search every example, in order; outputs of the plain search begin with `prefix`.

    `done` is called after each batch with its number of sentences.
    """
    found: dict[int, Inspected] = {}
    for numbers, batch, limits in _batches(decoder, examples):
        inspected = _inspect_batch(decoder, batch, limits, beam, training, prefix)
        if attention and isinstance(decoder.model, Attends):
            inspected = _with_attention(decoder, [examples[i] for i in numbers], inspected)
        found.update(zip(numbers, inspected, strict=True))
        done(len(numbers))
    yield from (found[i] for i in range(len(examples)))


@torch.no_grad()
def steps_lost(decoder: BatchDecoder, examples: Sequence[Example], *, beam: int) -> list[int]:
    """`Inspected.lost` of every example that has gold, at another beam."""
    lost: dict[int, int] = {}
    for numbers, batch, limits in _batches(decoder, examples):
        result = _decode(decoder, batch, limits, decoder.search_settings(beam, n_best=1), None)
        lost.update(zip(numbers, _lost(result, batch, beam), strict=True))
    return [lost[i] for i, example in enumerate(examples) if example.target]


def _batches(decoder: BatchDecoder, examples: Sequence[Example]) -> Iterator[tuple[list[int], Batch, list[int]]]:
    """The examples by length: their numbers, the batch, and the limits of their outputs."""
    for numbers in in_order_of_length(examples, size=decoder.batch):
        chosen = [examples[i] for i in numbers]
        batch = make_batch(chosen, specials=decoder.task.target.specials).to(decoder.device)
        yield numbers, batch, [decoder.task.limit(example) for example in chosen]


@dataclass(frozen=True)
class NextToken:
    """A token that may follow a prefix: its score, its probability among all tokens, and whether it is valid."""

    token: int
    score: float
    probability: float
    valid: bool


@torch.no_grad()
def next_tokens(decoder: BatchDecoder, example: Example, prefix: Sequence[int], *, most: int) -> list[NextToken]:
    """The tokens with the highest scores after a prefix, best first, whether the constraint allows them or not."""
    specials, device = decoder.task.target.specials, decoder.device
    batch = make_batch([example], specials=specials).to(device)
    state, choices = decoder.model.encode(batch, None), decoder.task.constraint.start(batch)
    for read, token in zip((specials.bos, *prefix), (*prefix, None), strict=True):
        state = decoder.model.step(state, torch.tensor([read], device=device))
        if token is not None:
            choices = choices.advance(torch.tensor([token], device=device))
    score_V = decoder.model.scores(decoder.model.output(state)[None])[0, 0].double()
    allowed_V = allowed_tokens(choices, len(score_V))[0]
    order_X = score_V.argsort(descending=True)[:most]
    columns = (order_X, score_V[order_X], score_V.softmax(0)[order_X], allowed_V[order_X])
    return [NextToken(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _inspect_batch(
    decoder: BatchDecoder,
    batch: Batch,
    limits: Sequence[int],
    beam: int,
    training: TrainingSearch | None,
    prefix: Sequence[int],
) -> list[Inspected]:
    specials, settings = decoder.task.target.specials, decoder.search_settings(beam, n_best=beam)
    recorder = _recorder(decoder, batch, settings, first=len(prefix))
    result = _decode(decoder, batch, limits, settings, recorder, prefix)
    golds = [row[:length] for row, length in _rows(batch)]
    forbidden = _forbidden(decoder.task.constraint, batch)
    gold_scores = _gold_scores(decoder, batch, settings) if batch.target_BT.shape[1] else [[]] * len(golds)
    trained: SearchRecorder | None = None
    blocked: Sequence[int] = [0] * len(golds)
    if training is not None and batch.target_BT.shape[1]:
        trained = _recorder(decoder, batch, training.settings)
        blocked = _forbidden(training.successors, batch)
        _search(decoder, batch, training.successors, training.settings, training.policy, trained)
    lost, hypotheses = _lost(result, batch, beam), hypotheses_of(result)
    dead, ends = result.dead_B.tolist(), specials.ends if settings.stop is not None else ()
    found = []
    for i, gold in enumerate(golds):
        scores = gold_scores[i][: len(gold)]
        tree = tree_of(recorder, i, ends=ends, gold=gold, gold_scores=scores, shown=_SHOWN)
        final: float | None = None
        if gold and not forbidden[i] and len(scores) == len(gold):
            final = scores[-1]
            if settings.stop is not None:
                final = float(settings.rule.finished_scores(torch.tensor([[final]]), len(gold)))
        restarted: list[TreeStep] = []
        if training is not None and trained is not None and gold and not blocked[i]:
            restarted = tree_of(trained, i, ends=ends, gold=gold, policy=training.policy, shown=_SHOWN)
        found.append(Inspected(tree, restarted, hypotheses[i], dead[i], final, lost[i], forbidden[i]))
    return found


def _recorder(decoder: BatchDecoder, batch: Batch, settings: SearchSettings, *, first: int = 0) -> SearchRecorder:
    """A recorder that knows what the search would do without the constraint, after so many forced tokens.

    Normalised over valid tokens alone, others have no score.
    """
    if settings.rule.valid_only:
        return SearchRecorder(_LOOKED_AT)
    allowed_1V = decoder.task.unconstrained.start(batch).allowed()
    return SearchRecorder(_LOOKED_AT, WithoutConstraint(settings.rule, decoder.model, allowed_1V, first))


def _with_attention(
    decoder: BatchDecoder, examples: Sequence[Example], inspected: Sequence[Inspected]
) -> list[Inspected]:
    best = [one.hypotheses[0].tokens if one.hypotheses else () for one in inspected]
    pairs = zip(_attention(decoder, examples, best), _attention(decoder, examples, None), strict=True)
    return [replace(one, attention=pair) for one, pair in zip(inspected, pairs, strict=True)]


def _attention(
    decoder: BatchDecoder, examples: Sequence[Example], outputs: Sequence[tuple[int, ...]] | None
) -> list[Weights]:
    """The weights at every step of these outputs, or of gold."""
    model, specials = decoder.model, decoder.task.target.specials
    assert isinstance(model, Attends)
    if outputs is not None:
        examples = [replace(example, target=output) for example, output in zip(examples, outputs, strict=True)]
    batch = make_batch(examples, specials=specials).to(decoder.device)
    if not batch.target_BT.shape[1]:
        return [[] for _ in examples]
    weights = model.attention(batch, shifted(batch.target_BT, specials.bos)).tolist()
    sizes = zip(batch.target_length_B.tolist(), batch.source_length_B.tolist(), strict=True)
    return [[row[:width] for row in weights[i][:length]] for i, (length, width) in enumerate(sizes)]


def _rows(batch: Batch) -> Iterator[tuple[list[int], int]]:
    return zip(batch.target_BT.tolist(), batch.target_length_B.tolist(), strict=True)


def _decode(
    decoder: BatchDecoder,
    batch: Batch,
    limits: Sequence[int],
    settings: SearchSettings,
    recorder: SearchRecorder | None,
    prefix: Sequence[int] = (),
) -> SearchResult:
    """The plain search."""
    successors = Forced(decoder.task.constraint, tuple(prefix)) if prefix else decoder.task.constraint
    state, choices = decoder.model.encode(batch, None), successors.start(batch)
    length_B = torch.tensor(limits, device=decoder.device)
    return result_of(
        search_in_parts(decoder.model, state, choices, settings, length_B=length_B, steps=max(limits), watch=recorder)
    )


def _search(
    decoder: BatchDecoder,
    batch: Batch,
    successors: Successors,
    settings: SearchSettings,
    policy: Policy,
    recorder: SearchRecorder | None = None,
) -> SearchResult:
    """A search with gold."""
    state, choices = decoder.model.encode(batch, None), successors.start(batch)
    gold = Gold(batch.target_BT, batch.target_length_B, policy)
    steps = batch.target_BT.shape[1]
    pauses = search_in_parts(
        decoder.model, state, choices, settings, length_B=gold.length_B, steps=steps, gold=gold, watch=recorder
    )
    return result_of(pauses)


def _gold_scores(decoder: BatchDecoder, batch: Batch, settings: SearchSettings) -> list[list[float]]:
    """Scores of gold's prefixes under the rule of decoding, from gold's lane of a search of beam 1."""
    if settings.rule.valid_only:  # no search with gold has this rule: gold's score is known while it is on the beam
        return [[] for _ in range(batch.shape[0])]
    narrow = SearchSettings(1, settings.rule, settings.stop, n_best=0, specials=settings.specials)
    violations = _search(decoder, batch, decoder.task.constraint, narrow, EarlyUpdate(0.0)).violations
    assert violations is not None
    return violations.gold_score_BT.tolist()


def _lost(result: SearchResult, batch: Batch, beam: int) -> list[int]:
    """The step, counted from 1, after which gold's prefix was not on the beam; 0: it never was lost."""
    length_B, gold_BT = batch.target_length_B, batch.target_BT
    if not gold_BT.shape[1]:
        return [0] * len(length_B)
    kept_TB = gold_kept(result.beams, gold_BT, beam_size=beam)
    short = gold_BT.shape[1] - len(kept_TB)  # the search may have ended before gold does
    kept_TB = torch.nn.functional.pad(kept_TB, (0, 0, 0, short))
    through_B = kept_TB.long().cumprod(0).sum(0).minimum(length_B)
    return torch.where(through_B < length_B, through_B + 1, 0).tolist()


def _forbidden(successors: Successors, batch: Batch) -> list[int]:
    """The first step, counted from 1, at which gold's token is not valid; 0: none."""
    step_B = torch.zeros_like(batch.target_length_B)
    for t, (choices, token_B) in enumerate(along_gold(successors, batch)):
        wrong_B = ~gold_is_valid(choices, token_B) & (t < batch.target_length_B)
        step_B = torch.where((step_B == 0) & wrong_B, t + 1, step_B)
    return step_B.tolist()
