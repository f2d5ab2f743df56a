"""What a user sees while training goes on, all of it on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from argbeam.settings import Recipe
from argbeam.training.events import Event, Notice, Progress, Record

# Seconds between two lines of progress where there is no terminal to draw a bar on.
_LINE_EVERY = 30.0

Show = Callable[[Event | Notice], None]


def note(text: str) -> None:
    """A line for the user that is no result. If nobody reads it any more, training must still be saved."""
    with suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def training_display(recipe: Recipe, *, title: str = "") -> Iterator[Show]:
    """Shows training's events: a bar where stderr is a terminal, lines where it is not."""
    if sys.stderr.isatty():
        with _bar(recipe, title) as show:
            yield show
    else:
        yield _lines(title)


def epoch_line(values: dict[str, Any]) -> str:
    """An epoch's record in a line."""
    parts = [f"{values['stage']}, epoch {values['epoch'] + 1}", f"loss {values['loss_per_word']:.3f} a word"]
    if "violations_per_word" in values:
        parts.append(f"beam {values['beam']}, {values['violations_per_word']:.3f} violations a word")
    dev = values["dev"]
    if "value" in dev:
        metric = next((f"{name.upper()} " for name in dev if name != "value" and dev[name] == dev["value"]), "")
        parts.append(f"dev {metric}{dev['value']:.2f} at beam {dev['test_beam']}")
    if "perplexity" in dev:
        perplexity = dev["perplexity"]
        parts.append(f"dev perplexity {perplexity:.2f}" if perplexity < 1e6 else f"dev perplexity {perplexity:.3g}")
    parts.append(f"{values['words_per_second']:,.0f} words/s")
    if values.get("not_finite"):
        parts.append(f"{values['not_finite']:.0f} updates left out (not finite)")
    if values.get("out_of_memory"):
        parts.append(f"{values['out_of_memory']:.0f} batches in halves (out of memory)")
    return "; ".join(parts) + (" (best)" if values["best"] else "")


def stage_line(values: dict[str, Any]) -> str:
    """A stage's record in a line."""
    value = "" if values["value"] is None else f", dev {values['keep']} {values['value']:.2f}"
    return f"{values['stage']}: {values['epochs']} epochs, epoch {values['kept_epoch'] + 1} kept{value}"


def _lines(title: str) -> Show:
    prefix = f"{title}: " if title else ""
    last = time.monotonic()

    def show(event: Event | Notice) -> None:
        nonlocal last
        if isinstance(event, Notice):
            note(f"{prefix}{event.text}")
        elif isinstance(event, Record):
            line = epoch_line if event.values["kind"] == "epoch" else stage_line
            note(f"{prefix}{line(event.values)}")
            last = time.monotonic()
        elif isinstance(event, Progress) and time.monotonic() - last >= _LINE_EVERY:
            note(f"{prefix}{_progress_line(event)}")
            last = time.monotonic()

    return show


def _progress_line(event: Progress) -> str:
    parts = [f"{event.stage}, epoch {event.epoch + 1}", f"update {event.update:,}", f"loss {event.loss:.3f} a word"]
    if event.beam:
        parts.append(f"beam {event.beam}, {event.violations:.3f} violations a word")
    parts += [f"{event.words_per_second:,.0f} words/s", f"{duration(event.seconds_left)} left in the stage"]
    return "; ".join(parts)


@contextmanager
def _bar(recipe: Recipe, title: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, markup=False, highlight=False)
    prefix = f"{title}: " if title else ""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Bars(*columns, console=console, transient=True) as bars:
        bar = bars.add_task(f"{prefix}{next(iter(recipe.stages))}", total=None, figures="")

        def show(event: Event | Notice) -> None:
            if isinstance(event, Notice):
                console.print(f"{prefix}{event.text}")
            elif isinstance(event, Record) and event.values["kind"] == "epoch":
                console.print(f"{prefix}{epoch_line(event.values)}")
            elif isinstance(event, Record):
                console.print(f"{prefix}{stage_line(event.values)}")
            elif isinstance(event, Progress):
                bars.update(
                    bar,
                    description=f"{prefix}{event.stage}, epoch {event.epoch + 1}",
                    total=event.updates,
                    completed=event.update,
                    figures=_figures(event),
                )

        yield show


def _figures(event: Progress) -> str:
    search = f"beam {event.beam}  {event.violations:.3f} viol/word  " if event.beam else ""
    speed = f"{event.words_per_second:,.0f} words/s  {duration(event.seconds_left)} left"
    return f"loss {event.loss:.3f}  {search}{speed}"


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes: 3:07, 2 h 15."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02}"
