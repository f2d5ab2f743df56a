"""A Transformer, trained with beam-search optimization: a cache while searching, one pass while learning.

`step` keeps the keys and values of the tokens it has read, as any decoder does. `unroll`, which may be left out, reads
gold and its rivals in one pass instead of token by token: a rival attends to gold's tokens up to where it left them,
and to its own from there on. The numbers are the same, to rounding; training takes two thirds of the time.

The task is that of `own_decoder.py` with a third of the examples: put 5 to 9 letters into the order of the alphabet.
Beside BSO, cross-entropy goes on for as many epochs. It takes a quarter of a minute on one core.

In names, N counts rows (hypotheses), B sentences, T tokens of the target, S of the source; Q tokens that ask, A those
that they may attend to; H is the width, and D, twice that, holds a key and a value.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from argbeam import Adagrad, Batch, Bso, CrossEntropy, Noise, Permutation, ScoreSum, State
from argbeam.losses.contract import Loss
from own_decoder import exact_match, letters_in_order, train


class Attention(nn.Module):
    """Several heads over memories, each a key and a value side by side."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.memories = nn.Linear(hidden, 2 * hidden)

    def forward(self, x_NQH: Tensor, memory_NAD: Tensor, seen_NQA: Tensor) -> Tensor:
        parts = (self.query(x_NQH), *memory_NAD.chunk(2, dim=2))
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=seen_NQA[:, None])
        return self.out(found.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention within a sentence, in a decoder to the source as well, then a wide layer; each after a norm."""

    def __init__(self, hidden: int, heads: int, *, decodes: bool) -> None:
        super().__init__()
        self.own, self.own_norm = Attention(hidden, heads), nn.LayerNorm(hidden)
        if decodes:
            self.source, self.source_norm = Attention(hidden, heads), nn.LayerNorm(hidden)
        self.wide = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, hidden)
        )

    def remember(self, x_NTH: Tensor) -> Tensor:
        """What others attend to of these tokens, as a cache holds it."""
        return self.own.memories(self.own_norm(x_NTH))

    def forward(self, x_NTH: Tensor, memory_NAD: Tensor, seen_NTA: Tensor) -> Tensor:
        x_NTH = x_NTH + self.own(self.own_norm(x_NTH), memory_NAD, seen_NTA)
        return x_NTH + self.wide(x_NTH)

    def decode(
        self, x_NTH: Tensor, memory_NAD: Tensor, seen_NTA: Tensor, source_BSD: Tensor, there_B1S: Tensor
    ) -> Tensor:
        x_NTH = x_NTH + self.own(self.own_norm(x_NTH), memory_NAD, seen_NTA)
        # Rows of a sentence lie together: all their tokens ask the one source.
        x_BQH = x_NTH.reshape(len(source_BSD), -1, x_NTH.shape[2])
        x_NTH = x_NTH + self.source(self.source_norm(x_BQH), source_BSD, there_B1S).view_as(x_NTH)
        return x_NTH + self.wide(x_NTH)


class Transformer(nn.Module):
    """An encoder and a decoder, with vectors for `longest` places; later ones share the last.

    There is no dropout; its masks would be drawn in `encode`, from `noise`.
    """

    def __init__(self, *, vocabulary: int, hidden: int, heads: int, layers: int, longest: int) -> None:
        super().__init__()
        self.vectors, self.places = nn.Embedding(vocabulary, hidden), nn.Embedding(longest, hidden)
        self.encoder = nn.ModuleList(Layer(hidden, heads, decodes=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(hidden, heads, decodes=True) for _ in range(layers))
        self.encoded, self.decoded = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.last = nn.Linear(hidden, vocabulary)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        x_BSH = self._read(batch.source_BS, 0)
        place_S = torch.arange(x_BSH.shape[1], device=x_BSH.device)
        there_B1S = (place_S < batch.source_length_B[:, None])[:, None]
        for layer in self.encoder:
            x_BSH = layer(x_BSH, layer.remember(x_BSH), there_B1S)
        x_BSH = self.encoded(x_BSH)
        sources = [layer.source.memories(x_BSH) for layer in self.decoder]
        cache_BLTD = x_BSH.new_zeros(len(x_BSH), len(self.decoder), 0, 2 * x_BSH.shape[2])
        return State({"sources": sources, "there": there_B1S}, {"cache": cache_BLTD})

    def step(self, state: State, tokens_N: Tensor) -> State:
        x_N1H = self._read(tokens_N[:, None], state.time)
        all_11A = torch.ones(1, 1, state.time + 1, dtype=torch.bool, device=x_N1H.device)
        caches = []
        for number, (layer, source_BSD) in enumerate(zip(self.decoder, state.sentence["sources"], strict=True)):
            caches.append(torch.cat([state.hypothesis["cache"][:, number], layer.remember(x_N1H)], 1))
            x_N1H = layer.decode(x_N1H, caches[-1], all_11A, source_BSD, state.sentence["there"])
        rows = {"cache": torch.stack(caches, 1), "output": self.decoded(x_N1H[:, 0])}
        return State(state.sentence, rows, state.time + 1)

    def output(self, state: State) -> Tensor:
        return state.hypothesis["output"]

    def scores(self, output_GRH: Tensor, candidates_GC: Tensor | None = None) -> Tensor:
        if candidates_GC is None:
            return self.last(output_GRH)
        return output_GRH @ self.last.weight[candidates_GC].mT + self.last.bias[candidates_GC][:, None]

    def unroll(self, state: State, read_TN: Tensor, restarted_TB: Tensor | None = None) -> Tensor:
        assert state.time == 0, "tokens are read from the first one on"
        x_NTH = self._read(read_TN.T, 0)
        time_T = torch.arange(len(read_TN), device=x_NTH.device)
        seen_NTA = (time_T <= time_T[:, None])[None]
        if restarted_TB is not None:
            seen_NTA = _seen_by_pairs(seen_NTA, restarted_TB)
        for layer, source_BSD in zip(self.decoder, state.sentence["sources"], strict=True):
            memory_NAD = layer.remember(x_NTH)
            if restarted_TB is not None:  # before a row's own tokens those of the first row of its pair, which is gold
                memory_NAD = torch.cat([memory_NAD[0::2].repeat_interleave(2, 0), memory_NAD], 1)
            x_NTH = layer.decode(x_NTH, memory_NAD, seen_NTA, source_BSD, state.sentence["there"])
        return self.decoded(x_NTH).transpose(0, 1)

    def _read(self, tokens_NT: Tensor, time: int) -> Tensor:
        place_T = torch.arange(time, time + tokens_NT.shape[1], device=tokens_NT.device)
        return self.vectors(tokens_NT) + self.places(place_T.clamp(max=self.places.num_embeddings - 1))


def _seen_by_pairs(causal_1TT: Tensor, restarted_TB: Tensor) -> Tensor:
    """What gold and its rival see, first of gold's tokens and then of their own.

    A rival that took gold's state before token 1 sees at token 2 gold's token 0 and its own tokens 1 and 2.
    """
    time_T = torch.arange(len(restarted_TB), device=restarted_TB.device)
    start_BT1 = torch.where(restarted_TB, time_T[:, None], 0).cummax(0).values.T[:, :, None]
    own_BTT = causal_1TT & (time_T >= start_BT1)
    rival_BTA = torch.cat([(time_T < start_BT1).expand_as(own_BTT), own_BTT], 2)
    gold_BTA = torch.cat([torch.zeros_like(causal_1TT), causal_1TT], 2).expand_as(rival_BTA)
    return torch.stack([gold_BTA, rival_BTA], 1).flatten(0, 1)


def main() -> dict[str, dict[int, float]]:
    """The exact match of each system by test beam."""
    torch.manual_seed(0)
    data, held_out = letters_in_order(500, seed=1), letters_in_order(500, seed=2)
    model = Transformer(vocabulary=24, hidden=32, heads=2, layers=2, longest=9)
    results = {}

    def improve(name: str, model: Transformer, loss: Loss, *, epochs: int) -> None:
        optimizer = Adagrad({"all": list(model.parameters())}, rates={"all": 0.02}, max_norm=5.0)
        train(model, loss, data, optimizer, epochs=epochs)
        results[name] = {beam: exact_match(model, loss, held_out, beam_size=beam) for beam in (1, 5)}
        print(f"{name:20}  beam 1: {results[name][1]:.1%}  beam 5: {results[name][5]:.1%}")

    improve("cross-entropy", model, CrossEntropy(), epochs=16)
    improve("more cross-entropy", copy.deepcopy(model), CrossEntropy(), epochs=12)
    # Sums of scores rank the prefixes: a Transformer's newest score alone says little of the tokens before it.
    bso = Bso(Permutation(), train_beam=6, epochs_per_beam=1, open_length=False, rule=ScoreSum())
    improve("BSO", model, bso, epochs=12)
    return results


if __name__ == "__main__":
    main()
