"""One word through the LSTM layers of a decoder, with its dropout: what models with such a decoder share."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from argbeam.models.noise import Noise
from argbeam.models.recurrence import steps as recurrence_steps
from argbeam.models.recurrence.stepwise import StepLinear
from argbeam.models.state import Places, State

# Places at which noise is drawn; each has masks of its own.
ENCODER_SITE, _DECODER_SITE, _OUTPUT_SITE = 0x10, 0x20, 0x30


def lstm_layers(
    inputs: Sequence[StepLinear],
    recurrent: Sequence[StepLinear],
    x_NI: Float[Tensor, "N I"],
    state: State,
    places: Places | None = None,
) -> tuple[Float[Tensor, "N H"], dict[str, Tensor]]:
    """One word through a decoder's layers: the top layer's h, and the new h and c of each."""
    own = state.hypothesis
    new: dict[str, Tensor] = {}
    for i, (of_input, of_state) in enumerate(zip(inputs, recurrent, strict=True)):
        x_NI = with_noise(x_NI, state.sentence.get(f"noise_decoder_{i}"), state.time, places)
        x_NI, c_NH = lstm_gates(of_input(x_NI), of_state(own[f"h_{i}"]), own[f"c_{i}"])
        new |= {f"h_{i}": x_NI, f"c_{i}": c_NH}
    return x_NI, new


def lstm_gates(
    inputs_NG: Float[Tensor, "N G"], recurrent_NG: Float[Tensor, "N G"], c_NH: Float[Tensor, "N H"]
) -> tuple[Float[Tensor, "N H"], Float[Tensor, "N H"]]:
    """h and c from the two products of an LSTM cell (gates in the order input, forget, cell, output)."""
    if inputs_NG.is_cuda:
        # The kernel behind nn.LSTMCell: one launch for all that follows.
        inputs_NG, recurrent_NG = inputs_NG.to(c_NH.dtype), recurrent_NG.to(c_NH.dtype)
        h_NH, c_NH, _ = torch.ops.aten._thnn_fused_lstm_cell(inputs_NG, recurrent_NG, c_NH)
        return h_NH, c_NH
    in_NH, forget_NH, cell_NH, out_NH = (inputs_NG + recurrent_NG).to(c_NH.dtype).chunk(4, 1)
    c_NH = forget_NH.sigmoid() * c_NH + in_NH.sigmoid() * cell_NH.tanh()
    return out_NH.sigmoid() * c_NH.tanh(), c_NH


def decoder_noise(
    noise: Noise | None, layers: int, hidden: int, *, rate: float, steps: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The masks of a decoder's steps, for the state: between its layers, and on what the output layer reads."""
    if noise is None or rate == 0:
        return {}
    sites = {f"noise_decoder_{i}": _DECODER_SITE + i for i in range(1, layers)} | {"noise_output": _OUTPUT_SITE}
    return {name: noise.mask(site, steps=steps, width=hidden, rate=rate, dtype=dtype) for name, site in sites.items()}


def with_noise(x_NH: Tensor, noise_BTH: Tensor | None, time: int, places: Places | None = None) -> Tensor:
    """The same mask for every row of a sentence at this time step."""
    if noise_BTH is None:
        return x_NH
    noise_BH = noise_BTH[:, time]
    return recurrence_steps.with_noise(x_NH, noise_BH if places is None else noise_BH[places.place_X // places.lanes])


def in_autocast(x: Tensor) -> bool:
    """Whether products of tensors like this one are rounded to a narrower type."""
    return torch.is_autocast_enabled(x.device.type)
