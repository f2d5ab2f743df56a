"""The device of a recipe: its precision, CUDA graphs on it, and whether Triton kernels can run there.

A kernel does in one launch what its plain torch version does in many. Only modules with kernels import Triton, and they
are imported only where it is installed.
"""

import atexit
import importlib.util
import os
import sys
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

from argbeam.errors import DeviceError
from argbeam.runtime.graph_cache import CudaRecorder, Recorder
from argbeam.settings import Runtime

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None
_SMALL_MODEL = 4_000_000  # parameters
_KERNEL_DTYPES = (torch.float32, torch.int32, torch.int64)
# For comparisons: with ARGBEAM_KERNELS=0 the plain torch path runs everywhere.
_KERNELS_WANTED = os.environ.get("ARGBEAM_KERNELS", "1") != "0"


def choose_device(name: str) -> torch.device:
    """The device of this name, or a DeviceError; `auto` is CUDA where there is one, else the CPU."""
    if name not in ("cpu", "cuda", "auto"):
        raise DeviceError(f"device {name}: accepted: cpu, cuda, auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("runtime.device = cuda: this machine has no CUDA device; accepted here: cpu, auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":  # the GPU of this process on its machine
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= count:
            raise DeviceError(
                f"process {local} of this machine has no GPU of its own: there are {count}; start {count} at most, "
                "or set runtime.device=cpu"
            )
        torch.cuda.set_device(local)
        _finish_before_exit()
    return torch.device(name)


@cache
def _finish_before_exit() -> None:
    """Wait for the GPU when the process ends, after an error too.

    Kernels that outlive their process can fault in CUDA's multi-process service, which then ends its other processes.
    """

    def finish() -> None:
        with suppress(RuntimeError):  # of the GPU: it has been reported
            torch.cuda.synchronize()

    atexit.register(finish)


def set_precision(device: torch.device, *, tf32: bool) -> None:
    """Whether float32 matrix products may use TF32 on CUDA; a CPU has no TF32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if tf32 else "highest")


def set_decoding_threads(runtime: Runtime, device: torch.device, parameters: int) -> None:
    """The recipe's number of CPU threads, or what is fast for a model with so many parameters.

    One thread for a small model: its operations are shorter than the wait of threads for one another. Otherwise one
    for each idle core, as a thread that waits for a busy core holds up all others. Never more than torch's default.
    """
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    elif device.type == "cpu":
        idle = 1 if parameters < _SMALL_MODEL else round(len(os.sched_getaffinity(0)) - os.getloadavg()[0])
        torch.set_num_threads(max(1, min(idle, torch.get_num_threads())))


def make_recorder(runtime: Runtime, device: torch.device) -> Recorder | None:
    """A recorder of CUDA graphs on CUDA unless the recipe turns them off; None: operation by operation."""
    return CudaRecorder() if device.type == "cuda" and runtime.capture else None


def host_may_look(x: Tensor) -> bool:
    """Whether shapes may depend on values: on a GPU the host would have to wait, and nothing could be captured."""
    return not x.is_cuda


def kernels_usable(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: float32 or integers on the current CUDA device, and Triton installed."""
    if not (TRITON_INSTALLED and _KERNELS_WANTED):
        return False
    return all(t.is_cuda and t.dtype in _KERNEL_DTYPES and _reached(t.device) for t in tensors)


def _reached(device: torch.device) -> bool:
    """Whether this is the current device, to which kernels are launched, and recent enough."""
    return device.index == torch.cuda.current_device() and _recent(device)


@cache
def _recent(device: torch.device) -> bool:
    """Whether a device has the shared memory that kernels need: Ampere (2020) or later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program can have; without a GPU there is no limit."""
    if device.type != "cuda":
        return sys.maxsize
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))


def products() -> str:
    """How a kernel multiplies float32 matrices: as torch does by `torch.set_float32_matmul_precision`."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least this number, and at least `least`: the sizes that kernels come in."""
    return max(least, 1 << (number - 1).bit_length())
