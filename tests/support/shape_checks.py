"""Shapes of tensors, checked while testing and only then.

The checks of jaxtyping take longer than most functions that they check. So a function's first calls in a test are
checked, then one call in so many: a wrong shape is wrong at every call of a kind, or nearly.
"""

import functools
import inspect
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import jaxtyping
from beartype import beartype

FIRST, THEN_EVERY = 4, 128
_jaxtyped = jaxtyping.jaxtyped
_calls: Counter[str] = Counter()  # by name: a function inside another is a new one each time


def check_some_calls(modules: list[str]) -> None:
    """Check the functions and dataclasses of modules that are not imported yet."""
    jaxtyping.jaxtyped = some_calls  # what the import hook decorates with
    jaxtyping.install_import_hook(modules, "shape_checks.checked")


def new_test() -> None:
    """From here on the first calls are checked again."""
    _calls.clear()


def some_calls(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """A decorator in place of jaxtyping's own, for whatever has its place in a module or a class."""

    def decorated(thing: Any) -> Any:
        if inspect.isclass(thing):
            if is_dataclass(thing) and "__init__" in vars(thing):
                thing.__init__ = decorated(thing.__init__)
            return thing
        if isinstance(thing, classmethod | staticmethod):
            return type(thing)(decorated(thing.__func__))
        if isinstance(thing, property):
            return property(*(f and decorated(f) for f in (thing.fget, thing.fset, thing.fdel)))
        name, checking = f"{thing.__module__}.{thing.__qualname__}", None

        @functools.wraps(thing)
        def called(*arguments: Any, **named: Any) -> Any:
            nonlocal checking
            number = _calls[name]
            _calls[name] = number + 1
            if number >= FIRST and number % THEN_EVERY:
                return thing(*arguments, **named)
            checking = checking or _jaxtyped(thing, typechecker=typechecker)  # it takes time: not before it is used
            return checking(*arguments, **named)

        return called

    return decorated


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
