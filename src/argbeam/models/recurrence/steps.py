"""One step of a recurrent decoder, and its parts: a plain and a Triton version of each.

    gates = base + [e(y); x] Wi' + h Wr'          cell: an LSTM cell; x is what is fed, e(y) a token's vector
    i, f, o = sigmoid(gates), g = tanh(gates)
    c = f c + i g,  h = o tanh(c)
    alpha = softmax(h K'),  a = alpha M           attention over a sentence's memory M with keys K, padding left out
    u = tanh([a; h] Wc'),  v = u * noise          combine: v is the output vector

Letters: N rows, the same number of each of the B sentences; G = 4H gates in the order i, f, g, o; S source tokens;
A units of x, E of a token's vector, I = E + A; X = two widths side by side. Noise is one row per sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from argbeam.models.noise import Noise
from argbeam.models.recurrence.contract import (
    Attended,
    CellBack,
    CellGrad,
    CellIn,
    CellOut,
    CombineBack,
    Combined,
    Steps,
    TokenVectors,
)
from argbeam.models.state import Places

# On two cores a BLAS cut products of few rows badly, and took up to three times the time of the same product turned
# round; on one core the two were equal. Between these bounds both give the same bits.
_FEW, _MANY = 12, 64

# Places at which noise is drawn, with the layer's number added; each has masks of its own.
ENCODER_SITE, DECODER_SITE, OUTPUT_SITE = 0x10, 0x20, 0x30


@dataclass(frozen=True)
class Weights:
    """A decoder's weights by layer. The first of `inputs` has the columns of token vectors, unless their share of the
    gates is given, then those of the output vector that is fed back, if it is."""

    inputs: Sequence[Float[Tensor, "G _"]]
    recurrent: Sequence[Float[Tensor, "G H"]]
    bias: Sequence[Float[Tensor, " G"]]
    combine_HX: Float[Tensor, "H X"]


@dataclass(frozen=True)
class Masks:
    """Dropout at every step: on the input of each layer, and last on the output vector; None where there is none."""

    masks: Sequence[Float[Tensor, "B T H"] | None]

    @staticmethod
    def of(noise: Noise | None, *sites: int, steps: int, width: int, rate: float, dtype: torch.dtype) -> "Masks":
        """One mask per site; none on the input of the first layer, and none at all without noise."""
        if noise is None or rate == 0:
            return Masks([None] * (1 + len(sites)))
        return Masks([None, *(noise.mask(s, steps=steps, width=width, rate=rate, dtype=dtype) for s in sites)])

    def at(self, time: int, places: Places | None = None) -> list[Tensor | None]:
        """The masks of one step, one row per sentence, or one for each of these places."""
        noise = [None if mask_BTH is None else mask_BTH[:, time] for mask_BTH in self.masks]
        if places is None:
            return noise
        sentence_X = places.place_X // places.lanes
        return [None if noise_BH is None else noise_BH[sentence_X] for noise_BH in noise]

    def since(self, time: int) -> "Masks":
        """The masks of all steps from this one."""
        return Masks([None if mask_BTH is None else mask_BTH[:, time:] for mask_BTH in self.masks])


class DecoderState(NamedTuple):
    """h and c of each layer, and the output vector."""

    h: Sequence[Tensor]
    c: Sequence[Tensor]
    output_NH: Tensor


class Stepped(NamedTuple):
    """Each layer's cell, the context and its weights, the output vector."""

    cells: list[CellOut]
    context_NH: Tensor
    weight_NS: Tensor
    combined: Combined


