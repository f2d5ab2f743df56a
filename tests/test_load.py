"""Memory does not grow with the input: a small share of what `tests/load.py` measures, with the same bounds."""

from pathlib import Path

import pytest

import load
from argbeam.config import parse_recipe
from argbeam.training_data import build_store


@pytest.mark.slow
def test_decoding_a_stream_holds_memory_flat(tmp_path: Path) -> None:
    """Lines are decoded by windows of 8,192: after two of them, two more take no more memory than that."""
    samples = load.decode(load.tiny_run(tmp_path / "run"), 4 * 8192, samples=16)
    first = max(megabytes for done, megabytes in samples if done <= 2 * 8192)
    last = max(megabytes for done, megabytes in samples if done > 2 * 8192)
    assert last < 1.05 * first, samples


@pytest.mark.slow
def test_ten_times_the_training_pairs_take_no_more_memory(tmp_path: Path) -> None:
    """In memory, 27,000 more pairs of about 20 words would take 20 MB or more; in a store, 16 bytes each."""
    starts = []
    for name, pairs in (("few", 3000), ("many", 30_000)):
        data = load.write_pairs(tmp_path / name, pairs)
        build_store(parse_recipe(load.recipe(data)), tmp_path / f"{name}-run", None)
        ready = load.train_some(tmp_path / f"{name}-run", data, 0)[-1]
        assert ready["event"] == f"{pairs:,} training sentences, 20 dev sentences"
        starts.append(ready["mb"])
    assert starts[1] < starts[0] + 10, starts
