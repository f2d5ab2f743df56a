"""A Transformer, trained with beam-search optimization: a cache while searching, one pass while learning.

`step` keeps the keys and values of the words it has read, as any decoder does. `unroll`, which may be left out, reads
gold and its rivals in one pass instead of word by word: a rival attends to gold's words up to where it left them, and
to its own from there on. Nothing changes but the time.

The task is that of `own_decoder.py`: put 5 to 9 letters into the order of the alphabet. It takes half a minute on one
core.
"""

import torch
import torch.nn.functional as F
from own_decoder import exact_match, letters_in_order, train
from torch import Tensor, nn

from argbeam import Adagrad, Batch, Bso, CrossEntropy, Noise, Permutation, State
from argbeam.losses.contract import Loss


class Attention(nn.Module):
    """Several heads over keys and values, which lie side by side in one tensor."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.keys = nn.Linear(hidden, 2 * hidden)

    def forward(self, x_NQH: Tensor, keys_NKX: Tensor, seen_NQK: Tensor) -> Tensor:
        parts = (self.query(x_NQH), *keys_NKX.chunk(2, dim=2))
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=seen_NQK[:, None])
        return self.out(found.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention to the words so far, in a decoder to the source as well, then a wide layer; each after a norm."""

    def __init__(self, hidden: int, heads: int, *, decodes: bool) -> None:
        super().__init__()
        self.own, self.own_norm = Attention(hidden, heads), nn.LayerNorm(hidden)
        if decodes:
            self.source, self.source_norm = Attention(hidden, heads), nn.LayerNorm(hidden)
        self.wide = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, hidden)
        )

    def keys(self, x_NTH: Tensor) -> Tensor:
        """Keys and values of words, as a cache holds them."""
        return self.own.keys(self.own_norm(x_NTH))

    def forward(
        self, x_NTH: Tensor, keys_NKX: Tensor, seen_NTK: Tensor, memory: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        x_NTH = x_NTH + self.own(self.own_norm(x_NTH), keys_NKX, seen_NTK)
        if memory is not None:
            keys_BSX, there_B1S = memory
            # Rows of a sentence lie together: all their words are queries of the one sentence.
            x_BQH = x_NTH.reshape(len(keys_BSX), -1, x_NTH.shape[2])
            read_BQH = self.source(self.source_norm(x_BQH), keys_BSX, there_B1S.expand(-1, x_BQH.shape[1], -1))
            x_NTH = x_NTH + read_BQH.view_as(x_NTH)
        return x_NTH + self.wide(x_NTH)


class Transformer(nn.Module):
    """An encoder and a decoder. There is no dropout; its masks would be drawn in `encode`, from `noise`."""

    def __init__(self, *, vocabulary: int, hidden: int, heads: int, layers: int, longest: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, hidden), nn.Embedding(longest, hidden)
        self.encoder = nn.ModuleList(Layer(hidden, heads, decodes=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(hidden, heads, decodes=True) for _ in range(layers))
        self.norm, self.last = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        x_BSH = self._read(batch.source_BS, 0)
        place_S = torch.arange(x_BSH.shape[1], device=x_BSH.device)
        # A row that only fills up the batch has no words, and sees its first place: of nothing there is no mean.
        there_B1S = (place_S < batch.source_length_B.clamp(min=1)[:, None])[:, None]
        for layer in self.encoder:
            x_BSH = layer(x_BSH, layer.keys(x_BSH), there_B1S.expand(-1, len(place_S), -1))
        memory = [(layer.source.keys(x_BSH), there_B1S) for layer in self.decoder]
        cache_BLTX = x_BSH.new_zeros(len(x_BSH), len(self.decoder), 0, 2 * x_BSH.shape[2])
        return State({"memory": memory}, {"cache": cache_BLTX, "output": x_BSH[:, 0]})

    def step(self, state: State, tokens_N: Tensor) -> State:
        x_N1H = self._read(tokens_N[:, None], state.time)
        seen_N1T = torch.ones(len(x_N1H), 1, state.time + 1, dtype=torch.bool, device=x_N1H.device)
        caches = []
        for number, (layer, memory) in enumerate(zip(self.decoder, state.sentence["memory"], strict=True)):
            caches.append(torch.cat([state.hypothesis["cache"][:, number], layer.keys(x_N1H)], 1))
            x_N1H = layer(x_N1H, caches[-1], seen_N1T, memory)
        rows = {"cache": torch.stack(caches, 1), "output": self.norm(x_N1H[:, 0])}
        return State(state.sentence, rows, state.time + 1)

    def output(self, state: State) -> Tensor:
        return state.hypothesis["output"]

    def scores(self, output_GRH: Tensor, candidates_GC: Tensor | None = None) -> Tensor:
        if candidates_GC is None:
            return self.last(output_GRH)
        return output_GRH @ self.last.weight[candidates_GC].mT + self.last.bias[candidates_GC][:, None]

    def unroll(self, state: State, read_TN: Tensor, restarted_TB: Tensor | None = None) -> Tensor | None:
        if state.time > 0:
            return None  # it starts with the first word; what comes later is stepped
        x_NTH = self._read(read_TN.T, 0)
        time_T = torch.arange(len(read_TN), device=x_NTH.device)
        seen_NTX = (time_T <= time_T[:, None]).expand(len(x_NTH), -1, -1)
        if restarted_TB is not None:
            seen_NTX = self._pairs(seen_NTX, restarted_TB)
        for layer, memory in zip(self.decoder, state.sentence["memory"], strict=True):
            keys_NXX = layer.keys(x_NTH)
            if restarted_TB is not None:  # before a row's own words those of the first row of its pair, which is gold
                keys_NXX = torch.cat([keys_NXX[0::2].repeat_interleave(2, 0), keys_NXX], 1)
            x_NTH = layer(x_NTH, keys_NXX, seen_NTX, memory)
        return self.norm(x_NTH).transpose(0, 1)

    @staticmethod
    def _pairs(causal_NTT: Tensor, restarted_TB: Tensor) -> Tensor:
        """What gold and its rival see of gold's words and of their own: a rival, gold's before its last restart."""
        time_T = torch.arange(len(restarted_TB), device=restarted_TB.device)
        start_BT1 = torch.where(restarted_TB, time_T[:, None], 0).cummax(0).values.T[:, :, None]
        causal_BTT = causal_NTT[0::2]
        gold = torch.cat([torch.zeros_like(causal_BTT), causal_BTT], 2)
        rival = torch.cat([(time_T < start_BT1).expand_as(causal_BTT), causal_BTT & (time_T >= start_BT1)], 2)
        return torch.stack([gold, rival], 1).flatten(0, 1)

    def _read(self, words_NT: Tensor, time: int) -> Tensor:
        place_T = torch.arange(time, time + words_NT.shape[1], device=words_NT.device)
        return self.words(words_NT) + self.places(place_T)


def main() -> dict[str, dict[int, float]]:
    """The exact match of each system by test beam."""
    torch.manual_seed(0)
    data, held_out = letters_in_order(1500, seed=1), letters_in_order(500, seed=2)
    model = Transformer(vocabulary=24, hidden=32, heads=2, layers=2, longest=9)
    results = {}
    losses: dict[str, tuple[Loss, int]] = {
        "cross-entropy": (CrossEntropy(), 8),
        "BSO": (Bso(Permutation(), train_beam=6, epochs_per_beam=1, open_length=False), 14),
    }
    for name, (loss, epochs) in losses.items():
        optimizer = Adagrad({"all": list(model.parameters())}, rates={"all": 0.02}, max_norm=5.0)
        train(model, loss, data, optimizer, epochs=epochs)
        results[name] = {beam: exact_match(model, loss, held_out, beam_size=beam) for beam in (1, 5)}
        print(f"{name:13}  beam 1: {results[name][1]:.1%}  beam 5: {results[name][5]:.1%}")
    return results


if __name__ == "__main__":
    main()
