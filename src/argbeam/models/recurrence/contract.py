"""The parts of a recurrent decoder's step: what goes in, what comes out, and the protocol of both versions.

`steps` has the equations and the letters.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Attended:
    """The memory of each sentence."""

    keys_BSH: Float[Tensor, "B S H"]
    memory_BSE: Float[Tensor, "B S E"]
    padding_BS: Bool[Tensor, "B S"]


class TokenVectors(NamedTuple):
    """Tokens to read, and the table of their vectors."""

    tokens_N: Tensor
    table_VE: Tensor


class CellIn(NamedTuple):
    """Input of a cell. `base_NG` is a bias, or the gates' share of inputs that are known before the step.

    With `rows_N` row n reads the state of row `rows_N[n]`, and what is fed too if it `fed_moves` with the state.
    """

    base_NG: Tensor
    h_NH: Tensor
    c_NH: Tensor
    recurrent_GH: Tensor
    rows_N: Tensor | None = None
    input_GI: Tensor | None = None
    tokens: TokenVectors | None = None
    fed_NA: Tensor | None = None
    fed_noise_BA: Tensor | None = None
    fed_moves: bool = True


class CellOut(NamedTuple):
    """h, c, and i, f, g, o side by side."""

    h_NH: Tensor
    c_NH: Tensor
    gates_NG: Tensor


class CellBack(NamedTuple):
    """What a cell's gradient is made from. `carried_*` are gradients from the step after. Where `merged_B` is true,
    both rows of a pair were read from the first one there, which gets the gradient of both.

    `before_NH` is c before the step, read through `rows_N`; `weight_GX` is [Wi, Wr] without the columns of token
    vectors. The gradient of the gates is written to `gates_out_NG`.
    """

    grad_h_NH: Tensor
    carried_h_NH: Tensor
    carried_c_NH: Tensor
    gates_NG: Tensor
    c_NH: Tensor
    before_NH: Tensor
    weight_GX: Tensor
    gates_out_NG: Tensor
    rows_N: Tensor | None = None
    merged_B: Tensor | None = None
    grad_h_noise_BH: Tensor | None = None
    grad_c_NH: Tensor | None = None


class CellGrad(NamedTuple):
    """Gradient of c before the step, and of x and h before the step, side by side."""

    c_NH: Tensor
    before_NX: Tensor


class Combined(NamedTuple):
    """The output vector, before and after noise."""

    plain_NH: Tensor
    output_NH: Tensor


class CombineBack(NamedTuple):
    """What the output vector's gradient is made from: `grad_NH` from the scores, `carried_NH` from the step after, to
    which it is fed (`merged_B` as in `CellBack`). The gradient under the tanh is written to `total_out_NH`."""

    grad_NH: Tensor
    carried_NH: Tensor
    merged_B: Tensor | None
    plain_NH: Tensor
    noise_BH: Tensor | None
    weight_HX: Tensor
    total_out_NH: Tensor


class Steps(Protocol):
    """One version of the parts: `PlainSteps` runs anywhere, `KernelSteps` where `kernels_usable` says so."""

    def cell(self, given: CellIn) -> CellOut:
        """gates, c and h."""

    def cell_backward(self, given: CellBack) -> CellGrad:
        """The gradient of `cell`."""

    def attention(self, query_NH: Tensor, attended: Attended) -> tuple[Tensor, Tensor]:
        """a and alpha."""

    def attention_backward(
        self, grad_NX: Tensor, attended: Attended, weight_NS: Tensor, match_out_NS: Tensor
    ) -> Tensor:
        """The gradient of the query from [gradient of a; the query's own from elsewhere], `grad_NX`. The gradient of
        the query's products with the keys is written to `match_out_NS`."""

    def combine(self, context_NH: Tensor, h_NH: Tensor, weight_HX: Tensor, noise_BH: Tensor | None) -> Combined:
        """u and v from a and h."""

    def combine_backward(self, given: CombineBack) -> Tensor:
        """The gradient of [a; h]."""
