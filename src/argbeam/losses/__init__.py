"""Losses: what training minimises, by the name a recipe gives it.

Read `bso` and `replay` first: a search finds violations without gradient, the replay scores the few tokens that count
with gradient. `contract` is what every loss meets. No search belongs here: losses call that of `search`.
"""

from collections.abc import Callable

from argbeam.losses.apao import Apao
from argbeam.losses.bso import COSTS, Bso, Normalise, curriculum_beam
from argbeam.losses.contract import Loss, StepLoss
from argbeam.losses.crf import Crf
from argbeam.losses.cross_entropy import CrossEntropy, PruningWeights
from argbeam.losses.mixed import Mixed
from argbeam.losses.mixer import Baseline, Mixer
from argbeam.losses.mrt import Mrt, Sampled, Searched
from argbeam.losses.risks import RISKS
from argbeam.losses.scheduled_sampling import Exponential, InverseSigmoid, Linear, Schedule, ScheduledSampling
from argbeam.search.gold import EarlyUpdate, MaxViolation, Policy, Restart
from argbeam.search.score_rules import SCORE_RULES
from argbeam.search.stop_rules import STOPS, Stop
from argbeam.search.successors import Successors
from argbeam.settings import losses as settings
from argbeam.settings.stages import Stage
from argbeam.tasks.contract import Task

__all__ = ["Bso", "CrossEntropy", "Loss", "StepLoss", "make_loss"]

POLICIES: dict[str, Callable[[float, float], Policy]] = {
    "restart": Restart,
    "early_update": EarlyUpdate,
    "max_violation": MaxViolation,
}


def make_loss(loss: settings.Loss, task: Task, *, width: int = 1) -> Loss:
    """The loss of a stage of a recipe. `width` is that of the model's outputs, for a loss with weights of its own."""
    made = _make(loss, task, width)
    if isinstance(loss, settings.SequenceLoss) and loss.cross_entropy > 0:
        return Mixed(made, loss.cross_entropy, loss.label_smoothing)
    return made


def last_beam(stage: Stage) -> int:
    """The beam that the training search of a stage ends with, which few epochs leave below `train_beam`; 0: none."""
    loss = stage.loss
    if not isinstance(loss, settings.SearchLoss):
        return 0
    growth = {"start": loss.start_beam, "end": loss.train_beam, "epochs_per_beam": loss.epochs_per_beam}
    return curriculum_beam(stage.epochs - 1, **growth)


def _make(loss: settings.Loss, task: Task, width: int) -> Loss:
    match loss:
        case settings.CrossEntropyLoss():
            edge = PruningWeights(loss.pruning_rank, loss.pruning_weight, loss.pruning_temperature)
            valid = task.constraint if loss.valid_only else None
            return CrossEntropy(loss.label_smoothing, valid, edge if loss.pruning_weight else None)
        case settings.ApaoLoss():
            return Apao(task.constraint, loss.negatives, loss.weight, loss.temperature, loss.eta)
        case settings.BsoLoss():
            return Bso(
                *_training_search(loss, task),
                margin=loss.margin,
                cost=COSTS[loss.cost],
                cost_scale=loss.cost_scale,
                normalise=Normalise(loss.normalise),
                reset_optimizer=loss.reset_optimizer,
                policy=POLICIES[loss.policy],
                rule=SCORE_RULES[loss.rule],
                margin_per_token=loss.margin_per_token,
            )
        case settings.CrfLoss():
            search, normalise = _training_search(loss, task), Normalise(loss.normalise)
            return Crf(*search, normalise, loss.reset_optimizer, loss.restarts)
        case settings.ScheduledSamplingLoss():
            return ScheduledSampling(
                successors=task.unconstrained,
                schedule=_schedule(loss.schedule),
                highest=loss.highest,
                sampled=loss.own_word == "sampled",
            )
        case settings.MixerLoss():
            return Mixer(
                successors=task.unconstrained,
                baseline=Baseline(width),
                cross_entropy_epochs=loss.cross_entropy_epochs,
                epochs_per_border=loss.epochs_per_border,
                words_per_border=loss.words_per_border,
                extra_length=loss.extra_length if task.open_length else 0,
                baseline_rate=loss.baseline_rate,
                baseline_weight=loss.baseline_weight,
            )
        case settings.MrtLoss():
            sampled = loss.candidates == "sampled"
            return Mrt(
                successors=task.constraint if loss.constrained else task.unconstrained,
                candidates=Sampled(loss.size) if sampled else Searched(loss.size),
                alpha=loss.alpha,
                include_gold=loss.include_gold,
                risk=RISKS[loss.risk],
                extra_length=loss.extra_length,
                open_length=task.open_length,
            )


def _training_search(loss: settings.SearchLoss, task: Task) -> tuple[Successors, int, Stop, bool, int, int]:
    """The first six arguments of `Bso` and `Crf`: successors, stop rule, and the growing beam."""
    successors = task.constraint if loss.constrained else task.unconstrained
    return successors, loss.train_beam, STOPS[loss.stop], task.open_length, loss.start_beam, loss.epochs_per_beam


def _schedule(schedule: settings.Schedule) -> Schedule:
    match schedule:
        case settings.LinearSchedule():
            return Linear(schedule.slope)
        case settings.ExponentialSchedule():
            return Exponential(schedule.base)
        case settings.InverseSigmoidSchedule():
            return InverseSigmoid(schedule.k)
