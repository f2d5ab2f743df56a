"""Time a search under a trie beside the unconstrained one: build, memory, and a step of decoding and of training.

    python tools/time_trie.py --entries 1000000 --vocabulary 32000

Entries are random, of 1 to 7 tokens, with tokens by Zipf's law, so that some nodes have thousands of successors. The
model is an LSTM of random weights. On CUDA decoding is captured in graphs, training is not.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from argbeam import Bso, Example, Noise, Trie, Unconstrained, make_batch
from argbeam.data.batches import Batch
from argbeam.data.vocabulary import EOS, SPECIALS
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.models import LstmSeq2Seq
from argbeam.runtime.graph_cache import CudaRecorder
from argbeam.search.score_rules import LogprobSum, ScoreRule, ScoreSum
from argbeam.search.search import Search, SearchSettings
from argbeam.search.stop_rules import StopBest, StopTop
from argbeam.search.successors import Successors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sizes = {"entries": 1_000_000, "vocabulary": 32_000, "batch": 64, "beam": 10, "steps": 8, "width": 256, "rounds": 7}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    entries = zipf_entries(asked.entries, asked.vocabulary)
    before = peak_memory()
    started = time.perf_counter()
    trie = Trie.of(entries, vocabulary=asked.vocabulary)
    seconds, more = time.perf_counter() - started, peak_memory() - before
    nodes, arrays = len(trie.first_X) - 1, (trie.first_X.nbytes + trie.token_E.nbytes) / 1e6
    print(
        f"{trie.entries:,} entries, {nodes:,} nodes: built in {seconds:.1f} s, peak {more:.0f} MB, kept {arrays:.0f} MB"
    )

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LstmSeq2Seq(
        source_vocabulary=asked.vocabulary, target_vocabulary=asked.vocabulary, layers=1, hidden=asked.width,
        embedding=asked.width, dropout=0.0,
    ).to(device)  # fmt: skip
    model.initialise(bound=0.1, generator=torch.Generator().manual_seed(0))
    gold = [(*entry[: asked.steps - 1], EOS) for entry in entries[: asked.batch]]
    examples = [Example(tuple(range(4, 14)), target, i) for i, target in enumerate(gold)]
    batch = make_batch(examples, target_length=asked.steps).to(device)
    free: Successors = Unconstrained(asked.vocabulary, end_symbol=True)
    for rule in (ScoreSum(), LogprobSum()):
        calls = [decoding(model, s, rule, batch, asked.beam, asked.steps) for s in (free, trie)]
        report(f"decoding, {rule.name}", calls, asked.steps, asked.rounds)
    calls = [training(model, s, batch, asked.beam) for s in (free, trie)]
    report("training with score_sum, forward", calls, asked.steps, asked.rounds)


def decoding(
    model: LstmSeq2Seq, successors: Successors, rule: ScoreRule, batch: Batch, beam: int, steps: int
) -> Callable[[], object]:
    stop = StopBest() if rule.normalised else StopTop()
    search = Search(model, successors, SearchSettings(beam, rule, stop, end_early=False))
    length_B = torch.full_like(batch.source_length_B, steps)
    if not length_B.is_cuda:
        return lambda: search(batch, length_B, steps=steps)
    captured = CapturedSearch(CudaRecorder())
    return lambda: captured(search, batch, length_B, steps=steps)


def training(model: LstmSeq2Seq, successors: Successors, batch: Batch, beam: int) -> Callable[[], object]:
    loss = Bso(successors, train_beam=beam + 1, start_beam=beam + 1, rule=ScoreSum(), open_length=True).at(0)
    noise = Noise(1, torch.tensor(0, device=batch.source_BS.device), batch.sentence_B)

    @torch.no_grad()
    def call() -> object:
        return loss(model, batch, noise)

    return call


def report(name: str, calls: list[Callable[[], object]], steps: int, rounds: int) -> None:
    """Medians of rounds in which both take their turn."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 3):
        for call, found in zip(calls, times, strict=True):
            synchronise()
            started = time.perf_counter()
            call()
            synchronise()
            if number >= 3:  # kernels are compiled and graphs captured
                found.append(time.perf_counter() - started)
    free, trie = (1000 * statistics.median(found) / steps for found in times)
    print(f"{name}: {free:.3f} ms a step without, {trie:.3f} ms under the trie, ratio {trie / free:.2f}")


def zipf_entries(entries: int, vocabulary: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 8, entries)
    words = vocabulary - len(SPECIALS)
    ranks = np.minimum(np.exp(rng.uniform(0, np.log(words), lengths.sum())).astype(int), words) - 1
    flat, ends = (ranks + len(SPECIALS)).tolist(), np.cumsum(lengths).tolist()
    return [flat[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def peak_memory() -> float:
    """In MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
