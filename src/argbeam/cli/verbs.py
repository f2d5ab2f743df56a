"""The command's list of verbs, and what verbs have in common."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import typer

from argbeam.cli import faults
from argbeam.errors import ArgbeamError, ConfigError

Verb = TypeVar("Verb", bound=Callable[..., None])

app = typer.Typer(
    name="argbeam",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def verb(meaning: str, *, example: str) -> Callable[[Verb], Verb]:
    """A verb of the command: its line in the list of verbs, and an example that is not broken over two lines."""
    return app.command(short_help=meaning, epilog=f"\b\nExample: {example}")


def root_of(data: str | None) -> list[str]:
    """`--data` as an override."""
    if data is not None and Path(data).is_file():
        raise ConfigError(f"--data {data}: a file; the folder of the files that the recipe names is expected")
    return [] if data is None else [f"data.root={json.dumps(data)}"]


def options_of(sets: list[str] | None) -> list[str]:
    """Overrides as options of the command."""
    return [part for override in sets or [] for part in ("--set", override)]


def keys_of(sets: list[str] | None) -> list[str]:
    """The keys that overrides change."""
    return [override.partition("=")[0].strip() for override in sets or []]


def report_refusal(reason: str | None) -> None:
    """Report why searches ran more slowly than they might have."""
    if reason is not None:
        slow = "searches cannot be recorded as CUDA graphs and ran one operation at a time"
        print(f"argbeam: {slow}: {reason}", file=sys.stderr)


def refuse_group(verb: str) -> None:
    if faults.process_name():
        raise ArgbeamError(f"{verb} runs in one process; start it without torchrun")


def command(*arguments: object) -> str:
    """A command to type."""
    return shlex.join(["argbeam", *map(str, arguments)])