def decoder_step(
    steps: Steps,
    weights: Weights,
    attended: Attended,
    before: DecoderState,
    *,
    base_NG: Float[Tensor, "*N G"],
    noise: Sequence[Float[Tensor, "B H"] | None],
    tokens: TokenVectors | None = None,
    rows_N: Int[Tensor, " N"] | None = None,
    places: Places | None = None,
) -> Stepped:
    """Cells, attention, combine. `noise` is on the input of each layer, and last on the output vector.

    `base_NG` and `rows_N` are those of `cell` in the first layer. With `places` the rows are those alone, of each
    sentence some, and noise has a row for each.
    """
    fed = weights.inputs[0].shape[1] > (0 if tokens is None else tokens.table_VE.shape[1])
    x_NA = before.output_NH if fed else None
    cells: list[CellOut] = []
    for i, recurrent_GH in enumerate(weights.recurrent):
        given = CellIn(weights.bias[i] if i else base_NG, before.h[i], before.c[i], recurrent_GH, rows_N)
        given = given._replace(input_GI=weights.inputs[i], fed_NA=x_NA, fed_noise_BA=noise[i], fed_moves=i == 0)
        cells.append(steps.cell(given if i else given._replace(tokens=tokens)))
        x_NA = h_NH = cells[-1].h_NH
    query_NH = h_NH
    if places is not None:  # attention takes as many rows of each sentence
        grid_NH = h_NH.new_zeros(attended.padding_BS.shape[0] * places.lanes, h_NH.shape[1])
        query_NH = grid_NH.index_copy_(0, places.place_X, h_NH)
    context_NH, weight_NS = steps.attention(query_NH, attended)
    if places is not None:
        context_NH = context_NH.index_select(0, places.place_X)
    return Stepped(cells, context_NH, weight_NS, steps.combine(context_NH, h_NH, weights.combine_HX, noise[-1]))


class PlainSteps:
    """The parts in plain torch."""

    @staticmethod
    def cell(given: CellIn) -> CellOut:
        base_NG, h_NH, c_NH, recurrent_GH, rows_N, input_GI, tokens, fed_NA, fed_noise_BA, fed_moves = given
        if rows_N is not None:
            h_NH, c_NH = h_NH.index_select(0, rows_N), c_NH.index_select(0, rows_N)
            if fed_NA is not None and fed_moves:
                fed_NA = fed_NA.index_select(0, rows_N)
        gates_NG = linear(h_NH, recurrent_GH, base_NG)
        inputs = [] if tokens is None else [F.embedding(tokens.tokens_N, tokens.table_VE)]
        inputs += [] if fed_NA is None else [with_noise(fed_NA, fed_noise_BA)]
        if inputs and input_GI is not None:
            gates_NG = linear(torch.cat(inputs, 1) if len(inputs) > 1 else inputs[0], input_GI, gates_NG)
        gates_NG, hidden = gates_NG.contiguous(), recurrent_GH.shape[1]
        gates_NG[:, : 2 * hidden].sigmoid_()
        gates_NG[:, 2 * hidden : 3 * hidden].tanh_()
        gates_NG[:, 3 * hidden :].sigmoid_()
        in_NH, forget_NH, cell_NH, out_NH = gates_NG.chunk(4, 1)
        c_NH = torch.addcmul(in_NH * cell_NH, forget_NH, c_NH)
        return CellOut(out_NH * c_NH.tanh(), c_NH, gates_NG)

    @staticmethod
    def cell_backward(given: CellBack) -> CellGrad:
        grad_h_NH, carried_h_NH, carried_c_NH, gates_NG, c_NH, before_NH, weight_GX, gates_out_NG, *rest = given
        rows_N, merged_B, grad_h_noise_BH, grad_c_NH = rest
        d_h = with_noise(grad_h_NH, grad_h_noise_BH) + _merged(carried_h_NH, merged_B)
        d_c = _merged(carried_c_NH, merged_B)
        if grad_c_NH is not None:
            d_c = d_c + grad_c_NH
        if rows_N is not None:
            before_NH = before_NH.index_select(0, rows_N)
        in_NH, forget_NH, cell_NH, out_NH = gates_NG.chunk(4, 1)
        bent_NH = c_NH.tanh()
        d_c = torch.addcmul(d_c, d_h * out_NH, 1 - bent_NH * bent_NH)
        d_in, d_forget, d_cell, d_out = gates_out_NG.chunk(4, 1)
        torch.mul(d_c * cell_NH, in_NH * (1 - in_NH), out=d_in)
        torch.mul(d_c * before_NH, forget_NH * (1 - forget_NH), out=d_forget)
        torch.mul(d_c * in_NH, 1 - cell_NH * cell_NH, out=d_cell)
        torch.mul(d_h * bent_NH, out_NH * (1 - out_NH), out=d_out)
        return CellGrad(d_c * forget_NH, gates_out_NG @ weight_GX)

    @staticmethod
    def attention(query_NH: Tensor, attended: Attended) -> tuple[Tensor, Tensor]:
        query_BRH = query_NH.view(attended.keys_BSH.shape[0], -1, query_NH.shape[1])
        match_BRS = torch.bmm(query_BRH, attended.keys_BSH.transpose(1, 2))
        weight_BRS = match_BRS.masked_fill_(attended.padding_BS[:, None], -torch.inf).softmax(-1)
        return torch.bmm(weight_BRS, attended.memory_BSE).flatten(0, 1), weight_BRS.flatten(0, 1)

    @staticmethod
    def attention_backward(grad_NX: Tensor, attended: Attended, weight_NS: Tensor, match_out_NS: Tensor) -> Tensor:
        sentences, _, hidden = attended.keys_BSH.shape
        grad_BRX = grad_NX.view(sentences, -1, 2 * hidden)
        weight_BRS = weight_NS.view(sentences, -1, weight_NS.shape[1])
        d_weight_BRS = torch.bmm(grad_BRX[..., :hidden], attended.memory_BSE.transpose(1, 2))
        # Padding has weight 0, so its gradient is 0 as well.
        d_match_BRS = weight_BRS * (d_weight_BRS - (weight_BRS * d_weight_BRS).sum(-1, keepdim=True))
        match_out_NS.copy_(d_match_BRS.flatten(0, 1))
        return torch.baddbmm(grad_BRX[..., hidden:], d_match_BRS, attended.keys_BSH).flatten(0, 1)

    @staticmethod
    def combine(context_NH: Tensor, h_NH: Tensor, weight_HX: Tensor, noise_BH: Tensor | None) -> Combined:
        plain_NH = linear(torch.cat([context_NH, h_NH], 1), weight_HX, None).contiguous().tanh_()
        return Combined(plain_NH, with_noise(plain_NH, noise_BH))

    @staticmethod
    def combine_backward(given: CombineBack) -> Tensor:
        grad_NH, carried_NH, merged_B, plain_NH, noise_BH, weight_HX, total_out_NH = given
        d_output_NH = with_noise(grad_NH + _merged(carried_NH, merged_B), noise_BH)
        torch.mul(d_output_NH, 1 - plain_NH * plain_NH, out=total_out_NH)
        return total_out_NH @ weight_HX


