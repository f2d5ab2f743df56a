"""Triton kernels: each does in one launch what its plain torch twin does in many, with the same numbers.

Modules with kernels import Triton; nothing else does, and nothing imports them where there is no Triton.
"""

import importlib.util
import os
from functools import cache

import torch
from torch import Tensor

INSTALLED = importlib.util.find_spec("triton") is not None
_DTYPES = (torch.float32, torch.int32, torch.int64)
# For comparisons: with ARGBEAM_KERNELS=0 the plain torch path runs everywhere.
_WANTED = os.environ.get("ARGBEAM_KERNELS", "1") != "0"


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: float32 or whole numbers on a CUDA device, Triton there to compile."""
    return INSTALLED and _WANTED and all(t.is_cuda and t.dtype in _DTYPES and _reached(t.device) for t in tensors)


def _reached(device: torch.device) -> bool:
    """Whether a launch goes to this device, which is the current one, and finds one that is recent enough."""
    return device.index == torch.cuda.current_device() and _recent(device)


@cache
def _recent(device: torch.device) -> bool:
    """Whether a device has the shared memory that kernels count on: Ampere (2020) or later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def products() -> str:
    """How a kernel multiplies float32 matrices: as torch does by `torch.set_float32_matmul_precision`."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least this number, and at least `least`: the sizes that kernels come in."""
    return max(least, 1 << (number - 1).bit_length())
