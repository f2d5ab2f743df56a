"""The searches of runs on the same sentences as one table of plain values: what `argbeam inspect` writes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from argbeam import __version__
from argbeam.data.batches import Example, make_batch
from argbeam.decoding.batch_decoder import item_of
from argbeam.decoding.inspection import Inspected, TrainingSearch, inspect_examples, next_tokens, steps_lost
from argbeam.errors import DataError
from argbeam.losses import POLICIES, last_beam
from argbeam.models.contract import Attends
from argbeam.runs.load import Run
from argbeam.search.recorder import TreeStep
from argbeam.search.score_rules import NEVER, SCORE_RULES
from argbeam.search.search import SearchSettings
from argbeam.search.stop_rules import STOPS
from argbeam.search.successors import along_gold, gold_is_valid
from argbeam.settings.losses import BsoLoss, CrfLoss, SearchLoss
from argbeam.tasks.contract import Item, Task

_FATES = "kdegf"  # kept, dropped, ended, gold that is not among the best, forbidden
_DIGITS = 3


@dataclass(frozen=True)
class InspectRequest:
    """Sentences to search: the first `limit` of a split, or lines. The widest of the beams is shown.

    `golds` are the right outputs of the lines, none or one for each; "" where there is none. Outputs of the plain
    search begin with the tokens `prefix`.
    """

    beams: Sequence[int]
    split: str = ""
    lines: Sequence[str] = ()
    golds: Sequence[str] = ()
    where: str = "line "
    limit: int = 1000
    attention: bool = False
    prefix: Sequence[str] = ()

    def items(self, run: Run) -> list[Item]:
        if self.split:
            return run.items(self.split)[: self.limit]
        most, items = run.recipe.decode.max_words, []
        for n, (line, gold) in enumerate(zip(self.lines, self.golds or repeat(""), strict=False), start=1):
            items.append(item_of(run.task, line, most=most, where=f"{self.where}{n}", gold=gold))
        return [item for item in items[: self.limit] if item.source]


def inspect_runs(
    runs: Sequence[Run],
    inputs: Sequence[Sequence[Item]],
    request: InspectRequest,
    *,
    done: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Search the sentences, `request.items` of every run, with every run.

    `tokens` lists the texts of token ids of this table. Of a view, `parents`, `tokens`, `scores`, `fates` and `valid`
    have a list for each step and in it a hypothesis for each place; the others have a value for each step.
    `docs/inspect.md` describes all keys.
    """
    tokens = TokenTable()
    _check_same(runs, inputs)
    if not inputs[0]:
        raise DataError(f"{request.split or 'the input'}: no sentence to search; one line at least is expected")
    described, columns = [], []
    for run, items in zip(runs, inputs, strict=True):
        examples = [run.task.example(item, number) for number, item in enumerate(items)]
        training, view = _training_search(run, max(request.beams))
        prefix = forced_tokens(run.task, examples, request.prefix)
        searched = inspect_examples(
            run.decoder(),
            examples,
            beam=max(request.beams),
            training=training,
            prefix=prefix,
            attention=request.attention,
            done=done,
        )
        found = list(searched)
        described.append(_described(run, request, examples, found, view))
        columns.append([sentence_record(run.task, *row, tokens) for row in zip(items, examples, found, strict=True)])
    sentences = [
        {"source": " ".join(item.surface), "gold": item.reference or " ".join(item.target), "runs": list(row)}
        for item, *row in zip(inputs[0], *columns, strict=True)
    ]
    named = {"split": request.split, "beam": max(request.beams), "attention": request.attention}
    named |= {"runs": described, "sentences": sentences}
    return {"argbeam": __version__, **named, "tokens": tokens.texts}


def describe_run(run: Run) -> dict[str, Any]:
    """The table of `inspect_runs` before any sentence: what a live page starts with."""
    beam = run.recipe.decode.beam
    _, view = _training_search(run, beam)
    described = _described(run, InspectRequest((beam,)), [], [], view)
    return {
        "argbeam": __version__,
        "split": "",
        "beam": beam,
        "runs": [described],
        "sentences": [],
        "tokens": [],
        "live": True,
    }


