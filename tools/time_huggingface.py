"""Time argbeam on a T5 of Hugging Face beside transformers' own training step and `generate`.

    python tools/time_huggingface.py --out times.json

Updates are those of `Trainer` with `bf16=True`: weights in float32, products in bf16 by autocast, fused AdamW. Decoding
has weights in bf16, and every output has the same length. Weights are random. All systems of a part take their turn in
every round; a figure is the median of its rounds after two to warm up. A system that fails has the traceback in its
place, and the others go on. `--tiny` is a rehearsal on a CPU.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration
from transformers import logging as transformers_logging

from argbeam import Bso, Example, LogprobSum, Trie, Unconstrained, make_batch
from argbeam.data.batches import Batch
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.huggingface import SearchTrainer, adapt, search_by
from argbeam.models.huggingface.adapter import HuggingFaceModel
from argbeam.reports.table import table
from argbeam.runtime.graph_cache import CudaRecorder
from argbeam.search.score_rules import ScoreRule, ScoreSum
from argbeam.search.search import Search, SearchSettings
from argbeam.search.stop_rules import StopBest
from argbeam.search.successors import Successors

BEAM, END, LONGEST_ENTRY = 5, 1, 8
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WARM = 2
Call = Callable[[], object]


@dataclass(frozen=True)
class Sizes:
    layers: int = 6
    width: int = 512
    heads: int = 8
    batch: int = 64
    length: int = 32
    vocabulary: int = 32_128
    entries: int = 100_000


TINY = Sizes(layers=1, width=16, heads=2, batch=3, length=6, vocabulary=50, entries=40)


@dataclass
class System:
    """A row of the table: seconds of its rounds, and what went wrong."""

    name: str
    make: Callable[[], Call]
    call: Call | None = None
    seconds: list[float] | None = None
    note: str = ""
    error: str = ""

    def attempt(self, round_number: int) -> None:
        """One call, timed unless it warms up; the first one makes what is called."""
        if self.error:
            return
        try:
            self.call = self.make() if self.call is None else self.call
            synchronise()
            start = time.perf_counter()
            self.call()
            synchronise()
        except Exception:  # the other rows are worth having
            self.error = traceback.format_exc()
            self.call = None
            return
        if round_number >= WARM:
            self.seconds = [*(self.seconds or []), time.perf_counter() - start]

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


def t5(sizes: Sizes) -> Any:
    """From its configuration; training and decoding without dropout, as argbeam's losses run."""
    torch.manual_seed(1)
    shape = {"d_model": sizes.width, "d_kv": sizes.width // sizes.heads, "d_ff": 4 * sizes.width}
    counts = {"num_layers": sizes.layers, "num_heads": sizes.heads, "vocab_size": sizes.vocabulary}
    ids = {"pad_token_id": 0, "eos_token_id": END, "decoder_start_token_id": 0}
    return T5ForConditionalGeneration(T5Config(**shape, **counts, **ids, dropout_rate=0.0))


def random_ids(sizes: Sizes, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, sizes.vocabulary, (sizes.batch, sizes.length), generator=generator)


def update_of(sizes: Sizes, rule: ScoreRule | None, *, capture: bool = True) -> Call:
    """An update as `Trainer` makes it, but for the rate's schedule, callbacks and logs; no rule: its own loss."""
    arguments = Seq2SeqTrainingArguments(
        tempfile.mkdtemp(),
        bf16=True,
        report_to=[],
        use_cpu=DEVICE.type == "cpu",
        per_device_train_batch_size=sizes.batch,
    )
    kind: Any = Seq2SeqTrainer
    if rule is not None:
        loss = Bso(Unconstrained(sizes.vocabulary, end_symbol=True), BEAM, start_beam=BEAM, rule=rule)
        kind = lambda *given: SearchTrainer(*given, loss=loss, capture=capture)  # noqa: E731
    trainer = kind(t5(sizes), arguments)
    weights = trainer.accelerator.prepare_model(trainer.model)
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-6, fused=DEVICE.type == "cuda")
    source, gold = random_ids(sizes, 1).to(DEVICE), random_ids(sizes, 2).to(DEVICE)
    gold[:, -1] = END
    inputs = {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": gold}
    items = trainer._get_num_items_in_batch([inputs], DEVICE)

    def update() -> str:
        trainer.training_step(weights, dict(inputs), items)
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimizer.step()
        trainer.model.zero_grad()
        captured = getattr(trainer, "captured", None)
        return "" if captured is None or captured.failure is None else f"not captured: {captured.failure}"

    return update


@dataclass
class Decoding:
    """One model in bf16 for all searches, and what they read."""

    sizes: Sizes

    def __post_init__(self) -> None:
        self.network = t5(self.sizes).to(DEVICE, torch.bfloat16).eval()
        self.source = random_ids(self.sizes, 1).to(DEVICE)
        rng = random.Random(1)
        draw = lambda: rng.randrange(3, self.sizes.vocabulary)  # noqa: E731
        lengths = (rng.randint(1, LONGEST_ENTRY) for _ in range(self.sizes.entries))
        self.entries = [[draw() for _ in range(length)] for length in lengths]

    def batch(self, model: HuggingFaceModel) -> Batch:
        examples = [Example(tuple(row), (), i) for i, row in enumerate(self.source.tolist())]
        return make_batch(examples, specials=model.specials).to(DEVICE)

    def ours(self, steps: int, *, capture: bool, trie: bool = False, open_length: bool = False) -> Call:
        """Our search of a fixed length or, with an end symbol, of so many steps whatever has ended."""
        model = adapt(self.network)
        successors: Successors = Unconstrained(model.vocabulary, end_symbol=open_length)
        if trie:
            successors = Trie.of(self.entries, vocabulary=model.vocabulary, specials=model.specials)
        stop = StopBest() if open_length else None
        settings = SearchSettings(BEAM, LogprobSum(), stop, end_early=False, specials=model.specials)
        search, batch = Search(model, successors, settings), self.batch(model)
        length_B = torch.full_like(batch.source_length_B, steps)
        if not (capture and DEVICE.type == "cuda"):
            return lambda: search(batch, length_B, steps=steps)
        captured = CapturedSearch(CudaRecorder())

        def call() -> str:
            captured(search, batch, length_B, steps=steps)
            failure = captured.graphs.failure
            return "" if failure is None else f"not captured: {failure}"

        return call

    def by_generate(self, steps: int) -> Call:
        """Our search where users call it; random weights hardly ever end an output."""
        decode, mask = search_by(), torch.ones_like(self.source)
        options: dict[str, Any] = {"max_new_tokens": steps, "num_beams": BEAM, "do_sample": False}
        return lambda: self.network.generate(self.source, attention_mask=mask, custom_generate=decode, **options)

    def theirs(self, steps: int, *, static: bool = False, trie: bool = False, **more: Any) -> Call:
        """`generate`: its attention is that of transformers, not ours."""
        network = t5(self.sizes).to(DEVICE, torch.bfloat16).eval()
        options: dict[str, Any] = {"max_new_tokens": steps, "num_beams": BEAM, "do_sample": False, **more}
        options |= {} if trie else {"min_new_tokens": steps}
        options |= {"cache_implementation": "static"} if static else {}
        if trie:
            options["prefix_allowed_tokens_fn"] = allowed_by(self.entries)
        mask = torch.ones_like(self.source)
        return lambda: network.generate(self.source, attention_mask=mask, **options)


def allowed_by(entries: Sequence[Sequence[int]]) -> Callable[[int, Tensor], list[int]]:
    """A trie of dictionaries, as users write it."""
    root: dict[int, Any] = {}
    for entry in entries:
        node = root
        for token in (*entry, END):
            node = node.setdefault(token, {})

    def allowed(sentence: int, ids: Tensor) -> list[int]:
        node = root
        for token in ids.tolist()[1:]:
            node = node.get(token, {})
        return list(node) or [0]

    return allowed


def parts(sizes: Sizes, decoding: Decoding) -> dict[str, list[System]]:
    steps, short = sizes.length, LONGEST_ENTRY + 1
    return {
        "update": [
            System("Trainer, cross-entropy", lambda: update_of(sizes, None)),
            System("BSO score_sum, captured", lambda: update_of(sizes, ScoreSum())),
            System("BSO logprob_sum, captured", lambda: update_of(sizes, LogprobSum())),
            System("BSO score_sum, eager", lambda: update_of(sizes, ScoreSum(), capture=False)),
            System("BSO logprob_sum, eager", lambda: update_of(sizes, LogprobSum(), capture=False)),
        ],
        f"decoding, {steps} tokens": [
            System("argbeam, captured", lambda: decoding.ours(steps, capture=True)),
            System("argbeam, eager", lambda: decoding.ours(steps, capture=False)),
            System("generate by argbeam's search", lambda: decoding.by_generate(steps)),
            System("generate, dynamic cache", lambda: decoding.theirs(steps)),
        ],
        f"trie, {short} tokens": [
            System("argbeam without, captured", lambda: decoding.ours(short, capture=True, open_length=True)),
            System("argbeam, captured", lambda: decoding.ours(short, capture=True, open_length=True, trie=True)),
            System("argbeam, eager", lambda: decoding.ours(short, capture=False, open_length=True, trie=True)),
            System("generate without", lambda: decoding.theirs(short)),
            System("generate, prefix_allowed_tokens_fn", lambda: decoding.theirs(short, trie=True)),
        ],
        # The last part: to compile may take a minute.
        f"decoding, {steps} tokens, static cache": [
            System("argbeam, captured", lambda: decoding.ours(steps, capture=True)),
            System("generate", lambda: decoding.theirs(steps, static=True, disable_compile=True)),
            System("generate, compiled", lambda: decoding.theirs(steps, static=True)),
        ],
    }


def measure(systems: list[System], *, rounds: int, seconds: float) -> None:
    """Rounds in turn; at least one that counts, and none begins after so many seconds."""
    start = time.perf_counter()
    for number in range(WARM + rounds):
        if number > WARM and time.perf_counter() - start > seconds:
            break
        for system in systems:
            system.attempt(number)
    for system in systems:
        if system.call is not None:
            note = system.call()
            system.note, system.call = note if isinstance(note, str) else "", None
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()


def synchronise() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="a JSON file for the figures")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a part, after which no round begins")
    parser.add_argument("--parts", nargs="*", default=[""], help="names of parts, or what they begin with; none: all")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    torch.set_float32_matmul_precision("high")
    sizes = TINY if asked.tiny else Sizes()
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    found: dict[str, Any] = {"sizes": asdict(sizes), "device": name, "torch": torch.__version__}
    for part, systems in parts(sizes, Decoding(sizes)).items():
        if not part.startswith(tuple(asked.parts)):
            continue
        measure(systems, rounds=asked.rounds, seconds=asked.seconds)
        first = systems[0].median
        rows = []
        for system in systems:
            ratio = system.median / first if system.median and first else None
            found.setdefault(part, {})[system.name] = {
                "ms": system.median and 1000 * system.median, "ratio": ratio, "rounds": len(system.seconds or ()),
                "note": system.note, "error": system.error,
            }  # fmt: skip
            fault = system.error.strip().splitlines()[-1:] or [system.note]
            figures = (f"{1000 * system.median:.1f}", f"{ratio:.2f}") if system.median and ratio else ("-", "-")
            rows.append([system.name, *figures, fault[0][:80]])
        table(("system", "ms", "ratio", "note"), rows, title=part)
        if asked.out:
            Path(asked.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
