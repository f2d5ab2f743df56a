"""The power of the length that is chosen on dev: the choice by brute force, and when it is made, kept and used."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from shutil import copytree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.decoding.batch_decoder import BatchDecoder, Evaluation
from argbeam.decoding.length_power import POWERS, best_power, evaluate_powers, fingerprint, read_power, save_power
from argbeam.errors import ArgbeamError
from argbeam.files import read_records
from argbeam.reports.table import signature_line
from argbeam.runs import load as trained
from argbeam.runs.load import load, open_run
from argbeam.runs.score import score_run
from argbeam.search.score_rules import LogprobSum
from argbeam.search.stop_rules import StopBest
from argbeam.search.successors import Unconstrained
from argbeam.tasks import Translation
from argbeam.tasks.contract import Item, Score
from oracles import ToyModel, brute_force_refilled, logprob_sum, unconstrained
from small_runs import RATES, finish, short_text, small_recipe
from toy_task import VOCABULARY, ToyTask, items_of, number_of

DEV = "decode.length_power=dev"
STAGE = {"epochs": 1, "loss": {"kind": "cross_entropy"}, "optimizer": RATES, "keep": "last"}
SMALL = {"kind": "generated", "types": 200, "train": 6, "dev": 3, "test": 1}


@dataclass(frozen=True)
class TokensWanted(ToyTask):
    """The nearer the outputs are to so many tokens in all, the better."""

    wanted: int = 0

    def score(self, items: Sequence[Item], outputs: Sequence[Sequence[int]]) -> Score:
        value = -float(abs(sum(len(output) for output in outputs) - self.wanted))
        return Score(value, {"tokens": value}, "tokens")


@given(
    lengths=st.lists(st.integers(2, 5), min_size=3, max_size=6),
    wanted=st.integers(3, 25),
    beam=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12)
def test_the_choice_is_the_best_of_all_powers_by_brute_force(
    lengths: list[int], wanted: int, beam: int, seed: int
) -> None:
    model = ToyModel(len(VOCABULARY), seed=seed, scale=1.0)
    task = TokensWanted(Unconstrained(len(VOCABULARY), end_symbol=True), open_length=True, wanted=wanted)
    items = items_of([[4] * length for length in lengths])
    decoder = BatchDecoder(model, task, LogprobSum(), StopBest(), torch.device("cpu"), 4)
    found = {power: one.score.value for power, one in evaluate_powers(decoder, items, beam=beam).items()}
    following = unconstrained(len(VOCABULARY), end_symbol=True)
    scores = [cache(logprob_sum(model, number_of(item))) for item in items]
    expected = {}
    for power in (tenths / 10 for tenths in (0, 2, 4, 6, 8, 10, 12, 14, 16)):
        tokens = 0
        for score, length in zip(scores, lengths, strict=True):
            searched = brute_force_refilled(following, score, beam=beam, length=length, length_power=power)
            tokens += len(searched.sequences[0])
        expected[power] = -abs(tokens - wanted)
    assert found == expected
    assert best_power(found) == min(power for power in expected if expected[power] == max(expected.values()))


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translation model that has learnt a little: its outputs by plain sums are too short."""
    folder = tmp_path_factory.mktemp("power") / "run"
    overrides = ("model.hidden=20", "model.embedding=12", "batch.size=16", "decode.beam=3")
    data, stages = {**SMALL, "train": 120, "dev": 12, "test": 4}, {"train": {**STAGE, "epochs": 3}}
    finish(small_recipe(*overrides, task="translation", data=data, stages=stages), folder)
    return folder


