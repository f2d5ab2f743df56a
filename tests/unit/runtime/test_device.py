"""CPU threads of decoding, and the end of a process with a GPU."""

import atexit
import os
from collections.abc import Callable

import pytest
import torch

from argbeam.runtime import device as devices
from argbeam.runtime.device import choose_device, set_decoding_threads
from argbeam.settings import Runtime


@pytest.mark.parametrize(
    ("parameters", "load", "default", "threads"),
    [
        (1_000_000, 0.0, 8, 1),  # small: one
        (50_000_000, 0.0, 8, 8),  # large, on an idle machine: torch's default
        (50_000_000, 5.2, 8, 3),  # as many as cores are idle
        (50_000_000, 20.0, 8, 1),  # none is idle
        (50_000_000, 0.0, 2, 2),  # OMP_NUM_THREADS=2
    ],
)
def test_threads_of_decoding_by_size_and_load(
    monkeypatch: pytest.MonkeyPatch, parameters: int, load: float, default: int, threads: int
) -> None:
    """A machine of eight cores."""
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: default)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    set_decoding_threads(Runtime(), torch.device("cpu"), parameters)
    set_decoding_threads(Runtime(threads=5), torch.device("cpu"), parameters)
    assert chosen == [threads, 5]
    set_decoding_threads(Runtime(), torch.device("cuda"), parameters)
    assert len(chosen) == 2


def test_a_process_waits_for_its_gpu_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered once; an error of the GPU, which has been reported, is not reported again."""
    at_exit: list[Callable[[], None]] = []
    waited: list[int] = []

    def broken() -> None:
        waited.append(1)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(atexit, "register", at_exit.append)
    for name, value in (("is_available", True), ("device_count", 1), ("set_device", None), ("synchronize", None)):
        monkeypatch.setattr(torch.cuda, name, broken if name == "synchronize" else lambda *_, value=value: value)
    devices._finish_before_exit.cache_clear()
    assert choose_device("cuda") == choose_device("auto") == torch.device("cuda")
    (finish,) = at_exit
    finish()
    assert waited == [1]
    devices._finish_before_exit.cache_clear()
