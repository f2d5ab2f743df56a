"""The contract of a model: four methods, and every loss and the search can use it; a few more, and recipes can."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.noise import Noise
from argbeam.models.state import Places, State


class Model(Protocol):
    """An encoder-decoder as the search sees it; any `torch.nn.Module` with these methods is one.

    A step reads the newest word and says nothing; `output` is what the last layer reads; `scores` is that layer. They
    are apart because a loss replays a sentence step by step but scores all its steps at once, and because only some
    words' scores are needed under constraints and in the replay.
    """

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        """The state before the first word, one row per sentence. All randomness is drawn here, from `noise`;
        without noise there is no dropout."""

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        """The state after reading one more word per row; the first word read is BOS. `state` is left as it is."""

    def output(self, state: State) -> Float[Tensor, "N H"]:
        """What the output layer reads, of each row."""

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        """The raw scores f (no softmax) of the whole vocabulary, or of the words listed for each group of rows."""


@runtime_checkable
class Unrolls(Protocol):
    """A model that can read given words in one pass, faster than step by step. Nothing else changes."""

    def unroll(
        self, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None = None
    ) -> Float[Tensor, "T N H"] | None:
        """What `output` gives after each word; None where the pass cannot be had, and steps must do.

        Where `restarted_TB` says so, the second row of a pair takes the first one's state before it reads; not at the
        first step, which both rows of a pair start from the same state.
        """


@runtime_checkable
class StepsFrom(Protocol):
    """A model that can step from other rows than its own without moving them first."""

    def step_from(self, state: State, rows_N: Int[Tensor, " N"], tokens_N: Int[Tensor, " N"]) -> State:
        """`step(state.select(rows_N), tokens_N)`."""


@runtime_checkable
class StepsSome(Protocol):
    """A model that can step some rows of a sentence and leave out others."""

    def step_some(
        self, state: State, rows_X: Int[Tensor, " X"], tokens_X: Int[Tensor, " X"], places: Places
    ) -> State | None:
        """The rows of `step_from` at these places alone; None where they cannot be had, and all must be stepped."""


@runtime_checkable
class Lists(Protocol):
    """A model that can make ready to score the same words again and again."""

    def listed(self, candidates_GC: Int[Tensor, "G C"]) -> Model:
        """This model, for which `scores` of these candidates are cheaper: a search asks for them at every step."""


class Network(Model, Protocol):
    """A model that recipes build and run folders keep: a `torch.nn.Module` that can also be started from a seed."""

    def initialise(self, *, bound: float, generator: torch.Generator) -> None:
        """Draw every weight uniformly from [-bound, bound]."""

    def set_embeddings(self, *, source: Mapping[int, Tensor], target: Mapping[int, Tensor]) -> None:
        """Start the word vectors listed from given ones; the others stay as drawn."""

    def modules_by_rate(self) -> dict[str, list[nn.Parameter]]:
        """The parameters by the learning rate they take: encoder, decoder, output. A part may be empty."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def to(self, device: torch.device) -> Any: ...
