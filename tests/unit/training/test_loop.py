"""The training loop: its stages, which epoch it keeps, when it stops, and what it reports."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from torch import Tensor

from argbeam.data.batches import BatchPlan
from argbeam.decoding.batch_decoder import BatchDecoder, Evaluation, decode_rules
from argbeam.errors import ArgbeamError
from argbeam.losses import make_loss
from argbeam.models.noise import Noise
from argbeam.runs.train import build_model
from argbeam.runtime import device as devices
from argbeam.search.score_rules import LastScore, LogprobSum
from argbeam.search.stop_rules import StopBest, StopTop
from argbeam.settings import Decode, Recipe
from argbeam.tasks import TASKS
from argbeam.tasks.contract import Score
from argbeam.training import epoch_record
from argbeam.training.epoch_record import epoch_figures
from argbeam.training.events import Event, Notice, Progress, Record, Saved
from argbeam.training.loop import Trainer
from argbeam.training.optimizer import Adagrad
from argbeam.training.state import Position
from argbeam.training.step import TrainStep
from small_runs import BSO, PRETRAIN, RATES, SMOOTHED, same_tensors, short_text, small_recipe
from tape import TapeRecorder

CPU = torch.device("cpu")


def trainer_of(recipe: Recipe) -> Trainer:
    task = TASKS[recipe.task.kind].fit(recipe)
    examples = [task.example(item, number) for number, item in enumerate(task.read("train").items)]
    return Trainer(recipe, task, build_model(recipe, task), examples, task.read("dev").items, CPU)


def one_stage(tmp_path: Path, *overrides: str, **stage: Any) -> Recipe:
    table = {"epochs": 2, "loss": {"kind": "cross_entropy"}, "optimizer": RATES, **stage}
    return small_recipe(*overrides, data=short_text(tmp_path), stages={"only": table})


def records_of(events: Sequence[Event], kind: str) -> list[dict[str, Any]]:
    return [event.values for event in events if isinstance(event, Record) and event.values["kind"] == kind]


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def fix_dev(monkeypatch: pytest.MonkeyPatch, values: Sequence[float], *, keep: str = "perplexity") -> None:
    """Dev has these perplexities, one an epoch; or these scores, where they are what is kept by."""
    scores = [Evaluation(Score(value, {"bleu": value}, "fixed"), [], [], 0, 0) for value in values]
    perplexities = [1.0] * len(values) if keep == "score" else values
    monkeypatch.setattr(epoch_record, "perplexity", Mock(side_effect=perplexities))
    monkeypatch.setattr(epoch_record, "evaluate", Mock(side_effect=scores))


def diverged(recipe: Recipe) -> Trainer:
    """A trainer with a weight that is not a number: no gradient is finite."""
    trainer = trainer_of(recipe)
    with torch.no_grad():
        trainer.model.output_layer.bias[5] = torch.nan
    return trainer


def test_stages_follow_one_another_and_every_epoch_is_reported(tmp_path: Path) -> None:
    """Six sentences in batches of two: three updates an epoch."""
    trainer = trainer_of(small_recipe(data=short_text(tmp_path)))
    events = list(trainer.events())
    epochs = records_of(events, "epoch")
    progress = [event for event in events if isinstance(event, Progress)]
    assert [(p.stage, p.epoch) for p in progress] == [(r["stage"], r["epoch"]) for r in epochs]
    assert [
        (r["stage"], r["epoch"], r["update"], r["beam"], p.update, p.updates, p.violations > 0)
        for r, p in zip(epochs, progress, strict=True)
    ] == [
        ("pretrain", 0, 3, 0, 3, 6, False),
        ("pretrain", 1, 6, 0, 6, 6, False),
        ("bso", 0, 9, 2, 3, 9, True),
        ("bso", 1, 12, 3, 6, 9, True),
        ("bso", 2, 15, 3, 9, 9, True),
    ]
    assert [(r["stage"], r["epochs"], r["update"], r["keep"]) for r in records_of(events, "stage")] == [
        ("pretrain", 2, 6, "perplexity"),
        ("bso", 3, 15, "score"),
    ]
    assert all((r["sentences"], r["words"]) == (6, 16) for r in epochs)
    for record in (event.values for event in events if isinstance(event, Record)):
        assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert all(math.isfinite(p.loss) and p.words_per_second > 0 for p in progress)
    saved = [event for event in events if isinstance(event, Saved)][-1]
    assert (saved.position.stage, saved.position.epoch, saved.stopped) == (1, 3, False)
    kept = {"rule": "last_score", "stop": "top", "trained_by": 1}
    assert trainer.position == Position(stage=2, update=15, records=8, seconds=trainer.position.seconds, **kept)


@pytest.mark.parametrize(
    ("keep", "values", "best", "kept"),
    [
        ("perplexity", [3.0, 1.0, 2.0, 4.0], [True, True, False, False], 1),
        ("perplexity", [3.0, 2.0, 2.0, 2.0], [True, True, False, False], 1),
        ("score", [3.0, 1.0, 4.0, 2.0], [True, False, True, False], 2),
        ("score", [0.0, 0.0, 0.0, 0.0], [True, False, False, False], 0),
        ("last", [3.0, 1.0, 4.0, 2.0], [False, False, False, False], 3),
    ],
)
def test_a_stage_ends_with_the_weights_of_its_best_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str, values: list[float], best: list[bool], kept: int
) -> None:
    """Of epochs with equal figures the first; every epoch's weights differ, so that only one can be meant."""
    fix_dev(monkeypatch, values, keep=keep)
    trainer = trainer_of(one_stage(tmp_path, epochs=4, keep=keep))
    by_epoch, events = [], []
    for event in trainer.events():
        events.append(event)
        by_epoch += [weights_of(trainer) for _ in records_of([event], "epoch")]
    (stage,) = records_of(events, "stage")
    assert stage["kept_epoch"] == kept
    assert stage["value"] == (None if keep == "last" else values[kept])
    assert [same_tensors(weights_of(trainer), weights) for weights in by_epoch] == [e == kept for e in range(4)]
    assert [record["best"] for record in records_of(events, "epoch")] == best


