"""Several processes give the numbers of one, whatever their number; each has its share, and all end together."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from argbeam.bench import BenchShape, random_batch
from argbeam.cli.decode_lines import DecodeRequest, decode_stream
from argbeam.decoding.batch_decoder import BatchDecoder
from argbeam.errors import ArgbeamError
from argbeam.files import read_records
from argbeam.runs.load import load, open_run
from argbeam.runs.score import score_run
from argbeam.runs.train import train
from argbeam.runtime.group import ALONE, Group, joined
from argbeam.settings import Recipe
from argbeam.settings.recipe_files import recipe_from_json, recipe_to_json
from argbeam.training.events import Saved
from groups import command, end_group, in_group, said, start_group
from small_runs import (
    ADAMW,
    BSO,
    GENERATED,
    PRETRAIN,
    SMOOTHED,
    final_tensors,
    finish,
    same_tensors,
    short_text,
    small_recipe,
    stop_after,
    timeless_records,
    written_recipe,
)

pytestmark = pytest.mark.slow

# Seven sentences in batches of three: the last has one, so that two of three processes have nothing but padding.
SENTENCES = ("ba ko", "ko ba ti", "ti lu", "lu ko ti ba", "ba ti", "lu ba ko", "ko lu")
NORMALISED = {**BSO["loss"], "normalise": "words", "cost": "sentence_bleu", "constrained": True}
# From nothing, Adagrad takes a gradient of 1e-17, which is rounding, for a large one.
OPTIMIZER = {**BSO["optimizer"], "initial": 0.01}
STAGES = {
    "pretrain": {**PRETRAIN, "optimizer": OPTIMIZER},
    "bso": {**BSO, "optimizer": OPTIMIZER},
    "crf": {**BSO, "loss": {"kind": "crf", "train_beam": 3}, "optimizer": OPTIMIZER, "epochs": 1},
    "conbso": {**BSO, "loss": NORMALISED, "optimizer": OPTIMIZER, "epochs": 1},
}
LINES = ["ba ko ti", "lu", "ti ti ba lu", "ko lu", "ba"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """A recipe, and what one process makes of it in float64."""
    folder = tmp_path_factory.mktemp("whole")
    data = short_text(folder)
    (folder / "train.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    (folder / "dev.txt").write_text("ko ti ba\nlu ti\nba lu ko\nti ba\nba\n", encoding="utf-8")
    overrides = ("batch.size=3", "batch.round_source=1", "batch.round_target=1", "decode.batch=2", "model.layers=2")
    recipe = small_recipe(*overrides, data=data, stages=STAGES)
    finish_in_float64(recipe, folder / "run")
    return recipe, folder / "run"


def finish_in_float64(recipe: Recipe, folder: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        finish(recipe, folder)
    finally:
        torch.set_default_dtype(torch.float32)


def outputs(folder: Path, size: int) -> list[str]:
    """What each process wrote on stdout."""
    return [(folder / f"out.{rank}").read_text(encoding="utf-8") for rank in range(size)]


def trained(recipe: str, folder: str, stop_at: int = 0) -> None:
    """Train in float64 to the end, where each process writes its weights down, or until so many updates are done."""
    torch.set_default_dtype(torch.float64)
    with joined() as group:
        if stop_at:
            # One process is asked to stop, and it is not the one that writes.
            stop_after(recipe_from_json(recipe), Path(folder), stop_at if group.rank == group.size - 1 else 99, group)
            return
        weights: dict[str, torch.Tensor] = {}
        for event in train(recipe_from_json(recipe), Path(folder), group=group):
            if isinstance(event, Saved):
                # Clones: tied weights are one tensor by two names.
                weights = {name: value.clone() for name, value in event.tensors.items() if name.startswith("model.")}
        safetensors.torch.save_file(weights, Path(folder).parent / f"weights.{group.rank}")


def differences(folder: Path, whole: Path) -> list[str]:
    """The weights and the entries of records in which two runs differ by more than rounding in float64."""
    ours, theirs = final_tensors(folder), final_tensors(whole)
    assert ours.keys() == theirs.keys()
    assert all((ours[name].shape, ours[name].dtype) == (value.shape, value.dtype) for name, value in theirs.items())
    found = [name for name, value in theirs.items() if not torch.allclose(ours[name], value, rtol=1e-10, atol=1e-12)]
    for number, (mine, other) in enumerate(zip(timeless_records(folder), timeless_records(whole), strict=True)):
        found += [f"record {number}: {line}" for line in record_differences(mine, other)]
    return found


def record_differences(mine: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    assert mine.keys() == other.keys()
    for name in other.keys() - {"processes"}:
        number = type(other[name]) in (int, float, list)
        if isinstance(other[name], dict):
            yield from record_differences(mine[name], other[name])
        elif mine[name] != (pytest.approx(other[name], rel=1e-9) if number else other[name]):
            yield f"{name} is {mine[name]}, not {other[name]}"


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_train_the_model_of_one(size: int, whole: tuple[Recipe, Path], tmp_path: Path) -> None:
    """Cross-entropy, which is divided by sentences, BSO, which is not, the CRF, and ConBSO divided by words; with
    dropout, an average of the weights, batches of several shapes, and dev scores that choose the epoch."""
    recipe, alone = whole
    in_group(size, tmp_path, trained, recipe_to_json(recipe), str(tmp_path / "run"))
    assert differences(tmp_path / "run", alone) == []
    weights = [safetensors.torch.load_file(tmp_path / f"weights.{rank}") for rank in range(size)]
    assert all(same_tensors(weights[0], other) for other in weights[1:])
    assert read_records(tmp_path / "run" / "records.jsonl")[0]["processes"] == size


TRANSFORMER = 'model={kind="transformer",layers=1,hidden=8,heads=2,feed_forward=12,dropout=0.2}'


@pytest.mark.parametrize(("task", "model"), [("parsing", ()), ("translation", (TRANSFORMER,))])
def test_two_processes_train_the_model_of_one_on_other_tasks(task: str, model: tuple[str, ...], tmp_path: Path) -> None:
    """An LSTM and a Transformer. Six generated sentences in batches of five, one epoch of each stage."""
    losses = {"pretrain": PRETRAIN["loss"], "bso": BSO["loss"], "mixer": {"kind": "mixer"}, "mrt": {"kind": "mrt"}}
    stages = {name: {**PRETRAIN, "loss": loss, "epochs": 1, "optimizer": OPTIMIZER} for name, loss in losses.items()}
    # A large eps: from nothing, Adam takes a gradient of 1e-17 for a large one too.
    stages["pretrain"] |= {
        "loss": SMOOTHED,
        "optimizer": {**ADAMW, "eps": 0.01},
        "batch": {"tokens": 20, "accumulate": 2},
    }
    data = {**GENERATED, "train": 6}
    recipe = small_recipe("batch.size=5", "decode.batch=2", *model, task=task, data=data, stages=stages)
    in_group(2, tmp_path, trained, recipe_to_json(recipe), str(tmp_path / "run"))
    finish_in_float64(recipe, tmp_path / "alone")
    assert differences(tmp_path / "run", tmp_path / "alone") == []


def test_a_run_resumes_with_another_number_of_processes_and_shares_stored_examples(
    whole: tuple[Recipe, Path], tmp_path: Path
) -> None:
    """Two processes for four updates, three for seven more, one to the end. Only the last process is asked to stop."""
    recipe, alone = whole
    stored = recipe.model_copy(update={"runtime": recipe.runtime.model_copy(update={"store": True})})
    for size, updates in ((2, 4), (3, 7), (1, 0)):
        in_group(size, tmp_path, trained, recipe_to_json(stored), str(tmp_path / "run"), updates)
    resumed = [r for r in read_records(tmp_path / "run" / "records.jsonl") if r["kind"] == "resume"]
    assert [(r["update"], r["processes"]) for r in resumed] == [(4, 3), (11, 1)]
    assert differences(tmp_path / "run", alone) == []


def decoded(run: str, folder: str) -> None:
    """Decode lines, as a stream and as a split, and count the batches that this process searched."""
    torch.set_default_dtype(torch.float64)
    searched, plain = 0, BatchDecoder._decode_batch

    def counted(*arguments: Any) -> Any:
        nonlocal searched
        searched += 1
        return plain(*arguments)

    BatchDecoder._decode_batch = counted  # type: ignore[method-assign]
    with joined() as group:
        opened = open_run(Path(run), group=group)
        found = {"decoded": opened.decode(LINES), "batches": searched}
        out, trace = StringIO(), StringIO()
        with (Path(folder) / "lines" if group.leads else Path(os.devnull)).open("rb") as source:
            decode_stream(opened, source, "lines", out, DecodeRequest(3, n_best=2, scores=True), trace)
        found |= {"stream": out.getvalue(), "trace": trace.getvalue()}
        found["scores"] = [one.record["scores"] for one in score_run(opened, "test", [1, 3])]
        (Path(folder) / f"found.{group.rank}").write_text(json.dumps(found), encoding="utf-8")


def test_decoding_is_shared_out_and_outputs_keep_their_order(whole: tuple[Recipe, Path], tmp_path: Path) -> None:
    """Five lines in batches of two: two batches for the first process, which reads the lines, one for the second."""
    (tmp_path / "lines").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    written = whole[1] / "evaluations.jsonl"
    for size in (1, 2):
        in_group(size, tmp_path / str(size), decoded, str(whole[1]), str(tmp_path))
        found = [json.loads((tmp_path / f"found.{rank}").read_text(encoding="utf-8")) for rank in range(size)]
        assert [one.pop("batches") for one in found] == [[3], [2, 1]][size - 1]
        assert all(one == found[0] for one in found)
        assert len(read_records(written)) == 2 * size  # one process wrote
        if size == 1:
            alone = found[0]
    assert found[0] == alone
    assert len(alone["stream"].splitlines()) > len(LINES) and len(alone["trace"].splitlines()) == len(LINES)


def test_the_command_works_in_a_group_and_one_process_speaks(whole: tuple[Recipe, Path], tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    finish(whole[0], tmp_path / "run")
    run, out = str(tmp_path / "run"), str(tmp_path / "outputs")
    in_group(2, tmp_path / "a", command, "decode", run, "--input", str(tmp_path / "lines"), "--output", out)
    assert Path(out).read_text(encoding="utf-8").splitlines() == load(run).decode(LINES)
    other = str(shutil.copytree(run, tmp_path / "other"))
    in_group(2, tmp_path / "b", command, "evaluate", run, "--beam", "1", "--json", "--against", other)
    first, second = outputs(tmp_path / "b", 2)
    (line,) = first.splitlines()
    assert json.loads(line)["against"]["p_values"] and second == ""


def test_the_bench_shares_a_batch_and_one_process_reports(tmp_path: Path) -> None:
    """Five sentences among two processes: three and two, with a row of padding."""
    shape = BenchShape(batch=5, source=3, target=3, vocabulary=9, layers=1, hidden=4)
    shares = [random_batch(shape, Group(rank, 2)) for rank in range(2)]
    assert [share.sentence_B[share.target_length_B > 0].tolist() for share in shares] == [[0, 2, 4], [1, 3]]
    whole = random_batch(shape).target_BT
    assert torch.equal(shares[1].target_BT[:2], whole[1::2]) and shares[1].shape == shares[0].shape == (3, 3, 3)
    sizes = "--device cpu --batch 5 --source 3 --target 3 --vocab 9 --hidden 4 --beams 2 --test-beams 1 --rounds 2"
    in_group(2, tmp_path, command, "bench", *sizes.split(), "--json")
    first, second = outputs(tmp_path, 2)
    rows = json.loads(first)
    assert [row["system"] for row in rows][:3] == ["cross_entropy", "bso", "conbso"]
    for row in rows:
        assert row["tokens_per_s"] * row["ms"] / 1000 == pytest.approx(5 * (3 + 3))
    assert second == ""


def signalled(folder: Path, size: int, rank: int, number: int) -> list[int | None]:
    """Exit codes of processes that train, after a signal to one of them once there is a checkpoint."""
    words = ["train", str(written_recipe(folder, epochs=2000, every=5)), "--out", str(folder / "run")]
    processes, until = start_group(size, folder, command, *words), time.monotonic() + 60
    while not list(folder.glob("run/checkpoints/*.safetensors")):
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(processes[rank].pid or 0, number)
    return end_group(processes, seconds=30)


@pytest.mark.parametrize("victim", [0, 2])
def test_when_a_process_is_killed_the_others_end_with_a_line(victim: int, tmp_path: Path) -> None:
    """Whether it is the first, which writes, or another one."""
    codes = signalled(tmp_path, 3, victim, signal.SIGKILL)
    assert codes == [-signal.SIGKILL if rank == victim else 2 for rank in range(3)]
    line = f"process {victim} ended unexpectedly; run the same command again: training resumes from the last checkpoint"
    for text in (said(tmp_path, rank) for rank in range(3) if rank != victim):
        assert text.count("error") == 1 and line in text and "Traceback" not in text


def test_a_signal_to_one_process_stops_all_of_them_and_saves(tmp_path: Path) -> None:
    assert signalled(tmp_path, 2, 1, signal.SIGTERM) == [128 + signal.SIGTERM] * 2
    assert "stopped and saved" in said(tmp_path, 0) and "error" not in said(tmp_path, 0) + said(tmp_path, 1)


ALONE_ONLY = "runs in one process; start it without torchrun"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("demo --out {0}/new", 2 * [f"demo {ALONE_ONLY}"]),
        ("reproduce --data generated --out {0}/new", 2 * [f"reproduce {ALONE_ONLY}"]),
        ("train {0}/recipe.toml --out {0}/train.txt", ["a file; --out takes a new folder, or a run", ""]),
        (
            "train {0}/recipe.toml --out {0}/run --set runtime.device=cuda",
            [f"argbeam: error: process {rank} of 2: runtime.device = cuda" for rank in range(2)],
        ),
    ],
    ids=["one process only", "one process only too", "an error of the first", "an error of each"],
)
def test_an_error_ends_all_processes_and_each_that_meets_it_reports_a_line(
    words: str, lines: list[str], tmp_path: Path
) -> None:
    written_recipe(tmp_path, epochs=1, every=5)
    assert end_group(start_group(2, tmp_path, command, *words.format(tmp_path).split()), seconds=60) == [2, 2]
    for rank, line in enumerate(lines):
        assert line in said(tmp_path, rank) and len(said(tmp_path, rank).splitlines()) == bool(line)
    assert not (tmp_path / "new").exists()


def exchanges() -> None:
    """What each process sees of the exchanges, on stdout."""
    with joined() as group:
        group.agree({"sentences": 5, "version": 1})
        with pytest.raises(ArgbeamError) as error:
            group.agree({"sentences": 5 + group.rank // 2, "version": 1})
        flat = torch.tensor([1.0, float(group.rank)])
        group.add(flat)
        seen = [flat.tolist(), group.any(group.rank == 1), group.any(False), group.gather({"é": [group.rank, None]})]
        print(json.dumps([*seen, group.first(lambda: group.rank), group.share(list(range(5))), str(error.value)]))


def test_exchanges_by_hand(tmp_path: Path) -> None:
    """1 + 1 + 1 and 0 + 1 + 2; of 0 to 4 the second process has 1 and 4. The last sees other files than the others."""
    in_group(3, tmp_path, exchanges)
    gathered = [{"é": [rank, None]} for rank in range(3)]
    sees = [f"process {rank} has sentences 5, process 2 has 6" for rank in range(2)]
    sees += ["process 2 has sentences 6, process 0 has 5"]
    for rank, share in enumerate([[0, 3], [1, 4], [2]]):
        error = f"{sees[rank]}; all processes must see the same files and use the same versions"
        seen = json.loads(outputs(tmp_path, 3)[rank])
        assert seen == [[3.0, 3.0], True, False, gathered, 0, share, error]


def test_one_process_alone_exchanges_with_itself() -> None:
    flat = torch.tensor([1.0, 2.0])
    ALONE.add(flat)
    assert flat.tolist() == [1.0, 2.0]
    assert ALONE.any(True) and not ALONE.any(False)
    assert (ALONE.gather("a"), ALONE.first(lambda: "b")) == (["a"], "b")
    assert (ALONE.share([1, 2]), ALONE.share_of(5)) == ([1, 2], 5)
    assert [Group(rank=r, size=3).share_of(7) for r in range(3)] == [3, 3, 3]
    with joined() as group:
        assert group == ALONE
