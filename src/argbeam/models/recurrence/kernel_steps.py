"""The parts of a decoder's step as Triton kernels."""

from torch import Tensor

from argbeam.models.recurrence import attention_kernel, cell_kernel
from argbeam.models.recurrence.steps import PlainSteps


class KernelSteps:
    """See `Steps`. A sentence too large for the attention kernels takes the plain version."""

    cell = staticmethod(cell_kernel.cell)
    cell_backward = staticmethod(cell_kernel.cell_backward)
    combine = staticmethod(attention_kernel.combine)
    combine_backward = staticmethod(attention_kernel.combine_backward)

    @staticmethod
    def attention(query_NH: Tensor, keys_BSH: Tensor, memory_BSH: Tensor, padding_BS: Tensor) -> tuple[Tensor, Tensor]:
        version = attention_kernel if _fits(query_NH, memory_BSH) else PlainSteps
        return version.attention(query_NH, keys_BSH, memory_BSH, padding_BS)

    @staticmethod
    def attention_backward(
        grad_NX: Tensor, keys_BSH: Tensor, memory_BSH: Tensor, weight_NS: Tensor, match_out_NS: Tensor
    ) -> Tensor:
        version = attention_kernel if _fits(grad_NX, memory_BSH) else PlainSteps
        return version.attention_backward(grad_NX, keys_BSH, memory_BSH, weight_NS, match_out_NS)


def _fits(rows_N: Tensor, memory_BSH: Tensor) -> bool:
    sentences, words, _ = memory_BSH.shape
    return attention_kernel.fits(rows_N.shape[0] // sentences, words, memory_BSH.device)