@pytest.mark.parametrize(
    ("keep", "scores", "kept", "said"),
    [
        ("score", [50.0, 40.0, 51.0], 1, ""),
        ("score", [50.0, 40.0, 45.0], -1, "second did not improve on the model it started from: 45.00 < 50.00 ("),
        (
            "score",
            [50.0, 40.0, 49.9996],
            -1,
            "second did not improve on the model it started from: 49.9996 < 50.0000 (",
        ),
        ("score", [50.0, 50.0, 49.0], -1, "second did not improve on the model it started from: 50.00 = 50.00 ("),
        ("last", [50.0, 40.0], 1, "second ends below the model it started from: 40.00 < 50.00 ("),
        ("last", [50.0, 50.0], 1, ""),
    ],
)
def test_a_stage_ends_below_its_start_only_if_nothing_chooses_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str, scores: list[float], kept: int, said: str
) -> None:
    """`scores` are those of the start, by its own rule, and of epochs; without a choice, of the weights of the end."""
    first = {"keep": "last", "epochs": 1, "loss": {"kind": "cross_entropy"}, "optimizer": RATES}
    second = {**first, "keep": keep, "epochs": 2, "loss": {"kind": "bso", "train_beam": 2}}
    recipe = small_recipe(data=short_text(tmp_path), stages={"first": first, "second": second})
    trainer, rules, weights, events = trainer_of(recipe), [], [], []
    values = iter([50.0, *scores])

    def told(decoder: BatchDecoder, *_: Any, beam: int) -> Evaluation:
        rules.append((decoder.rule, decoder.stop, beam))
        value = next(values)
        return Evaluation(Score(value, {"bleu": value}, "fixed"), [], [], 0, 0)

    monkeypatch.setattr(epoch_record, "evaluate", told)
    for event in trainer.events():
        events.append(event)
        if isinstance(event, Record) and event.values["kind"] in ("stage_start", "epoch"):
            weights.append(weights_of(trainer))
    stage, (start,) = records_of(events, "stage")[-1], records_of(events, "stage_start")
    assert rules[:2] == [(LogprobSum(), StopBest(), 5)] * 2 and rules[2:] == [(LastScore(), StopTop(), 5)] * len(
        rules[2:]
    )
    assert (start["rule"], start["stop"], start["dev"]["value"]) == ("logprob_sum", "best", 50.0)
    assert (stage["kept_epoch"], stage["start"]) == (kept, start["dev"])
    assert same_tensors(weights_of(trainer), weights[kept + 2])
    assert trainer.position.rule == ("logprob_sum" if kept < 0 else "last_score")
    assert stage["comparison"].startswith(said) and bool(stage["comparison"]) == bool(said)
    assert not said or stage["comparison"].endswith(
        '; common causes: rule = "last_score", which ranks by the newest token alone and learns that anew, '
        "too few updates (6), learning rates too high or too low; docs/tuning.md has figures"
    )
    assert stage["dev"]["value"] == (50.0 if kept < 0 else scores[-1])


