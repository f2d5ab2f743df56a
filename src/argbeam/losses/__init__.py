"""Losses: what training minimises, by the name a recipe gives it."""

from collections.abc import Callable

from argbeam import settings
from argbeam.losses.bso import (
    Bso,
    Cost,
    Normalise,
    one_minus_authors_bleu,
    one_minus_bleu,
    zero_one,
)
from argbeam.losses.contract import Loss, LossOutput, StepLoss
from argbeam.losses.crf import Crf
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.policies import EarlyUpdate, MaxViolation, Policy, Restart
from argbeam.rules import STOPS, LastScore, ScoreSum
from argbeam.tasks.contract import Task

COSTS: dict[str, Cost] = {
    "zero_one": zero_one,
    "sentence_bleu": one_minus_bleu,
    "authors_bleu": one_minus_authors_bleu,
}
POLICIES: dict[str, Callable[[float], Policy]] = {
    "restart": Restart,
    "early_update": EarlyUpdate,
    "max_violation": MaxViolation,
}
_RULES: dict[str, LastScore | ScoreSum] = {rule.name: rule for rule in (LastScore(), ScoreSum())}


def make_loss(loss: settings.Loss, task: Task) -> Loss:
    """The loss that a stage of a recipe asks for."""
    match loss:
        case settings.CrossEntropyLoss():
            return CrossEntropy()
        case settings.BsoLoss():
            return Bso(
                successors=task.constraint if loss.constrained else task.unconstrained,
                train_beam=loss.train_beam,
                stop=STOPS[loss.stop],
                open_length=task.open_length,
                start_beam=loss.start_beam,
                epochs_per_beam=loss.epochs_per_beam,
                margin=loss.margin,
                cost=COSTS[loss.cost],
                cost_scale=loss.cost_scale,
                normalise=Normalise(loss.normalise),
                reset_optimizer=loss.reset_optimizer,
                policy=POLICIES[loss.policy],
                rule=_RULES[loss.rule],
            )
        case settings.CrfLoss():
            return Crf(
                successors=task.constraint if loss.constrained else task.unconstrained,
                train_beam=loss.train_beam,
                stop=STOPS[loss.stop],
                open_length=task.open_length,
                start_beam=loss.start_beam,
                epochs_per_beam=loss.epochs_per_beam,
                normalise=Normalise(loss.normalise),
                reset_optimizer=loss.reset_optimizer,
            )


__all__ = [
    "COSTS",
    "POLICIES",
    "Bso",
    "Cost",
    "Crf",
    "CrossEntropy",
    "Loss",
    "LossOutput",
    "StepLoss",
    "make_loss",
]
