"""A decoder of your own, trained with beam-search optimization: four methods are all it takes.

The task is a small one of word ordering: put 5 to 9 letters into the order of the alphabet. Cross-entropy comes first,
then BSO. `python examples/own_decoder.py` takes about 10 seconds on one core and prints the part of the outputs that
are right in every letter.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from argbeam import (
    Adagrad,
    Batch,
    Bso,
    CrossEntropy,
    Example,
    Model,
    Noise,
    Permutation,
    State,
    beam_search,
    make_batch,
)
from argbeam.losses.contract import Loss


class GruSeq2Seq(nn.Module):
    """A GRU reads the source, another writes the target from the first one's last state."""

    def __init__(self, *, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, hidden)
        self.target = nn.Embedding(vocabulary, hidden)
        self.reader = nn.GRU(hidden, hidden, batch_first=True)
        self.writer = nn.GRUCell(hidden, hidden)
        self.last = nn.Linear(hidden, vocabulary)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        read_BSH, _ = self.reader(self.source(batch.source_BS))
        row_B = torch.arange(batch.source_BS.shape[0])
        return State(sentence={}, hypothesis={"h": read_BSH[row_B, batch.source_length_B - 1]})

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


def train(model: Model, loss: Loss, data: Sequence[Example], optimizer: Adagrad, *, epochs: int) -> None:
    """Batches of 64, in another order every epoch."""
    for epoch in range(epochs):
        step = loss.at(epoch)  # BSO's beam grows with the epochs
        shuffled = random.Random(epoch).sample(data, k=len(data))
        for start in range(0, len(shuffled), 64):
            out = step(model, make_batch(shuffled[start : start + 64]), None)
            total = out.total if out.count is None else out.total / out.count
            optimizer.step(torch.autograd.grad(total, optimizer.parameters))


def letters_in_order(number: int, *, seed: int) -> list[Example]:
    """Twenty letters, numbers 4 to 23: the first four of any vocabulary are PAD, UNK, BOS and EOS."""
    rng = random.Random(seed)
    sources = [tuple(rng.choices(range(4, 24), k=rng.randint(5, 9))) for _ in range(number)]
    return [Example(source, tuple(sorted(source)), i) for i, source in enumerate(sources)]


def exact_match(model: Model, loss: Loss, data: Sequence[Example], *, beam_size: int) -> float:
    """Decode, ranking prefixes as the loss did, and compare with gold."""
    batch = make_batch(data)
    found = beam_search(
        model,
        model.encode(batch, None),
        Permutation().start(batch),
        beam_size=beam_size,
        length_B=batch.target_length_B,
        steps=batch.target_BT.shape[1],
        rule=loss.rule,
    )
    return (found.tokens_BNT[:, 0] == batch.target_BT).all(1).double().mean().item()


def main() -> dict[str, dict[int, float]]:
    """The exact match of each system by test beam."""
    torch.manual_seed(0)
    data, held_out = letters_in_order(1500, seed=1), letters_in_order(500, seed=2)
    model = GruSeq2Seq(vocabulary=24, hidden=48)
    results = {}
    losses: dict[str, Loss] = {
        "cross-entropy": CrossEntropy(),
        "BSO": Bso(Permutation(), train_beam=6, epochs_per_beam=1, open_length=False),
    }
    for name, loss in losses.items():
        optimizer = Adagrad({"all": list(model.parameters())}, rates={"all": 0.05}, max_norm=5.0)
        train(model, loss, data, optimizer, epochs=8)
        results[name] = {beam: exact_match(model, loss, held_out, beam_size=beam) for beam in (1, 5)}
        print(f"{name:13}  beam 1: {results[name][1]:.1%}  beam 5: {results[name][5]:.1%}")
    return results


if __name__ == "__main__":
    main()