@pytest.mark.parametrize(
    ("first", "perplexities", "kept", "said"),
    [
        ("cross_entropy", [3.0, 3.0, 4.0, 3.5], -1, "did not improve on the model it started from: 3.50 > 3.00 (dev p"),
        ("cross_entropy", [3.0, 3.0, 4.0, 2.5], 1, "ends below the model it started from: 20.00 < 30.00 (dev BLEU"),
        ("bso", [4.0, 3.5], 1, "ends below the model it started from: 20.00 < 30.00 (dev BLEU"),
    ],
)
def test_where_perplexity_chooses_a_start_with_log_probabilities_is_a_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, perplexities: list[float], kept: int, said: str
) -> None:
    """BSO's scores have no perplexity to compare; what the stage does to the dev score is said all the same."""
    plain = {"epochs": 1, "keep": "last", "optimizer": RATES, "loss": {"kind": first}}
    second = {**plain, "epochs": 2, "keep": "perplexity", "loss": {"kind": "cross_entropy"}}
    recipe = small_recipe(data=short_text(tmp_path), stages={"first": plain, "second": second})
    scores = [Evaluation(Score(value, {"bleu": value}, "fixed"), [], [], 0, 0) for value in (30.0, 30.0, 20.0)]
    monkeypatch.setattr(epoch_record, "perplexity", Mock(side_effect=perplexities))
    monkeypatch.setattr(epoch_record, "evaluate", Mock(side_effect=scores))
    events = list(trainer_of(recipe).events())
    stage = records_of(events, "stage")[-1]
    assert stage["kept_epoch"] == kept
    assert stage["comparison"].startswith(f"second {said}")
    assert stage["dev"]["value"] == (30.0 if kept < 0 else 20.0)
    assert ("perplexity" in stage["start"]) == (first == "cross_entropy")


def test_a_stage_from_random_weights_has_no_start_to_keep(tmp_path: Path) -> None:
    (stage, *_), starts = (
        records_of(list(trainer_of(one_stage(tmp_path, keep="score")).events()), kind)
        for kind in ("stage", "stage_start")
    )
    assert (stage["start"], stage["comparison"], starts) == ({}, "", [])


def test_the_next_stage_starts_from_the_weights_kept_and_with_a_fresh_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_dev(monkeypatch, [1.0, 2.0, 3.0])
    stages = {"a": PRETRAIN, "b": {**PRETRAIN, "epochs": 1}}
    trainer = trainer_of(small_recipe(data=short_text(tmp_path), stages=stages))
    by_epoch: list[dict[str, Tensor]] = []
    for event in trainer.events():
        by_epoch += [weights_of(trainer) for _ in records_of([event], "epoch")]
        if isinstance(event, Saved) and event.position.stage == 1:
            break
    assert isinstance(event, Saved)
    assert same_tensors(weights_of(trainer), by_epoch[0])
    assert not [name for name in event.tensors if name.startswith(("optimizer.", "best.", "sums."))]
    assert (event.position.best_value, event.position.best_epoch) == (None, -1)


