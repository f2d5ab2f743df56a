"""Decoding many sentences, and scoring a split. The trainer chooses epochs through this module."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from argbeam.data.batches import Example, in_order_of_length, make_batch, round_up
from argbeam.data.vocabulary import PAD
from argbeam.decoding.captured_search import CapturedSearch, Search
from argbeam.errors import ArgbeamError, DataError
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.models.contract import Model
from argbeam.runtime.group import ALONE, Group
from argbeam.search.result import Beams
from argbeam.search.score_rules import LogprobSum, ScoreRule
from argbeam.search.search import SearchSettings
from argbeam.search.stop_rules import STOPS, Stop
from argbeam.settings import Decode
from argbeam.tasks.contract import Item, Score, Task

# Sentences that are sorted by length together. Memory is bounded by this, whatever the input's length.
_WINDOW = 8192
# Beams up to this are searched in whole batches, wider ones in smaller batches: memory grows with the rows, which are
# sentences times beam, and each row may have scores for the whole vocabulary.
_WIDE = 10
# Where searches are replayed, lengths are rounded up to a multiple of this: few shapes occur then.
_ROUND = 8


@dataclass(frozen=True)
class Hypothesis:
    """A sequence found: its words without padding, its rank, and whether it ended properly."""

    tokens: tuple[int, ...]
    rank: float
    finished: bool


@dataclass(frozen=True)
class Decoded:
    """What the search returned for one sentence, best first. `trace` holds the beam at every step if asked for."""

    hypotheses: tuple[Hypothesis, ...]
    dead: bool
    trace: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Decoder:
    """A trained model with all that fixes its search but the beam; `captured` replays searches where it is there. Each
    process of the group decodes its share."""

    model: Model
    task: Task
    rule: ScoreRule
    stop: Stop
    device: torch.device
    batch: int
    group: Group = ALONE
    captured: CapturedSearch | None = None

    def decode(self, items: Iterable[Item], *, beam: int, n_best: int = 1, trace: bool = False) -> Iterator[Decoded]:
        """Decode in input order. Sentences are sorted by length within a window, so any length of input will do."""
        stream = iter(items)
        while window := list(islice(stream, _WINDOW)):
            examples = [self.task.example(item, number) for number, item in enumerate(window)]
            found: dict[int, Decoded] = {}
            for numbers in self.group.share(list(in_order_of_length(examples, size=self._size(beam)))):
                chosen = [examples[i] for i in numbers]
                found.update(zip(numbers, self._search(chosen, beam, n_best, trace), strict=True))
            found = _of_all(self.group, found)
            yield from (found[i] for i in range(len(window)))

    def _size(self, beam: int) -> int:
        """Sentences of a batch at most."""
        return max(1, self.batch * _WIDE // max(_WIDE, beam))

    def _search(self, examples: Sequence[Example], beam: int, n_best: int, trace: bool) -> list[Decoded]:
        stop = self.stop if self.task.open_length else None
        search = Search(self.model, self.task.constraint, SearchSettings(beam, self.rule, stop, n_best))
        limits = [self.task.limit(example) for example in examples]
        sources = [Example(e.source, (), e.sentence) for e in examples]
        if self.captured is None:
            batch, length_B = make_batch(sources).to(self.device), torch.tensor(limits, device=self.device)
            result = search(batch, length_B, steps=max(limits))
        else:
            # Batches are full but for the last one and those of long sentences: powers of two are few shapes.
            rows = min(self._size(beam), 1 << (len(examples) - 1).bit_length())
            longest = round_up(max(len(e.source) for e in examples), _ROUND)
            batch = make_batch(sources, source_length=longest, size=rows).to(self.device)
            length_B = torch.tensor([*limits, *[0] * (rows - len(examples))], device=self.device)
            result = self.captured(search, batch, length_B, steps=round_up(max(limits), _ROUND))
        tokens, ranks = result.tokens_BNT.tolist(), result.score_BN.tolist()
        if any(math.isnan(rank) for row in ranks[: len(examples)] for rank in row):
            raise ArgbeamError("the model's scores are not numbers: its weights are damaged, or its training diverged")
        finished, dead = result.finished_BN.tolist(), result.dead_B.tolist()
        traces = _traces(result.beams, limits) if trace else [()] * len(examples)
        return [
            Decoded(
                tuple(
                    Hypothesis(tuple(word for word in words if word != PAD), rank, ended)
                    for words, rank, ended in zip(tokens[i], ranks[i], finished[i], strict=True)
                    if rank > -math.inf
                ),
                dead[i],
                traces[i],
            )
            for i in range(len(examples))
        ]


def decode_rules(rule: ScoreRule, stop: Stop, decode: Decode) -> tuple[ScoreRule, Stop]:
    """How a model is searched that was trained for this rule and stop: so, but for what the recipe says otherwise.

    A length power that is still to be chosen is 0: epochs are compared by plain sums.
    """
    power = 0.0 if decode.length_power == "dev" else decode.length_power
    rule = LogprobSum(power) if rule.normalised else rule
    return rule, stop if decode.stop == "auto" else STOPS[decode.stop]


def check_lengths(items: Iterable[Item], *, most: int, where: str) -> None:
    """Raise a DataError for a sentence without words or with more than `most`; `where` is what holds them."""
    for number, item in enumerate(items, start=1):
        fault = length_fault(item, most=most)
        if fault:
            raise DataError(f"{where}, sentence {number}: {fault}")


def item_of(task: Task, line: str, *, most: int, where: str) -> Item:
    """The line as an item to decode; what keeps it from being one is told with its place."""
    try:
        item = task.item(line)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    fault = length_fault(item, most=most)
    if fault:
        raise DataError(f"{where}: {fault}")
    return item


def length_fault(item: Item, *, most: int) -> str:
    """What keeps an item from being decoded, or nothing."""
    if not item.source:
        return "no words; a line holds one sentence"
    if len(item.source) > most:
        return f"{len(item.source):,} words; decode.max_words = {most} is the most that is decoded"
    return ""


@dataclass(frozen=True)
class Evaluation:
    """A split decoded and scored. `unfinished` outputs met the length limit, `dead` ones had no valid successor."""

    score: Score
    outputs: list[tuple[int, ...]]
    ranks: list[float]
    unfinished: int
    dead: int


def evaluate(decoder: Decoder, items: Sequence[Item], *, beam: int) -> Evaluation:
    """Decode items and score them with the task's metric."""
    decoded = list(decoder.decode(items, beam=beam))
    best = [d.hypotheses[0] if d.hypotheses else Hypothesis((), -math.inf, False) for d in decoded]
    outputs = [hypothesis.tokens for hypothesis in best]
    return Evaluation(
        score=decoder.task.score(items, outputs),
        outputs=outputs,
        ranks=[hypothesis.rank for hypothesis in best],
        unfinished=sum(not h.finished and not d.dead for h, d in zip(best, decoded, strict=True)),
        dead=sum(d.dead for d in decoded),
    )


