"""Prompts of causal models: all tokens but the last are read once, and their keys belong to the sentence.

Where weights are split over processes, a pass with gradient reads the prompt once more, in every row. FSDP frees a
layer's weights after its backward pass, and a gradient that came back through keys of another pass would need them.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.models.huggingface.attention import Prompt, RowCache
from argbeam.models.huggingface.dropout import DropsUnits


@dataclass(frozen=True)
class PromptTokens:
    """All tokens of the prompts but the last, right-padded; where there is one; and their dropout."""

    tokens_BP: Int[Tensor, "B P"]
    real_BP: Bool[Tensor, "B P"]
    masks: DropsUnits | None
    positions: int | None  # of the model, if it has only so many

    def keys(self, stack: Any) -> list[Prompt]:
        """Keys and values of each layer; none for prompts of one token."""
        length, device = self.tokens_BP.shape[1], self.tokens_BP.device
        if length == 0:
            return []
        rows = RowCache()
        stack(
            input_ids=self.tokens_BP,
            attention_mask=causal_mask(length, device),
            position_ids=within(self.positions, torch.arange(length, device=device)[None]),
            past_key_values=rows,
            use_cache=True,
        )
        return [Prompt(key, value, self.real_BP[:, None, None]) for key, value in rows.layers]

    def before(self, tokens_NX: Int[Tensor, "N X"]) -> Int[Tensor, "N Y"]:
        """These tokens after the prompt's."""
        return torch.cat([of_rows(self.tokens_BP, len(tokens_NX)), tokens_NX], 1)

    def hidden_in(self, mask: Bool[Tensor, "_ 1 Q Q"], *, rows: int, lanes: int) -> Bool[Tensor, "G 1 Q Q"]:
        """The mask of such rows, `lanes` of them side by side, without the padding of prompts.

        A position of padding sees itself: a query that sees nothing has no value.
        """
        real_BX = F.pad(self.real_BP, (0, mask.shape[3] // lanes - self.real_BP.shape[1]), value=True)
        real_GQ = of_rows(real_BX, rows // lanes).repeat(1, lanes)
        itself_QQ = torch.eye(mask.shape[3], dtype=torch.bool, device=mask.device)
        return mask & (real_GQ[:, None, None] | itself_QQ)


def within(positions: int | None, place: Int[Tensor, "N T"]) -> Int[Tensor, "N T"]:
    """The places, where those behind the last position of the model, which padding may have, become the last."""
    return place if positions is None else place.clamp(max=positions - 1)


def causal_mask(length: int, device: torch.device) -> Bool[Tensor, "1 1 Q Q"]:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]


def of_rows(x_BX: Tensor, rows: int) -> Tensor:
    """What belongs to sentences, for each of their rows."""
    return x_BX.repeat_interleave(rows // len(x_BX), 0)
