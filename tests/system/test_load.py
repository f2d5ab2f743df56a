"""Memory does not grow with the input: a small share of what `tools/load.py` measures, with the same bounds."""

from pathlib import Path

import pytest

import load


@pytest.mark.slow
def test_decoding_a_stream_holds_memory_flat(tmp_path: Path) -> None:
    """Lines are decoded by windows of 8,192: after two of them, one more takes no more memory than that."""
    samples = load.decode(load.tiny_run(tmp_path / "run"), 3 * 8192, samples=12)
    first = max(megabytes for done, megabytes in samples if done <= 2 * 8192)
    last = max(megabytes for done, megabytes in samples if done > 2 * 8192)
    assert last < 1.05 * first, samples


@pytest.mark.slow
def test_thirty_times_the_training_pairs_take_no_more_memory(tmp_path: Path) -> None:
    """58,000 more pairs of some 24 words are 24 MB as tuples, at 420 bytes each; a store takes 16 bytes each.

    The process that builds it is the one that is measured.
    """
    starts = []
    for name, pairs in (("few", 2000), ("many", 60_000)):
        data = load.write_pairs(tmp_path / name, pairs)
        ready = load.train_some(tmp_path / f"{name}-run", data, 0)[-1]
        assert ready["event"] == f"{pairs:,} training sentences, 20 dev sentences"
        starts.append(ready["mb"])
    assert starts[1] < starts[0] + 12, starts