def linear(
    x_NI: Float[Tensor, "N I"], weight_OI: Float[Tensor, "O I"], base_NO: Float[Tensor, "*N O"] | None
) -> Float[Tensor, "N O"]:
    """x W' + base, a bias or a row each. On a CPU the result of few rows lies in memory column by column."""
    if x_NI.is_cuda or not _FEW <= x_NI.shape[0] < _MANY:
        return x_NI.mm(weight_OI.T) if base_NO is None else torch.addmm(base_NO, x_NI, weight_OI.T)
    if base_NO is None:
        return weight_OI.mm(x_NI.T).T
    return torch.addmm(base_NO[:, None] if base_NO.dim() == 1 else base_NO.T, weight_OI, x_NI.T).T


def _merged(carried_NH: Tensor, merged_B: Tensor | None) -> Tensor:
    """The gradient of a merged pair, all of it at the first row."""
    if merged_B is None:
        return carried_NH
    first_BH, second_BH = carried_NH.view(-1, 2, carried_NH.shape[1]).unbind(1)
    moved_BH = second_BH * merged_B[:, None]
    return torch.stack([first_BH + moved_BH, second_BH - moved_BH], 1).flatten(0, 1)


def with_noise(x_NH: Tensor, noise_BH: Tensor | None) -> Tensor:
    """One mask for all rows of a sentence."""
    if noise_BH is None:
        return x_NH
    return (x_NH.view(noise_BH.shape[0], -1, x_NH.shape[1]) * noise_BH[:, None]).flatten(0, 1)
