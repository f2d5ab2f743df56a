"""Run folders: what a stop or a kill leaves is gone on with to the same end, and what does not fit is refused."""

import errno
import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from argbeam import errors
from argbeam.decoding.batch_decoder import Evaluation
from argbeam.errors import ArgbeamError, CheckpointError, ConfigError, DataError, DeviceError
from argbeam.files import read_records
from argbeam.reports.report import read_runs, score_tables
from argbeam.reports.table import signature_line
from argbeam.runs import checkpoint, examples
from argbeam.runs.layout import is_locked
from argbeam.runs.load import Run, load, open_run
from argbeam.runs.score import score_run
from argbeam.runs.train import build_model, start_weights, train
from argbeam.runtime.device import choose_device
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule
from argbeam.search.stop_rules import StopBest, StopTop
from argbeam.settings import Recipe
from argbeam.settings.losses import CrossEntropyLoss
from argbeam.settings.recipe_files import recipe_from_json
from argbeam.tasks import TASKS
from argbeam.tasks.contract import Score
from argbeam.training.events import Notice, Saved
from refusals import refusal
from small_runs import (
    ADAMW,
    BSO,
    PRETRAIN,
    RATES,
    SMOOTHED,
    file_data,
    final_tensors,
    finish,
    one_epoch,
    same_tensors,
    short_text,
    small_recipe,
    stop_after,
    texts,
    timeless_records,
    train_until,
    with_epochs,
)

