"""`argbeam reproduce` as a user calls it: the plan, errors, and a whole reproduction that is killed and goes on."""

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from argbeam.decoding.length_power import POWERS
from argbeam.errors import ArgbeamError, ConfigError
from argbeam.files import read_records
from argbeam.reproduce.campaign import Campaign, prepare_campaign, run_campaign, show_plan, work_done
from argbeam.reproduce.corpora import prepare_corpus
from argbeam.reproduce.folder import read_scores
from argbeam.reproduce.plan import Scoring
from argbeam.reproduce.results import read_results
from argbeam.reproduce.runner import CampaignStep, StepsOutcome, find_machine
from argbeam.reproduce.sentences import scores_by_length, sentences_file
from argbeam.reproduce.worker import score_planned
from argbeam.runs.layout import lock_folder
from argbeam.runs.load import load
from argbeam.settings.recipe_files import load_recipe
from argbeam.tasks.iwslt import prepared
from command import Child, start_child
from iwslt_files import write_iwslt
from refusals import refusal
from small_runs import final_tensors, finish, same_tensors

SMALL = """
    data.types=200 data.train=24 data.dev=3 data.test=4 model.hidden=6 model.embedding=5 batch.size=4
    stages.*.epochs=2 decode.length_factor=1.0 runtime.checkpoint_every=2 runtime.device=cpu
"""


def prepare(out: Path, *tables: str, sets: Sequence[str] = (), only: Sequence[str] = ()) -> Campaign:
    return prepare_campaign(tables, data="generated", out=out, sets=[*SMALL.split(), *sets], only=only)


def start(out: Path, *tables: str) -> Child:
    sets = [part for one in SMALL.split() for part in ("--set", one)]
    command = ["reproduce", *tables, "--data", "generated", "--out", out, *sets, "--jobs", "1"]
    return start_child(out.parent, *command)


def wait_for(out: Path, pattern: str) -> None:
    while not list(out.glob(pattern)):
        time.sleep(0.01)


@pytest.mark.slow
def test_a_reproduction_killed_and_stopped_ends_as_one_that_was_not(tmp_path: Path) -> None:
    """SIGKILL while pre-training, SIGTERM while BSO trains, then to the end. The runs' weights are those of the same
    recipes trained here without a break, and every scoring was done once. One job at a time: when the first BSO run
    has saved, the second has not begun, so there is always something to stop."""
    out = tmp_path / "out"
    killed = start(out, "costs")
    wait_for(out, "runs/*pretrain*/checkpoints/*.safetensors")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    stopped = start(out, "costs")
    wait_for(out, "runs/*-bso*/checkpoints/*.safetensors")
    os.kill(stopped.pid, signal.SIGTERM)
    result = stopped.wait()
    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    resume = "argbeam: stopped and saved; to resume: argbeam reproduce costs --data generated --out"
    assert result.stderr.splitlines()[-1].startswith(resume)
    result = start(out, "costs").wait()
    assert result.returncode == 0, result.stderr
    names = sorted(path.name for path in (out / "runs").iterdir())
    assert len(names) == 3  # one pre-training for both costs
    for name in names:
        finish(load_recipe(out / "recipes" / f"{name}.toml"), tmp_path / name)
        assert same_tensors(final_tensors(out / "runs" / name), final_tensors(tmp_path / name))
    (pretrain,) = (name for name in names if "pretrain" in name)
    records = read_records(out / "runs" / pretrain / "records.jsonl")
    assert [record["epoch"] for record in records if record["kind"] == "epoch"] == [0, 1]
    scored = {name: [row.scoring for row in read_scores(out / "runs" / name)] for name in names}
    assert scored == {name: [] if name == pretrain else [Scoring("dev")] for name in names}
    assert (out / "reproduction.html").is_file()
    (table,) = read_results(out).tables
    assert [(row.label, list(row.by_seed)) for row in table.rows] == [("cost 0/1", [0]), ("cost 1-SB", [0])]


