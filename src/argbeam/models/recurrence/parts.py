"""What the parts of a recurrent step give back, as kernels and in plain torch alike."""

from typing import NamedTuple

from torch import Tensor


class CellOut(NamedTuple):
    """h and c, and the four gates after their functions, side by side."""

    h_NH: Tensor
    c_NH: Tensor
    gates_NG: Tensor


class CellGrad(NamedTuple):
    """What reaches c before the step, and what reaches the fed input and h before the step, side by side."""

    c_NH: Tensor
    before_NX: Tensor


class Combined(NamedTuple):
    """The output vector, before and after noise."""

    plain_NH: Tensor
    output_NH: Tensor
