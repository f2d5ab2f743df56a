"""The parts of a recurrent step in plain torch: cell, attention, output vector, forward and backward.

They run wherever kernels do not, and are what the kernels are held against.
"""

import torch
from torch import Tensor

from argbeam.models.recurrence.parts import CellGrad, CellOut, Combined


def cell(
    *,
    base_NG: Tensor,
    h_NH: Tensor,
    c_NH: Tensor,
    recurrent_GH: Tensor,
    fed_NA: Tensor | None = None,
    fed_GA: Tensor | None = None,
    fed_noise_BA: Tensor | None = None,
    fed_moves: bool = True,
    rows_N: Tensor | None = None,
) -> CellOut:
    """An LSTM cell: gates = base + fed Wf' + h Wr'. `base_NG` may be a bias of one row.

    With `rows_N` the state before is read from other rows, and what is fed too if it `fed_moves` with the state.
    """
    if rows_N is not None:
        h_NH, c_NH = h_NH.index_select(0, rows_N), c_NH.index_select(0, rows_N)
        if fed_NA is not None and fed_moves:
            fed_NA = fed_NA.index_select(0, rows_N)
    gates_NG = torch.addmm(base_NG, h_NH, recurrent_GH.T)
    if fed_NA is not None and fed_GA is not None:
        gates_NG.addmm_(with_noise(fed_NA, fed_noise_BA), fed_GA.T)
    hidden = recurrent_GH.shape[1]
    gates_NG[:, : 2 * hidden].sigmoid_()
    gates_NG[:, 2 * hidden : 3 * hidden].tanh_()
    gates_NG[:, 3 * hidden :].sigmoid_()
    in_NH, forget_NH, cell_NH, out_NH = gates_NG.chunk(4, 1)
    c_NH = torch.addcmul(in_NH * cell_NH, forget_NH, c_NH)
    return CellOut(out_NH * c_NH.tanh(), c_NH, gates_NG)


def cell_backward(
    *,
    grad_h_NH: Tensor,
    grad_h_noise_BH: Tensor | None,
    carried_h_NH: Tensor,
    carried_c_NH: Tensor,
    grad_c_NH: Tensor | None,
    merged_B: Tensor | None,
    gates_NG: Tensor,
    c_NH: Tensor,
    before_NH: Tensor,
    rows_N: Tensor | None,
    weight_GX: Tensor,
    gates_out_NG: Tensor,
) -> CellGrad:
    """`carried_*` come from the step after, whose rows may have read others': where `merged_B` says so, what reached
    the second row of a pair belongs to the first. `before_NH` is c before the step, read through `rows_N`;
    `weight_GX` holds the weights of the fed input and of h, side by side. What reaches the gates goes into
    `gates_out_NG`."""
    d_h = with_noise(grad_h_NH, grad_h_noise_BH) + merged(carried_h_NH, merged_B)
    d_c = merged(carried_c_NH, merged_B)
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


def attention(query_NH: Tensor, keys_BSH: Tensor, memory_BSH: Tensor, padding_BS: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(query keys') memory, padding left out: the contexts (N, H) and the weights (N, S)."""
    query_BRH = query_NH.view(keys_BSH.shape[0], -1, query_NH.shape[1])
    match_BRS = torch.bmm(query_BRH, keys_BSH.transpose(1, 2))
    weight_BRS = match_BRS.masked_fill_(padding_BS[:, None], -torch.inf).softmax(-1)
    return torch.bmm(weight_BRS, memory_BSH).flatten(0, 1), weight_BRS.flatten(0, 1)


def attention_backward(
    grad_NX: Tensor, keys_BSH: Tensor, memory_BSH: Tensor, weight_NS: Tensor, match_out_NS: Tensor
) -> Tensor:
    """`grad_NX` holds what reached the context and what reached the query beside it, side by side (N, 2H).

    Returns all that reaches the query; what reaches the matches goes into `match_out_NS`.
    """
    sentences, hidden = keys_BSH.shape[0], keys_BSH.shape[2]
    grad_BRX = grad_NX.view(sentences, -1, 2 * hidden)
    weight_BRS = weight_NS.view(sentences, -1, weight_NS.shape[1])
    d_weight_BRS = torch.bmm(grad_BRX[..., :hidden], memory_BSH.transpose(1, 2))
    # Padding has weight 0, so its gradient is 0 as well.
    d_match_BRS = weight_BRS * (d_weight_BRS - (weight_BRS * d_weight_BRS).sum(-1, keepdim=True))
    match_out_NS.copy_(d_match_BRS.flatten(0, 1))
    return torch.baddbmm(grad_BRX[..., hidden:], d_match_BRS, keys_BSH).flatten(0, 1)


def combine(context_NH: Tensor, h_NH: Tensor, weight_HX: Tensor, noise_BH: Tensor | None) -> Combined:
    """tanh([context, h] W'), with the sentence's noise on it."""
    plain_NH = torch.cat([context_NH, h_NH], 1).mm(weight_HX.T).tanh_()
    return Combined(plain_NH, with_noise(plain_NH, noise_BH))


def combine_backward(
    grad_NH: Tensor,
    carried_NH: Tensor,
    merged_B: Tensor | None,
    plain_NH: Tensor,
    noise_BH: Tensor | None,
    weight_HX: Tensor,
    total_out_NH: Tensor,
) -> Tensor:
    """What reaches the context and h, side by side (N, 2H); what reaches the sum under the tanh in `total_out_NH`.

    `grad_NH` comes from the scores, `carried_NH` from the step after, which was fed the output vector (see
    `cell_backward` for `merged_B`).
    """
    d_output_NH = with_noise(grad_NH + merged(carried_NH, merged_B), noise_BH)
    torch.mul(d_output_NH, 1 - plain_NH * plain_NH, out=total_out_NH)
    return total_out_NH @ weight_HX


def merged(carried_NH: Tensor, merged_B: Tensor | None) -> Tensor:
    """What reached the second row of a pair that was one goes to the first."""
    if merged_B is None:
        return carried_NH
    first_BH, second_BH = carried_NH.view(-1, 2, carried_NH.shape[1]).unbind(1)
    moved_BH = second_BH * merged_B[:, None]
    return torch.stack([first_BH + moved_BH, second_BH - moved_BH], 1).flatten(0, 1)


def with_noise(x_NH: Tensor, noise_BH: Tensor | None) -> Tensor:
    """The same mask for every row of a sentence."""
    if noise_BH is None:
        return x_NH
    return (x_NH.view(noise_BH.shape[0], -1, x_NH.shape[1]) * noise_BH[:, None]).flatten(0, 1)
