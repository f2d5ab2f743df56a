"""Progress of training on stderr: a bar on a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from argbeam.errors import counted
from argbeam.metrics.outputs import metric_name
from argbeam.settings import Recipe
from argbeam.training.events import Doing, Event, Notice, Progress, Record

_LINE_EVERY = 30.0  # seconds between two lines of progress

Show = Callable[[Event], None]


def note(text: str) -> None:
    """Print a line for the user that is no result. Training must be saved even if nobody reads it any more."""
    with suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def training_display(recipe: Recipe, *, title: str = "") -> Iterator[Show]:
    """A function that shows the events of training."""
    prefix = f"{title}: " if title else ""
    if sys.stderr.isatty():
        with _bar(recipe, prefix) as show:
            yield show
    else:
        yield _lines(prefix)


def epoch_line(values: dict[str, Any]) -> str:
    """The record of an epoch as a line."""
    parts = [f"{values['stage']}, epoch {values['epoch'] + 1}", f"loss {values['loss_per_word']:.3f} a token"]
    if "violations_per_word" in values:
        parts.append(f"beam {values['beam']}, {values['violations_per_word']:.3f} violations a token")
    parts += _dev_parts(values["dev"])
    parts.append(f"{values['words_per_second']:,.0f} tokens/s")
    if values.get("not_finite"):
        parts.append(f"{counted(int(values['not_finite']), 'update')} left out (not finite)")
    if values.get("out_of_memory"):
        parts.append(f"{values['out_of_memory']:.0f} batches in halves (out of memory)")
    return "; ".join(parts) + (" (best)" if values["best"] else "")


def start_line(values: dict[str, Any]) -> str:
    """The record of the model that a stage starts from, as a line."""
    return f"{values['stage']} starts from {'; '.join(_dev_parts(values['dev']))} (rule {values['rule']})"


def stage_line(values: dict[str, Any]) -> str:
    """The record of a stage as a line."""
    kept = f"epoch {values['kept_epoch'] + 1}" if values["kept_epoch"] >= 0 else "the model it started from"
    parts = [
        f"{values['stage']}: {counted(values['epochs'], 'epoch')}, {kept} kept",
        *_dev_parts(values.get("dev", {})),
    ]
    # Records of version 0.1 have neither dev figures nor a comparison.
    return "; ".join([*parts, *([values["comparison"]] if values.get("comparison") else [])])


def _dev_parts(dev: dict[str, Any]) -> list[str]:
    parts = [f"dev {metric_name(dev)} {dev['value']:.2f} at beam {dev['test_beam']}"] if "value" in dev else []
    cut_off, dead = dev.get("unfinished", 0), dev.get("dead", 0)
    parts += [f"{counted(cut_off, 'output')} cut off at the length limit"] if cut_off else []
    parts += [counted(dead, "dead end")] if dead else []
    if "perplexity" in dev:
        perplexity = dev["perplexity"]
        parts.append(f"dev perplexity {perplexity:.2f}" if perplexity < 1e6 else f"dev perplexity {perplexity:.3g}")
    return parts


_LINES = {"stage_start": start_line, "epoch": epoch_line, "stage": stage_line}


def _text(event: Event) -> str:
    """The line for an event; empty for progress and checkpoints."""
    if isinstance(event, Record):
        return _LINES[event.values["kind"]](event.values)
    return event.text if isinstance(event, Notice) else ""


def _figures(event: Progress) -> list[str]:
    search = [f"beam {event.beam}", f"{event.violations:.3f} violations/token"] if event.beam else []
    left = [] if event.seconds_left is None else [f"{duration(event.seconds_left)} left"]
    return [f"loss {event.loss:.3f}", *search, f"{event.words_per_second:,.0f} tokens/s", *left]


def _epoch(event: Progress) -> str:
    return f"{event.stage}, epoch {event.epoch + 1} of {event.epochs}"


def _lines(prefix: str) -> Show:
    last = time.monotonic()

    def show(event: Event) -> None:
        nonlocal last
        text = _text(event)
        if isinstance(event, Progress) and time.monotonic() - last >= _LINE_EVERY:
            text = "; ".join([_epoch(event), f"update {event.update:,}", *_figures(event)])
        elif isinstance(event, Doing) and time.monotonic() - last >= _LINE_EVERY:
            text = event.text
        if text:
            note(f"{prefix}{text}")
            last = time.monotonic()

    return show


@contextmanager
def _bar(recipe: Recipe, prefix: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, markup=False, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Bars(*columns, console=console, transient=True) as bars:
        bar = bars.add_task(f"{prefix}{next(iter(recipe.stages))}", total=None, figures="")

        def show(event: Event) -> None:
            if isinstance(event, Progress):
                stage, figures = f"{prefix}{_epoch(event)}", "  ".join(_figures(event))
                bars.update(bar, description=stage, total=event.updates, completed=event.update, figures=figures)
            elif isinstance(event, Doing):
                bars.update(bar, description=f"{prefix}{event.text}")
            elif text := _text(event):
                console.print(f"{prefix}{text}")

        yield show


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to call with how many more are done: a bar on a terminal, a line now and then elsewhere."""
    done, started = 0, time.monotonic()
    last = started

    def left() -> str:
        return f"{duration((time.monotonic() - started) * (total - done) / done)} left"

    if not sys.stderr.isatty():

        def add(count: int) -> None:
            nonlocal done, last
            done += count
            if count and time.monotonic() - last >= _LINE_EVERY:
                last = time.monotonic()
                note(f"{what}: {done:,} of {total:,}; {left()}")

        yield add
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[left]}"))
    with Bars(*columns, console=Console(stderr=True, markup=False, highlight=False), transient=True) as bars:
        bar = bars.add_task(what, total=total, left="")

        def advance(count: int) -> None:
            nonlocal done
            done += count
            bars.update(bar, completed=done, left=left() if done else "")

        yield advance


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes: 3:07, 2 h 15."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02}"
