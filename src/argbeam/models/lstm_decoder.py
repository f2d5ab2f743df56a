"""An LSTM decoder that starts from zeros, with a context or without."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.models.network import LstmLayers
from argbeam.models.noise import Noise
from argbeam.models.recurrence.passes import Restarts, lstm_layer, masked
from argbeam.models.recurrence.steps import DECODER_SITE, OUTPUT_SITE, Masks
from argbeam.models.state import State


class LstmDecoder(LstmLayers):
    """LSTM layers whose top h is the input of the output layer."""

    def start(self, batch: Batch, noise: Noise | None, *, dropout: float, shared: Mapping[str, Any]) -> State:
        """The state before the first token, with what else the rows of a sentence share."""
        weight_VE, steps = self.embedding.weight, batch.target_BT.shape[1]
        zero_BH = weight_VE.new_zeros(batch.source_BS.shape[0], self.hidden)
        sites = (*(DECODER_SITE + i for i in range(1, self.layers)), OUTPUT_SITE)
        masks = Masks.of(noise, *sites, steps=steps, width=self.hidden, rate=dropout, dtype=weight_VE.dtype)
        cells = {f"{name}_{i}": zero_BH for name in ("h", "c") for i in range(self.layers)}
        return State({"masks": masks, **shared}, {**cells, "output": zero_BH})

    def read(
        self, state: State, x_TNI: Float[Tensor, "T N I"], restarted_TB: Bool[Tensor, "T B"] | None = None
    ) -> tuple[Float[Tensor, "T N H"], State]:
        """The input of the output layer at every step, and the state after the last, from the tokens' vectors with
        their contexts side by side; restarts as in `Unrolls`."""
        own, masks = state.hypothesis, state.sentence["masks"].since(state.time).masks
        restarts = Restarts.of(restarted_TB)
        rows: dict[str, Tensor] = {}
        for i, (inputs, recurrent) in enumerate(zip(self.inputs, self.recurrent, strict=True)):
            base_TNG = inputs(masked(x_TNI, masks[i]))
            x_TNI, c_TNH = lstm_layer(base_TNG, recurrent.weight, own[f"h_{i}"], own[f"c_{i}"], restarts)  # type: ignore[arg-type]
            rows |= {f"h_{i}": x_TNI[-1], f"c_{i}": c_TNH[-1]}
        output_TNH = masked(x_TNI, masks[-1])
        return output_TNH, State(state.sentence, rows | {"output": output_TNH[-1]}, state.time + len(output_TNH))
