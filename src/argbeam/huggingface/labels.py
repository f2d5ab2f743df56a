"""Batches of transformers' collators as argbeam's: sources without padding on the left, gold up to its end symbol."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.data.batches import Batch, round_up
from argbeam.errors import DataError
from argbeam.models.huggingface.adapter import HuggingFaceModel
from argbeam.models.huggingface.supported import check_positions, plain_model
from argbeam.runtime import device as devices

# The label of a position without a gold token.
IGNORED = -100
# Lengths of batches for CUDA graphs are multiples of it, so that few shapes occur.
ROUND = 8


def batch_of(inputs: Mapping[str, Any], model: HuggingFaceModel, *, multiple: int = 1) -> Batch:
    """Source and gold of `input_ids`, `attention_mask` and `labels`, padded to multiples of so many tokens.

    Of a causal model the tokens before the first label that is not -100 are the prompt, which is the source.
    """
    ids_BX, labels_BX = inputs["input_ids"], inputs["labels"]
    real_BX = _prompts(inputs) if not model.crosses else _real(inputs)
    gold_BX, pad = labels_BX != IGNORED, model.specials.pad
    # A collator has padded an encoder-decoder's rows to the longest: nothing need be asked of a GPU.
    trim = not model.crosses or devices.host_may_look(ids_BX)
    if devices.host_may_look(ids_BX):
        check_gaps(labels_BX)
    source_BS, source_length_B = to_the_left(ids_BX, real_BX, pad, multiple=multiple, trim=trim)
    forced = model.decoder_prompt[1:]
    if forced:
        prefix_F = torch.tensor(forced, device=labels_BX.device)
        starts_B1 = (labels_BX[:, : len(forced)] == prefix_F).all(1, keepdim=True)
        place_X = torch.arange(labels_BX.shape[1], device=labels_BX.device)
        gold_BX = gold_BX & ~(starts_B1 & (place_X < len(forced)))
    target_BT, length_B = to_the_left(labels_BX, gold_BX, pad, multiple=multiple, trim=trim)
    ends_BT = model.specials.ended(target_BT).long()
    place_T = torch.arange(target_BT.shape[1], device=length_B.device)
    if not model.crosses:  # gold's last token is not read
        check_positions(plain_model(model.network).config, int((source_length_B + length_B).max()) - 1)
    until_BT = (ends_BT.cumsum(1) - ends_BT == 0) & (place_T < length_B[:, None])
    return Batch(
        source_BS=source_BS,
        source_length_B=source_length_B,
        target_BT=target_BT.masked_fill(~until_BT, pad),
        target_length_B=until_BT.sum(1),
        sentence_B=torch.arange(len(ids_BX), device=length_B.device),
        specials=model.specials,
    )


def check_gaps(labels_BX: Int[Tensor, "B X"]) -> None:
    """Raise a DataError for labels with gaps: the tokens around one would become neighbours. It reads the device."""
    gold_BX = labels_BX != IGNORED
    if bool((~gold_BX & (gold_BX.cumsum(1) > 0) & _ahead(gold_BX)).any()):
        raise DataError(f"a row with the label {IGNORED} between two others; gold is one sequence without gaps")


def prompts_of(inputs: Mapping[str, Any], model: HuggingFaceModel) -> dict[str, Tensor]:
    """The prompts of a causal model for `generate`: `input_ids` and `attention_mask`, padded on the left."""
    ids_BX, prompt_BX = inputs["input_ids"], _prompts(inputs)
    width, order_BX = int(prompt_BX.sum(1).max()), prompt_BX.long().argsort(dim=1, stable=True)
    found = {"input_ids": ids_BX.masked_fill(~prompt_BX, model.specials.pad), "attention_mask": prompt_BX.long()}
    return {name: x_BX.gather(1, order_BX)[:, -width:] for name, x_BX in found.items()}


def to_the_left(
    ids_BX: Int[Tensor, "B X"], real_BX: Bool[Tensor, "B X"], pad: int, *, multiple: int = 1, trim: bool = True
) -> tuple[Int[Tensor, "B Y"], Int[Tensor, " B"]]:
    """The real tokens of each row from its first column on, padding behind them, and their number.

    With `trim` there are as many columns as the longest row needs, which the host asks the device for.
    """
    order_BX = (~real_BX).long().argsort(dim=1, stable=True)
    length_B = real_BX.sum(1)
    longest = int(length_B.max()) if trim else ids_BX.shape[1]
    longest = round_up(max(1, longest), multiple)
    moved_BX = ids_BX.masked_fill(~real_BX, pad).gather(1, order_BX)
    return F.pad(moved_BX, (0, longest - moved_BX.shape[1]), value=pad), length_B


def _real(inputs: Mapping[str, Any]) -> Bool[Tensor, "B X"]:
    """Where there is a token."""
    mask_BX = inputs.get("attention_mask")
    return torch.ones_like(inputs["input_ids"], dtype=torch.bool) if mask_BX is None else mask_BX.bool()


def _prompts(inputs: Mapping[str, Any]) -> Bool[Tensor, "B X"]:
    """The tokens before the first label of a row; the host asks the device whether rows are a prompt and one gold."""
    real_BX, gold_BX = _real(inputs), inputs["labels"] != IGNORED
    prompt_BX: Tensor = real_BX & (gold_BX.long().cumsum(1) == 0)
    if not bool(prompt_BX.any(1).all()):
        raise DataError(f"a row without a prompt: the labels of a causal model's prompts are {IGNORED}")
    if bool((real_BX & ~prompt_BX & ~gold_BX & _ahead(gold_BX)).any()):
        raise DataError(
            f"a row whose labels go on after tokens with {IGNORED}; a row is one prompt and one completion: give each "
            "turn of a dialogue a row of its own"
        )
    return prompt_BX


def _ahead(gold_BX: Bool[Tensor, "B X"]) -> Bool[Tensor, "B X"]:
    """Where gold comes, here or later."""
    return gold_BX.long().flip(1).cumsum(1).flip(1) > 0
