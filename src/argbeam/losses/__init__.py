"""Losses: what training minimises, by the name a recipe gives it.

Read `bso` and `replay` first: a search finds violations without gradient, the replay scores the few tokens that count
with gradient. `contract` is what every loss meets. No search belongs here: losses call `beam_search`.
"""

from collections.abc import Callable

from argbeam.losses.bso import Bso, Cost, Normalise, one_minus_authors_bleu, one_minus_bleu, zero_one
from argbeam.losses.contract import Loss, StepLoss
from argbeam.losses.crf import Crf
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.losses.mixed import Mixed
from argbeam.losses.mixer import Baseline, Mixer
from argbeam.losses.mrt import Mrt, Sampled, Searched
from argbeam.losses.risks import Risk, one_minus_sentence_bleu, token_error
from argbeam.losses.risks import zero_one as zero_one_risk
from argbeam.losses.scheduled_sampling import Exponential, InverseSigmoid, Linear, Schedule, ScheduledSampling
from argbeam.search.gold import EarlyUpdate, MaxViolation, Policy, Restart
from argbeam.search.score_rules import LastScore, ScoreSum
from argbeam.search.stop_rules import STOPS
from argbeam.settings import losses as settings
from argbeam.tasks.contract import Task

__all__ = ["Bso", "CrossEntropy", "Loss", "StepLoss", "make_loss"]

COSTS: dict[str, Cost] = {"zero_one": zero_one, "sentence_bleu": one_minus_bleu, "authors_bleu": one_minus_authors_bleu}
POLICIES: dict[str, Callable[[float], Policy]] = {
    "restart": Restart,
    "early_update": EarlyUpdate,
    "max_violation": MaxViolation,
}
RULES: dict[str, LastScore | ScoreSum] = {"last_score": LastScore(), "score_sum": ScoreSum()}
RISKS: dict[str, Risk] = {
    "sentence_bleu": one_minus_sentence_bleu,
    "zero_one": zero_one_risk,
    "token_error": token_error,
}


def make_loss(loss: settings.Loss, task: Task, *, width: int = 1) -> Loss:
    """The loss of a stage of a recipe. `width` is that of the model's outputs, for a loss with weights of its own."""
    made = _make(loss, task, width)
    if isinstance(loss, settings.SequenceLoss) and loss.cross_entropy > 0:
        return Mixed(made, loss.cross_entropy)
    return made


def _make(loss: settings.Loss, task: Task, width: int) -> Loss:
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
                rule=RULES[loss.rule],
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
                candidates=Sampled(loss.size) if sampled else Searched(loss.size, task.open_length),
                alpha=loss.alpha,
                include_gold=loss.include_gold,
                risk=RISKS[loss.risk],
                extra_length=loss.extra_length if task.open_length else 0,
            )


def _schedule(schedule: settings.Schedule) -> Schedule:
    match schedule:
        case settings.LinearSchedule():
            return Linear(schedule.slope)
        case settings.ExponentialSchedule():
            return Exponential(schedule.base)
        case settings.InverseSigmoidSchedule():
            return InverseSigmoid(schedule.k)
