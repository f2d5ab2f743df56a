"""A record of a search: the tree of its hypotheses, with gold's path through it.

`search_in_parts` shows every step to a `SearchRecorder`, which holds what the step already knows. `tree_of` reads one
sentence of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.models.contract import Scorer
from argbeam.search.gold import Policy, Verdict
from argbeam.search.live_rows import Live
from argbeam.search.result import Beam, Beams, SearchStep
from argbeam.search.score_rules import NEVER, ScoreRule
from argbeam.search.top_k import ListedScores, TokenScores, score_tokens

# What became of a hypothesis: it is on the next beam, it was among the best but not kept, it ended, it is gold's prefix
# and not even among the best, or the constraint forbade it and it would be among the best without.
KEPT, DROPPED, ENDED, GOLD, FORBIDDEN = range(5)


@dataclass(frozen=True)
class StepSeen:
    """A step as a watcher sees it: the beam before it, what the step chose from, and what it made.

    `output_BRH` is the input of the output layer, right in `live` rows (None: in all). `active_B`: sentences that took
    the step. `verdict` is there with gold.
    """

    beam: Beam
    output_BRH: Float[Tensor, "B R H"]
    live: Live | None
    scores: TokenScores
    allowed_NC: Bool[Tensor, "N C"]
    active_B: Bool[Tensor, " B"]
    step: SearchStep
    verdict: Verdict | None


@dataclass(frozen=True)
class WithoutConstraint:
    """What a search under a constraint would choose from without it, from step `first` on."""

    rule: ScoreRule
    scorer: Scorer
    allowed_1V: Bool[Tensor, "1 V"]
    first: int = 0


@dataclass(frozen=True)
class SearchRecorder:
    """Holds, for every step of a search, its successors and the best `dropped` of those that were not kept.

    With `free`, also the best successors of the beam without the constraint. `steps` has a table of plain lists for
    each step, a row for each sentence.
    """

    dropped: int
    free: WithoutConstraint | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, seen: StepSeen) -> None:
        kept, after = seen.step.successors, seen.step.beam
        batch, beam_size = seen.beam.score_BK.shape
        best = seen.scores.top_successors(seen.beam, seen.allowed_NC, kept=kept.scores_BJ.shape[1] + self.dropped)
        lanes = len(seen.step.rows_N) // batch
        rows_BK = (seen.step.rows_N.view(batch, lanes) % lanes)[:, :beam_size]
        named = {
            "active": seen.active_B,
            "kept": torch.stack([kept.parents_BJ, kept.tokens_BJ], 2),
            "kept_scores": kept.scores_BJ,
            "best": torch.stack([best.parents_BJ, best.tokens_BJ], 2),
            "best_scores": best.scores_BJ,
            "next": torch.stack([rows_BK, seen.step.tokens_N.view(batch, lanes)[:, :beam_size]], 2),
            "alive": after.score_BK > NEVER,
        }
        allowed_NC = seen.allowed_NC
        if isinstance(seen.scores, ListedScores):  # of live rows alone
            allowed_NC = allowed_NC[seen.scores.live.row_BR.flatten()]
        if self._constrains(allowed_NC, rows=batch * lanes):
            named["valid"] = allowed_NC.view(batch, lanes, -1)[:, :beam_size].sum(2)
            named |= self._without_constraint(seen)
        if seen.verdict is not None:
            named |= {
                "gold_score": seen.verdict.gold_score_B,
                "violation": seen.verdict.violation_B,
                "rival": seen.verdict.rival_B,
                "rival_score": seen.verdict.rival_score_B,
            }
        self.steps.append({name: values.tolist() for name, values in named.items()})

    def _constrains(self, allowed_NC: Bool[Tensor, "N C"], *, rows: int) -> bool:
        """One mask for all rows is that of no constraint; where there is one row, the two are compared."""
        alone = rows == 1 and self.free is not None and not torch.equal(allowed_NC, self.free.allowed_1V)
        return len(allowed_NC) > 1 or alone

    def _without_constraint(self, seen: StepSeen) -> dict[str, Tensor]:
        free = self.free
        if free is None or len(self.steps) < free.first:
            return {}
        scores = score_tokens(free.rule, free.scorer, seen.output_BRH, None, seen.live)
        best = scores.top_successors(seen.beam, free.allowed_1V, kept=seen.beam.score_BK.shape[1])
        return {"free": torch.stack([best.parents_BJ, best.tokens_BJ], 2), "free_scores": best.scores_BJ}


@dataclass(frozen=True)
class TreeStep:
    """The hypotheses of one step, best first, each with its place among those of the step before (-1: the empty one).

    Gold's prefix and forbidden hypotheses, which are not among the successors, come last. `fate` is what became of
    each. `valid` counts the valid successors that each had at the next step, 0 where it was not continued or without a
    constraint. `gold` is gold's place (-1: there is no gold here), `rank` its rank among all successors (0: behind all
    that were looked at), `margin` its score minus that of the rival, or of the last kept hypothesis where there is no
    rival. A `violation` restarts the search where the policy does.
    """

    parents: list[int]
    tokens: list[int]
    scores: list[float]
    fate: list[int]
    valid: list[int]
    gold: int = -1
    rank: int = 0
    gold_score: float | None = None
    margin: float | None = None
    rival: int = -1
    violation: bool = False


def tree_of(
    recorder: SearchRecorder,
    sentence: int,
    *,
    ends: Sequence[int] = (),
    gold: Sequence[int] = (),
    gold_scores: Sequence[float] = (),
    policy: Policy | None = None,
    shown: int,
) -> list[TreeStep]:
    """The steps of one sentence; dropped hypotheses appear up to a number of `shown` a step, and so do forbidden ones.

    `gold_scores` are those of gold's prefixes; a search with gold knows them itself and has a `policy`. `ends` are the
    end symbols.
    """
    tree: list[TreeStep] = []
    at, gold_at = [-1], -1  # the places of the beam's rows, and of gold's prefix, among the hypotheses before
    before = since = 0.0  # growth of the margin up to the last restart, and since then
    for t, table in enumerate(recorder.steps):
        row = {name: values[sentence] for name, values in table.items()}
        if not row["active"]:
            break
        if policy is not None:
            since += policy.margin_per_token
            row = _without_growth(row, before, since)
            if policy.restarts and row["violation"]:
                before, since = before + since, 0.0
        if tree and "valid" in row:
            for place, count in zip(at, row["valid"], strict=False):
                if place >= 0:
                    tree[-1].valid[place] = count
        lanes = [*at, *[-2] * (len(row["alive"]) - len(at)), gold_at]  # gold's lane is behind the beam's
        name = (gold_at, gold[t]) if t < len(gold) else None
        score = row.get("gold_score", gold_scores[t] if t < len(gold_scores) else None)
        step, places = _tree_step(row, lanes, _hypotheses(row, lanes, ends), name, score, shown)
        tree.append(step)
        gold_at = step.gold if name is not None else -2
        at = [
            places[lanes[parent], newest] if alive else -2
            for (parent, newest), alive in zip(row["next"], row["alive"], strict=True)
        ]
    return tree


def _without_growth(row: dict[str, Any], before: float, since: float) -> dict[str, Any]:
    """The row with sums of tokens' scores. Gold's lane loses what the margin grows by, and restarts begin from it."""
    names = {"kept_scores", "best_scores", "free_scores"} & row.keys()
    given = {name: [score + before for score in row[name]] for name in names}
    lanes = {"gold_score": row["gold_score"] + before + since, "rival_score": row["rival_score"] + before}
    return {**row, **given, **lanes}


Name = tuple[int, int]  # a hypothesis of a step: its parent's place, and its newest token


def _tree_step(
    row: dict[str, Any],
    lanes: Sequence[int],
    found: dict[Name, tuple[float, int]],
    gold: Name | None,
    gold_score: float | None,
    shown: int,
) -> tuple[TreeStep, dict[Name, int]]:
    """A step of the tree, and the places of its hypotheses."""
    score = None if gold is None else found[gold][0] if gold in found else gold_score
    ordered = sorted(found, key=lambda name: -found[name][0])
    rank = 0
    if score is not None:
        ahead = sum(found[name][0] > score for name in ordered if name != gold)
        complete = ahead < len(ordered) or row["best_scores"][-1] == NEVER  # no other successor can be ahead of gold
        rank = ahead + 1 if gold in found or complete else 0
    ordered = _shown(ordered, found, shown, gold)
    if gold is not None and gold not in found:
        ordered.append(gold)
    forbidden = _forbidden(row, lanes, found, gold, shown)
    ordered += forbidden
    found = found | forbidden
    places = {name: place for place, name in enumerate(ordered)}
    on_beam = [s for s, fate in found.values() if fate in (KEPT, ENDED)]
    against = row.get("rival_score", min(on_beam, default=NEVER))
    rival = -1
    if gold is not None and "rival" in row:
        parent, token = row["kept"][row["rival"]]
        rival = places.get((lanes[parent], token), -1)
    step = TreeStep(
        parents=[parent for parent, _ in ordered],
        tokens=[newest for _, newest in ordered],
        scores=[found[name][0] if name in found else NEVER if score is None else score for name in ordered],
        fate=[found[name][1] if name in found else GOLD for name in ordered],
        valid=[0] * len(ordered),
        gold=-1 if gold is None else places[gold],
        rank=rank,
        gold_score=score,
        margin=None if score is None or against == NEVER else score - against,
        rival=rival,
        violation=bool(row.get("violation", False)),
    )
    return step, places


def _hypotheses(row: dict[str, Any], lanes: Sequence[int], ends: Sequence[int]) -> dict[Name, tuple[float, int]]:
    """Score and fate of the successors of a step."""
    found: dict[Name, tuple[float, int]] = {}
    for (parent, token), score in zip(row["kept"], row["kept_scores"], strict=True):
        if score > NEVER:
            found[lanes[parent], token] = score, ENDED if token in ends else KEPT
    for (parent, token), score in zip(row["best"], row["best_scores"], strict=True):
        if score > NEVER:
            found.setdefault((lanes[parent], token), (score, DROPPED))
    return found


def _forbidden(
    row: dict[str, Any], lanes: Sequence[int], found: dict[Name, tuple[float, int]], gold: Name | None, shown: int
) -> dict[Name, tuple[float, int]]:
    """Successors that would be on the next beam without the constraint, and are no valid ones: `found` has all of
    those."""
    free = zip(row.get("free", ()), row.get("free_scores", ()), strict=True)
    best = {(lanes[parent], token): (score, FORBIDDEN) for (parent, token), score in free if score > NEVER}
    return dict([item for item in best.items() if item[0] not in found and item[0] != gold][:shown])


def _shown(ordered: Sequence[Name], found: dict[Name, tuple[float, int]], shown: int, gold: Name | None) -> list[Name]:
    """All but the dropped hypotheses beyond a number of them; gold stays."""
    chosen: list[Name] = []
    for name in ordered:
        if found[name][1] != DROPPED or name == gold:
            chosen.append(name)
        elif shown > 0:
            chosen.append(name)
            shown -= 1
    return chosen


def gold_kept(beams: Beams, gold_BG: Int[Tensor, "B G"], *, beam_size: int) -> Bool[Tensor, "X B"]:
    """Whether gold's prefix is among the kept hypotheses of a step, for all steps that search and gold both have."""
    was_gold_BK = torch.zeros_like(beams.tokens_TBJ[0][:, :beam_size], dtype=torch.bool)
    was_gold_BK[:, 0] = True
    kept = []
    for t, token_B in enumerate(gold_BG.unbind(1)[: len(beams.tokens_TBJ)]):
        from_gold_BJ = was_gold_BK.gather(1, beams.parents_TBJ[t])
        is_gold_BJ = from_gold_BJ & (beams.tokens_TBJ[t] == token_B[:, None]) & (beams.scores_TBJ[t] > NEVER)
        kept.append(is_gold_BJ.any(1))
        was_gold_BK = is_gold_BJ[:, :beam_size]
    return torch.stack(kept)
