"""Risks of a whole output compared with gold: between 0 (as good as gold) and 1, on the device.

Outputs and gold are padded rows of one width with a length each; an end symbol counts into the length.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.vocabulary import STANDARD, SpecialTokens
from argbeam.metrics.device_bleu import sentence_bleu

Risk = Callable[[Int[Tensor, "X T"], Int[Tensor, " X"], Int[Tensor, "X T"], Int[Tensor, " X"]], Float[Tensor, " X"]]
"""`risk(tokens_XT, length_X, gold_XT, gold_length_X)`."""


def one_minus_sentence_bleu(
    tokens_XT: Tensor,
    length_X: Tensor,
    gold_XT: Tensor,
    gold_length_X: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    specials: SpecialTokens = STANDARD,
) -> Tensor:
    """1 - smoothed sentence BLEU, without end symbols."""
    tokens_end_X, gold_end_X = (
        _ends(tokens_XT, length_X, specials),
        _ends(gold_XT, gold_length_X, specials),
    )
    bleu_X = sentence_bleu(tokens_XT, length_X - tokens_end_X, gold_XT, gold_length_X - gold_end_X, dtype=dtype)
    return 1 - bleu_X


def zero_one(
    tokens_XT: Tensor,
    length_X: Tensor,
    gold_XT: Tensor,
    gold_length_X: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    specials: SpecialTokens = STANDARD,
) -> Tensor:
    """1 unless output and gold are the same."""
    longest_X = torch.maximum(length_X, gold_length_X)
    same_XT = _same(tokens_XT, length_X, gold_XT, gold_length_X)
    return (same_XT.sum(1) < longest_X).to(dtype)


def token_error(
    tokens_XT: Tensor,
    length_X: Tensor,
    gold_XT: Tensor,
    gold_length_X: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    specials: SpecialTokens = STANDARD,
) -> Tensor:
    """The share of the longer one's places at which output and gold differ."""
    longest_X = torch.maximum(length_X, gold_length_X).clamp(min=1)
    same_XT = _same(tokens_XT, length_X, gold_XT, gold_length_X)
    return 1 - same_XT.sum(1).to(dtype) / longest_X


RISKS: dict[str, Risk] = {"sentence_bleu": one_minus_sentence_bleu, "zero_one": zero_one, "token_error": token_error}


def risk_in(risk: Risk, dtype: torch.dtype, specials: SpecialTokens) -> Risk:
    """The risk in the precision of the model's scores, for outputs with these end symbols, if it is one of ours."""
    own: Callable[..., Tensor] = risk
    return partial(own, dtype=dtype, specials=specials) if risk in RISKS.values() else risk


def _ends(tokens_XT: Int[Tensor, "X T"], length_X: Int[Tensor, " X"], specials: SpecialTokens) -> Int[Tensor, " X"]:
    """1 where a row ends in an end symbol, else 0."""
    last_X = tokens_XT.gather(1, (length_X - 1).clamp(min=0)[:, None])[:, 0]
    return (specials.ended(last_X) & (length_X > 0)).long()


def _same(tokens_XT: Tensor, length_X: Tensor, gold_XT: Tensor, gold_length_X: Tensor) -> Bool[Tensor, "X T"]:
    both_X1 = torch.minimum(length_X, gold_length_X)[:, None]
    return (tokens_XT == gold_XT) & (torch.arange(tokens_XT.shape[1], device=tokens_XT.device) < both_X1)
