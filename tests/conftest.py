"""Shapes are checked while testing, and only then; tests draw the same examples every time."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import shape_checks

# The hook changes modules as they are imported: it has to come before the first import of argbeam. Kernels are not
# Python, only written like it. The generated corpus has no tensor, and its checks took a minute.
SOURCE = Path(__file__).parents[1] / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if path.name != "__init__.py" and not path.stem.endswith("_kernel") and path.stem != "device"
    if path.parent.name != "generated"
]
shape_checks.check_some_calls(MODULES)

# Without a GPU, Triton's interpreter runs the kernels; it has to be asked before they are imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

torch.set_num_threads(1)
settings.register_profile("argbeam", deadline=None, derandomize=True)
settings.load_profile("argbeam")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    shape_checks.new_test()
