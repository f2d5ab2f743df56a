"""The weights that a stage ends with: those of its best epoch, or those that it started from where no epoch is better.

Of epochs with the same score the one with the lower dev perplexity is better, where it is measured; else the later one
is kept. A stage that starts from random weights has nothing to keep.
"""

from typing import Any

from argbeam.losses import Loss
from argbeam.metrics.outputs import metric_name
from argbeam.search.score_rules import SCORE_RULES, ScoreRule
from argbeam.settings import Stage
from argbeam.training.state import Position

_PAGE = "docs/tuning.md"


def judged_value(stage: Stage, figures: dict[str, Any]) -> float | None:
    """The figure that chooses the stage's best epoch; None: its last epoch is the one."""
    return {"perplexity": figures.get("perplexity"), "score": figures.get("value"), "last": None}[stage.keep]


def start_value(stage: Stage, rule: ScoreRule, start_dev: dict[str, Any]) -> float | None:
    """The same figure of the model that the stage starts from; None: it cannot be compared with the epochs.

    Perplexity compares two models only if the scores of both are log-probabilities.
    """
    if stage.keep == "perplexity" and not rule.normalised:
        return None
    return judged_value(stage, start_dev)


def advantage(stage: Stage, dev: dict[str, Any], best_value: float, best_dev: dict[str, Any]) -> float:
    """Above 0: weights with the figures `dev` are better than the best so far; 0: nothing tells them apart.

    Equal scores are told apart by perplexity, where both figures have it.
    """
    value = judged_value(stage, dev)
    assert value is not None
    difference = best_value - value if stage.keep == "perplexity" else value - best_value
    measured = "perplexity" in dev and "perplexity" in best_dev
    return difference or (best_dev["perplexity"] - dev["perplexity"] if measured else 0.0)


def keeps_start(stage: Stage, rule: ScoreRule, position: Position) -> bool:
    """Whether no epoch so far is better than the model that the stage started from."""
    start = start_value(stage, rule, position.start_dev)
    if start is None or position.best_value is None:
        return start is not None
    return advantage(stage, position.best_dev, start, position.start_dev) <= 0


def judge_epoch(stage: Stage, rule: ScoreRule, position: Position, dev: dict[str, Any]) -> bool:
    """Note the best epoch in the position; whether this epoch's weights are those to keep so far."""
    value, best, tied = judged_value(stage, dev), position.best_value, 0
    if value is None:
        return False
    if best is not None:
        better = advantage(stage, dev, best, position.best_dev)
        if better < 0 or (better == 0 and "perplexity" in dev):
            return False
        tied = 0 if better else position.tied_epochs + position.epoch - position.best_epoch
    position.best_value, position.best_epoch, position.best_dev, position.tied_epochs = value, position.epoch, dev, tied
    return not keeps_start(stage, rule, position)


def changes(loss: Loss, epoch: int) -> bool:
    """Whether the loss of this epoch differs from that of the epoch before."""
    return epoch > 0 and loss.at(epoch) != loss.at(epoch - 1)


def out_of_patience(stage: Stage, loss: Loss, position: Position) -> bool:
    """Whether the stage ends for lack of a better epoch. The start does not count: a new score rule begins below it."""
    epoch, patience, best_since = position.epoch, stage.patience, position.best_epoch - position.tied_epochs
    if not 0 < patience < epoch - best_since:
        return False
    # While the loss changes, as with a growing beam, a worse figure says little: epochs count from the last change.
    return not any(changes(loss, e) for e in range(epoch - patience + 1, epoch + 1))


def stage_record(
    name: str, stage: Stage, rule: ScoreRule, position: Position, dev: dict[str, Any], *, updates: int
) -> dict[str, Any]:
    """The record of a finished stage. `dev` has the figures of the weights kept; `updates` are those of the stage."""
    start_kept = keeps_start(stage, rule, position)
    last = position.epoch - 1 if position.best_value is None else position.best_epoch
    return {
        "kind": "stage",
        "stage": name,
        "update": position.update,
        "epochs": position.epoch,
        "kept_epoch": -1 if start_kept else last,  # -1: the model that the stage started from
        "keep": stage.keep,
        "value": judged_value(stage, position.start_dev) if start_kept else position.best_value,
        "dev": dev,
        "start": position.start_dev,
        "comparison": _comparison(name, stage, rule, position, dev, updates),
        "seconds": round(position.seconds, 3),
    }


def _comparison(name: str, stage: Stage, rule: ScoreRule, position: Position, dev: dict[str, Any], updates: int) -> str:
    """Words for a stage that kept the model it started from, or whose dev score is below that model's."""
    if not position.start_dev:
        return ""
    start_dev = position.start_dev
    metric = f"dev {metric_name(start_dev)} at beam {start_dev['test_beam']}"
    if keeps_start(stage, rule, position):
        best, start = position.best_value, judged_value(stage, start_dev)
        assert best is not None and start is not None
        measure = "dev perplexity" if stage.keep == "perplexity" else metric
        said = f"{name} did not improve on the model it started from: {_compared(best, start)} ({measure}); "
        said += f"that model is kept, with its rule {position.rule}"
    elif dev["value"] < start_dev["value"]:
        scores = f"{_compared(dev['value'], start_dev['value'])} ({metric})"
        said = f'{name} ends below the model it started from: {scores}; keep = "{stage.keep}" ignores this score'
    else:
        return ""
    causes = [f"too few updates ({updates:,})", "learning rates too high or too low"]
    if SCORE_RULES[position.rule].adds_up and not rule.adds_up:
        causes.insert(0, f'rule = "{rule.name}", which ranks by the newest token alone and learns that anew')
    return f"{said}; common causes: {', '.join(causes)}; {_PAGE} has figures"


def _compared(value: float, other: float) -> str:
    """`37.71 < 39.25`, with as many digits as tell them apart."""
    sign = "=" if value == other else "<" if value < other else ">"
    digits = next((n for n in range(2, 17) if f"{value:.{n}f}" != f"{other:.{n}f}" or value == other), 17)
    return f"{value:.{digits}f} {sign} {other:.{digits}f}"
