"""Where a model of transformers looks: means over the heads of its last layer, for pictures."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.models.huggingface.attention import NAME


def attention_weights(
    base: Any, shared: Mapping[str, Any], batch: Batch, read_BT: Int[Tensor, "B T"]
) -> Float[Tensor, "B T S"]:
    """Weights over the source at the step that reads each of these tokens; `shared` is that of the encoded batch."""
    with _own_attention(base):
        if "memory" not in shared:
            return _over_prompts(base, batch, read_BT)
        prompt_BP = shared["prompt"]
        found = base.get_decoder()(
            input_ids=torch.cat([prompt_BP, read_BT[:, 1:]], 1),
            encoder_hidden_states=shared["memory"],
            encoder_attention_mask=shared["real"][:, 0, 0].long(),
            output_attentions=True,
            use_cache=False,
        )
        weights_BXS: Tensor = found.cross_attentions[-1].mean(1)
        return weights_BXS[:, prompt_BP.shape[1] - 1 :]


def _over_prompts(base: Any, batch: Batch, read_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T S"]:
    """Of a causal model: prompt, output, then padding, which no token before it sees."""
    length_B, sources = batch.source_length_B, batch.source_BS.shape[1]
    real_BS = torch.arange(sources, device=read_BT.device) < length_B[:, None]
    tokens_BX = torch.cat([batch.source_BS, read_BT[:, 1:]], 1)
    real_BX = torch.cat([real_BS, torch.ones_like(read_BT[:, 1:], dtype=torch.bool)], 1)
    order_BX = (~real_BX).long().argsort(dim=1, stable=True)
    found = base.base_model(
        input_ids=tokens_BX.gather(1, order_BX),
        attention_mask=real_BX.gather(1, order_BX).long(),
        output_attentions=True,
        use_cache=False,
    )
    weights_BXX = found.attentions[-1].mean(1)
    query_BT1 = (length_B[:, None] - 1 + torch.arange(read_BT.shape[1], device=read_BT.device))[..., None]
    weights_BTS: Tensor = weights_BXX.gather(1, query_BT1.expand(-1, -1, tokens_BX.shape[1]))[..., :sources]
    return weights_BTS.masked_fill(~real_BS[:, None], 0.0)


@contextmanager
def _own_attention(base: Any) -> Iterator[None]:
    """Transformers' own attention function, which returns its weights."""
    base.set_attn_implementation("eager")
    try:
        yield
    finally:
        base.set_attn_implementation(NAME)