@pytest.mark.parametrize(
    ("keep", "average", "decay"), [("perplexity", 0.5, 0.5), ("last", 0.5, 0.5), ("last", 0.999, 11 / 12)]
)
def test_a_stage_ends_with_the_average_if_asked_to(tmp_path: Path, keep: str, average: float, decay: float) -> None:
    """The oracle trains without one and averages by hand; what is scored and kept does not change what is learnt. At
    three updates an epoch 0.999 would go back 333 epochs; 12 updates are four."""
    plain = trainer_of(one_stage(tmp_path, epochs=1, keep="last"))
    expected = {name: value.double() for name, value in weights_of(plain).items()}
    step = TrainStep.__call__

    def averaging(self: TrainStep, *arguments: Any, last: bool) -> None:
        step(self, *arguments, last=last)
        for name, value in weights_of(plain).items():
            expected[name] = decay * expected[name] + (1 - decay) * value.double()

    with patch.object(TrainStep, "__call__", averaging):
        list(plain.events())
    averaged = trainer_of(one_stage(tmp_path, epochs=1, keep=keep, optimizer={**RATES, "average": average}))
    list(averaged.events())
    for name, value in weights_of(averaged).items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("train_beam", "patience", "epochs", "kept"),
    [(0, 0, 6, 4), (0, 1, 3, 1), (0, 2, 6, 4), (0, 3, 6, 4), (4, 1, 3, 0), (4, 2, 4, 0), (4, 3, 5, 0), (4, 4, 8, 5)],
)
def test_patience_ends_a_stage_after_so_many_epochs_without_a_better_one_at_the_full_beam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train_beam: int, patience: int, epochs: int, kept: int
) -> None:
    """With beams 2, 3, 4, 4, ... the third epoch is the first that counts as one without a better score."""
    if train_beam:
        values, beams = [9.0, 1.0, 1.0, 1.0, 2.0, 9.5, 1.0, 1.0], [2, 3, 4, 4, 4, 4, 4, 4]
        stage = {"keep": "score", "loss": {"kind": "bso", "train_beam": train_beam, "epochs_per_beam": 1}}
    else:
        values, beams, stage = [5.0, 4.0, 4.5, 3.0, 2.0, 9.0], [0] * 6, {"keep": "perplexity"}
    fix_dev(monkeypatch, values, keep=str(stage["keep"]))
    events = list(trainer_of(one_stage(tmp_path, epochs=len(values), patience=patience, **stage)).events())
    (record,) = records_of(events, "stage")
    assert (record["epochs"], record["kept_epoch"]) == (epochs, kept)
    assert [record["beam"] for record in records_of(events, "epoch")] == beams[:epochs]


_FALLING = [9.0, 7.0, 8.0, 6.0, 6.0]


@pytest.mark.parametrize(
    ("loss", "scores", "patience", "best", "tied"),
    [
        ("cross_entropy", [0.0] * 5, 0, [True, True, False, True, False], 0),
        ("cross_entropy", [0.0] * 5, 2, [True, True, False, True, False], 0),
        ("cross_entropy", [1.0, 0.0, 1.0, 0.0, 0.0], 0, [True, False, True, False, False], 0),
        ("bso", [0.0, 2.0, 2.0, 1.0, 2.0], 0, [True, True, True, False, True], 3),
        ("bso", [0.0, 2.0, 2.0, 1.0, 2.0], 2, [True, True, True, False], 1),
    ],
)
def test_equal_scores_are_told_apart_by_perplexity_and_without_one_the_later_epoch_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loss: str,
    scores: list[float],
    patience: int,
    best: list[bool],
    tied: int,
) -> None:
    """BSO measures no perplexity. A later epoch that is only as good does not count for `patience`. A run that is
    stopped after its third epoch and resumed keeps the same epoch."""

    def fixed(done: int) -> None:
        found = [Evaluation(Score(value, {"bleu": value}, "fixed"), [], [], 0, 0) for value in scores]
        monkeypatch.setattr(epoch_record, "evaluate", Mock(side_effect=found[done:]))
        monkeypatch.setattr(epoch_record, "perplexity", Mock(side_effect=_FALLING[done:]))

    table = {"kind": loss} | ({"train_beam": 2} if loss == "bso" else {})
    recipe = one_stage(
        tmp_path, "runtime.checkpoint_every=9", epochs=5, keep="score", patience=patience, keep_beam=2, loss=table
    )
    fixed(0)
    trainer, half, events = trainer_of(recipe), {}, []
    for event in trainer.events():
        events.append(event)
        if isinstance(event, Saved) and event.position.epoch == 3 and not half:  # the tensors of a run change with it
            half = {"position": event.position, "resumed": {k: v.clone() for k, v in event.tensors.items()}}
    assert [record["best"] for record in records_of(events, "epoch")] == best
    kept = max(epoch for epoch, is_best in enumerate(best) if is_best)
    assert records_of(events, "stage")[0]["kept_epoch"] == kept
    assert [event for event in events if isinstance(event, Saved)][-1].position.tied_epochs == tied
    fixed(3)
    resumed = replace(trainer_of(recipe), **half)
    assert records_of(list(resumed.events()), "stage")[0]["kept_epoch"] == kept
    assert same_tensors(weights_of(resumed), weights_of(trainer))