def forced_tokens(task: Task, examples: Sequence[Example], prefix: Sequence[str]) -> tuple[int, ...]:
    """The token ids of a prefix that outputs are to begin with; one that is not valid is a DataError."""
    ids = tuple(task.target.encode(prefix))
    if not ids:
        return ids
    batch = make_batch([replace(example, target=ids) for example in examples], specials=task.target.specials)
    most = min(map(task.limit, examples))
    for t, (choices, token_B) in enumerate(along_gold(task.constraint, batch)):
        known = task.target.words[ids[t]] == prefix[t]
        ended = t > 0 and ids[t - 1] in task.target.specials.ends
        if not known or ended or t >= most or not bool(gold_is_valid(choices, token_B).all()):
            raise DataError(f"token {t + 1}, {prefix[t]!r}: not a valid successor of the tokens before it")
    return ids


def next_of(run: Run, line: str, prefix: Sequence[str], *, most: int = 20) -> list[dict[str, Any]]:
    """The tokens with the highest scores after a prefix of the output for a line, valid or not."""
    (item,) = InspectRequest((1,), lines=[line]).items(run) or (None,)
    if item is None:
        raise DataError("line 1: no words; one line of words is expected")
    example = run.task.example(item, 0)
    ids = forced_tokens(run.task, [example], prefix)
    return [
        {**vars(one), "token": run.task.target.words[one.token], "score": _rounded(one.score)}
        for one in next_tokens(run.decoder(), example, ids, most=most)
    ]


def _check_same(runs: Sequence[Run], inputs: Sequence[Sequence[Item]]) -> None:
    """Two runs are compared on the same sentences, and only on those."""
    first = [item.reference or item.surface for item in inputs[0]]
    for run, items in zip(runs[1:], inputs[1:], strict=True):
        if [item.reference or item.surface for item in items] != first:
            raise DataError(f"--against {run.path}: its sentences are not those of {runs[0].path}; the same are needed")


def _training_search(run: Run, beam: int) -> tuple[TrainingSearch, dict[str, Any]]:
    """The search that trained the run; after other losses one with restarts, a margin of 1 and the beam of decoding."""
    stage = run.recipe.stages[run.stage] if run.stage else None
    loss = stage.loss if stage else None
    task, policy, constrained, stop = run.task, "restart", True, run.stop
    rule = SCORE_RULES["logprob_sum"] if run.rule.valid_only else run.rule
    margin, growth = 1.0, 0.0
    if stage and isinstance(loss, SearchLoss):
        beam, constrained, stop = last_beam(stage), loss.constrained, STOPS[loss.stop]
    if isinstance(loss, BsoLoss):
        rule, policy, margin, growth = SCORE_RULES[loss.rule], loss.policy, loss.margin, loss.margin_per_token
    if isinstance(loss, CrfLoss):  # it compares probabilities, and has no margin
        policy, margin = "restart" if loss.restarts else "early_update", 0.0
    successors = task.constraint if constrained else task.unconstrained
    settings = SearchSettings(beam, rule, stop if task.open_length else None, n_best=0, specials=task.target.specials)
    view = {"beam": beam, "policy": policy, "margin": margin, "margin_per_token": growth, "constrained": constrained}
    view["own"] = isinstance(loss, SearchLoss)
    return TrainingSearch(successors, settings, POLICIES[policy](margin, growth)), view


