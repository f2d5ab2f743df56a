"""Decoding sentences in batches, in input order: what may be decoded, and the score and perplexity of a split."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from argbeam.data.batches import Example, in_order_of_length, make_batch, round_up
from argbeam.data.vocabulary import STANDARD, SpecialTokens
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.errors import ArgbeamError, DataError, counted
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.models.contract import Model
from argbeam.runtime.group import ALONE, Group
from argbeam.search.result import Beams, SearchResult
from argbeam.search.score_rules import NEVER, ScoreRule, with_power
from argbeam.search.search import Search, SearchSettings
from argbeam.search.stop_rules import STOPS, Stop
from argbeam.settings import Decode
from argbeam.tasks.contract import Item, Score, ScoresLists, Task

# Sentences that are sorted by length together: the bound of memory, whatever the input's length.
WINDOW = 8192
# The widest beam that is searched in whole batches. Wider beams have smaller batches: memory grows with the rows, which
# are sentences times beam, and each row may have a score for every token of the vocabulary.
_WIDE = 10
# With CUDA graphs, lengths are rounded up to a multiple of this, so that few shapes occur.
_ROUND = 8


@dataclass(frozen=True)
class Hypothesis:
    """An output of the search: its token ids without padding, its score, and whether it is finished."""

    tokens: tuple[int, ...]
    score: float
    finished: bool


@dataclass(frozen=True)
class Decoded:
    """The hypotheses of one sentence, best first. `trace` holds the beam at every step, if requested."""

    hypotheses: tuple[Hypothesis, ...]
    dead: bool
    trace: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class BatchDecoder:
    """A trained model with the settings of its search, all but the beam. Each process of the group decodes its share.

    `captured` replays searches as CUDA graphs; None: operation by operation.
    """

    model: Model
    task: Task
    rule: ScoreRule
    stop: Stop
    device: torch.device
    batch: int
    group: Group = ALONE
    captured: CapturedSearch | None = None

    def decode(
        self,
        items: Iterable[Item],
        *,
        beam: int,
        n_best: int = 1,
        trace: bool = False,
        done: Callable[[int], None] = lambda count: None,
    ) -> Iterator[Decoded]:
        """Decode in input order. Sentences are sorted by length within a window, so that any number of them will do.

        `done` is called after each batch with its number of sentences.
        """
        stream = iter(items)
        while window := list(islice(stream, WINDOW)):
            examples = [self.task.example(item, number) for number, item in enumerate(window)]
            decoded: dict[int, Decoded] = {}
            for numbers in self.group.share(list(in_order_of_length(examples, size=self._batch_size(beam)))):
                chosen = [examples[i] for i in numbers]
                decoded.update(zip(numbers, self._decode_batch(chosen, beam, n_best, trace), strict=True))
                done(len(numbers) * self.group.size)  # the others have decoded about as many
            decoded = _of_all_processes(self.group, decoded)
            yield from (decoded[i] for i in range(len(window)))

    def _batch_size(self, beam: int) -> int:
        return max(1, self.batch * _WIDE // max(_WIDE, beam))

    def search_settings(self, beam: int, *, n_best: int) -> SearchSettings:
        stop = self.stop if self.task.open_length else None
        return SearchSettings(beam, self.rule, stop, n_best, specials=self.task.target.specials)

    def _decode_batch(self, examples: Sequence[Example], beam: int, n_best: int, trace: bool) -> list[Decoded]:
        specials = self.task.target.specials
        search = Search(self.model, self.task.constraint, self.search_settings(beam, n_best=n_best))
        limits = [self.task.limit(example) for example in examples]
        sources = [Example(e.source, (), e.sentence) for e in examples]
        if self.captured is None:
            batch = make_batch(sources, specials=specials).to(self.device)
            length_B = torch.tensor(limits, device=self.device)
            result = search(batch, length_B, steps=max(limits))
        else:
            # Only the last batch and those of long sentences are not full: powers of two keep their shapes few.
            rows = min(self._batch_size(beam), 1 << (len(examples) - 1).bit_length())
            longest = round_up(max(len(e.source) for e in examples), _ROUND)
            batch = make_batch(sources, source_length=longest, size=rows, specials=specials).to(self.device)
            length_B = torch.tensor([*limits, *[0] * (rows - len(examples))], device=self.device)
            result = self.captured(search, batch, length_B, steps=round_up(max(limits), _ROUND))
        if bool(result.score_BN[: len(examples)].isnan().any()):
            raise ArgbeamError("the model's scores are not numbers: its weights are damaged, or its training diverged")
        traces = _traces(result.beams, result.steps_B[: len(examples)].tolist()) if trace else [()] * len(examples)
        found = zip(hypotheses_of(result), result.dead_B.tolist(), traces, strict=False)  # without rows of padding
        return [Decoded(*row) for row in found]


def hypotheses_of(result: SearchResult) -> list[tuple[Hypothesis, ...]]:
    """The outputs of each sentence of a search, best first."""
    longest = int(result.length_BN.amax()) if result.length_BN.numel() else 0
    columns = (result.tokens_BNT[..., :longest], result.length_BN, result.score_BN, result.finished_BN)
    return [
        tuple(
            Hypothesis(tuple(tokens[:length]), score, ended)
            for tokens, length, score, ended in zip(*row, strict=True)
            if score > -math.inf
        )
        for row in zip(*(column.tolist() for column in columns), strict=True)
    ]


@dataclass(frozen=True)
class Evaluation:
    """A split decoded and scored: `score` of the split, `scores` of the outputs, `lists` where the metric reads them.

    `unfinished` counts outputs cut off at the length limit, `dead` those without a valid successor.
    """

    score: Score
    outputs: list[tuple[int, ...]]
    scores: list[float]
    unfinished: int
    dead: int
    lists: list[list[tuple[int, ...]]] = field(default_factory=list)


def evaluate(
    decoder: BatchDecoder, items: Sequence[Item], *, beam: int, done: Callable[[int], None] = lambda count: None
) -> Evaluation:
    """Decode items and score them with the task's metric; `done` as in `BatchDecoder.decode`."""
    task = decoder.task
    n_best = min(beam, task.n_best) if isinstance(task, ScoresLists) else 1
    decoded = list(decoder.decode(items, beam=beam, n_best=n_best, done=done))
    best = [d.hypotheses[0] if d.hypotheses else Hypothesis((), -math.inf, False) for d in decoded]
    outputs = [hypothesis.tokens for hypothesis in best]
    lists = [[h.tokens for h in d.hypotheses] for d in decoded] if isinstance(task, ScoresLists) else []
    return Evaluation(
        score=task.score_lists(items, lists) if isinstance(task, ScoresLists) else task.score(items, outputs),
        outputs=outputs,
        scores=[hypothesis.score for hypothesis in best],
        unfinished=sum(not h.finished and not d.dead for h, d in zip(best, decoded, strict=True)),
        dead=sum(d.dead for d in decoded),
        lists=lists,
    )


