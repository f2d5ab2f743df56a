"""What training shows: a bar on a terminal, lines elsewhere."""

import io
import sys
from typing import Any

import pytest

from argbeam.reports.progress import epoch_line, note, training_display
from argbeam.settings.recipe_files import find_recipe, load_recipe
from argbeam.training.events import Notice, Progress, Record

STATE: dict[str, Any] = {"stage": "bso", "epoch": 2, "beam": 4, "words_per_second": 1234.5}
PROGRESS = Progress(**STATE, update=150, updates=400, loss=0.5, violations=0.25, seconds_left=65.4)
DEV = {"value": 33.333, "bleu": 33.333, "exact": 2.0, "test_beam": 5}
FIGURES = {"loss_per_word": 0.5, "violations_per_word": 0.25, "dev": DEV, "best": True}
EPOCH = {"kind": "epoch", **STATE, **FIGURES}
STAGE = {"kind": "stage", "stage": "bso", "update": 400, "epochs": 8, "kept_epoch": 2, "keep": "score", "value": 33.333}
EVENTS = (Notice("[3] sentences"), PROGRESS, Record(EPOCH), Record(STAGE))


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
        "demo: bso, epoch 3; loss 0.500 a word; beam 4, 0.250 violations a word; dev BLEU 33.33 at beam 5; "
        "1,234 words/s (best)",
        "demo: bso: 8 epochs, epoch 3 kept, dev score 33.33",
    ]


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argbeam.reports.progress._LINE_EVERY", 0.0)
    assert shown(monkeypatch, io.StringIO()).splitlines()[1] == (
        "demo: bso, epoch 3; update 150; loss 0.500; beam 4; 0.250 violations/word; 1,234 words/s; 1:05 left"
    )


def test_a_terminal_has_a_bar_and_keeps_the_lines_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal())
    assert "loss 0.500  beam 4  0.250 violations/word  1,234 words/s  1:05 left" in text
    assert "demo: [3] sentences" in text  # no markup: brackets stay
    assert "demo: bso: 8 epochs, epoch 3 kept, dev score 33.33" in text


def test_faults_of_an_epoch_are_in_its_line() -> None:
    plain = epoch_line(EPOCH)
    assert epoch_line({**EPOCH, "not_finite": 0.0, "out_of_memory": 0.0}) == plain
    assert epoch_line({**EPOCH, "best": False, "not_finite": 3.0, "out_of_memory": 1.0}) == (
        plain.removesuffix(" (best)") + "; 3 updates left out (not finite); 1 batches in halves (out of memory)"
    )


def test_a_note_that_nobody_reads_any_more_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends `argbeam train 2>&1 | tee log` from the reader's side first: training must still be saved."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    note("stopping")
    with pytest.raises(BrokenPipeError):
        print("stopping", file=sys.stderr)