def test_the_power_is_chosen_on_dev_once_and_no_other_split_is_opened(
    translation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copytree(translation, tmp_path / "run")
    plain = load(folder, device="cpu")
    expected = [replace(plain, rule=LogprobSum(power)).evaluate("dev", beam=3).score.value for power in POWERS]
    assert len(set(expected)) > 1, "a power that changes nothing is no case"
    opened, read = list[str](), Translation.read
    monkeypatch.setattr(Translation, "read", lambda task, split: (opened.append(split), read(task, split))[1])
    run = load(folder, device="cpu", overrides=[DEV])
    assert opened == ["dev"]
    chosen = POWERS[expected.index(max(expected))]
    assert run.rule == LogprobSum(chosen)
    (record,) = read_records(folder / "length_power.jsonl")
    assert (record["power"], record["scores"], record["powers"]) == (chosen, expected, list(POWERS))
    # Again, and as a file: nothing is decoded any more.
    monkeypatch.setattr(trained, "evaluate_powers", None)
    (checkpoint,) = (folder / "model").iterdir()
    for again in (folder, checkpoint):
        assert load(again, device="cpu", overrides=[DEV]).rule == LogprobSum(chosen)
    assert opened == ["dev"]


def test_what_was_chosen_holds_for_one_model_and_one_search(
    translation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copytree(translation, tmp_path / "run")
    asked: list[int] = []

    def chosen(decoder: BatchDecoder, items: Sequence[Item], *, beam: int) -> dict[float, Evaluation]:
        asked.append(beam)
        return {0.4: Evaluation(Score(0.0, {}, ""), [], [], 0, 0)}

    monkeypatch.setattr(trained, "evaluate_powers", chosen)
    for override in ("seed=1", "decode.beam=2", "decode.length_extra=3", "decode.length_factor=1.5", "decode.beam=2"):
        run = load(folder, device="cpu", overrides=[DEV, override])
        assert run.rule == LogprobSum(0.4)
    assert asked == [3, 2, 3, 3]
    before = fingerprint(run.model)
    with torch.no_grad():
        next(iter(run.model.parameters())).view(-1)[0] += 1e-3
    assert fingerprint(run.model) != before


def test_scores_say_which_power_they_stand_on_and_outputs_are_those_of_that_power(
    translation: Path, tmp_path: Path
) -> None:
    folder = copytree(translation, tmp_path / "run")
    run = open_run(folder, [DEV, "runtime.device=cpu"])
    assert isinstance(run.rule, LogprobSum)
    power = run.rule.length_power
    plain = open_run(folder, [f"decode.length_power={power}", "runtime.device=cpu"])
    (scored,), (fixed,) = (score_run(one, "test", [2]) for one in (run, plain))
    assert scored.texts == fixed.texts
    assert {**scored.record, "length_power_from": "recipe"} == fixed.record
    assert (scored.record["length_power"], scored.record["length_power_from"]) == (power, "dev")
    assert f"|length_power:{power}(dev)|" in signature_line(scored.record)
    assert f"|length_power:{power}|" in signature_line(fixed.record)
    json.dumps(scored.record)
    lines = [" ".join(item.surface) for item in run.task.read("test").items]
    assert run.decode(lines) == plain.decode(lines)


def test_where_all_outputs_have_one_length_nothing_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(small_recipe(DEV, data=short_text(tmp_path), stages={"train": STAGE}), tmp_path / "run")
    monkeypatch.setattr(trained, "evaluate_powers", None)
    assert load(tmp_path / "run", device="cpu").rule == LogprobSum(0.0)
    assert not (tmp_path / "run" / "length_power.jsonl").exists()


def test_a_recipe_may_ask_for_it_and_trains_by_plain_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs are compared before anything can be chosen; a run that starts from this one chooses nothing either."""
    stages = {"train": {**STAGE, "keep": "score", "keep_beam": 2}}
    monkeypatch.setattr(trained, "evaluate_powers", None)
    values = {}
    for name, overrides in {"asking": [DEV], "plain": [], "more": [f"start={tmp_path}/asking"]}.items():
        finish(small_recipe(*overrides, task="translation", data=SMALL, stages=stages), tmp_path / name)
        records = read_records(tmp_path / name / "records.jsonl")
        values[name] = [record["dev"]["value"] for record in records if "dev" in record]
    assert values["asking"] == values["plain"] != []


def test_a_choice_that_cannot_be_kept_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "length_power.jsonl"
    assert read_power(file, {"beam": 5}) is None
    with pytest.raises(ArgbeamError) as error:
        save_power(file, {"beam": 5}, {0.2: 1.0})
    assert str(error.value) == (
        f"cannot write {file}: No such file or directory; the length power chosen on dev is saved there; "
        "evaluate --no-keep writes nothing"
    )