def perplexity(
    model: Model,
    examples: Sequence[Example],
    *,
    batch: int,
    device: torch.device,
    group: Group = ALONE,
    specials: SpecialTokens = STANDARD,
) -> float:
    """Of the gold tokens given the gold history, end symbols included; sentences without gold do not count."""
    with_gold = [example for example in examples if example.target]
    sums: list[tuple[int, float, float]] = []
    for place, numbers in group.share(list(enumerate(in_order_of_length(with_gold, size=batch)))):
        with torch.no_grad():
            gold = make_batch([with_gold[i] for i in numbers], specials=specials).to(device)
            out = CrossEntropy()(model, gold, None)
        sums.append((place, float(out.total), float(out.sums["words"])))
    # Added in one order, whatever the number of processes: the best epoch must not depend on rounding.
    ordered = sorted(tuple(entry) for part in group.gather(sums) for entry in part)
    loss, count = sum(loss for _, loss, _ in ordered), sum(count for _, _, count in ordered)
    return math.exp(min(loss / max(count, 1.0), 700.0))


def decode_rules(rule: ScoreRule, stop: Stop, decode: Decode) -> tuple[ScoreRule, Stop]:
    """Score and stop rule for decoding: those of training unless `decode.*` overrides them.

    A length power still to be chosen on dev is 0: epochs are compared by plain sums.
    """
    power = 0.0 if decode.length_power == "dev" else decode.length_power
    return with_power(rule, power), stop if decode.stop == "auto" else STOPS[decode.stop]


