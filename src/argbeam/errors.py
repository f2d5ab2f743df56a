"""Errors a user can mend: one line that says where, what was found, and what is accepted. Exit code 2."""

import errno

_LONGEST = 2000  # characters of a message
# What the system says when a file has no room for what is written to it.
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


class ArgbeamError(Exception):
    """The base of every error that the command prints as one line.

    Names of files and words of a corpus stand in messages: what is not printable is written as an escape, so that
    none of them can break the line or reach the terminal as a command. A word of a million letters is cut.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class ConfigError(ArgbeamError):
    """A recipe or a `--set` names an unknown key or gives a value that is not accepted."""


class DataError(ArgbeamError):
    """A file cannot be read as what it is said to be. The message starts with `path:line:` where there is a line."""


class CheckpointError(ArgbeamError):
    """A checkpoint is missing, truncated, altered or belongs to another run."""


class ToldError(ArgbeamError):
    """Something that another process or thread has told the user already: this process only has to end."""


class DeviceError(ArgbeamError):
    """The device asked for is absent or cannot do what was asked of it."""