ADAM = {"kind": "adamw", "rate": 0.01}


@pytest.mark.parametrize(
    ("stage", "notice"),
    [
        ({"optimizer": {**ADAM, "warmup": 8}}, "optimizer.warmup = 8: the stage has 6 updates; the rate ends at 0.75"),
        ({"optimizer": {**ADAM, "warmup": 6}}, ""),
        ({"optimizer": {**ADAM, "average": 0.95}}, "optimizer.average = 0.95: an average holds 4 epochs of 3 updates"),
        ({"optimizer": {**ADAM, "average": 0.9}}, ""),
        ({"loss": {"kind": "bso", "train_beam": 3}}, "loss.train_beam = 3: the beam grows to 2 in 2 epochs"),
        ({"loss": {"kind": "bso", "train_beam": 3, "epochs_per_beam": 1}}, ""),
        (
            {"loss": {"kind": "bso", "train_beam": 2}, "keep": "perplexity"},
            'keep = "perplexity": scores of last_score are',
        ),
        (
            {"loss": {"kind": "crf", "train_beam": 2}, "keep": "perplexity"},
            'keep = "perplexity": scores of score_sum are',
        ),
        ({"loss": {"kind": "bso", "train_beam": 2, "rule": "logprob_sum"}, "keep": "perplexity"}, ""),
        ({"batch": {"accumulate": 4}}, "batch.accumulate = 4, but the batches of an epoch are 3: one update"),
        ({"batch": {"tokens": 3}}, "batch.tokens = 3, but sentences have up to 4; a longer one is a batch"),
        ({"batch": {"accumulate": 3, "tokens": 8}}, ""),
    ],
)
def test_settings_that_will_not_do_what_they_say_are_named(tmp_path: Path, stage: dict[str, Any], notice: str) -> None:
    """Two epochs of three updates. Over six of eight updates the rate rises to 6/8; 1 - 1 / (4 * 3) is 0.917."""
    trainer = trainer_of(one_stage(tmp_path, **{"keep": "last", **stage}))
    told = [event.text for event in islice(trainer.events(), 2) if isinstance(event, Notice)]
    assert [text.split("stages.only")[1].lstrip(".: ")[: len(notice)] for text in told] == ([notice] if notice else [])


@pytest.mark.parametrize(("perplexities", "kept"), [([3.0, 4.0, 2.0], 1), ([3.0, 4.0, 3.0], -1)])
def test_an_epoch_with_the_score_of_the_start_is_kept_if_its_perplexity_is_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, perplexities: list[float], kept: int
) -> None:
    first = {"keep": "last", "epochs": 1, "loss": {"kind": "cross_entropy"}, "optimizer": RATES}
    second = {**first, "keep": "score", "epochs": 2}
    recipe = small_recipe(data=short_text(tmp_path), stages={"first": first, "second": second})
    fix_dev(monkeypatch, [0.0] * 4, keep="score")
    monkeypatch.setattr(epoch_record, "perplexity", Mock(side_effect=[3.0, *perplexities]))
    stage = records_of(list(trainer_of(recipe).events()), "stage")[-1]
    assert (stage["kept_epoch"], bool(stage["comparison"])) == (kept, kept < 0)


