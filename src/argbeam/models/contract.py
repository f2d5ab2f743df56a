"""The contract of a model: four methods, and every loss and the search can use it; a few more, and recipes can."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.noise import Noise
from argbeam.models.state import Places, State


class Scorer(Protocol):
    """An output layer."""

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        """Raw scores f (no softmax) of the whole vocabulary, or of the candidates listed for each group of rows."""


class Model(Scorer, Protocol):
    """An encoder-decoder as the search sees it: any `torch.nn.Module` with these methods and `scores`.

    `step` reads the newest token, `output` is the input of the output layer, `scores` is that layer. They are apart
    because a loss replays a sentence step by step but scores all its steps at once, and because constraints and the
    replay need the scores of a few tokens only.
    """

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        """State before the first token, one row per sentence. All randomness is drawn here, from `noise`; without
        noise there is no dropout."""

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        """State after one more token per row; `state` is not changed.

        The first token is the `bos` of the special tokens. A model whose sentences start in another way, such as with
        a prompt, reads its own first token instead.
        """

    def output(self, state: State) -> Float[Tensor, "N H"]:
        """Input of the output layer, of each row."""


@runtime_checkable
class Unrolls(Protocol):
    """Optional, for losses: given tokens read in one pass, faster than step by step."""

    def unroll(
        self, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None = None
    ) -> Float[Tensor, "T N H"] | None:
        """`output` after each token; None where there is no such pass: the caller then steps.

        Where `restarted_TB` is true, the second row of a pair takes the first row's state before it reads; rows 2p and
        2p + 1 are pair p, and a sentence may have several. The first step has no restart: both rows of a pair start
        from the same state.
        """


@runtime_checkable
class Shortcuts(Protocol):
    """Optional, for the search: the same results in less time. The search calls these without gradient."""

    def step_from(
        self, state: State, rows_X: Int[Tensor, " X"], tokens_X: Int[Tensor, " X"], places: Places | None
    ) -> State | None:
        """`step(state.select(rows_X), tokens_X)` without the copy.

        With `places` X are some rows of the next state, more of one sentence than of another. None where this cannot be
        done: the caller then selects and steps all rows.
        """

    def scorer_of(self, candidates_GC: Int[Tensor, "G C"] | None) -> Scorer:
        """Scorer prepared for all steps of a search: of these candidates, or of the whole vocabulary."""


@runtime_checkable
class Attends(Protocol):
    """Optional, for pictures: where a model looks. Neither search nor training calls it."""

    def attention(self, batch: Batch, read_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T S"]:
        """Weights over the source at the step that reads each of these tokens; the first of a row is `bos`.

        They add up to 1, or to less where a model looks at its own tokens too.
        """


class Network(Model, Protocol):
    """A model that recipes build and run folders keep: a `torch.nn.Module` that can also be started from a seed.

    `dropout` is that of training; a stage may set another. A network of transformers has its own and ignores it.
    """

    dropout: float

    def initialise(self, *, bound: float | None, generator: torch.Generator) -> None:
        """Draw every weight uniformly from [-bound, bound], or, with None, as is usual for its layer."""

    def set_embeddings(self, *, source: Mapping[int, Tensor], target: Mapping[int, Tensor]) -> None:
        """Start the word vectors listed from given ones; the others stay as drawn."""

    def modules_by_rate(self) -> dict[str, list[nn.Parameter]]:
        """The parameters by the learning rate they take: encoder, decoder, output. A part may be empty."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def named_parameters(self, *, remove_duplicate: bool) -> Iterator[tuple[str, nn.Parameter]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def to(self, device: torch.device) -> Any: ...
