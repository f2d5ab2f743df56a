"""A decoder of your own, trained with beam-search optimization: four methods are all it takes.

The toy task is to sort letters. Cross-entropy comes first, then BSO; run `python examples/own_decoder.py`.
"""

import random
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from argbeam import Adagrad, Batch, Bso, CrossEntropy, Example, Noise, State, Unconstrained, beam_search, make_batch
from argbeam.losses.contract import Loss
from argbeam.vocabulary import EOS


class GruSeq2Seq(nn.Module):
    """A GRU that reads the source and a GRU that writes the target; no attention."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, hidden)
        self.target = nn.Embedding(vocabulary, hidden)
        self.reader = nn.GRU(hidden, hidden, batch_first=True)
        self.writer = nn.GRUCell(hidden, hidden)
        self.last = nn.Linear(hidden, vocabulary)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        read_BSH, _ = self.reader(self.source(batch.source_BS))
        rows_B = torch.arange(batch.source_BS.shape[0])
        return State(sentence={}, hypothesis={"h": read_BSH[rows_B, batch.source_length_B - 1]})

    def step(self, state: State, tokens_N: Tensor) -> State:
        h_NH = self.writer(self.target(tokens_N), state.hypothesis["h"])
        return State(state.sentence, {"h": h_NH}, state.time + 1)

    def output(self, state: State) -> Tensor:
        return state.hypothesis["h"]

    def scores(self, output_GRH: Tensor, candidates_GC: Tensor | None = None) -> Tensor:
        scores_GRV = self.last(output_GRH)
        if candidates_GC is None:
            return scores_GRV
        return scores_GRV.gather(2, candidates_GC[:, None].expand(-1, scores_GRV.shape[1], -1))


LETTERS = range(4, 16)
SUCCESSORS = Unconstrained(vocabulary=16, end_symbol=True)


def examples(number: int, seed: int) -> list[Example]:
    """Sources of 3 to 7 letters; the target is the same letters in order, and the end symbol."""
    rng = random.Random(seed)
    made = []
    for sentence in range(number):
        source = tuple(rng.choices(LETTERS, k=rng.randint(3, 7)))
        made.append(Example(source, (*sorted(source), EOS), sentence))
    return made


def train(model: nn.Module, loss: Loss, data: Sequence[Example], *, epochs: int, rate: float) -> None:
    """Batches of 64 in a new order every epoch."""
    parameters = list(model.parameters())
    optimizer = Adagrad({"all": parameters}, rates={"all": rate}, max_norm=5.0)
    for epoch in range(epochs):
        order = random.Random(epoch).sample(range(len(data)), k=len(data))
        for start in range(0, len(order), 64):
            batch = make_batch([data[i] for i in order[start : start + 64]])
            out = loss.at(epoch)(model, batch, None)
            mean = out.total if out.count is None else out.total / out.count
            optimizer.step(torch.autograd.grad(mean, parameters))


def exact_match(model: nn.Module, loss: Loss, data: Sequence[Example], *, beam: int) -> float:
    """The part of the outputs that are right, ranked and stopped as the loss had it in training."""
    batch = make_batch(data)
    found = beam_search(
        model,
        model.encode(batch, None),
        SUCCESSORS.start(batch),
        beam_size=beam,
        length_B=torch.full_like(batch.target_length_B, 10),
        steps=10,
        rule=loss.rule,
        stop=loss.stop,
    )
    outputs = [tuple(row[:length]) for row, length in zip(found.tokens_BNT[:, 0].tolist(), found.length_BN[:, 0])]
    return sum(output == example.target for output, example in zip(outputs, data, strict=True)) / len(data)


def main() -> dict[str, float]:
    """Exact match at beam 5 after cross-entropy and after BSO."""
    torch.manual_seed(0)
    data, held_out = examples(3000, seed=1), examples(500, seed=2)
    model = GruSeq2Seq(vocabulary=16, hidden=64)
    result = {}
    start = time.time()
    for name, loss, epochs, rate in (
        ("cross-entropy", CrossEntropy(), 15, 0.05),
        ("BSO", Bso(SUCCESSORS, train_beam=6), 10, 0.02),
    ):
        train(model, loss, data, epochs=epochs, rate=rate)
        result[name] = exact_match(model, loss, held_out, beam=5)
        print(f"{name:13s}  exact match, beam 1: {exact_match(model, loss, held_out, beam=1):.3f}, beam 5: {result[name]:.3f} {time.time()-start:.1f}")
    return result


if __name__ == "__main__":
    main()
