"""Keys and values of the tokens read so far, written once and never copied from row to row.

The rows of a sentence share one memory per layer. Every row of a step writes its key and value into a slot of its own,
and every row knows the slots of its own tokens. Worked example, R = 2 rows: step 0 writes slots 0 and 1, step 1 slots 2
and 3. If row 1 of step 1 continues row 0 of step 0, its tokens lie in slots 0 and 3, and it attends to these.

Letters: B sentences, R rows of each, N = B * R, T steps, A slots, X = a key and a value side by side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Room for steps whose number is not known beforehand; it doubles as needed.
_STEPS = 16


class Memory:
    """Slots of one layer. The first `written` are taken: they never change."""

    def __init__(self, slots_BAX: Float[Tensor, "B A X"]) -> None:
        self.slots_BAX, self.written = slots_BAX, slots_BAX.shape[1]


@dataclass(frozen=True)
class Cache:
    """The memories of all layers as one state sees them: its first `used` slots.

    The first `prompt_BS.shape[1]` slots belong to all rows of a sentence, where `prompt_BS` is true. `steps` is the
    number of steps to make room for, 0 if unknown.
    """

    memories: Sequence[Memory]
    prompt_BS: Bool[Tensor, "B S"]
    used: int
    steps: int

    def append(self, layer: int, new_BRX: Float[Tensor, "B R X"]) -> "tuple[Memory, Float[Tensor, 'B A X']]":
        """The layer's memory with one slot more for each row, and all its slots in use.

        Without gradient the slots are written in place. A state that was given keeps its slots as they are.
        """
        used, end = self.used, self.used + new_BRX.shape[1]
        if torch.is_grad_enabled():
            memory = Memory(torch.cat([self.memories[layer].slots_BAX[:, :used].to(new_BRX.dtype), new_BRX], 1))
            return memory, memory.slots_BAX
        memory = self.writable(layer, rows=new_BRX.shape[1], dtype=new_BRX.dtype)
        memory.slots_BAX[:, used:end] = new_BRX
        return memory, memory.slots_BAX[:, :end]

    def writable(self, layer: int, *, rows: int, dtype: torch.dtype) -> Memory:
        """The layer's memory, in which one slot more for each row is taken and must now be written.

        It is a copy with room for the steps to come, if another state has written there or if there is no room.
        """
        memory, used, end = self.memories[layer], self.used, self.used + rows
        slots_BAX = memory.slots_BAX
        if memory.written != used or slots_BAX.shape[1] < end:
            room = max(used + rows * max(self.steps, _STEPS), 2 * used)
            # Zeros: rows that are left out of a step do not write their slots, and those must not be NaN.
            moved_BAX = slots_BAX.new_zeros(slots_BAX.shape[0], room, slots_BAX.shape[2], dtype=dtype)
            moved_BAX[:, :used] = slots_BAX[:, :used]
            memory = Memory(moved_BAX)
        memory.written = end
        return memory

    def after(self, memories: Sequence[Memory], rows: int) -> "Cache":
        """The cache of the next state."""
        return Cache(memories, self.prompt_BS, self.used + rows, max(self.steps - 1, 0))

    def bias(
        self, slots_XT: Int[Tensor, "X T"], sentence_X: Int[Tensor, " X"], *, slots: int, dtype: torch.dtype
    ) -> Float[Tensor, "X A"]:
        """0 where a row may look, minus infinity elsewhere: the prompt, and the row's own slots."""
        prompt = self.prompt_BS.shape[1]
        bias_XA = _zeros((len(slots_XT), slots), dtype, slots_XT.device).fill_(-torch.inf).scatter_(1, slots_XT, 0.0)
        if prompt:
            bias_XA[:, :prompt] = as_bias(self.prompt_BS, dtype)[sentence_X]
        return bias_XA


def as_bias(seen: Bool[Tensor, "*N A"], dtype: torch.dtype) -> Float[Tensor, "*N A"]:
    """0 where true, minus infinity elsewhere."""
    return _zeros(seen.shape, dtype, seen.device).masked_fill_(~seen, -torch.inf)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows begin at a multiple of 8, or CUDA would copy them at each use."""
    *rows, columns = shape
    return torch.zeros(*rows, columns + -columns % 8, dtype=dtype, device=device)[..., :columns]


def attend(
    query_BQH: Float[Tensor, "B Q H"],
    slots_BAX: Float[Tensor, "B A X"],
    bias_BQA: Float[Tensor, "B _ A"] | None,
    heads: int,
) -> Float[Tensor, "B Q H"]:
    """Several heads' means of the values, weighted by their keys; causal without a bias."""
    key_BAH, value_BAH = slots_BAX.chunk(2, 2)
    parts = (query_BQH, key_BAH, value_BAH)
    query, key, value = (part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in parts)
    bias = None if bias_BQA is None else bias_BQA[:, None]
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=bias is None)
    return found.transpose(1, 2).flatten(2)


def weights_of(
    query_BQH: Float[Tensor, "B Q H"],
    slots_BAX: Float[Tensor, "B A X"],
    bias_BQA: Float[Tensor, "B _ A"],
    heads: int,
) -> Float[Tensor, "B Q A"]:
    """The weights of `attend`, means of the heads."""
    key_BAH, _ = slots_BAX.chunk(2, 2)
    query, key = (part.reshape(*part.shape[:2], heads, -1).transpose(1, 2) for part in (query_BQH, key_BAH))
    match: Tensor = query @ key.transpose(2, 3) / math.sqrt(query.shape[3]) + bias_BQA[:, None]
    return match.softmax(3).mean(1)


def seen_by_pairs(restarted_TB: Bool[Tensor, "T B"]) -> Bool[Tensor, "B Q Q"]:
    """What gold's T tokens and then its rival's see of one another: Q = 2T.

    A rival that took gold's state before token 1 sees at token 2 gold's token 0 and its own tokens 1 and 2.
    """
    time_T = torch.arange(len(restarted_TB), device=restarted_TB.device)
    start_BT1 = torch.where(restarted_TB, time_T[:, None], 0).cummax(0).values.T[:, :, None]
    causal_TT = time_T <= time_T[:, None]
    own_BTT = causal_TT & (time_T >= start_BT1)
    rival_BTQ = torch.cat([(time_T < start_BT1).expand_as(own_BTT), own_BTT], 2)
    gold_BTQ = torch.cat([causal_TT, torch.zeros_like(causal_TT)], 1).expand_as(rival_BTQ)
    return torch.cat([gold_BTQ, rival_BTQ], 1)