@pytest.mark.parametrize("reset", [True, False])
def test_the_optimizer_forgets_when_the_beam_grows_if_asked_to(tmp_path: Path, reset: bool) -> None:
    """Beams 2, 2, 3, 3, 3: they grow once, before the third epoch, which starts after six updates."""
    resets: list[int] = []
    loss = {"kind": "bso", "train_beam": 3, "epochs_per_beam": 2, "reset_optimizer": reset}
    trainer = trainer_of(one_stage(tmp_path, epochs=5, loss=loss, keep="last"))
    with patch.object(Adagrad, "reset", side_effect=lambda: resets.append(trainer.position.update)):
        list(trainer.events())
    assert resets == ([6] if reset else [])


def test_a_checkpoint_is_due_every_so_many_updates_and_at_a_stages_end(tmp_path: Path) -> None:
    """Updates 2, 4, 6, 8 within epochs of three; 6 and 9 end an epoch, 9 the stage."""
    trainer = trainer_of(one_stage(tmp_path, "runtime.checkpoint_every=2", epochs=3, keep="last"))
    saved = [event.position for event in trainer.events() if isinstance(event, Saved)]
    assert [(p.stage, p.epoch, p.batch, p.update) for p in saved] == [
        (0, 0, 2, 2),
        (0, 1, 1, 4),
        (0, 2, 0, 6),
        (0, 2, 2, 8),
        (0, 3, 0, 9),
    ]


def test_the_first_epoch_goes_from_short_to_long_if_asked_to(tmp_path: Path) -> None:
    trainer = trainer_of(one_stage(tmp_path, "batch.round_target=1", epochs=3, keep="last", first_epoch_by_length=True))
    plain = BatchPlan.batch
    with patch.object(BatchPlan, "batch", autospec=True, side_effect=plain) as batch:
        list(trainer.events())
    shapes = [plain(*call.args).target_BT.shape[1] for call in batch.call_args_list]
    assert shapes[:3] == sorted(shapes[:3]) == [2, 3, 4]
    assert sorted(shapes[3:6]) == sorted(shapes[6:]) == [2, 3, 4]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (21, "update 21: 21 gradients in a row were not finite and were left out"),
        (3, "update 3: the dev perplexity is not a number"),
    ],
)
def test_training_that_diverges_ends_with_an_error(tmp_path: Path, pairs: int, message: str) -> None:
    """Twenty gradients in a row that are not finite are too many; the device is read when the epoch ends."""
    recipe = one_stage(tmp_path, epochs=2, keep="last")
    (tmp_path / "train.txt").write_text("ba ko\nko ti\n" * pairs, encoding="utf-8")
    with pytest.raises(ArgbeamError) as error:
        list(diverged(recipe).events())
    assert str(error.value) == f"{message}; training has diverged: lower the learning rates of the stage"


@pytest.mark.parametrize("stopped", [False, True])
def test_gradients_in_a_row_are_counted_over_epochs_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """Three updates an epoch, all bad: five in a row are reached within the second epoch and seen at its end."""
    recipe = one_stage(tmp_path, "runtime.not_finite_limit=5", epochs=9, keep="last")
    fix_dev(monkeypatch, [1.0] * 9)
    trainer = diverged(recipe)
    if stopped:
        trainer.stop_asked = lambda: trainer.position.update == 2
        saved = list(trainer.events())[-1]
        assert isinstance(saved, Saved) and saved.stopped
        trainer = replace(trainer_of(recipe), position=saved.position, resumed=saved.tensors)
    with pytest.raises(ArgbeamError, match=r"^update 6: 6 gradients in a row were not finite and were left out; "):
        list(trainer.events())


