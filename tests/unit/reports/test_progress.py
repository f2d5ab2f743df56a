"""What training shows: a bar on a terminal, lines elsewhere."""

import io
import sys
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from argbeam.reports.progress import counting, epoch_line, note, stage_line, training_display
from argbeam.settings.recipe_files import find_recipe, load_recipe
from argbeam.training.events import Doing, Notice, Progress, Record

STATE: dict[str, Any] = {"stage": "bso", "epoch": 2, "beam": 4, "words_per_second": 1234.5}
PROGRESS = Progress(**STATE, epochs=8, update=150, updates=400, loss=0.5, violations=0.25, seconds_left=65.4)
DEV = {"value": 33.333, "bleu": 33.333, "exact": 2.0, "test_beam": 5}
FIGURES = {"loss_per_word": 0.5, "violations_per_word": 0.25, "dev": DEV, "best": True}
EPOCH = {"kind": "epoch", **STATE, **FIGURES}
STAGE = {"kind": "stage", "stage": "bso", "update": 400, "epochs": 8, "kept_epoch": 2, "keep": "score", "dev": DEV}
START = {"kind": "stage_start", "stage": "bso", "update": 100, "rule": "logprob_sum", "stop": "best"}
START |= {"dev": {"perplexity": 2.5, "value": 30.0, "bleu": 30.0, "test_beam": 5}}
EVENTS = (Notice("[3] sentences"), Record(START), PROGRESS, Record(EPOCH), Record(STAGE))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    with training_display(load_recipe(find_recipe("demo/bso")), title="demo") as show:
        for event in EVENTS:
            show(event)
    return stream.getvalue()


def test_without_a_terminal_every_epoch_and_stage_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, io.StringIO()).splitlines() == [
        "demo: [3] sentences",
        "demo: bso starts from dev BLEU 30.00 at beam 5; dev perplexity 2.50 (rule logprob_sum)",
        "demo: bso, epoch 3; loss 0.500 a token; beam 4, 0.250 violations a token; dev BLEU 33.33 at beam 5; "
        "1,234 tokens/s (best)",
        "demo: bso: 8 epochs, epoch 3 kept; dev BLEU 33.33 at beam 5",
    ]


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argbeam.reports.progress._LINE_EVERY", 0.0)
    assert shown(monkeypatch, io.StringIO()).splitlines()[2] == (
        "demo: bso, epoch 3 of 8; update 150; loss 0.500; beam 4; 0.250 violations/token; 1,234 tokens/s; 1:05 left"
    )


def test_a_terminal_has_a_bar_and_keeps_the_lines_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal())
    assert "loss 0.500  beam 4  0.250 violations/token  1,234 tokens/s  1:05 left" in text
    assert "demo: [3] sentences" in text  # no markup: brackets stay
    assert "demo: bso: 8 epochs, epoch 3 kept; dev BLEU 33.33 at beam 5" in text


def test_faults_of_an_epoch_are_in_its_line() -> None:
    plain = epoch_line(EPOCH)
    assert epoch_line({**EPOCH, "not_finite": 0.0, "out_of_memory": 0.0}) == plain
    assert epoch_line({**EPOCH, "best": False, "not_finite": 3.0, "out_of_memory": 1.0}) == (
        plain.removesuffix(" (best)") + "; 3 updates left out (not finite); 1 batches in halves (out of memory)"
    )


def test_a_stage_that_kept_its_start_says_so_and_why_in_its_line() -> None:
    """A record of version 0.1 has neither dev figures nor a comparison."""
    comparison = "bso did not improve on the model it started from: 33.33 < 40.00 (dev BLEU at beam 5); ..."
    kept_start = {**STAGE, "kept_epoch": -1, "dev": {**DEV, "value": 40.0, "bleu": 40.0}, "comparison": comparison}
    assert stage_line(kept_start) == (
        f"bso: 8 epochs, the model it started from kept; dev BLEU 40.00 at beam 5; {comparison}"
    )
    assert stage_line({**STAGE, "comparison": ""}) == "bso: 8 epochs, epoch 3 kept; dev BLEU 33.33 at beam 5"
    assert stage_line({name: STAGE[name] for name in STAGE if name != "dev"}) == "bso: 8 epochs, epoch 3 kept"
    cut_off = stage_line({**STAGE, "dev": {**DEV, "unfinished": 7, "dead": 1}})
    assert cut_off.endswith("; dev BLEU 33.33 at beam 5; 7 outputs cut off at the length limit; 1 dead end")
    assert stage_line({**STAGE, "epochs": 1, "kept_epoch": 0}).startswith("bso: 1 epoch, epoch 1 kept; ")


def test_a_note_that_nobody_reads_any_more_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends `argbeam train 2>&1 | tee log` from the reader's side first: training must still be saved."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    note("stopping")
    with pytest.raises(BrokenPipeError):
        print("stopping", file=sys.stderr)


def test_the_bar_names_what_is_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch by its start, before its first figures; elsewhere a line, if nothing was said for long."""
    monkeypatch.setattr(sys.modules[__name__], "EVENTS", (PROGRESS, Doing("bso, epoch 4 of 8: scoring dev")))
    assert "demo: bso, epoch 4 of 8: scoring dev" in shown(monkeypatch, Terminal())
    assert shown(monkeypatch, io.StringIO()) == ""
    monkeypatch.setattr("argbeam.reports.progress._LINE_EVERY", 0.0)
    assert shown(monkeypatch, io.StringIO()).splitlines()[-1] == "demo: bso, epoch 4 of 8: scoring dev"


def test_without_an_estimate_no_time_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argbeam.reports.progress._LINE_EVERY", 0.0)
    monkeypatch.setattr(sys.modules[__name__], "EVENTS", (replace(PROGRESS, seconds_left=None),))
    assert shown(monkeypatch, io.StringIO()).rstrip().endswith("; 1,234 tokens/s")


def test_work_that_can_be_counted_shows_how_much_is_done_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 of 120 in 10 s: 90 are left, and 30 s. A line every 30 s, here at each call; on a terminal a bar."""
    for stream in (io.StringIO(), Terminal()):
        clock = Mock(monotonic=Mock(side_effect=[0.0, *[10.0] * 9]))
        monkeypatch.setattr("argbeam.reports.progress.time", clock)
        monkeypatch.setattr("argbeam.reports.progress._LINE_EVERY", 0.0)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setenv("TERM", "xterm")
        with counting("decoding test at beam 5", 120) as done:
            done(30)
        monkeypatch.undo()
        text = stream.getvalue()
        assert "decoding test at beam 5" in text and "0:30 left" in text
        if not stream.isatty():
            assert text == "decoding test at beam 5: 30 of 120; 0:30 left\n"
