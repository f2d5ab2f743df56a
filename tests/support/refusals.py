"""The message of a refusal."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from argbeam.errors import DataError


def refusal(call: Callable[..., Any], *arguments: Any, error: type[Exception] = DataError, **options: Any) -> str:
    """The message of the error that a call must end in; an iterator is read to its end."""
    with pytest.raises(error) as raised:
        found = call(*arguments, **options)
        if isinstance(found, Iterator):
            list(found)
    return str(raised.value)
