"""Keys and values of the tokens that a search has read, in slots of their sentences (`models/attention/cache`).

A step writes the key and value of each row once. A selection of rows copies the numbers of slots, and no key. The rows
of a sentence look at all its slots, under a bias that leaves each row its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from argbeam.models.attention.cache import Cache, Memory
from argbeam.models.huggingface.attention import Prompt, SlotKeys

Layers = Sequence[tuple[Float[Tensor, "N h P D"], Float[Tensor, "N h P D"]]]


@dataclass(frozen=True)
class OwnKeys:
    """The memories of all layers as one state sees them; `lanes` are the rows of a sentence that wrote a position."""

    cache: Cache
    lanes: tuple[int, ...]

    @staticmethod
    def of(layers: Layers, *, sentences: int, steps: int) -> "tuple[OwnKeys, Int[Tensor, 'N P']]":
        """The keys of a first pass, over one token or several, and the slots of each row; room for so many steps."""
        rows, _, positions, _ = layers[0][0].shape
        memories = [Memory(key.new_zeros(sentences, 0, _width(key, value))) for key, value in layers]
        prompt_BS = torch.zeros(sentences, 0, dtype=torch.bool, device=layers[0][0].device)
        own = OwnKeys(Cache(memories, prompt_BS, used=0, steps=steps), ())
        slots_NP = torch.zeros(rows, 0, dtype=torch.int64, device=prompt_BS.device)
        for position in range(positions):
            step = own.step(slots_NP)
            for i, (key, value) in enumerate(layers):
                step.update(key[:, :, position : position + 1], value[:, :, position : position + 1], i)
            own, slots_NP = step.after()
        return own, slots_NP

    def step(self, slots_NT: Int[Tensor, "N T"], prompts: Sequence[Prompt] = ()) -> Any:
        """What a model of transformers takes for a cache in the next step: `update` in every layer, then `after`."""
        return _slot_cache_class()(self, slots_NT, prompts)


class Seen:
    """The bias of one step, for all layers."""

    def __init__(self, own: OwnKeys, slots_NT: Int[Tensor, "N T"], rows: int) -> None:
        self.own, self.slots_NT, self.rows = own, slots_NT, rows
        self.made: dict[tuple[int, torch.dtype], tuple[Tensor | None, Tensor]] = {}

    def bias(self, position_bias: Tensor | None, dtype: torch.dtype) -> Float[Tensor, "B H R A"]:
        """0 at the row's own slots and minus infinity elsewhere, and the bias of the slots' positions."""
        key = (id(position_bias), dtype)
        if key not in self.made:
            self.made[key] = position_bias, self._bias(position_bias, dtype)
        return self.made[key][1]

    def _bias(self, position_bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        slots, device = self.own.cache.used + self.rows, self.slots_NT.device
        row_N = torch.arange(len(self.slots_NT), device=device)
        bias_NA = self.own.cache.bias(self.slots_NT, row_N // self.rows, slots=slots, dtype=dtype)
        bias_B1RA = bias_NA.view(-1, 1, self.rows, slots)
        if position_bias is None:
            return bias_B1RA
        by_slot_1H1A = position_bias.to(dtype).index_select(3, self._positions(device))
        if torch.is_grad_enabled():
            return bias_B1RA + by_slot_1H1A
        # Rows begin at a multiple of 8, or CUDA would copy them in every layer.
        shape = (len(bias_B1RA), by_slot_1H1A.shape[1], self.rows, slots + -slots % 8)
        return torch.add(bias_B1RA, by_slot_1H1A, out=torch.empty(shape, dtype=dtype, device=device)[..., :slots])

    def _positions(self, device: torch.device) -> Int[Tensor, " A"]:
        """The position of each slot. Lanes of 1, 2 and 2 rows have the positions 0, 1, 1, 2, 2."""
        parts, first = [], 0
        for lanes, run in groupby((*self.own.lanes, self.rows)):
            count = len(list(run))
            parts.append(first + torch.arange(count * lanes, device=device) // lanes)
            first += count
        return torch.cat(parts)


def _width(key: Tensor, value: Tensor) -> int:
    return int(key.shape[1] * (key.shape[3] + value.shape[3]))


@cache
def _slot_cache_class() -> Any:
    from transformers import Cache as TransformersCache

    class SlotCache(TransformersCache):
        """A step's cache: it writes new slots and gives the layers all of them."""

        def __init__(self, own: OwnKeys, slots_NT: Tensor, prompts: Sequence[Prompt]) -> None:
            super().__init__(layers=[])
            self.own, self.prompts, self.memories = own, prompts, list[Memory]()
            self.rows = len(slots_NT) // len(own.cache.prompt_BS)
            new_N1 = own.cache.used + torch.arange(len(slots_NT), device=slots_NT.device)[:, None] % self.rows
            self.slots_NT = torch.cat([slots_NT, new_N1], 1)
            self.seen = Seen(own, self.slots_NT, self.rows)

        def update(self, key_states: Any, value_states: Any, layer_idx: int, *more: Any, **others: Any) -> Any:
            key, value, layer = key_states, value_states, layer_idx
            heads = key.shape[1]
            cached, middle = self.own.cache, heads * key.shape[3]
            parts = [part.reshape(-1, self.rows, heads * part.shape[3]) for part in (key, value)]
            if torch.is_grad_enabled():
                memory, slots_BAX = cached.append(layer, torch.cat(parts, 2))
            else:
                end = cached.used + self.rows
                memory = cached.writable(layer, rows=self.rows, dtype=key.dtype)
                memory.slots_BAX[:, cached.used : end, :middle] = parts[0]
                memory.slots_BAX[:, cached.used : end, middle:] = parts[1]
                slots_BAX = memory.slots_BAX[:, :end]
            self.memories.append(memory)
            keys_BhAD, values_BhAD = (
                half_BAX.view(*half_BAX.shape[:2], heads, -1).transpose(1, 2)
                for half_BAX in slots_BAX.tensor_split([middle], 2)
            )
            prompt = self.prompts[layer] if self.prompts else None
            return SlotKeys(keys_BhAD, values_BhAD, prompt, self.seen, len(self.own.lanes) + 1), value

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return len(self.own.lanes)

        def after(self) -> tuple[OwnKeys, Tensor]:
            """The keys as the next state sees them, and the slots of each row."""
            return OwnKeys(self.own.cache.after(self.memories, self.rows), (*self.own.lanes, self.rows)), self.slots_NT

    return SlotCache
