"""Shapes are checked while testing, and only then; tests draw the same examples every time."""

import os
import pkgutil
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from beartype import beartype
from hypothesis import settings
from jaxtyping import install_import_hook


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


# The hook changes modules as they are imported: it has to come before the first import of argbeam. Kernels are not
# Python, only written like it.
SOURCE = Path(__file__).parent.parent / "src" / "argbeam"
MODULES = [module.name for module in pkgutil.iter_modules([str(SOURCE)]) if module.name != "kernels"]
install_import_hook([f"argbeam.{name}" for name in MODULES], "conftest.checked")

# Without a GPU, Triton's interpreter runs the kernels; it has to be asked before they are imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

torch.set_num_threads(1)
settings.register_profile("argbeam", deadline=None, derandomize=True)
settings.load_profile("argbeam")
