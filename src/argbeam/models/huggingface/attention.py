"""One attention function for all models of transformers: the rows of a sentence share what belongs to the sentence.

transformers calls it with the queries of N rows. Shapes say what is shared: keys of B < N rows are those of sentences
(a source), and a mask with more queries than a row has puts rows side by side (gold and its rival). Keys of a causal
model come in two parts, those of the prompt and the row's own. In a search the rows' own keys lie in slots of their
sentence (`slots`). In every other case it is ordinary attention: `generate` and `Trainer` work as before.

Letters: N rows, B sentences, H heads, h heads of keys, Q queries of a row, A keys, D width of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

NAME = "argbeam"


@dataclass(frozen=True)
class Prompt:
    """Keys and values of the prompts in one layer, one row per sentence, and where there is a token."""

    key: Float[Tensor, "B h S D"]
    value: Float[Tensor, "B h S D"]
    real_B11S: Bool[Tensor, "B 1 1 S"]


@dataclass(frozen=True)
class SplitKeys:
    """Keys and values of the prompt, shared by the rows of a sentence, and of the tokens that each row has read."""

    prompt: Prompt
    key: Float[Tensor, "N h A D"]
    value: Float[Tensor, "N h A D"]


class Biases(Protocol):
    """Makes the bias of a step over slots."""

    def bias(self, position_bias: Tensor | None, dtype: torch.dtype) -> Float[Tensor, "B H R A"]: ...


@dataclass(frozen=True)
class SlotKeys:
    """Keys and values in slots of the sentences, those of the prompt if there is one, and what each row sees.

    `positions` is the length of a row: transformers asks for it as the keys' shape.
    """

    key: Float[Tensor, "B h A D"]
    value: Float[Tensor, "B h A D"]
    prompt: Prompt | None
    seen: Biases
    positions: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.key.shape[:2], self.positions, self.key.shape[3])


class RowCache:
    """The cache of a causal model in a pass over given tokens: it fills `layers`, and gets its keys in two parts.

    No dataclass: FSDP hands copies of dataclasses to the layers, and what these fill would be lost.
    """

    def __init__(self, prompts: Sequence[Prompt] = ()) -> None:
        self.layers, self.prompts = list[tuple[Tensor, Tensor]](), prompts

    def update(self, key: Tensor, value: Tensor, layer: int, *more: Any, **others: Any) -> tuple[Any, Any]:
        self.layers.append((key, value))
        if not self.prompts:
            return key, value
        return SplitKeys(self.prompts[layer], key, value), value


def see_all(device: torch.device) -> Bool[Tensor, "1 1 1 1"]:
    """A mask that hides nothing. Where it is given, transformers makes no mask of its own."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


def register() -> None:
    """Tell transformers the function, and how to make masks for it outside of argbeam."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, eager_mask)


def attention(
    module: nn.Module,
    query: Float[Tensor, "N H Q D"],
    key: Float[Tensor, "M h A D"] | SplitKeys | SlotKeys,
    value: Float[Tensor, "M h A D"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "N Q H D"], None]:
    """Attention of the rows' queries, in the signature that transformers expects."""
    queries = query.shape[2]
    if attention_mask is not None and attention_mask.shape[2:] == (1, 1):
        attention_mask = None
    lanes = 1 if attention_mask is None else max(1, attention_mask.shape[2] // queries)
    bias: Tensor | None
    if isinstance(key, SlotKeys):
        rows, bias = query.shape[0] // key.key.shape[0], key.seen.bias(position_bias, query.dtype)
        if key.prompt is None:
            grouped = query.shape[1] != key.key.shape[1]
            found = F.scaled_dot_product_attention(
                _beside(query, rows), key.key, key.value, attn_mask=bias, scale=scaling, enable_gqa=grouped
            )
            found = _apart(found, rows)
        else:
            found = _two_parts(query, key.prompt, key.key, key.value, bias, lanes=rows, scaling=scaling)
    elif isinstance(key, SplitKeys):
        own = (_beside(key.key, lanes), _beside(key.value, lanes))
        bias = _bias(attention_mask, None, query.dtype)
        found = _two_parts(query, key.prompt, *own, bias, lanes=lanes, scaling=scaling)
    else:
        # Rows of one sentence: all of them where keys are the sentence's, else those that see one another.
        shared = query.shape[0] // key.shape[0]
        rows = max(shared, lanes)
        if position_bias is not None and rows > 1 and not (shared > 1 and queries == 1):
            position_bias = position_bias.repeat(1, 1, rows, 1 if shared > 1 else rows)
        bias = _bias(attention_mask, position_bias, query.dtype)
        if shared == 1:
            key, value = _beside(key, lanes), _beside(value, lanes)
        found = F.scaled_dot_product_attention(
            _beside(query, rows),
            key,
            value,
            attn_mask=bias,
            dropout_p=dropout if module.training else 0.0,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        found = _apart(found, rows)
    return found.transpose(1, 2).contiguous(), None


def _two_parts(
    query: Float[Tensor, "N H Q D"],
    prompt: Prompt,
    key: Float[Tensor, "G h A D"],
    value: Float[Tensor, "G h A D"],
    bias: Tensor | None,
    *,
    lanes: int,
    scaling: float | None,
) -> Float[Tensor, "N H Q D"]:
    """Attention to the prompt of the sentence and to the keys of `lanes` rows side by side, under one softmax."""
    rows = query.shape[0] // prompt.key.shape[0]
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    to_prompt = _product(_beside(query, rows), prompt.key.transpose(2, 3)) * scale
    to_prompt = _apart(to_prompt.masked_fill(~prompt.real_B11S, -torch.inf), rows)
    to_own = _product(_beside(query, lanes), key.transpose(2, 3)) * scale
    to_own = _apart(to_own if bias is None else to_own + bias, lanes)
    # Softmax in single precision at least, as transformers does.
    precise, own = torch.promote_types(query.dtype, torch.float32), key.shape[2]
    weights = torch.cat([to_own, to_prompt], 3).softmax(3, dtype=precise).to(query.dtype)
    found = _apart(_product(_beside(weights[..., :own], lanes), value), lanes)
    return found + _apart(_product(_beside(weights[..., own:], rows), prompt.value), rows)


def _product(one: Float[Tensor, "G H Q X"], other: Float[Tensor, "G h X Y"]) -> Float[Tensor, "G H Q Y"]:
    """A product by heads, where several heads of the first share one of the second."""
    grouped = one.view(one.shape[0], other.shape[1], -1, *one.shape[2:])
    return torch.matmul(grouped, other[:, :, None]).flatten(1, 2)


def _beside(x: Float[Tensor, "N H Q D"], rows: int) -> Float[Tensor, "G H RQ D"]:
    """So many rows after one another as if they were one: the tokens of the first row, then those of the second."""
    return x if rows == 1 else x.view(-1, rows, *x.shape[1:]).transpose(1, 2).flatten(2, 3)


def _apart(x: Float[Tensor, "G H RQ D"], rows: int) -> Float[Tensor, "N H Q D"]:
    """The reverse of `_beside`."""
    if rows == 1:
        return x
    return x.view(*x.shape[:2], rows, -1, x.shape[3]).transpose(1, 2).flatten(0, 1)


def _bias(mask: Tensor | None, position_bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the products of queries and keys: minus infinity where a mask hides, and a bias of positions."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)
    parts = [part.to(dtype) for part in (mask, position_bias) if part is not None]
    return sum(parts[1:], parts[0]) if parts else None
