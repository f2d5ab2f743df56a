"""Losses: what training minimises, by the name a recipe gives it."""

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
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.rules import STOPS
from argbeam.tasks.contract import Task

COSTS: dict[str, Cost] = {
    "zero_one": zero_one,
    "sentence_bleu": one_minus_bleu,
    "authors_bleu": one_minus_authors_bleu,
}


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
            )


__all__ = ["COSTS", "Bso", "Cost", "CrossEntropy", "Loss", "LossOutput", "StepLoss", "make_loss"]
