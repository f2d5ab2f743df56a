"""Faults outside of a verb: usage, standard streams, memory, signals. Each is one line on stderr, with exit code 2."""

import difflib
import errno
import io
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import typer

from argbeam.errors import NO_ROOM, OUT_OF_MEMORY, ArgbeamError, ToldError, is_out_of_memory

# typer exports one of its usage errors; their base has a place of its own in every version.
_UsageError: Any = typer.BadParameter.__mro__[1]
_INTERRUPTED = 130
# Errors of a write to stdout that name no file.
_BAD_STREAM = NO_ROOM | {errno.EBADF, errno.EIO, errno.EAGAIN}


def exit_code_of(command: Callable[[], Any]) -> int:
    """Run the command, report its error, and return the exit code of the process."""
    try:
        _prepare_streams()
        code = _flushing(command)
    except ToldError:
        return 2
    except BrokenPipeError:
        _drop_buffered()  # the reader has left, as `head` does
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (ArgbeamError, OSError, MemoryError, RuntimeError, _UsageError) as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error)  # the help
            return 0
        if (line := _line_of(error)) is None:
            raise
        _say(f"error: {process_name()}{ArgbeamError(line)}")
        return 2
    if code == _INTERRUPTED:
        _say("interrupted")
    return code if isinstance(code, int) else 0


def _say(line: str) -> None:
    """Print a last line. Where stderr is a file on a full disk, the exit code is all that can be said."""
    with suppress(OSError):
        print(f"argbeam: {line}", file=sys.stderr)


def process_name() -> str:
    """`process 1 of 2: ` if torchrun started this process with others, else nothing."""
    size = os.environ.get("WORLD_SIZE", "1")
    return "" if size == "1" else f"process {os.environ.get('RANK', '0')} of {size}: "


def _flushing(command: Callable[[], Any]) -> Any:
    try:
        return command()
    finally:
        sys.stdout.flush()


def _prepare_streams() -> None:
    """Occupy closed descriptors, or files opened later would take their numbers; write UTF-8 whatever the locale."""
    closed = [number for number in range(3) if _is_closed(number)]
    for _ in closed:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is None:  # without a stderr, print() would put notices among the results
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stdout is None:
        sys.stdout = sys.stderr
        raise ArgbeamError("stdout is closed; results go there: `> FILE` keeps them, `> /dev/null` drops them")
    # A name of a file that is not UTF-8 is written as the bytes that it has.
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def _is_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def _drop_buffered() -> None:
    """Send what stdout still buffers nowhere, or Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _line_of(error: BaseException) -> str | None:
    """The error in one line; None for a fault of argbeam, whose traceback is wanted."""
    if isinstance(error, ArgbeamError):
        return str(error)
    if isinstance(error, _UsageError):
        return _usage_line(error)
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    if not isinstance(error, OSError):
        return None
    if error.filename is None and error.errno in _BAD_STREAM:
        _drop_buffered()
        return f"cannot write stdout: {error.strerror}"
    names = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return f"{names or 'system'}: {error.strerror or error}"


def _usage_line(error: Any) -> str:
    """The error of a wrong command line: verb, what was found, what is accepted."""
    context, text = error.ctx, str(error.message)
    where = f"{context.info_name}: " if context is not None and context.parent is not None else ""
    options = [name for one in context.command.params for name in one.opts if name[:1] == "-"] if context else []
    if hasattr(error, "possibilities"):
        return f"{where}unknown option {error.option_name}{_near(error.option_name, options)}"
    if found := re.match(r"No such command '(.*?)'", text):
        return f"unknown verb {found[1]}{_near(found[1], list(context.command.commands))}"
    if hasattr(error, "param_type"):  # a missing argument or option
        name = error.param.metavar if error.param.param_type_name == "argument" else error.param.opts[0]
        example = str(context.command.epilog or "").partition("Example: ")[2]
        return f"{where}{name} is missing; an example: {example}"
    if found := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", text):
        return f"{where}unexpected argument {found[1]}; `argbeam {where[:-2]} -h` lists what is accepted"
    if hasattr(error, "option_name"):
        needs = "a value is missing after it" if "requires" in text else "it takes no value"
        return f"{where}{error.option_name}: {needs}"
    return f"{where}{error.format_message()}"


def _near(found: str, known: list[str]) -> str:
    near = difflib.get_close_matches(found, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; accepted: {', '.join(known) or 'none'}"


def stopped(again: str, signal: int, *, saved: bool) -> NoReturn:
    """Report how to resume, and exit as a shell reports a signal: 130 for SIGINT, 143 for SIGTERM."""
    if os.environ.get("RANK", "0") == "0":
        how = "stopped and saved; to resume" if saved else "stopped before the first update; to start again"
        command = "the same command" if process_name() else again
        _say(f"{how}: {command}")
    sys.exit(128 + signal)  # not typer.Exit: 130 from typer means that Ctrl-C ended the command at once
