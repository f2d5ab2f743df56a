"""Products with few rows, without gradient."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# On two cores a BLAS cut products of more than 8 and fewer than 64 rows badly, and took up to three times the time of
# the same product turned round; on one core the two were equal.
_FEW, _MANY = 8, 64


def linear(
    x_NI: Float[Tensor, "N I"], weight_OI: Float[Tensor, "O I"], bias_O: Float[Tensor, " O"] | None
) -> Float[Tensor, "N O"]:
    """`F.linear`; on a CPU the result of few rows lies in memory column by column."""
    if x_NI.is_cuda or not _FEW < x_NI.shape[0] < _MANY:
        return F.linear(x_NI, weight_OI, bias_O)
    turned_ON = weight_OI @ x_NI.T if bias_O is None else torch.addmm(bias_O[:, None], weight_OI, x_NI.T)
    return turned_ON.T