def check_lengths(items: Iterable[Item], *, most: int, where: str) -> None:
    """Raise a DataError for an item without words or with more than `most`; `where` names the split."""
    for number, item in enumerate(items, start=1):
        _check_length(item, most, f"{where}, sentence {number}")


def out_of_reach(task: Task, items: Iterable[Item], *, where: str) -> Iterator[str]:
    """Lines for the user about gold that no output can equal: longer than the limit of decoding, or forbidden."""
    if not task.open_length:
        return
    gold = [example for number, item in enumerate(items) if (example := task.example(item, number)).target]
    said, targets = f"{where}: no output can equal", counted(len(gold), "target")
    long = sum(len(example.target) > task.limit(example) for example in gold)
    if long:
        limits = "decode.length_factor and decode.length_extra set it"
        yield f"{said} {long:,} of {targets}: they are longer than the length limit; {limits}"
    accepts = getattr(task.constraint, "accepts", None)
    forbidden = sum(not accepts(example.target) for example in gold) if accepts else 0
    if forbidden:
        yield f"{said} {forbidden:,} of {targets}: the constraint forbids them"


def item_of(task: Task, line: str, *, most: int, where: str, gold: str = "") -> Item:
    """The line as an item to decode; a blank line has no words. A DataError says where and what is wrong."""
    if not line.strip():
        return Item((), ())
    try:
        item = task.item(line, gold)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    if item.source:
        _check_length(item, most, where)
    return item


def _check_length(item: Item, most: int, where: str) -> None:
    if not item.source:
        raise DataError(f"{where}: no words; a line holds one sentence")
    if len(item.source) > most:
        raise DataError(f"{where}: {len(item.source):,} words; decode.max_words = {most} is the most that is decoded")


def _of_all_processes(group: Group, decoded: dict[int, Decoded]) -> dict[int, Decoded]:
    if group.size == 1:
        return decoded
    plain = [
        [number, [[h.tokens, h.score, h.finished] for h in one.hypotheses], one.dead, one.trace]
        for number, one in decoded.items()
    ]
    return {
        number: Decoded(tuple(Hypothesis(tuple(tokens), *rest) for tokens, *rest in hypotheses), dead, tuple(trace))
        for part in group.gather(plain)
        for number, hypotheses, dead, trace in part
    }


def _traces(beams: Beams, steps: Sequence[int]) -> list[tuple[dict[str, Any], ...]]:
    """Per sentence and step: newest tokens, parents' places in the step before, and scores, best first."""
    tokens_TBJ, scores_TBJ = beams.tokens_TBJ.cpu(), beams.scores_TBJ.cpu()
    # A search that refills its beam has ended prefixes behind the others.
    scores_TBJ, order_TBJ = scores_TBJ.sort(dim=2, descending=True, stable=True)
    place_TBJ = order_TBJ.argsort(2)
    parents_TBJ = beams.parents_TBJ.cpu().gather(2, order_TBJ)
    parents_TBJ[1:] = place_TBJ[:-1].gather(2, parents_TBJ[1:])
    named = {"tokens": tokens_TBJ.gather(2, order_TBJ), "parents": parents_TBJ, "ranks": scores_TBJ}
    real_TBJ = scores_TBJ > NEVER
    return [
        tuple(
            {name: values_TBJ[t, i][real_TBJ[t, i]].tolist() for name, values_TBJ in named.items()}
            for t in range(count)
        )
        for i, count in enumerate(steps)
    ]