def test_bad_gradients_among_good_ones_do_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three sentences a batch has one: the one with a word whose vector is not finite is one update in three."""
    overrides = ("runtime.not_finite_limit=2", "batch.size=1", "model.dropout=0.0")
    recipe = one_stage(tmp_path, *overrides, epochs=4, keep="last")
    (tmp_path / "train.txt").write_text("ba ko\nko ba\nti lu\n", encoding="utf-8")
    fix_dev(monkeypatch, [1.0] * 4)
    trainer = trainer_of(recipe)
    with torch.no_grad():
        trainer.model.encoder.embedding.weight[trainer.task.source.index["ti"]] = torch.nan
    assert [record["not_finite"] for record in records_of(list(trainer.events()), "epoch")] == [1, 1, 1, 1]


LOGPROBS = {**BSO["loss"], "rule": "logprob_sum"}


@pytest.mark.parametrize("model", ["lstm", "lstm_lm", "conv", "transformer", "transformer_lm"])
@pytest.mark.parametrize("loss", [SMOOTHED, BSO["loss"], LOGPROBS], ids=["smoothed", "bso", "logprobs"])
def test_bf16_trains_and_scores_and_weights_stay_float32(tmp_path: Path, loss: dict[str, Any], model: str) -> None:
    """Its loss is near float32's: bfloat16 has eight bits, and the first loss is that of the same weights."""
    losses = {}
    for precision in ("float32", "bf16"):
        sizes = "heads=2, feed_forward=8, layers=1" if "transformer" in model else "embedding=5"
        table = f"model={{kind='{model}', hidden=6, dropout=0.0, {sizes}}}"
        overrides = (f"runtime.precision={precision}", table)
        recipe = one_stage(tmp_path, *overrides, epochs=1, loss=loss)
        trainer = trainer_of(recipe)
        batch = trainer.plan.batch([0, 1])
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            step_loss = make_loss(recipe.stages["only"].loss, trainer.task).at(0)
            noise = Noise(1, torch.tensor(0), batch.sentence_B)
            losses[precision] = step_loss(trainer.model, batch, noise).total
            state = trainer.model.step(trainer.model.encode(batch, None), batch.target_BT[:, 0])
            scores = trainer.model.scores(trainer.model.output(state)[:, None])
        assert losses[precision].dtype == scores.dtype == torch.float32
        events = list(trainer.events())
        assert {value.dtype for value in trainer.model.state_dict().values()} == {torch.float32}
        assert records_of(events, "epoch")[0]["not_finite"] == 0
    assert losses["bf16"].item() == pytest.approx(losses["float32"].item(), rel=0.02)
    assert losses["bf16"].item() != losses["float32"].item()


def test_a_model_is_searched_as_it_was_trained_but_for_what_the_recipe_says(tmp_path: Path) -> None:
    recipe = small_recipe(data=short_text(tmp_path))
    task = TASKS[recipe.task.kind].fit(recipe)
    cross_entropy, bso = (
        (loss.rule, loss.stop) for loss in (make_loss(stage.loss, task) for stage in recipe.stages.values())
    )
    assert decode_rules(*cross_entropy, Decode()) == (LogprobSum(), StopBest())
    assert decode_rules(*cross_entropy, Decode(length_power=0.5, stop="top")) == (LogprobSum(0.5), StopTop())
    assert decode_rules(*cross_entropy, Decode(length_power="dev")) == (LogprobSum(0.0), StopBest())
    assert decode_rules(*bso, Decode()) == (LastScore(), StopTop())
    assert decode_rules(*bso, Decode(stop="best")) == (LastScore(), StopBest())
    assert decode_rules(*bso, Decode(length_power=1.0)) == (LastScore(), StopTop())


