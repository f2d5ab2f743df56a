"""The device that a recipe asks for, its precision, and whether work on it is recorded as CUDA graphs."""

import torch

from argbeam.errors import DeviceError
from argbeam.runtime.graph_cache import CudaRecorder, Recorder
from argbeam.runtime.group import take_cuda_device
from argbeam.settings import Runtime


def choose_device(name: str) -> torch.device:
    """The device asked for; `auto` is CUDA where there is one. Nothing else is taken instead."""
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
    """Whether float32 products may use TF32 on CUDA; a CPU has none."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if tf32 else "highest")


def make_recorder(runtime: Runtime, device: torch.device) -> Recorder | None:
    """CUDA graphs, where there is CUDA and the recipe wants them; None: nothing is to be recorded."""
    return CudaRecorder() if device.type == "cuda" and runtime.capture else None
