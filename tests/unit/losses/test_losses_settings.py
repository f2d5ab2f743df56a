"""From the loss of a recipe to the loss that trains: every setting arrives."""

from functools import cache
from typing import Any

import pytest

from argbeam.errors import ConfigError
from argbeam.losses import Bso, CrossEntropy, Loss, Mixed, Mixer, Mrt, ScheduledSampling, make_loss
from argbeam.losses.apao import Apao
from argbeam.losses.crf import Crf
from argbeam.losses.cross_entropy import PruningWeights
from argbeam.losses.mrt import Sampled, Searched
from argbeam.losses.risks import one_minus_sentence_bleu, token_error, zero_one
from argbeam.losses.scheduled_sampling import Exponential, InverseSigmoid, Linear, Schedule
from argbeam.tasks import TASKS, Task
from small_runs import RATES, small_recipe


@cache
def task_of(kind: str) -> Task:
    return TASKS[kind].fit(small_recipe(task=kind))


def loss_of(loss: dict[str, Any], *, task: str = "translation") -> Loss:
    recipe = small_recipe(task=task, stages={"only": {"epochs": 1, "loss": loss, "optimizer": RATES}})
    return make_loss(recipe.stages["only"].loss, task_of(task), width=7)


@pytest.mark.parametrize(
    ("table", "schedule"),
    [
        ({"kind": "linear", "slope": 0.25}, Linear(0.25)),
        ({"kind": "exponential", "base": 0.5}, Exponential(0.5)),
        ({"kind": "inverse_sigmoid", "k": 3.0}, InverseSigmoid(3.0)),
    ],
)
def test_scheduled_sampling(table: dict[str, Any], schedule: Schedule) -> None:
    anything = task_of("translation").unconstrained
    sampled = loss_of({"kind": "scheduled_sampling", "schedule": table})
    assert sampled == ScheduledSampling(anything, schedule, highest=1.0, sampled=True)
    best = loss_of({"kind": "scheduled_sampling", "schedule": table, "highest": 0.5, "own_word": "best"})
    assert best == ScheduledSampling(anything, schedule, highest=0.5, sampled=False)


@pytest.mark.parametrize(("task", "extra"), [("translation", 2), ("word_ordering", 0)])
def test_mixer(task: str, extra: int) -> None:
    """Where the length is fixed no output is longer than gold."""
    table = {"kind": "mixer", "cross_entropy_epochs": 1, "epochs_per_border": 5, "words_per_border": 4}
    loss = loss_of({**table, "extra_length": 2, "baseline_rate": 0.5, "baseline_weight": 0.25}, task=task)
    assert isinstance(loss, Mixer)
    assert loss == Mixer(task_of(task).unconstrained, loss.baseline, 1, 5, 4, one_minus_sentence_bleu, extra, 0.5, 0.25)
    assert loss.baseline.weight_H.shape == (7,)


def test_minimum_risk() -> None:
    anything = task_of("translation").unconstrained
    assert loss_of({"kind": "mrt"}) == Mrt(anything, Sampled(8), 0.005, True, one_minus_sentence_bleu, 4)
    table = {"kind": "mrt", "size": 3, "alpha": 0.5, "include_gold": False, "extra_length": 1}
    searched = loss_of({**table, "candidates": "beam", "risk": "zero_one"})
    assert searched == Mrt(anything, Searched(3), 0.5, False, zero_one, 1)
    ordered = loss_of({**table, "candidates": "beam", "risk": "token_error", "constrained": True}, task="word_ordering")
    constraint = task_of("word_ordering").constraint
    assert ordered == Mrt(constraint, Searched(3), 0.5, False, token_error, 1, False)


def test_losses_of_constrained_models() -> None:
    constraint = task_of("word_ordering").constraint
    valid = loss_of({"kind": "cross_entropy", "valid_only": True}, task="word_ordering")
    assert valid == CrossEntropy(0.0, constraint) and valid.rule.name == "valid_logprob_sum"
    table = {"kind": "cross_entropy", "pruning_weight": 0.25, "pruning_rank": 20, "pruning_temperature": 2.75}
    assert loss_of(table) == CrossEntropy(0.0, None, PruningWeights(20, 0.25, 2.75))
    apao = {"kind": "apao", "weight": 0.3, "negatives": 7, "temperature": 2.0, "eta": 0.5}
    assert loss_of(apao, task="word_ordering") == Apao(constraint, 7, 0.3, 2.0, 0.5)
    crf = loss_of({"kind": "crf", "restarts": True}, task="word_ordering")
    assert isinstance(crf, Crf) and crf.restarts


def test_a_weight_of_cross_entropy_makes_a_mixture() -> None:
    plain = loss_of({"kind": "bso", "train_beam": 4})
    assert isinstance(plain, Bso)
    assert loss_of({"kind": "bso", "train_beam": 4, "cross_entropy": 0.3}) == Mixed(plain, 0.3)
    smoothed = {"kind": "bso", "train_beam": 4, "cross_entropy": 0.3, "label_smoothing": 0.1}
    assert loss_of(smoothed) == Mixed(plain, 0.3, 0.1)
    assert loss_of({"kind": "mrt", "cross_entropy": 0.5}) == Mixed(loss_of({"kind": "mrt"}), 0.5)
    mixer = loss_of({"kind": "mixer", "cross_entropy": 0.25})
    assert isinstance(mixer, Mixed) and isinstance(mixer.sequence, Mixer)
    assert mixer.weights is not None and mixer.weights.module is mixer.sequence.baseline


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"kind": "mrt", "constrained": True}, "stages.only.loss.constrained = true: translation has no constraint"),
        (
            {"kind": "bso", "cross_entropy": 1.0},
            "stages.only.loss.cross_entropy = 1.0: must be at least 0 and less than",
        ),
        (
            {"kind": "bso", "label_smoothing": 0.1},
            "label_smoothing = 0.1 is for the share of cross-entropy; must be 0 with cross_entropy = 0",
        ),
        ({"kind": "bso", "margin_per_token": 0.5}, "margin_per_token = 0.5 is for sums; must be 0 with rule"),
        ({"kind": "bso", "rule": "score_sum", "stop": "best"}, 'must be "top" with "score_sum"'),
        ({"kind": "bso", "rule": "logprob_sum", "stop": "best"}, 'must be "top" with "logprob_sum"'),
        ({"kind": "crf", "stop": "best"}, 'sums of scores do not compare across lengths; must be "top" with "crf"'),
        ({"kind": "scheduled_sampling"}, "missing key stages.only.loss.schedule"),
        (
            {"kind": "scheduled_sampling", "schedule": {"kind": "linear", "base": 0.5}},
            "unknown key stages.only.loss.schedule.base",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(loss: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        loss_of(loss)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