def test_an_epochs_figures_are_made_from_sums() -> None:
    """8 violations in 32 words of 4 sentences: a quarter of the words, segments of 24 / 8 = 3 words. Of some losses,
    rewards of 3 are 0.75 a sentence, 16 own words a half of all, an error of 8 a half of each."""
    counts = {"words": 32.0, "sentences": 4.0, "not_finite": 0.0, "out_of_memory": 1.0}
    sums: dict[str, Any] = {**counts, "loss": 16.0, "updates": 2.0, "norm": 5.0}
    sums |= {"violations": 8.0, "violations_by_tenth": [8.0] + [0.0] * 9, "words_by_tenth": [16.0, 16.0] + [0.0] * 8}
    sums |= {
        "rival_is_gold": 2.0,
        "rival_ended": 1.0,
        "segment_words": 24.0,
        "gold_on_beam": 3.0,
        "replay_differs": 2.0,
    }
    of_some = {"reward": 3.0, "own_words": 16.0, "baseline_error": 8.0, "stopped_early": 3.0, "stop_words": 10.0}
    of_some |= {"risk": 1.0, "candidates": 20.0, "sequence_loss": 64.0, "cross_entropy": 16.0}
    figures: dict[str, Any] = {**counts, "loss_per_word": 0.5, "gradient_norm": 2.5}
    figures |= {"violations_per_word": 0.25, "violations_by_tenth": [0.5] + [0.0] * 9}
    figures |= {
        "replay_differs_share": 0.25,
        "rival_is_gold_share": 0.25,
        "rival_ended_share": 0.125,
        "segment_length": 3.0,
        "gold_on_beam": 0.75,
    }
    assert epoch_figures(sums) == figures
    assert epoch_figures(sums | of_some) == figures | {
        "stopped_early_share": 0.75,
        "stop_step": 2.5,
        "reward_per_sentence": 0.75,
        "risk_per_sentence": 0.25,
        "candidates_per_sentence": 5.0,
        "own_words_per_word": 0.5,
        "sequence_loss_per_word": 2.0,
        "cross_entropy_per_word": 0.5,
        "baseline_error": 0.5,
    }
    assert epoch_figures({})["loss_per_word"] == 0.0


def no_recorder() -> Mock:
    return Mock(record=Mock(side_effect=RuntimeError("a copy from the host is not permitted")))


def recording(monkeypatch: pytest.MonkeyPatch, *recorders: TapeRecorder | Mock) -> None:
    """Searches on dev, then each stage's steps, are recorded by these."""
    monkeypatch.setattr(devices, "make_recorder", Mock(side_effect=recorders))


def test_steps_and_searches_that_cannot_be_captured_are_reported_once_and_train_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_recipe(data=short_text(tmp_path))
    plain = trainer_of(recipe)
    expected = list(plain.events())
    recording(monkeypatch, no_recorder(), no_recorder())  # a third one is not asked for
    trainer = trainer_of(recipe)
    events = list(trainer.events())
    assert same_tensors(weights_of(trainer), weights_of(plain))
    notices = [event.text for event in events if isinstance(event, Notice)]
    reason = "RuntimeError: a copy from the host is not permitted"
    assert notices == [
        f"{work} cannot be recorded as CUDA graphs and run one operation at a time: {reason}"
        for work in ("training steps", "searches on dev")
    ]
    first, *others = records_of(events, "epoch")
    assert (first["captures"], first["captured_shapes"], first["not_captured"]) == (0, 0, reason)
    assert "captures" not in others[-1]  # the second stage did not try
    for kind in ("epoch", "stage"):
        for with_graphs, without in zip(records_of(events, kind), records_of(expected, kind), strict=True):
            assert with_graphs.get("dev") == without.get("dev")
            assert "memory_mb" not in with_graphs  # that of a CUDA device


def test_searches_on_dev_are_recorded_once_for_all_stages_and_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sentences are one batch: searched in each epoch, and replayed from the second on with the new weights."""
    recipe = one_stage(tmp_path, epochs=3, keep="score", keep_beam=2)
    expected = list(trainer_of(recipe).events())
    recording(monkeypatch, TapeRecorder(), no_recorder())
    events = list(trainer_of(recipe).events())
    records = records_of(events, "epoch")
    assert [record["dev"] for record in records] == [record["dev"] for record in records_of(expected, "epoch")]
    captures = [(record["decode_captures"], record["decode_captured_shapes"]) for record in records]
    assert captures == [(0, 0), (2, 1), (2, 1)]
    assert records_of(events, "stage")[0]["decode_captures"] == 2
