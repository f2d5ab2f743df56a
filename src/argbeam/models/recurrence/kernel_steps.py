"""The parts of a recurrent step as kernels; a sentence that is too large for one goes the plain way."""

from torch import Tensor

from argbeam.models.recurrence import attention_kernel as attention_kernels
from argbeam.models.recurrence import plain_steps
from argbeam.models.recurrence.attention_kernel import combine, combine_backward
from argbeam.models.recurrence.lstm_kernel import cell, cell_backward

__all__ = ["attention", "attention_backward", "cell", "cell_backward", "combine", "combine_backward"]


def attention(query_NH: Tensor, keys_BSH: Tensor, memory_BSH: Tensor, padding_BS: Tensor) -> tuple[Tensor, Tensor]:
    """As in `plain_steps`."""
    if not _fits(query_NH, memory_BSH):
        return plain_steps.attention(query_NH, keys_BSH, memory_BSH, padding_BS)
    return attention_kernels.attention(query_NH, keys_BSH, memory_BSH, padding_BS)


def attention_backward(
    grad_NX: Tensor, keys_BSH: Tensor, memory_BSH: Tensor, weight_NS: Tensor, match_out_NS: Tensor
) -> Tensor:
    """As in `plain_steps`."""
    if not _fits(grad_NX, memory_BSH):
        return plain_steps.attention_backward(grad_NX, keys_BSH, memory_BSH, weight_NS, match_out_NS)
    return attention_kernels.attention_backward(grad_NX, keys_BSH, memory_BSH, weight_NS, match_out_NS)


def _fits(rows_N: Tensor, memory_BSH: Tensor) -> bool:
    sentences, words, _ = memory_BSH.shape
    return attention_kernels.fits(rows_N.shape[0] // sentences, words, memory_BSH.device)