def perplexity(
    model: Model, examples: Sequence[Example], *, batch: int, device: torch.device, group: Group = ALONE
) -> float:
    """Of the gold words given the gold history, end symbols included; sentences without gold do not count."""
    with_gold = [example for example in examples if example.target]
    sums: list[tuple[int, float, float]] = []
    for place, numbers in group.share(list(enumerate(in_order_of_length(with_gold, size=batch)))):
        with torch.no_grad():
            out = CrossEntropy()(model, make_batch([with_gold[i] for i in numbers]).to(device), None)
        sums.append((place, float(out.total), float(out.sums["words"])))
    # Added in one order, however many processes there are: the best epoch must not depend on rounding.
    ordered = sorted(tuple(entry) for part in group.gather(sums) for entry in part)
    loss, words = sum(loss for _, loss, _ in ordered), sum(words for _, _, words in ordered)
    return math.exp(min(loss / max(words, 1.0), 700.0))


def _of_all(group: Group, found: dict[int, Decoded]) -> dict[int, Decoded]:
    """What all processes have found."""
    if group.size == 1:
        return found
    plain = [
        [number, [[h.tokens, h.rank, h.finished] for h in decoded.hypotheses], decoded.dead, decoded.trace]
        for number, decoded in found.items()
    ]
    return {
        number: Decoded(tuple(Hypothesis(tuple(words), *rest) for words, *rest in hypotheses), dead, tuple(trace))
        for part in group.gather(plain)
        for number, hypotheses, dead, trace in part
    }


def _traces(beams: Beams, limits: Sequence[int]) -> list[tuple[dict[str, Any], ...]]:
    """Per sentence and step, the beam's newest words, their parents' places in the beam before, their ranks."""
    tokens, parents, ranks = beams.tokens_TBJ.tolist(), beams.parents_TBJ.tolist(), beams.scores_TBJ.tolist()
    steps = len(tokens)
    return [
        tuple(
            {
                "tokens": [w for w, r in zip(tokens[t][i], ranks[t][i], strict=True) if r > -math.inf],
                "parents": [p for p, r in zip(parents[t][i], ranks[t][i], strict=True) if r > -math.inf],
                "ranks": [r for r in ranks[t][i] if r > -math.inf],
            }
            for t in range(min(limit, steps))
            if any(word != PAD for word in tokens[t][i])
        )
        for i, limit in enumerate(limits)
    ]
