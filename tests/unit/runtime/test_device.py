"""CPU threads of decoding."""

import os

import pytest
import torch

from argbeam.runtime.device import set_decoding_threads
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
