"""The device of a recipe, its precision, and CUDA graphs on it."""

import torch

from argbeam.errors import DeviceError
from argbeam.runtime.graph_cache import CudaRecorder, Recorder
from argbeam.runtime.group import take_cuda_device
from argbeam.settings import Runtime


def choose_device(name: str) -> torch.device:
    """The device of this name, or a DeviceError; `auto` is CUDA where there is one, else the CPU."""
    if name not in ("cpu", "cuda", "auto"):
        raise DeviceError(f"device {name}: accepted: cpu, cuda, auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("runtime.device = cuda: this machine has no CUDA device; accepted here: cpu, auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        take_cuda_device()
    return torch.device(name)


def set_precision(device: torch.device, *, tf32: bool) -> None:
    """Whether float32 matrix products may use TF32 on CUDA; a CPU has no TF32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if tf32 else "highest")


def make_recorder(runtime: Runtime, device: torch.device) -> Recorder | None:
    """A recorder of CUDA graphs on CUDA unless the recipe turns them off; None: operation by operation."""
    return CudaRecorder() if device.type == "cuda" and runtime.capture else None
