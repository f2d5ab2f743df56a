"""Time a training step and a beam search of argbeam's Transformer beside other libraries' models of its shape.

    python tools/peers.py --layers 3 --width 256
    python tools/peers.py --layers 6 --width 512 --bf16

Peers are BART of Hugging Face (steps, and `generate`) and torch's `nn.Transformer` (steps), from random weights. They
run eagerly, as their users run them, with fused AdamW; argbeam runs as it trains. A step is forward, backward, clipping
and update on one batch of full length. A search is over the same sentences and of a fixed length, so that no model
stops early. All take their turn in every round; a figure is the median of its rounds. Needs `transformers`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from argbeam.bench import BenchShape, random_batch, random_model
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.losses import CrossEntropy
from argbeam.reports.table import table
from argbeam.runtime.graph_cache import CudaRecorder
from argbeam.search.score_rules import LogprobSum
from argbeam.search.search import Search, SearchSettings
from argbeam.search.successors import Unconstrained
from argbeam.training.captured_step import CapturedStep
from argbeam.training.optimizer import AdamW
from argbeam.training.step import TrainStep

BEAM, DROPOUT, CLIP, RATE = 5, 0.1, 5.0, 3e-4


class TorchTransformer(nn.Module):
    """`nn.Transformer`, pre-norm, with learnt positions and tied target vectors."""

    def __init__(self, shape: BenchShape) -> None:
        super().__init__()
        width, length = shape.hidden, max(shape.source, shape.target)
        sizes = {"num_encoder_layers": shape.layers, "num_decoder_layers": shape.layers, "dim_feedforward": 4 * width}
        self.body = nn.Transformer(
            width, max(1, width // 64), dropout=DROPOUT, batch_first=True, norm_first=True, **sizes
        )
        self.source, self.target = nn.Embedding(shape.vocabulary, width), nn.Embedding(shape.vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        causal = nn.Transformer.generate_square_subsequent_mask(shape.target)
        self.register_buffer("causal", causal)

    def forward(self, source_BS: Tensor, inputs_BT: Tensor) -> Tensor:
        source = self.source(source_BS) + self.positions[: source_BS.shape[1]]
        target = self.target(inputs_BT) + self.positions[: inputs_BT.shape[1]]
        out = self.body(source, target, tgt_mask=self.causal, tgt_is_causal=True)
        return out @ self.target.weight.T


def bart(shape: BenchShape) -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    heads, forward = max(1, shape.hidden // 64), 4 * shape.hidden
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", shape.layers), ("attention_heads", heads), ("ffn_dim", forward))
    }
    config = BartConfig(vocab_size=shape.vocabulary, d_model=shape.hidden, dropout=DROPOUT, **sizes)
    return BartForConditionalGeneration(config)


def peer_step(model: nn.Module, shape: BenchShape, device: torch.device, bf16: bool) -> Callable[[], None]:
    """Cross-entropy of a peer: forward, backward, clipping, update."""
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=device.type == "cuda")
    batch = random_batch(shape)
    source_BS, target_BT = batch.source_BS.to(device), batch.target_BT.to(device)
    inputs_BT = torch.cat([torch.full_like(target_BT[:, :1], 2), target_BT[:, :-1]], dim=1)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
            if isinstance(model, TorchTransformer):
                scores_BTV = model(source_BS, inputs_BT)
            else:
                scores_BTV = model(input_ids=source_BS, decoder_input_ids=inputs_BT).logits
            loss = nn.functional.cross_entropy(scores_BTV.flatten(0, 1).float(), target_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def own_step(shape: BenchShape, device: torch.device, bf16: bool) -> Callable[[], None]:
    model = random_model(shape).to(device)
    groups = model.modules_by_rate()
    step = TrainStep(model, AdamW(groups, rates=dict.fromkeys(groups, RATE), max_norm=CLIP), 1, device, bf16=bf16)
    captured = CapturedStep(step, CudaRecorder()) if device.type == "cuda" else step
    batch, updates = random_batch(shape), iter(range(10**9))
    batch = batch.pin() if device.type == "cuda" else batch
    return lambda: captured(CrossEntropy(), batch, next(updates))


def own_search(shape: BenchShape, device: torch.device) -> Callable[[], None]:
    model, batch = random_model(shape).to(device).eval(), random_batch(shape).to(device)
    search = Search(model, Unconstrained(shape.vocabulary, end_symbol=False), SearchSettings(BEAM, LogprobSum()))
    captured = CapturedSearch(CudaRecorder()) if device.type == "cuda" else None

    def run() -> None:
        if captured is None:
            search(batch, batch.target_length_B, steps=shape.target)
        else:
            captured(search, batch, batch.target_length_B, steps=shape.target)

    return run


def generate(shape: BenchShape, device: torch.device) -> Callable[[], None]:
    model, source_BS = bart(shape).to(device).eval(), random_batch(shape).source_BS.to(device)
    length = {"min_new_tokens": shape.target, "max_new_tokens": shape.target, "num_beams": BEAM}
    mask = torch.ones_like(source_BS)
    return lambda: model.generate(source_BS, attention_mask=mask, do_sample=False, **length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"batch": 64, "source": 24, "target": 24, "vocab": 22822, "layers": 3, "width": 256}
    for name, default in {**sizes, "sentences": 500, "rounds": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    parser.add_argument("--bf16", action="store_true", help="training with products in bf16; searches stay float32")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    lengths = (asked.source, asked.target, asked.vocab, asked.layers, asked.width, "transformer")
    shape, many = BenchShape(asked.batch, *lengths), BenchShape(asked.sentences, *lengths)
    systems = {
        "step, argbeam": own_step(shape, device, asked.bf16),
        "step, BART": peer_step(bart(shape), shape, device, asked.bf16),
        "step, nn.Transformer": peer_step(TorchTransformer(shape), shape, device, asked.bf16),
        f"search of {asked.sentences}, argbeam": own_search(many, device),
        f"search of {asked.sentences}, generate": generate(many, device),
    }
    times: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(asked.rounds + 2):  # twice to warm up
        for name, run in systems.items():
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number > 1:
                times[name].append(time.perf_counter() - start)
    rows = []
    for name, found in times.items():
        middle = statistics.median(found)
        own = statistics.median(times[name.split(",")[0] + ", argbeam"])
        rows.append([name, f"{1000 * middle:.2f}", f"{middle / own:.2f}"])
    precision = ", bf16" if asked.bf16 else ""
    table(("system", "ms", "times argbeam"), rows, title=f"{shape}{precision}, {device.type}, beam {BEAM}")


if __name__ == "__main__":
    main()
