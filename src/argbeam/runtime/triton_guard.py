"""Whether Triton kernels can run. Each does in one launch what its plain torch version does in many.

Only modules with kernels import Triton, and they are imported only where it is installed.
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
    """Whether kernels can take these tensors: float32 or integers on the current CUDA device, and Triton installed."""
    return INSTALLED and _WANTED and all(t.is_cuda and t.dtype in _DTYPES and _reached(t.device) for t in tensors)


def _reached(device: torch.device) -> bool:
    """Whether this is the current device, to which kernels are launched, and recent enough."""
    return device.index == torch.cuda.current_device() and _recent(device)


@cache
def _recent(device: torch.device) -> bool:
    """Whether a device has the shared memory that kernels need: Ampere (2020) or later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def products() -> str:
    """How a kernel multiplies float32 matrices: as torch does by `torch.set_float32_matmul_precision`."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least this number, and at least `least`: the sizes that kernels come in."""
    return max(least, 1 << (number - 1).bit_length())
