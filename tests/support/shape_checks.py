"""Shapes of tensors, checked while testing and only then."""

import typing
from collections.abc import Callable, Iterator
from typing import Any

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Beartype, which can check a protocol only if isinstance can: argbeam itself never asks."""
    for hint in getattr(function, "__annotations__", {}).values():
        for part in _parts(hint):
            if isinstance(part, type) and getattr(part, "_is_protocol", False):
                typing.runtime_checkable(part)
    return beartype(function)


def _parts(hint: Any) -> Iterator[Any]:
    """A hint and what it is made of: `Stop | None` holds `Stop`."""
    yield hint
    for part in typing.get_args(hint):
        yield from _parts(part)
