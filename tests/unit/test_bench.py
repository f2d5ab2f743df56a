"""The bench measures what it says, on a shape small enough to be quick."""

import json

import pytest
import torch
from typer.testing import CliRunner

from argbeam.bench import BenchRow, BenchShape, bench, random_batch
from argbeam.cli import app as cli

SMALL = BenchShape(batch=3, source=5, target=5, vocabulary=40, layers=1, hidden=8)


@pytest.fixture(scope="module")
def rows() -> list[BenchRow]:
    return list(bench(SMALL, device=torch.device("cpu"), train_beams=[2, 4], test_beams=[1, 3], rounds=3))


def test_every_system_is_timed_once_at_each_beam(rows: list[BenchRow]) -> None:
    trained = [(system, beam) for system in ("bso", "conbso") for beam in (2, 4)]
    decoded = [(f"decode_{rule}", beam) for rule in ("logprob_sum", "last_score") for beam in (1, 3)]
    assert [(row.system, row.beam) for row in rows] == [("cross_entropy", 0), *trained, *decoded]


def test_figures_fit_together(rows: list[BenchRow]) -> None:
    """3 sentences of 5 + 5 words are 30 tokens a round; ratios are to the first row, and decoding has none."""
    for row in rows:
        assert row.ms > 0
        assert row.tokens_per_s == pytest.approx(30 / (row.ms / 1000))
        decoding = row.system.startswith("decode")
        assert row.ratio == (None if decoding else pytest.approx(row.ms / rows[0].ms))


def test_without_equal_lengths_there_is_no_permutation_to_train() -> None:
    shape = BenchShape(batch=2, source=3, target=4, vocabulary=20, layers=1, hidden=4)
    found = bench(shape, device=torch.device("cpu"), train_beams=[2], test_beams=[1], rounds=2)
    assert "conbso" not in {row.system for row in found}


def test_a_permutation_target_holds_the_words_of_its_source() -> None:
    batch = random_batch(SMALL)
    assert batch.source_BS.sort(1).values.equal(batch.target_BT.sort(1).values)
    assert not batch.source_BS.equal(batch.target_BT)


def test_the_command_prints_a_list_of_rows_or_a_table() -> None:
    sizes = ["--device", "cpu", "--batch", "2", "--source", "3", "--target", "3", "--vocab", "20", "--hidden", "4"]
    command = ["bench", *sizes, "--beams", "2", "--test-beams", "1", "--rounds", "2"]
    listed = json.loads(CliRunner().invoke(cli.app, [*command, "--json"]).stdout)
    keys = {"system", "beam", "ms", "spread", "tokens_per_s", "ratio", "memory_mb", "capture_s"}
    assert all(set(row) == keys for row in listed)
    lines = CliRunner().invoke(cli.app, command).stdout.splitlines()
    assert lines[0] == "B 2, S 3, T 3, V 20, lstm 1 x 4, cpu"
    assert [line.split()[0] for line in lines[2:]] == [row["system"] for row in listed]


@pytest.mark.parametrize(
    ("model", "title"), [("transformer", "transformer 2 + 2 x 64"), ("transformer_lm", "transformer_lm 2 x 64")]
)
def test_transformers_are_timed_in_bf16_too(model: str, title: str) -> None:
    sizes = ["--device", "cpu", "--batch", "2", "--source", "3", "--target", "3", "--vocab", "20", "--beams", "2"]
    named = ["--model", model, "--layers", "2", "--width", "64", "--bf16", "--test-beams", "1", "--rounds", "2"]
    rules = ["--rule", "last_score,logprob_sum"]
    lines = CliRunner().invoke(cli.app, ["bench", *sizes, *named, *rules]).stdout.splitlines()
    assert lines[0] == f"B 2, S 3, T 3, V 20, {title}, cpu"
    systems = ["cross_entropy", "bso", "conbso", "bso_logprob_sum", "conbso_logprob_sum"]
    assert [line.split()[0] for line in lines[2:7]] == systems


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--model", "gru"], "model gru: accepted: lstm, transformer, transformer_lm"),
        (
            ["--rule", "score_sum,sums"],
            "--rule score_sum,sums: accepted: one or more of last_score, score_sum, logprob_sum, with commas",
        ),
    ],
)
def test_a_model_or_rule_that_the_bench_does_not_know_is_named(option: list[str], message: str) -> None:
    done = CliRunner().invoke(cli.app, ["bench", "--device", "cpu", *option])
    assert done.exit_code != 0
    assert str(done.exception) == message
