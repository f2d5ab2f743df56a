"""Errors a user can mend: one line that says where, what was found, and what is accepted. Exit code 2."""


class ArgbeamError(Exception):
    """The base of every error that the command prints as one line."""


class ConfigError(ArgbeamError):
    """A recipe or a `--set` names an unknown key or gives a value that is not accepted."""


class DataError(ArgbeamError):
    """A file cannot be read as what it is said to be. The message starts with `path:line:` where there is a line."""


class CheckpointError(ArgbeamError):
    """A checkpoint is missing, truncated, altered or belongs to another run."""


class DeviceError(ArgbeamError):
    """The device asked for is absent or cannot do what was asked of it."""