def states(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The last column of the plan by run."""
    capsys.readouterr()
    show_plan(campaign)
    title, _, *lines = capsys.readouterr().out.splitlines()
    count = len(campaign.plan.runs) + bool(campaign.timing)
    assert title == f"{count} runs under {campaign.out / 'runs'}"
    return {line.split()[0]: line.rpartition("  ")[2].strip() for line in lines[:count]}


def test_runs_that_are_not_asked_for_are_planned_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = prepare(tmp_path / "out", "costs", "timing")
    one, other = (run.name for run in everything.plan.runs if run.scorings)
    asked = prepare(tmp_path / "out", "costs", "timing", only=[one])
    shown = states(asked, capsys)
    assert (shown[one], shown[other]) == ("to do", "not asked for") and "timing" not in shown
    assert work_done(asked, asked.left())[1] < work_done(everything, everything.left())[1]
    assert refusal(prepare, tmp_path / "out", "costs", error=ConfigError, only=["timing"]).startswith(
        "--only timing: none"
    )
    reason = "--only bzo*: none of these tables' runs has such a name; --dry-run lists them"
    assert refusal(prepare, tmp_path / "out", "costs", error=ConfigError, only=["bzo*"]) == reason


def test_what_is_done_here_or_passed_on_is_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """seq2seq and the pre-training are done. With runs.jsonl and the plan in another folder, seq2seq is done there too;
    pre-training has to be made again, as there is no model to start from."""
    steps: list[CampaignStep] = []

    def no_steps(given: list[CampaignStep], *_: object) -> StepsOutcome:
        steps[:] = given
        return StepsOutcome(stopped_by, {step.name: "not now" for step in given})

    stopped_by = 0
    monkeypatch.setattr("argbeam.reproduce.campaign.run_steps", no_steps)
    first, second = tmp_path / "first", tmp_path / "second"
    apart = ("stages.pretrain.epochs=1",)  # or it would be the same training as seq2seq's
    campaign = prepare(first, "word_ordering", "timing", sets=apart)
    with pytest.raises(ArgbeamError, match=r"steps failed; the first: .*: not now \(.*\.log\)$"):
        run_campaign(campaign, 1)
    runs = campaign.plan.runs
    done, pretrain = runs[1], next(run for run in runs if "pretrain" in run.name)
    for run in (done, pretrain):
        finish(run.recipe, first / "runs" / run.name)
    others = dict.fromkeys((run.name for run in runs if run not in (done, pretrain)), "to do")
    trained = {**others, done.name: "trained, 1 to score", pretrain.name: "done", "timing": "to do, alone"}
    assert states(campaign, capsys) == trained
    score_planned(first / "runs" / done.name, done.scorings)
    assert states(campaign, capsys) == {**trained, done.name: "done"}
    stopped_by = signal.SIGTERM  # what is done is written after a signal too
    assert run_campaign(campaign, 1) == signal.SIGTERM
    second.mkdir()
    for name in ("plan.json", "runs.jsonl"):
        shutil.copy(first / name, second / name)
    stopped_by = 0
    campaign = prepare(second, "word_ordering", "timing", sets=apart)
    assert states(campaign, capsys) == {**trained, done.name: "done, model elsewhere", pretrain.name: "to do"}
    left = {run.name for run in runs} - {done.name}
    assert work_done(campaign, left) == (done.work, sum(run.work for run in runs))
    with pytest.raises(ArgbeamError, match=r"steps failed"):
        run_campaign(campaign, 1)
    needs = {step.name: step.needs for step in steps}
    assert set(needs) == {*left, "timing"}
    assert needs == {run.name: (run.start,) if run.start else () for run in runs if run is not done} | {"timing": ()}
    assert [step.name for step in steps if step.alone] == ["timing"]
    assert read_results(second).tables[0].rows[1].by_seed.keys() == {0}


def test_a_finished_run_is_scored_once_with_the_power_that_dev_chose(tmp_path: Path) -> None:
    """Of the powers tried, the best on dev is the one that test is scored with."""
    campaign = prepare(tmp_path / "out", "translation")
    run = next(run for run in campaign.plan.runs if run.name.startswith("translation-seq2seq"))
    folder = tmp_path / "run"
    finish(run.recipe, folder)
    for _ in range(2):
        score_planned(folder, run.scorings)
    lines = read_records(folder / "scores.jsonl")
    assert [json.loads(line["scoring"])["powers"] for line in lines] == [[], [*POWERS]]
    tried = {record["length_power"]: record["scores"]["bleu"] for record in lines[1]["tried"]}
    assert list(tried) == [*POWERS]
    assert all(record["split"] == "dev" and record["test_beam"] == 5 for record in lines[1]["tried"])
    (used,) = {record["length_power"] for record in lines[1]["records"]}
    assert tried[used] == max(tried.values())
    evaluations = read_records(folder / "evaluations.jsonl")
    assert [record["split"] for record in evaluations].count("test") == 2 * 3
    assert [record.test_beam for row in read_scores(folder) for record in row.records] == 2 * [1, 5, 10]


def test_what_paired_tests_are_made_from_adds_up_to_the_scores(tmp_path: Path) -> None:
    """The sentences' counts of right heads, added up, are the scores of the record."""
    campaign = prepare(tmp_path / "out", "parsing")
    run = campaign.plan.runs[0]
    finish(run.recipe, tmp_path / "run")
    score_planned(tmp_path / "run", run.scorings)
    items = load(tmp_path / "run", device="").task.read("test").items
    (row,) = read_scores(tmp_path / "run")
    for record in row.records:
        path = sentences_file(tmp_path / "run", row.scoring.text, record.test_beam)
        sentences = json.loads(path.read_bytes())
        words, heads, labels = (sum(column) for column in zip(*sentences["counts"], strict=True))
        assert len(sentences["counts"]) == 4
        assert record.scores == pytest.approx({"uas": 100 * heads / words, "las": 100 * labels / words})
        assert sentences["lengths"] == [len(item.tree.words) for item in items]
        assert record.by_length == scores_by_length(sentences)


def test_one_process_reproduces_into_a_folder(tmp_path: Path) -> None:
    campaign = prepare(tmp_path, "costs")
    with lock_folder(tmp_path, doing="here"):
        message = refusal(run_campaign, campaign, 1, error=ArgbeamError)
    assert message == f"{tmp_path}: another process is reproducing into this folder"


def test_another_recipe_in_the_same_folder_is_an_error(tmp_path: Path) -> None:
    run = prepare(tmp_path / "out", "word_ordering").plan.runs[0]
    folder = tmp_path / "out" / "runs" / run.name
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(run.recipe.model_dump_json(), encoding="utf-8")
    changed = f"{folder}: made by another recipe: model.dropout: 0.2 -> 0.5"
    fix = "choose another --out, or remove this folder and the run is made again"
    arguments = (tmp_path / "out", "word_ordering")
    assert refusal(prepare, *arguments, sets=["model.dropout=0.5"], error=ConfigError) == f"{changed}; {fix}"


@pytest.mark.parametrize(("jobs", "memory", "expected"), [(0, 140, 16), (0, 40, 8), (0, 4, 2), (3, 140, 3)])
def test_runs_share_a_device_as_far_as_its_memory_goes(
    jobs: int, memory: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two devices, the smaller of which counts: eight runs on each, or one for every 10 GiB."""
    sizes = [memory * 2**30, 200 * 2**30]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(total_memory=sizes[i]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = find_machine(jobs)
    assert (machine.jobs, machine.devices) == (expected, ("0", "1"))


@pytest.mark.parametrize(
    ("tables", "data", "message"),
    [
        (
            ["pasing"],
            "generated",
            "pasing: no such table; did you mean parsing? accepted: word_ordering, train_beam, parsing, translation, "
            "costs, translation_beam, stops, tatoeba, sums_translation, sums_word_ordering, sums_parsing, "
            "sums_tatoeba, "
            "transformer_translation, transformer_word_ordering, transformer_parsing, transformer_tatoeba, "
            "transformer_sinusoidal_translation, transformer_sinusoidal_parsing, "
            "transformer_mrt_translation, transformer_mrt_word_ordering, transformer_mrt_parsing, "
            "transformer_mrt_tatoeba, "
            "constraints_models_regex, constraints_models_anselm, constraints_models_uspto, constraints_models_office, "
            "constraints_regex, constraints_anselm, constraints_uspto, constraints_office, constraints_more_regex, "
            "constraints_more_anselm, constraints_more_uspto, constraints_more_office, constraints_beauty, "
            "constraints_more_beauty, sums, transformer, transformer_sinusoidal, transformer_mrt, constraints, "
            "constraints_more, beauty, constraints_models, timing",
        ),
        (
            ["tatoeba"],
            ".",
            "tatoeba: no corpus for it under .: Tatoeba German to English: tatoeba-de-en/train.tsv, "
            "tatoeba-de-en/dev.tsv, tatoeba-de-en/test.tsv not found; from www.manythings.org/anki and tatoeba.org; "
            "CC BY 2.0",
        ),
        (
            [],
            ".",
            "word_ordering: no corpus for it under .: Penn Treebank, plain text of sections 02-21, 22, 23: "
            "ptb/02-21.txt, ptb/22.txt, ptb/23.txt not found; from LDC, catalogue number LDC99T42; licensed by the "
            "LDC; or Universal Dependencies English: ud-english/ewt-train.conllu, ud-english/gum-train.conllu, "
            "ud-english/ewt-dev.conllu and 3 more not found; from github.com/UniversalDependencies, UD_English-EWT and "
            "UD_English-GUM; EWT CC BY-SA 4.0, GUM CC BY-NC-SA 4.0",
        ),
        ([], "no", "--data no: no such folder; a folder of corpora, or generated, is expected"),
    ],
)
def test_a_table_or_corpus_that_is_not_there_is_an_error(
    tables: list[str], data: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(prepare_campaign, tables, data=data, out=tmp_path, error=ConfigError) == message


def test_a_reproduction_is_written_into_a_folder_of_its_own(tmp_path: Path) -> None:
    """A folder with a plan is a reproduction, whatever else it holds; so is what a stop or a removed plan leaves."""
    out = tmp_path / "out"
    for name in ("data", "runs", "logs", "recipes"):
        (out / name).mkdir(parents=True)
    for name in (".lock", "runs.jsonl", "reproduction.html"):
        (out / name).touch()
    prepare(out, "costs")
    mine = out / "thesis.tex"
    mine.touch()
    accepted = "--out takes a new folder, or a reproduction"
    found = "neither empty nor a reproduction: it holds thesis.tex"
    assert refusal(prepare, out, "costs", error=ArgbeamError) == f"{out}: {found}; {accepted}"
    assert refusal(prepare, mine, "costs", error=ArgbeamError) == f"{mine}: a file; {accepted}"
    (out / "plan.json").touch()
    prepare(out, "costs")


def test_all_tables_are_those_whose_corpora_are_there(tmp_path: Path) -> None:
    write_iwslt(tmp_path / "data" / "de-en")
    campaign = prepare_campaign([], data=str(tmp_path / "data"), out=tmp_path / "out", seeds=2)
    assert [table.name for table in campaign.plan.tables] == ["translation", "costs", "translation_beam", "stops"]
    assert "word_ordering, train_beam: left out, no corpus found" in campaign.notes
    assert any("LDC99T42" in line for line in campaign.notes)
    assert campaign.timing


def test_a_prepared_corpus_is_written_once_for_all_runs(tmp_path: Path) -> None:
    lines = "".join(f"Satz {number}\n" for number in range(46))
    write_iwslt(tmp_path / "data", lines, lines)
    campaign = prepare_campaign(["costs"], data=str(tmp_path / "data"), out=tmp_path / "out")
    prepare_corpus(campaign.corpora[0], campaign.out / "data")
    folder = tmp_path / "out" / "data" / "iwslt14"
    counts = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob("*.*n")}
    assert counts == {"train.en": 44, "dev.en": 2, "test.en": 5, "prepared.json": 1}
    assert campaign.plan.runs[0].recipe.data.model_dump()["root"] == str(folder)
    prepared.cache_clear()
    (tmp_path / "data" / "train.tags.de-en.de").unlink()
    prepare_corpus(campaign.corpora[0], campaign.out / "data")  # nothing is read again
