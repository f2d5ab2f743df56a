"""The command. Results go to stdout, progress and notices to stderr; errors that a user can fix are one line, exit 2.

Verbs import what they need when they run: torch takes seconds to import, and `argbeam --help` needs none of it.
"""

import sys
from typing import Annotated

import typer

from argbeam import __version__
from argbeam.cli import faults, run_verbs, tool_verbs  # noqa: F401 - they put their verbs into the list
from argbeam.cli.verbs import app


def main() -> None:
    """Run the command and exit."""
    sys.exit(faults.exit_code_of(lambda: app(prog_name="argbeam", standalone_mode=False)))


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Train sequence models for the beam search that decodes them."""
    if version:
        print(f"argbeam {__version__}")
        raise typer.Exit