UPDATES = 15  # of `small_recipe` on `short_text`
Whole = tuple[Recipe, Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run that nothing disturbed, with its recipe."""
    folder = tmp_path_factory.mktemp("whole")
    recipe = small_recipe(data=short_text(folder))
    finish(recipe, folder / "run")
    return recipe, folder / "run"


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").iterdir())


def assert_same_end(folder: Path, other: Path) -> None:
    assert same_tensors(final_tensors(folder), final_tensors(other))
    assert timeless_records(folder) == timeless_records(other)


@pytest.mark.parametrize("updates", range(1, UPDATES + 1))
def test_a_run_stopped_after_any_update_goes_on_to_the_same_end(whole: Whole, tmp_path: Path, updates: int) -> None:
    """Within epochs, at their last update, and between stages; the beam grows and the optimizer is reset on the way."""
    recipe, undisturbed = whole
    stop_after(recipe, tmp_path, updates)
    assert not (tmp_path / "model").exists()
    said = list(texts(finish(recipe, tmp_path)))
    assert said[0] == f"{tmp_path}: resuming from update {updates} (checkpoint-{updates:09d}.safetensors)"
    assert_same_end(tmp_path, undisturbed)


@pytest.fixture(scope="module")
def adamw(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The same with AdamW, warm-up, a cosine and smoothed labels in the first stage; in the second AdamW is reset when
    the beam grows, and updates are of two batches of four tokens."""
    folder = tmp_path_factory.mktemp("adamw")
    stages = {"pretrain": {**PRETRAIN, "loss": SMOOTHED}, "bso": {**BSO, "epochs": 2}}
    table = {name: {**stage, "optimizer": ADAMW} for name, stage in stages.items()}
    table["bso"]["batch"] = {"tokens": 4, "accumulate": 2}
    recipe = small_recipe(data=short_text(folder), stages=table)
    finish(recipe, folder / "run")
    return recipe, folder / "run"


@pytest.mark.parametrize("updates", [1, 3, 4, 7, 10])
def test_a_run_with_adamw_stopped_and_resumed_goes_on_to_the_same_end(
    adamw: Whole, tmp_path: Path, updates: int
) -> None:
    """In the warm-up, at an epoch's end, in the cosine, before and after a reset: moments and schedule are saved."""
    recipe, undisturbed = adamw
    stop_after(recipe, tmp_path, updates)
    finish(recipe, tmp_path)
    assert_same_end(tmp_path, undisturbed)


@pytest.mark.parametrize(("schedule", "accepted"), [("cosine", False), ("constant", True)])
def test_epochs_are_added_where_they_change_no_rate_so_far(tmp_path: Path, schedule: str, accepted: bool) -> None:
    """Two epochs and one more are three from the start; a cosine over three has other rates in the first two."""
    stage = {**PRETRAIN, "epochs": 2, "optimizer": {**ADAMW, "schedule": schedule}}
    recipe, data = small_recipe(data=short_text(tmp_path), stages={"only": stage}), short_text(tmp_path)
    longer = small_recipe(data=data, stages={"only": {**stage, "epochs": 3}})
    finish(recipe, tmp_path / "run")
    if not accepted:
        assert refusal(finish, longer, tmp_path / "run", error=ConfigError) == (
            f"{tmp_path / 'run'}: the run there has another recipe: stages.only.epochs: 2 -> 3; its cosine would have "
            f"had other rates from the start; choose another --out, with start={tmp_path / 'run'} to go on from it"
        )
        return
    finish(longer, tmp_path / "run")
    finish(longer, tmp_path / "whole")
    assert same_tensors(final_tensors(tmp_path / "run"), final_tensors(tmp_path / "whole"))


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_dies_again_and_again_goes_on_to_the_same_end(whole: Whole, tmp_path: Path, seed: int) -> None:
    """After two to twelve events each time, with nothing saved when it dies but a checkpoint every two updates."""
    recipe, undisturbed = small_recipe("runtime.checkpoint_every=2", data=whole[0].data.model_dump()), whole[1]
    draw, deaths = random.Random(seed), 0
    while not (tmp_path / "model").exists():
        deaths += train_until(recipe, tmp_path, draw.randint(2, 12))
    assert deaths > 5
    assert_same_end(tmp_path, undisturbed)


def test_a_run_that_dies_between_two_epochs_keeps_its_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores 2, 1 with patience 1 end the stage after two epochs, also where the checkpoint lies right before that."""

    def falling(*_: Any, **__: Any) -> Evaluation:
        scores.append(2.0 - len(scores))
        return Evaluation(Score(scores[-1], {"bleu": scores[-1]}, "told"), [], [], 0, 0)

    monkeypatch.setattr("argbeam.training.epoch_record.evaluate", falling)
    stage = {**PRETRAIN, "epochs": 5, "keep": "score", "patience": 1}
    recipe = small_recipe("runtime.checkpoint_every=3", data=short_text(tmp_path), stages={"only": stage})
    ends = []
    for name, dies in (("whole", False), ("killed", True)):
        scores: list[float] = []
        for event in train(recipe, tmp_path / name):
            if dies and isinstance(event, Saved) and event.position.epoch == 2:
                break
        finish(recipe, tmp_path / name)
        ends.append(timeless_records(tmp_path / name))
    assert ends[0] == ends[1]
    assert (ends[0][-1]["epochs"], ends[0][-1]["kept_epoch"]) == (2, 0)


def start_kept(folder: Path, *overrides: str) -> Recipe:
    """A recipe whose BSO stage makes the model worse: no epoch is as good on dev as the model that it starts from."""
    recipe = small_recipe(*overrides, data=short_text(folder))
    (folder / "dev.txt").write_text("ko ti ba\nlu ti ba ko\n", encoding="utf-8")
    return recipe


@pytest.mark.parametrize("updates", [6, 7, 9, 14, 15])
def test_a_start_that_no_epoch_improves_on_is_the_model_whenever_the_run_was_stopped(
    tmp_path: Path, updates: int
) -> None:
    """Weights and rules of the stage before; cross-entropy has no beam in training. Six updates are that stage."""
    recipe = start_kept(tmp_path)
    for event in train(recipe, tmp_path / "whole"):
        if isinstance(event, Saved) and (event.position.stage, event.position.epoch) == (1, 0):
            pretrained = {name: value.clone() for name, value in event.tensors.items()}
    stop_after(recipe, tmp_path / "stopped", updates)
    finish(recipe, tmp_path / "stopped")
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")
    final = final_tensors(tmp_path / "stopped")
    assert same_tensors({name: final[name] for name in pretrained}, pretrained)
    run = load(tmp_path / "stopped", device="cpu")
    assert (run.rule, run.stop, run.stage) == (LogprobSum(), StopBest(), "pretrain")
    by_length = ("decode.length_power=1", "decode.stop=best", "runtime.device=cpu")
    assert open_run(tmp_path / "stopped", by_length).rule == LogprobSum(1.0)  # no loss of theirs says otherwise
    assert run.signature(split="dev", beam=2, evaluation=run.evaluate("dev", beam=2))["train_beam"] == 0
    record = read_records(tmp_path / "stopped" / "records.jsonl")[-1]
    assert record["kept_epoch"] == -1 and record["dev"] == record["start"]
    assert record["dev"]["value"] == run.evaluate("dev", beam=2).score.value
    assert record["comparison"].startswith(
        "bso did not improve on the model it started from: 30.21 < 35.93 (dev BLEU at beam 2); that model is kept, "
        'with its rule logprob_sum; common causes: rule = "last_score"'
    )


def test_a_run_that_another_run_is_not_improved_by_ends_with_its_weights_and_rules(tmp_path: Path) -> None:
    first = start_kept(tmp_path, "stages.bso.keep=last")
    finish(first, tmp_path / "first")
    rates = dict.fromkeys(RATES, 0.0)
    still = {"again": {**PRETRAIN, "epochs": 1, "optimizer": rates, "keep": "score", "keep_beam": 2}}
    finish(small_recipe(f"start={tmp_path / 'first'}", data=first.data.model_dump(), stages=still), tmp_path / "second")
    assert same_tensors(final_tensors(tmp_path / "second"), final_tensors(tmp_path / "first"))
    run = load(tmp_path / "second", device="cpu")
    assert (run.rule, run.stop, run.stage) == (LastScore(), StopTop(), "")
    by_length = "decode.length_power = 1.0: only for models that sum log-probabilities; must be 0 with last_score, "
    second, power = tmp_path / "second", "decode.length_power=1"
    assert refusal(open_run, second, [power], error=ConfigError) == f"{second}: {by_length}the rule of the weights"
    third = small_recipe(f"start={second}", power, data=first.data.model_dump(), stages=still)
    message = refusal(finish, third, tmp_path / "third", error=ConfigError)
    assert message == f"start = {second}: {by_length}its rule"
    # The signature names the search that trained the weights, that of the first run.
    trained = load(tmp_path / "first", device="cpu").trained_search
    assert trained["train_beam"] > 0 and run.trained_search == trained
    signature = run.signature(split="dev", beam=2, evaluation=run.evaluate("dev", beam=2))
    assert {name: signature[name] for name in trained} == trained


def test_a_run_that_dies_before_its_model_is_written_writes_it_next_time(whole: Whole, tmp_path: Path) -> None:
    recipe, undisturbed = whole
    for event in train(recipe, tmp_path):
        if isinstance(event, Saved) and (event.position.stage, event.position.epoch) == (1, 3):
            break
    assert not (tmp_path / "model").exists()
    finish(recipe, tmp_path)
    assert_same_end(tmp_path, undisturbed)


def test_a_finished_run_says_that_there_is_nothing_to_do(whole: Whole) -> None:
    recipe, folder = whole
    before = (folder / "records.jsonl").read_bytes()
    assert list(texts(finish(recipe, folder))) == [f"{folder}: training is finished; nothing to do"]
    assert (folder / "records.jsonl").read_bytes() == before


def test_the_records_start_with_what_is_trained(whole: Whole) -> None:
    recipe, folder = whole
    records = read_records(folder / "records.jsonl")
    kinds = ["start", *["epoch"] * 2, "stage", "stage_start", *["epoch"] * 3, "stage"]
    assert [record["kind"] for record in records] == kinds
    start = records[0]
    assert (start["train_sentences"], start["dev_sentences"], start["left_out"]) == (6, 2, {})
    assert start["source_vocabulary"] == start["target_vocabulary"] == 8  # four words and four specials
    model = build_model(recipe, TASKS["word_ordering"].fit(recipe))
    assert start["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert recipe_from_json((folder / "recipe.json").read_text(encoding="utf-8")) == recipe
    for record in records:
        json.dumps(record, allow_nan=False)


# Settings, the kind of error they end in, and its message, one case a line.
UNTRAINABLE = """
text.min_count=9 => ConfigError => text.min_count = 9: no word of the training data occurs so often; lower text.min_count
text.min_length=7 => DataError => no training sentence is left (6 too short); text.min_length = 7 and text.max_length = 60 say which lengths are taken
decode.max_words=2 => DataError => dev, sentence 1: 3 words; decode.max_words = 2 is the most that is decoded
data.train=["train.txt", "no"] => DataError => {data}/no: no such file; data.train names it; --data DIR says where the data is now
data.dev=["dev.txt", "no"] => DataError => {data}/no: no such file; data.dev names it; --data DIR says where the data is now
data.test=["dev.txt", "no"] => DataError => {data}/no: no such file; data.test names it; --data DIR says where the data is now
data.train=["packed"] => DataError => {data}/packed: no such file; data.train names it, but packed.gz is there
model.vectors=no.vec => DataError => {data}/no.vec: no such file; model.vectors (none: "") names it
start={whole} & model.hidden=7 & text.fold_digits=true & model.dropout=0.1 => ConfigError => start = {whole}: that run differs in text.fold_digits: false -> true; model.hidden: 6 -> 7
start={half} => CheckpointError => {half}: holds no finished model; `argbeam train` makes one, and resumes a run that was stopped
runtime.device=cuda => DeviceError => runtime.device = cuda: this machine has no CUDA device; accepted here: cpu, auto
"""  # noqa: E501


@pytest.mark.parametrize("case", UNTRAINABLE.strip().splitlines())
def test_what_cannot_be_trained_is_an_error_before_training(whole: Whole, tmp_path: Path, case: str) -> None:
    if "no CUDA device" in case and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    paths = {"data": tmp_path, "whole": whole[1], "half": tmp_path / "half"}
    settings, error, message = case.format_map(paths).split(" => ")
    (tmp_path / "packed.gz").touch()
    stop_after(whole[0], paths["half"], 1)
    recipe = one_epoch(tmp_path, *settings.split(" & "))
    assert refusal(finish, recipe, tmp_path / "run", error=getattr(errors, error)) == message


def test_scores_name_the_weights_and_those_of_a_checkpoint_do_not_replace_the_models(
    whole: Whole, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[1], folder)
    (model,) = (folder / "model").iterdir()
    first, *_ = sorted((folder / "checkpoints").iterdir())
    (own,) = score_run(load(folder), "dev", [1])
    predictions = (folder / "predictions" / "dev.beam1.txt").stat().st_mtime_ns
    (other,) = score_run(load(first), "dev", [1])
    assert own.record["weights"] == f"model/{model.name}" and other.record["weights"] == f"checkpoints/{first.name}"
    assert len(own.record["references"]) == 16 and own.record["references"] == other.record["references"]
    assert (folder / "predictions" / "dev.beam1.txt").stat().st_mtime_ns == predictions
    assert (folder / "predictions" / f"{first.stem}.dev.beam1.txt").is_file()


def test_training_says_what_its_settings_will_not_do(tmp_path: Path) -> None:
    """An output has at most int(0.2 * 2) + 2 tokens, its end symbol included, and `y x` has three; `x` occurs twice in
    the training data, and `y` once."""
    (tmp_path / "pairs.tsv").write_text("a b\tx\nb a\ty x\n", encoding="utf-8")
    data = file_data("tsv", tmp_path) | {split: ["pairs.tsv"] for split in ("train", "dev", "test")}
    overrides = ("decode.length_factor=0.2", "decode.length_extra=2", "text.min_count=2")
    recipe = small_recipe(*overrides, task="translation", data=data, stages={"bso": {**BSO, "epochs": 1}})
    said = [event.text for event in train(recipe, tmp_path / "run") if isinstance(event, Notice)]
    assert said == [
        "2 training sentences, 2 dev sentences",
        "data.dev pairs.tsv: a training file too; scores on it say nothing about new sentences",
        "dev: no output can equal 1 of 2 targets: they are longer than the length limit; decode.length_factor and "
        "decode.length_extra set it",
        "dev: 1 of 3 target tokens unknown to the model: too rare in the training data (text.min_count), or not in it",
        "stages.bso: bso starts from random weights, from which it hardly learns; put a stage of cross_entropy before "
        "it, or start = RUN",
        "stages.bso.loss.train_beam = 3: the beam grows to 2 in 1 epoch; see loss.epochs_per_beam",
    ]


def test_sentences_left_out_are_counted_in_a_notice_and_in_the_records(tmp_path: Path) -> None:
    recipe = one_epoch(tmp_path, "text.min_length=3", "text.max_length=3")
    said = list(texts(finish(recipe, tmp_path / "run")))
    assert said == ["2 training sentences, 2 dev sentences", "left out of training: 1 too long, 3 too short"]
    start = read_records(tmp_path / "run" / "records.jsonl")[0]
    assert start["left_out"] == {"too short": 3, "too long": 1}


def test_a_dev_file_that_is_a_training_file_is_named(tmp_path: Path) -> None:
    """Also under another name; an equal file of the other side is none, and new files are not named."""
    for name in ("old", "copy"):
        (tmp_path / name).write_text("ba ko\nti lu\n", encoding="utf-8")
    (tmp_path / "new").write_text("ko ba\nlu ti\n", encoding="utf-8")
    text = {"kind": "text", "train": ["old"], "dev": ["new", "copy", "old"]}
    pairs = {"train_source": ["old"], "train_target": ["new"], "dev_source": ["new"] * 2, "dev_target": ["copy", "new"]}
    for task, data, named in (
        ("word_ordering", text, "data.dev copy, data.dev old"),
        ("translation", {"kind": "parallel", **pairs}, "data.dev_target new"),
    ):
        stages = {"only": {**PRETRAIN, "epochs": 1}}
        recipe = small_recipe(task=task, data={"root": str(tmp_path), **data}, stages=stages)
        said = f"{named}: a training file too; scores on it say nothing about new sentences"
        assert said in texts(finish(recipe, tmp_path / task))


def test_lines_with_a_tab_are_counted_in_a_notice(tmp_path: Path) -> None:
    """A file of pairs taken for plain text: its two columns are one sentence."""
    recipe = one_epoch(tmp_path)
    (tmp_path / "train.txt").write_text("ba ko\tko ba\nti lu\nlu\tti\n", encoding="utf-8")
    said = list(texts(finish(recipe, tmp_path / "run")))
    assert said == [
        "3 training sentences, 2 dev sentences",
        "data.train: 2 lines with a tab: all columns are read as one sentence",
    ]


@pytest.mark.parametrize("updates", [0, 4, 8])
def test_a_stage_has_its_own_dropout(tmp_path: Path, updates: int) -> None:
    """The model's dropout of 0.5 with 0.2 in the second stage is 0.2 with 0.5 in the first, also after a stop."""
    ends = []
    for name, rate, dropouts in (("a", 0.5, ("model", 0.2)), ("b", 0.2, (0.5, "model"))):
        stages = {stage: {**PRETRAIN, "dropout": own} for stage, own in zip(("one", "two"), dropouts, strict=True)}
        recipe = small_recipe(f"model.dropout={rate}", data=short_text(tmp_path), stages=stages)
        if updates:
            stop_after(recipe, tmp_path / name, updates)
        finish(recipe, tmp_path / name)
        ends.append(final_tensors(tmp_path / name))
    assert same_tensors(*ends)


@pytest.mark.parametrize("model", ["lstm", "transformer"])
@pytest.mark.parametrize("optimizer", [{**RATES, "average": 0.7}, ADAMW], ids=["Adagrad", "AdamW"])
def test_a_checkpoint_opens_with_the_averaged_weights(tmp_path: Path, model: str, optimizer: dict[str, Any]) -> None:
    """They are what training scores: the last ones are those of the finished model."""
    sizes = {"lstm": "{hidden=6, embedding=5}", "transformer": '{kind="transformer", layers=1, hidden=4, heads=2}'}
    stage = {**PRETRAIN, "optimizer": optimizer, "keep": "last"}
    finish(small_recipe(f"model={sizes[model]}", data=short_text(tmp_path), stages={"only": stage}), tmp_path / "run")
    newest = checkpoints(tmp_path / "run")[-1]
    opened, kept = (load(path).model.state_dict() for path in (newest, tmp_path / "run"))
    assert same_tensors(opened, kept)
    saved = checkpoint.load(newest).tensors
    assert not any(torch.equal(saved[f"model.{name}"], weight) for name, weight in opened.items() if weight.any())


def test_scores_under_two_length_limits_are_two_scores(tmp_path: Path) -> None:
    """Another limit is another search: its signature, its predictions and its row of a report are its own."""
    data = {"kind": "generated", "types": 200, "train": 6, "dev": 2, "test": 2}
    finish(small_recipe(task="translation", data=data, stages={"only": PRETRAIN}), tmp_path / "run")
    sets = ([], ["decode.length_factor=0", "decode.length_extra=2"])
    records = [next(score_run(load(tmp_path / "run", overrides=one), "dev", [1])).record for one in sets]
    assert [record["limit"] for record in records] == ["1*source+10", "0*source+2"]
    assert all(f"|limit:{record['limit']}|" in signature_line(record) for record in records)
    assert sorted(path.name for path in (tmp_path / "run" / "predictions").iterdir()) == [
        "dev.beam1.limit-0xsource+2.txt",
        "dev.beam1.txt",
    ]
    rows = [row for table in score_tables(read_runs([tmp_path / "run"])) for row in table.rows]
    assert {row[0] for row in rows} == {f"small, length limit {record['limit']}" for record in records}


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(whole: Whole, tmp_path: Path, damage: str) -> None:
    recipe, undisturbed = small_recipe("runtime.checkpoint_every=2", data=whole[0].data.model_dump()), whole[1]
    stop_after(recipe, tmp_path, 5)
    older, newest = checkpoints(tmp_path)
    assert (older.name, newest.name) == ("checkpoint-000000004.safetensors", "checkpoint-000000005.safetensors")
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    damaged = bytes({"cut": data[: len(data) // 2], "flip": data, "empty": b""}[damage])
    newest.write_bytes(damaged)
    said = list(texts(finish(recipe, tmp_path)))
    assert said[0].startswith(f"{newest}: {'altered' if damage == 'flip' else 'truncated'}")
    assert said[0].endswith(f"; renamed to {newest.name}.damaged, the checkpoint before it is used")
    assert said[1] == f"{tmp_path}: resuming from update 4 ({older.name})"
    assert_same_end(tmp_path, undisturbed)
    assert newest.with_name(f"{newest.name}.damaged").read_bytes() == damaged  # and no save has removed it


def test_without_a_good_checkpoint_a_run_is_not_started_again(whole: Whole, tmp_path: Path) -> None:
    """Damaged files stay as they are. Where none is left at all, it starts again and says so."""
    recipe = whole[0]
    stop_after(recipe, tmp_path, 4)
    (only,) = checkpoints(tmp_path)
    only.write_bytes(b"torn")
    for _ in range(2):
        message = refusal(finish, recipe, tmp_path, error=CheckpointError)
        assert message.startswith(f"{only}: truncated: 4 bytes")
        assert message.endswith("; no good checkpoint is left: restore one, or choose another --out")
        assert only.read_bytes() == b"torn"
    only.unlink()
    said = list(texts(finish(recipe, tmp_path)))
    assert said[0] == f"{tmp_path}: no checkpoint is there; training starts from the beginning"
    assert_same_end(tmp_path, whole[1])


def test_a_run_without_its_records_resumes_and_says_what_reports_will_lack(whole: Whole, tmp_path: Path) -> None:
    recipe, undisturbed = whole
    stop_after(recipe, tmp_path, 5)
    (tmp_path / "records.jsonl").unlink()
    said = list(texts(finish(recipe, tmp_path)))
    assert said[0] == f"{tmp_path}: records.jsonl is gone; reports will lack the epochs before this one"
    assert said[1].startswith(f"{tmp_path}: resuming from update 5 ")
    assert same_tensors(final_tensors(tmp_path), final_tensors(undisturbed))


def test_a_run_without_its_recipe_is_compared_with_its_checkpoint(whole: Whole, tmp_path: Path) -> None:
    recipe, undisturbed = whole
    stop_after(recipe, tmp_path, 5)
    (tmp_path / "recipe.json").unlink()
    other = recipe.model_copy(update={"seed": recipe.seed + 1})
    message = f"{tmp_path}: the run there has another recipe: seed: {recipe.seed} -> {recipe.seed + 1}; "
    assert refusal(finish, other, tmp_path, error=ConfigError).startswith(message)
    finish(recipe, tmp_path)
    assert same_tensors(final_tensors(tmp_path), final_tensors(undisturbed))


def test_a_checkpoint_that_cannot_be_read_is_not_passed_over(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the newest good one; neither it nor the model of a finished run is written again."""
    recipe = small_recipe("runtime.checkpoint_every=2", data=whole[0].data.model_dump())
    stop_after(recipe, tmp_path, 5)
    newest, plain = checkpoints(tmp_path)[-1], Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path == newest:
            raise OSError(errno.EIO, "Input/output error")
        return plain(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    message = f"cannot read {newest}: Input/output error; a checkpoint is expected"
    assert refusal(finish, recipe, tmp_path, error=CheckpointError) == message
    monkeypatch.undo()
    assert next(texts(finish(recipe, tmp_path))).endswith(f"resuming from update 5 ({newest.name})")


def test_a_damaged_model_of_a_finished_run_is_written_again_from_the_last_checkpoint(tmp_path: Path) -> None:
    recipe, run = one_epoch(tmp_path), tmp_path / "run"
    finish(recipe, run)
    (model,) = (run / "model").iterdir()
    before = final_tensors(run)
    model.write_bytes(b"torn")
    assert next(texts(finish(recipe, run))).startswith(f"{model}: truncated: 4 bytes")
    assert same_tensors(final_tensors(run), before)
    assert model.with_name(f"{model.name}.damaged").read_bytes() == b"torn"


@pytest.mark.parametrize("change", ["a line less", "lines reversed", "another dev file"])
def test_a_run_is_not_resumed_over_other_data(tmp_path: Path, change: str) -> None:
    recipe, run = small_recipe(data=short_text(tmp_path)), tmp_path / "run"
    stop_after(recipe, run, 4)
    path = tmp_path / ("dev.txt" if change == "another dev file" else "train.txt")
    before = path.read_text()
    lines = before.splitlines(keepends=True)
    path.write_text("".join(lines[1:] if change == "a line less" else lines[::-1]))
    key = f"data.{path.stem}"
    assert refusal(finish, recipe, run, error=DataError) == (
        f"{path}: not the file that {run} has trained with as {key} (another SHA-256); "
        "put that one back (--data DIR if it was moved), or choose another --out"
    )
    path.write_text(before)
    finish(recipe, run)


def test_a_finished_run_says_that_its_data_has_changed_but_not_that_it_was_moved_or_removed(tmp_path: Path) -> None:
    recipe, run = one_epoch(tmp_path), tmp_path / "run"
    finish(recipe, run)
    nothing_to_do = [f"{run}: training is finished; nothing to do"]
    (tmp_path / "moved").mkdir()
    assert list(texts(finish(one_epoch(tmp_path / "moved"), run))) == nothing_to_do
    (tmp_path / "dev.txt").unlink()
    assert list(texts(finish(recipe, run))) == nothing_to_do
    (tmp_path / "train.txt").write_text("ba ko\n", encoding="utf-8")
    assert refusal(finish, recipe, run, error=DataError) == (
        f"{tmp_path / 'train.txt'}: not the file that {run} has trained with as data.train (another SHA-256); "
        "put that one back (--data DIR if it was moved), or choose another --out"
    )
    (tmp_path / "train.txt").unlink()
    assert list(texts(finish(recipe, run))) == nothing_to_do


def test_a_run_without_digests_is_resumed_but_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of version 0.1 are; what is saved from then on has them."""
    recipe, run = small_recipe(data=short_text(tmp_path)), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(examples, "data_digests", lambda recipe: {})
        stop_after(recipe, run, 4)
    (tmp_path / "moved").mkdir()
    moved = small_recipe(data=short_text(tmp_path / "moved"))
    assert "another recipe: data.root: " in refusal(finish, moved, run, error=ConfigError)
    finish(recipe, run)
    found = checkpoint.latest(run / "model").checkpoint
    assert found is not None and list(found.meta["data"]) == ["data.train train.txt", "data.dev dev.txt"]


def test_a_run_is_resumed_with_its_data_in_another_folder(whole: Whole, tmp_path: Path) -> None:
    recipe = small_recipe(data=short_text(tmp_path))
    stop_after(recipe, tmp_path / "run", 4)
    (tmp_path / "moved").mkdir()
    moved = small_recipe(data=short_text(tmp_path / "moved"))
    (tmp_path / "train.txt").unlink()
    finish(moved, tmp_path / "run")
    assert same_tensors(final_tensors(tmp_path / "run"), final_tensors(whole[1]))
    assert recipe_from_json((tmp_path / "run" / "recipe.json").read_text(encoding="utf-8")) == moved


def test_a_finished_run_trained_further_ends_as_one_that_was_longer_from_the_start(tmp_path: Path) -> None:
    """Three epochs of BSO and two more, stopped among them, are five; a stage that is over cannot be changed."""
    data, run = short_text(tmp_path), tmp_path / "run"
    finish(small_recipe(data=data), run)
    further = small_recipe("stages.bso.epochs=5", data=data)
    stop_after(further, run, 2)
    finish(further, run)
    finish(further, tmp_path / "longer")
    assert_same_end(run, tmp_path / "longer")
    assert list(texts(finish(further, run))) == [f"{run}: training is finished; nothing to do"]
    assert len(list((run / "model").iterdir())) == 1
    for stage, old, new in (("pretrain", 2, 3), ("bso", 5, 4)):
        refused = small_recipe("stages.bso.epochs=5", f"stages.{stage}.epochs={new}", data=data)
        difference = f"stages.{stage}.epochs: {old} -> {new}"
        message = f"{run}: the run there has another recipe: {difference}; choose another --out"
        assert refusal(finish, refused, run, error=ConfigError) == message


def test_a_finished_run_without_checkpoints_names_another_way_to_train_further(tmp_path: Path) -> None:
    run = tmp_path / "run"
    finish(one_epoch(tmp_path), run)
    for path in checkpoints(run):
        path.unlink()
    assert refusal(finish, one_epoch(tmp_path, "stages.only.epochs=2"), run, error=ConfigError) == (
        f"{run}: stages.only.epochs: 1 -> 2: no checkpoint is there to train further from; "
        f"a new --out with --set start={run} starts from its model"
    )


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        (["model.hidden=7", "seed=2"], "seed: 1 -> 2; model.hidden: 6 -> 7"),
        # What changes rounding:
        (["runtime.precision=bf16"], 'runtime.precision: "float32" -> "bf16"'),
        (["runtime.tf32=false"], "runtime.tf32: true -> false"),
        (["runtime.capture=false"], "runtime.capture: true -> false"),
    ],
)
def test_another_recipe_is_refused_with_the_difference(whole: Whole, settings: list[str], difference: str) -> None:
    recipe, folder = whole
    changed = small_recipe(*settings, data=recipe.data.model_dump())
    message = f"{folder}: the run there has another recipe: {difference}; choose another --out"
    assert refusal(finish, changed, folder, error=ConfigError) == message


def test_what_does_not_change_what_is_learnt_may_change(whole: Whole, tmp_path: Path) -> None:
    recipe, undisturbed = whole
    stop_after(recipe, tmp_path, 4)
    overrides = ["runtime.device=auto"] if not torch.cuda.is_available() else []
    overrides += ["runtime.threads=1", "runtime.checkpoint_every=1", "runtime.tensorboard=true"]
    finish(small_recipe(*overrides, data=recipe.data.model_dump()), tmp_path)
    assert same_tensors(final_tensors(tmp_path), final_tensors(undisturbed))


def test_one_process_trains_a_run_at_a_time(tmp_path: Path) -> None:
    """Another process holds the lock until it is killed; this one gives it back when training is left."""
    hold = "import sys, filelock\nwith filelock.FileLock(sys.argv[1]): print(flush=True); sys.stdin.read()"
    recipe, run = one_epoch(tmp_path), tmp_path / "run"
    run.mkdir()
    command = [sys.executable, "-c", hold, str(run / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin and other.stdout
        other.stdout.readline()
        assert is_locked(run)
        message = f"{run}: another process is training this run"
        assert refusal(finish, recipe, run, error=ArgbeamError) == message
        other.kill()  # a killed process leaves no lock
        other.wait()
    assert train_until(recipe, run, 2)
    assert (run / ".lock").is_file() and not is_locked(run)
    finish(recipe, run)


def test_an_out_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    message = f"{tmp_path / 'train.txt'}: a file; --out takes a new folder, or a run"
    assert refusal(finish, one_epoch(tmp_path), tmp_path / "train.txt", error=ArgbeamError) == message


def test_a_run_can_start_from_a_finished_one(whole: Whole, tmp_path: Path) -> None:
    """With rates of zero it ends with the weights that it starts from."""
    finish(one_epoch(tmp_path), tmp_path / "first")
    stages = {"bso": {**whole[0].stages["bso"].model_dump(), "epochs": 1}}
    second = small_recipe(f"start={tmp_path / 'first'}", "model.dropout=0.0", data=short_text(tmp_path), stages=stages)
    stage = second.stages["bso"]
    no_rates = stage.optimizer.model_copy(update=dict.fromkeys(RATES, 0.0))
    settings = {"optimizer": no_rates, "keep": "last"}
    still = second.model_copy(update={"stages": {"still": stage.model_copy(update=settings)}})
    finish(still, tmp_path / "still")
    assert same_tensors(final_tensors(tmp_path / "still"), final_tensors(tmp_path / "first"))
    finish(second, tmp_path / "second")
    assert not same_tensors(final_tensors(tmp_path / "second"), final_tensors(tmp_path / "first"))
    stop_after(second, tmp_path / "stopped", 2)
    finish(second, tmp_path / "stopped")
    assert same_tensors(final_tensors(tmp_path / "second"), final_tensors(tmp_path / "stopped"))


def test_a_start_keeps_its_vocabulary(tmp_path: Path) -> None:
    """The second run's own data has words that the first did not know."""
    finish(one_epoch(tmp_path), tmp_path / "first")
    recipe = one_epoch(tmp_path, f"start={tmp_path / 'first'}")
    (tmp_path / "train.txt").write_text("ba xa ko\nxa xa\n", encoding="utf-8")
    finish(recipe, tmp_path / "second")
    assert load(tmp_path / "second").task.source == load(tmp_path / "first").task.source


def test_word_vectors_are_where_both_sides_start(tmp_path: Path) -> None:
    """Known words take the file's vectors times the scale; all other weights are those drawn without it."""
    (tmp_path / "words.vec").write_text("3 5\nko 1 2 3 4 5\nxyz 9 9 9 9 9\nti 0 -1 0 -1 0\n", encoding="utf-8")
    plain = one_epoch(tmp_path)
    recipe = one_epoch(tmp_path, "model.vectors=words.vec", "model.vectors_scale=0.5")
    task = TASKS["word_ordering"].fit(recipe)
    model = build_model(recipe, task)
    (notice,) = start_weights(recipe, task, model, None)
    assert notice == Notice(f"{tmp_path / 'words.vec'}: vectors for 2 of 4 words")
    drawn = build_model(plain, task).state_dict()
    ko, ti = task.source.index["ko"], task.source.index["ti"]
    for name, value in model.state_dict().items():
        expected = drawn[name].clone()
        if "embedding" in name:
            expected[ko] = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5])
            expected[ti] = torch.tensor([0.0, -0.5, 0.0, -0.5, 0.0])
        assert torch.equal(value, expected), name
    assert list(start_weights(plain, task, model, None)) == []
    said = list(texts(finish(recipe, tmp_path / "run")))
    assert said[0] == notice.text
    started = recipe.model_copy(update={"start": "RUN"})
    assert list(start_weights(started, task, model, load(tmp_path / "run"))) == []
    finish(plain, tmp_path / "plain")
    (notice,) = start_weights(started, task, model, load(tmp_path / "plain"))
    assert notice.text == "model.vectors = words.vec: not read; word vectors are those of start = RUN"
    stop_after(recipe, tmp_path / "stopped", 2)
    assert not any("vectors for" in text for text in texts(finish(recipe, tmp_path / "stopped")))
    assert same_tensors(final_tensors(tmp_path / "run"), final_tensors(tmp_path / "stopped"))


def test_a_loaded_run_decodes_with_the_rules_it_was_trained_for(whole: Whole, tmp_path: Path) -> None:
    run = load(whole[1], device="cpu")
    assert (run.rule, run.stop) == (LastScore(), StopTop())
    lines = ["ko ba", "ti", "ba ko lu ti", "zu ba ko"]
    outputs = run.decode(lines, beam=3)
    assert [sorted(output.split()) for output in outputs] == [sorted(line.split()) for line in lines]
    found = list(run.search(iter(lines), beam=3))
    assert [line for line, _ in found] == lines
    best = [run.task.text(run.task.item(line), decoded.hypotheses[0].tokens) for line, decoded in found]
    assert best == outputs
    finish(one_epoch(tmp_path), tmp_path / "run")
    plain = load(tmp_path / "run", device="cpu")
    assert (plain.rule, plain.stop) == (LogprobSum(), StopBest())
    as_servers_do = ["decode.length_power=1.0", "decode.stop=best"]
    powered = load(tmp_path / "run", device="cpu", overrides=as_servers_do)
    assert (powered.rule, powered.stop) == (LogprobSum(1.0), StopBest())
    sums = one_epoch(tmp_path, "stages.only.loss={kind='bso', rule='logprob_sum', margin_per_token=0.1}")
    finish(sums, tmp_path / "sums")
    own = load(tmp_path / "sums", device="cpu")
    assert (own.rule, own.stop) == (LogprobSum(), StopTop())
    served = load(tmp_path / "sums", device="cpu", overrides=as_servers_do)
    assert (served.rule, served.stop) == (LogprobSum(1.0), StopBest())


@pytest.mark.parametrize(("updates", "rule"), [(4, LogprobSum()), (11, LastScore())], ids=["pretrain", "bso"])
def test_a_checkpoint_file_is_loaded_and_searched_as_the_stage_that_made_it_says(
    whole: Whole, tmp_path: Path, updates: int, rule: ScoreRule
) -> None:
    stop_after(whole[0], tmp_path, updates)
    path = checkpoints(tmp_path)[-1]
    run, saved = load(path, device="cpu"), checkpoint.load(path).tensors
    averages = [tensor for name, tensor in saved.items() if name.startswith("average.")]
    assert bool(averages) == (rule == LastScore())  # of `BSO`, not of `PRETRAIN`
    for name, value in run.model.state_dict().items():
        assert any(torch.equal(value, one) for one in averages or [saved[f"model.{name}"]])
    assert (run.rule, run.stop) == (rule, StopBest() if rule == LogprobSum() else StopTop())


def test_a_signature_tells_what_a_number_stands_on(whole: Whole) -> None:
    run: Run = load(whole[1], device="cpu")
    evaluation = run.evaluate("dev", beam=2)
    signature = run.signature(split="dev", beam=2, evaluation=evaluation)
    expected = {
        "task": "word_ordering",
        "system": "small",
        "split": "dev",
        "successors": "unconstrained",
        "train_beam": 3,
        "test_beam": 2,
        "rule": "last_score",
        "stop": "length",
        "seed": 1,
        "sentences": 2,
        "unfinished": 0,
        "dead": 0,
        "scores": dict(evaluation.score.parts),
    }
    assert {name: signature[name] for name in expected} == expected
    json.dumps(signature, allow_nan=False)
    short = replace(run, recipe=with_epochs(run.recipe, 1))  # in one epoch the beam does not grow from 2 to 3
    assert short.signature(split="dev", beam=2, evaluation=evaluation)["train_beam"] == 2
    assert (
        signature["successors"] != valid_only(run).signature(split="dev", beam=2, evaluation=evaluation)["successors"]
    )


def valid_only(run: Run) -> Run:
    """The run as if its weights came from cross-entropy over valid successors."""
    loss = CrossEntropyLoss(valid_only=True)
    stage = run.recipe.stages[run.stage].model_copy(update={"loss": loss})
    return replace(run, recipe=run.recipe.model_copy(update={"stages": {run.stage: stage}}))


def test_weights_of_another_shape_or_type_are_refused(whole: Whole, tmp_path: Path) -> None:
    """A single number would fill a whole matrix, if it were copied as it is."""
    found = checkpoint.latest(whole[1] / "model").checkpoint
    assert found is not None
    name = "model.output_layer.bias"
    for changed, kind in ((found.tensors[name][:1], "float32 [1]"), (found.tensors[name].double(), "float64 [8]")):
        path = checkpoint.save(tmp_path / kind, 1, {**found.tensors, name: changed}, found.meta)
        message = f"{name} is {kind}; the model of the recipe has float32 [8]"
        assert refusal(load, path, device="cpu", error=CheckpointError) == message


def test_a_position_that_cannot_be_is_refused(whole: Whole, tmp_path: Path) -> None:
    recipe, _ = whole
    stop_after(recipe, tmp_path, 2)
    (path,) = checkpoints(tmp_path)
    found = checkpoint.load(path)
    for key, value in (("batch", "x"), ("epoch", -1), ("stage", None), ("nothing", 1)):
        path.unlink()
        position = {**found.meta["position"], key: value}
        checkpoint.save(path.parent, found.position, found.tensors, {**found.meta, "position": position})
        with pytest.raises(CheckpointError, match=f"^{path}: not a run's checkpoint: .*{key}"):
            finish(recipe, tmp_path)


def test_a_device_of_another_name_is_refused() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert torch.cuda.is_available() or choose_device("auto") == torch.device("cpu")
    assert refusal(choose_device, "gpu", error=DeviceError) == "device gpu: accepted: cpu, cuda, auto"


def test_a_process_without_a_gpu_of_its_own_is_told_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes on a machine of two GPUs: the third, number 2, has none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    message = "process 2 of this machine has no GPU of its own: there are 2; start 2 at most, or set runtime.device=cpu"
    for name in ("cuda", "auto"):
        assert refusal(choose_device, name, error=DeviceError) == message


def test_what_cannot_be_decoded_is_an_error_of_one_line(whole: Whole) -> None:
    run = load(whole[1], device="cpu")
    for call in (run.decode, run.search):
        said = refusal(call, "ko ba", error=TypeError)
        assert "lines is one string, whose characters would be decoded one by one" in said
    message = "beam = -1: must be at least 1, or 0 for the recipe's"
    assert refusal(run.decode, ["ko ba"], beam=-1, error=ConfigError) == message
    for weight in run.model.state_dict().values():
        weight.fill_(torch.nan)
    assert refusal(run.decode, ["ko ba"], error=ArgbeamError).startswith("the model's scores are not numbers")
