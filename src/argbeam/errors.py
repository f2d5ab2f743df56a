"""Errors that a user can fix: one line with the place, what was found and what is accepted. Exit code 2."""

import errno

_LONGEST = 2000  # characters of a message
# Errors of a write to a full disk, above a quota, or above a file size limit.
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
OUT_OF_MEMORY = (
    "out of memory; a smaller batch (batch.size, decode.batch) or beam takes less, "
    "and runtime.store = true keeps training data on disk"
)


def counted(count: int, noun: str) -> str:
    """`1 epoch`, `2 epochs`, `1,000 epochs`: a number with a noun whose plural ends in s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class ArgbeamError(Exception):
    """Base of all errors that the command prints as one line.

    Messages contain file names and words of a corpus. Characters that are not printable become escapes, so that they
    cannot break the line or control the terminal. Long messages are cut in the middle.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class ConfigError(ArgbeamError):
    """An unknown key, or a value that is not accepted, in a recipe or `--set`."""


class DataError(ArgbeamError):
    """A file of unexpected content. The message starts with `path:line:` if the error is in a line."""


class CheckpointError(ArgbeamError):
    """A missing, truncated or altered checkpoint, or one of another run."""


class MemoryShortError(ArgbeamError):
    """Too little memory, which may be free the next time."""


class ToldError(ArgbeamError):
    """An error that another process or thread has reported already: this process just ends."""


class DeviceError(ArgbeamError):
    """A device that is missing or cannot run the request."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the system or torch has no memory left; torch's allocator of the CPU has no error of its own."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return known or "can't allocate memory" in str(error)
