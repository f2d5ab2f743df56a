"""The parts of a decoder's step as Triton kernels."""

from torch import Tensor

from argbeam.models.recurrence import attention_kernel, cell_kernel
from argbeam.models.recurrence.contract import Attended
from argbeam.models.recurrence.steps import PlainSteps


class KernelSteps:
    """See `Steps`. A sentence too large for the attention kernels takes the plain version."""

    cell = staticmethod(cell_kernel.cell)
    cell_backward = staticmethod(cell_kernel.cell_backward)
    combine = staticmethod(attention_kernel.combine)
    combine_backward = staticmethod(attention_kernel.combine_backward)

    @staticmethod
    def attention(query_NH: Tensor, attended: Attended) -> tuple[Tensor, Tensor]:
        version = attention_kernel if _fits(query_NH, attended) else PlainSteps
        return version.attention(query_NH, attended)

    @staticmethod
    def attention_backward(grad_NX: Tensor, attended: Attended, weight_NS: Tensor, match_out_NS: Tensor) -> Tensor:
        version = attention_kernel if _fits(grad_NX, attended) else PlainSteps
        return version.attention_backward(grad_NX, attended, weight_NS, match_out_NS)


def _fits(rows_N: Tensor, attended: Attended) -> bool:
    sentences, tokens = attended.padding_BS.shape
    return attention_kernel.fits(rows_N.shape[0] // sentences, tokens, rows_N.device)