def _described(
    run: Run,
    request: InspectRequest,
    examples: Sequence[Example],
    found: Sequence[Inspected],
    training: dict[str, Any],
) -> dict[str, Any]:
    """What the run is, and how often gold is lost, and at which step, by beam."""
    with_gold = [(one, example) for one, example in zip(found, examples, strict=True) if example.target]
    widest, lost = max(request.beams), {}
    for beam in sorted(request.beams) if with_gold else ():
        steps = [one.lost for one, _ in with_gold]
        if beam != widest:
            steps = steps_lost(run.decoder(), examples, beam=beam)
        by_step = [0] * max((step for step in steps), default=0)
        for step in steps:
            if step:
                by_step[step - 1] += 1
        lost[str(beam)] = {"lost": sum(by_step), "by_step": by_step}
    return {
        "run": str(run.path),
        "system": run.recipe.name,
        "task": run.recipe.task.kind,
        "model": run.recipe.model.kind,
        "rule": run.rule.name,
        "stop": run.stop.name if run.task.open_length else "length",
        "vocabulary": len(run.task.target),
        "training": training,
        "with_gold": len(with_gold),
        "right": sum(bool(one.hypotheses) and one.hypotheses[0].tokens == e.target for one, e in with_gold),
        "search_errors": sum(_is_search_error(one, example) for one, example in with_gold),
        "lost": lost,
        "attends": isinstance(run.model, Attends),
    }


def _is_search_error(found: Inspected, example: Example) -> bool:
    """Gold has a higher score than the output, so that another search would have found something better."""
    if found.gold_score is None or not found.hypotheses:
        return False
    best = found.hypotheses[0]
    return best.tokens != example.target and found.gold_score > best.score


def sentence_record(task: Task, item: Item, example: Example, found: Inspected, tokens: "TokenTable") -> dict[str, Any]:
    """The searches of a sentence by one run."""
    words = task.target.words
    return {
        "gold": [tokens.place(words[token]) for token in example.target],
        "gold_score": _rounded(found.gold_score),
        "lost": found.lost,
        "forbidden": found.forbidden,
        "dead": found.dead,
        "search_error": bool(example.target) and _is_search_error(found, example),
        "right": bool(found.hypotheses) and bool(example.target) and found.hypotheses[0].tokens == example.target,
        "outputs": [[task.text(item, h.tokens), _rounded(h.score), h.finished] for h in found.hypotheses],
        "decoding": _view(found.decoding, words, tokens),
        "training": _view(found.training, words, tokens) if found.training else None,
        **_attention(task, item, example, found, tokens),
    }


def _attention(task: Task, item: Item, example: Example, found: Inspected, tokens: "TokenTable") -> dict[str, Any]:
    """Whole per cents, of a step and of a token of the source."""
    if found.attention is None:
        return {}
    output, gold = ([[round(100 * weight) for weight in row] for row in rows] for rows in found.attention)
    best = found.hypotheses[0].tokens if found.hypotheses else ()
    source = item.source  # unknown words included, unless the model reads more than these
    if len(source) != len(example.source):
        source = tuple(task.source.words[token] for token in example.source)
    return {
        "source": [tokens.place(text) for text in source],
        "output": [tokens.place(task.target.words[token]) for token in best],
        "attention": {"output": output, "gold": gold},
    }


def _view(tree: Sequence[TreeStep], words: Sequence[str], tokens: "TokenTable") -> dict[str, list[Any]]:
    view: dict[str, list[Any]] = {
        "parents": [step.parents for step in tree],
        "tokens": [[tokens.place(words[token]) for token in step.tokens] for step in tree],
        "scores": [[_rounded(score) for score in step.scores] for step in tree],
        "fates": ["".join(_FATES[fate] for fate in step.fate) for step in tree],
        "valid": [step.valid if any(step.valid) else [] for step in tree],
    }
    if any(step.gold >= 0 for step in tree):
        view |= {
            "gold": [step.gold for step in tree],
            "rank": [step.rank for step in tree],
            "gold_score": [_rounded(step.gold_score) for step in tree],
            "margin": [_rounded(step.margin) for step in tree],
        }
    if any(step.rival >= 0 or step.violation for step in tree):
        view |= {"rival": [step.rival for step in tree], "violation": [int(step.violation) for step in tree]}
    return view


def _rounded(score: float | None) -> float | None:
    """JSON has neither infinity nor NaN."""
    return None if score is None or not NEVER < score < -NEVER else round(score, _DIGITS)


class TokenTable:
    """Texts of tokens, each once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
        return self._places[text]
