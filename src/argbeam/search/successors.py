"""Valid successors of a prefix (`succ` of Wiseman & Rush 2016, section 4.2, "constraints").

`Successors.start(batch)` gives the `Choices` of the empty prefixes, one row per sentence. `Choices` are tensors:
`allowed` is a mask over the candidates, `advance` and `select` return new choices. No Python runs per hypothesis.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.data.vocabulary import one_of
from argbeam.errors import ConfigError, DataError
from argbeam.runtime import device as devices

if devices.TRITON_INSTALLED:
    from argbeam.search.permutation_kernel import tokens_left


class Choices(Protocol):
    """The valid successors of N prefixes, N = B * R, sentence-major."""

    @property
    def candidates_BC(self) -> Int[Tensor, "B C"] | None:
        """The few tokens that can occur in a sentence at all; None for the whole vocabulary."""

    def allowed(self) -> Bool[Tensor, "N C"] | Bool[Tensor, "1 C"]:
        """A mask over the candidates, or over the vocabulary without candidates; 1 row if all rows agree."""

    def advance(self, tokens_N: Int[Tensor, " N"]) -> "Choices":
        """The choices after one more token per row."""

    def select(self, rows_N: Int[Tensor, " N"]) -> "Choices":
        """The rows listed, in that order."""


@runtime_checkable
class AdvancesFrom(Protocol):
    """Optional: choices that move and advance at once, faster than one after the other."""

    def advance_from(self, rows_N: Int[Tensor, " N"], tokens_N: Int[Tensor, " N"]) -> Choices:
        """`select(rows_N).advance(tokens_N)`."""


# More tokens than any output has.
NO_END = torch.iinfo(torch.int16).max


@runtime_checkable
class KnowsEnd(Protocol):
    """Optional: choices without candidates that know the shortest way to the end of an output.

    Decoding then takes no token from which an output could not end within its length limit.
    """

    def to_end(self) -> Int[Tensor, "N V"] | Int[Tensor, "1 V"] | None:
        """The fewest tokens to an end, the end symbol and each token itself included; None where they are not known.

        `NO_END` where a token is not valid.
        """


@dataclass(frozen=True)
class Listed:
    """Tokens of each prefix, and which of them are there: lists of different lengths have any token behind them.

    `to_end` gives the fewest tokens to an end, as in `KnowsEnd`.
    """

    tokens_NW: Int[Tensor, "N W"]
    real_NW: Bool[Tensor, "N W"]
    to_end: Callable[[], Int[Tensor, "N W"]] | None = None


@runtime_checkable
class ListsSuccessors(Choices, Protocol):
    """Optional: choices without candidates that list the few successors of each prefix, instead of a mask."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens that `allowed` is a mask over."""

    def listed(self) -> "Listed | None":
        """The valid successors of each prefix; None at a step where the mask is cheaper."""

    def select(self, rows_N: Int[Tensor, " N"]) -> "ListsSuccessors":
        """The rows listed, in that order."""


class Successors(Protocol):
    """The tokens that may follow a prefix."""

    def start(self, batch: Batch) -> Choices:
        """The choices of the empty prefixes of a batch, one row per sentence."""


def allowed_tokens(choices: Choices, vocabulary: int) -> Bool[Tensor, "N V"] | Bool[Tensor, "1 V"]:
    """The mask `allowed` over the whole vocabulary, whether the choices list candidates or not."""
    allowed_NC, candidates_BC = choices.allowed(), choices.candidates_BC
    if candidates_BC is None:
        check_width(vocabulary, allowed_NC.shape[1])
        return allowed_NC
    candidates_NC = candidates_BC.repeat_interleave(len(allowed_NC) // len(candidates_BC), 0)
    # A token may be listed more than once, and be allowed at one of its places only.
    count_NV = torch.zeros(len(allowed_NC), vocabulary, dtype=torch.int32, device=allowed_NC.device)
    return count_NV.scatter_add_(1, candidates_NC, allowed_NC.to(torch.int32)) > 0


def ending_within(to_end_NC: Int[Tensor, "#N C"], left_N: Int[Tensor, " N"]) -> Bool[Tensor, "N C"]:
    """The valid successors from which an output can end within the steps left; all valid ones where none can."""
    left_N1 = left_N.clamp(max=NO_END - 1).to(to_end_NC.dtype)[:, None]
    shortest_N1 = to_end_NC.amin(1, keepdim=True)
    return to_end_NC <= torch.where(shortest_N1 <= left_N1, left_N1, NO_END - 1)


def check_gold(successors: Successors, batch: Batch, *, open_length: bool = False) -> None:
    """Raise a DataError if a gold sequence of the batch is not valid: training would aim at what the search forbids.

    With `open_length`, gold must also end in the end symbol. It reads the device.
    """
    if open_length:
        last_B = batch.target_BT.gather(1, (batch.target_length_B - 1).clamp(min=0)[:, None])[:, 0]
        endless_B = ~batch.specials.ended(last_B) & (batch.target_length_B > 0)
        if bool(endless_B.any()):
            sentence, ids = int(batch.sentence_B[endless_B][0]), " or ".join(map(str, batch.specials.ends))
            raise DataError(
                f"sentence {sentence}: gold without the end symbol (id {ids}) at its end; open length needs it"
            )
    for t, (choices, token_B) in enumerate(along_gold(successors, batch)):
        valid_B = gold_is_valid(choices, token_B) | (t >= batch.target_length_B)
        if not bool(valid_B.all()):
            row = int((~valid_B).nonzero()[0, 0])
            raise DataError(
                f"sentence {int(batch.sentence_B[row])}: gold token {t + 1} (id {int(token_B[row])}) is not a valid "
                "successor of the tokens before it; the constraint must allow every gold sequence"
            )


def check_gold_on_host(successors: Successors, batch: Batch, *, open_length: bool | None = None) -> None:
    """`check_gold` for losses: on a CPU alone, since a training step on CUDA cannot afford to read the device.

    Lengths are open, unless a loss says it, where the successors have the end symbol.
    """
    if devices.host_may_look(batch.target_BT):
        ends = getattr(successors, "end_symbol", False) if open_length is None else open_length
        check_gold(successors, batch, open_length=ends)


def along_gold(successors: Successors, batch: Batch) -> Iterator[tuple[Choices, Int[Tensor, " B"]]]:
    """At every step the choices of gold's prefixes, one row per sentence, and gold's tokens, valid or not."""
    choices = successors.start(batch)
    for token_B in batch.target_BT.unbind(1):
        yield choices, token_B
        choices = choices.advance(token_B)


def gold_is_valid(choices: Choices, token_B: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Whether each token is among the choices of its row. A token that the choices do not know is not."""
    allowed_NC, columns_BC = choices.allowed(), choices.candidates_BC
    if columns_BC is not None:
        return (allowed_NC & (columns_BC == token_B[:, None])).any(1)
    columns, rows = allowed_NC.shape[1], len(token_B)
    return allowed_NC.expand(rows, -1).gather(1, token_B.clamp(max=columns - 1)[:, None])[:, 0] & (token_B < columns)


def check_width(scores: int, successors: int) -> None:
    """Raise a ConfigError if the model scores another number of tokens than the successors list."""
    if scores != successors:
        raise ConfigError(
            f"the successors list {successors:,} tokens, the model scores {scores:,}; "
            "successors are made for the size of the target vocabulary"
        )


def check_end_symbol(successors: "Successors | Choices", *, open_length: bool) -> None:
    """Raise a ConfigError if outputs of open length may not contain the end symbol: none of them could end."""
    if open_length and not getattr(successors, "end_symbol", True):
        raise ConfigError(
            "successors without the end symbol, in a search of open length: no output could end; "
            "accepted: end_symbol=True, or a fixed length (open_length=False for a loss, stop=None for beam_search)"
        )


@dataclass(frozen=True)
class Unconstrained:
    """Every token but those that the vocabulary leaves unwritten; end symbols only in tasks of open length."""

    vocabulary: int
    end_symbol: bool

    def start(self, batch: Batch) -> "UnconstrainedChoices":
        token_V = torch.arange(self.vocabulary, device=batch.source_BS.device)
        ends = () if self.end_symbol else batch.specials.ends
        allowed_V = ~one_of(token_V, (*batch.specials.unwritten, *ends))
        return UnconstrainedChoices(allowed_V[None], self.end_symbol)


@dataclass(frozen=True)
class UnconstrainedChoices:
    allowed_1V: Bool[Tensor, "1 V"]
    end_symbol: bool = True
    candidates_BC = None

    def allowed(self) -> Bool[Tensor, "1 V"]:
        return self.allowed_1V

    def advance(self, tokens_N: Int[Tensor, " N"]) -> "UnconstrainedChoices":
        return self

    def select(self, rows_N: Int[Tensor, " N"]) -> "UnconstrainedChoices":
        return self


@dataclass(frozen=True)
class Permutation:
    """Word ordering: the source's tokens that are not used up yet.

    Candidates are the source positions; only the first position of a token carries its count, so that a repeated token
    is one candidate. Source `b a b` has candidates `b a b` with counts 2 1 0.
    """

    def start(self, batch: Batch) -> "PermutationChoices":
        source_BS = batch.source_BS
        position_S = torch.arange(source_BS.shape[1], device=source_BS.device)
        real_BS = position_S < batch.source_length_B[:, None]
        same_BSS = (source_BS[:, :, None] == source_BS[:, None, :]) & real_BS[:, None, :] & real_BS[:, :, None]
        repeated_BS = (same_BSS & (position_S[None, :] < position_S[:, None])).any(-1)
        count_BS = same_BSS.sum(-1) * ~repeated_BS
        return PermutationChoices(source_BS, count_BS.to(torch.int32))


@dataclass(frozen=True)
class PermutationChoices:
    candidates_BC: Int[Tensor, "B C"]
    left_NC: Int[Tensor, "N C"]

    def allowed(self) -> Bool[Tensor, "N C"]:
        return self.left_NC > 0

    def advance(self, tokens_N: Int[Tensor, " N"]) -> "PermutationChoices":
        sentences = self.candidates_BC.shape[0]
        used_BRC = self.candidates_BC[:, None] == tokens_N.view(sentences, -1, 1)
        return replace(self, left_NC=self.left_NC - used_BRC.flatten(0, 1).to(self.left_NC.dtype))

    def advance_from(self, rows_N: Int[Tensor, " N"], tokens_N: Int[Tensor, " N"]) -> "PermutationChoices":
        if devices.kernels_usable(self.left_NC):
            return replace(self, left_NC=tokens_left(self.left_NC, self.candidates_BC, rows_N, tokens_N))
        return self.select(rows_N).advance(tokens_N)

    def select(self, rows_N: Int[Tensor, " N"]) -> "PermutationChoices":
        return replace(self, left_NC=self.left_NC.index_select(0, rows_N))


@dataclass(frozen=True)
class ShiftReduce:
    """Parsing: the next source token if one is left, any reduce action if the stack holds two items or more.

    The actions are the last `actions` tokens of the vocabulary; every other token shifts. Candidates are the source
    positions followed by the actions.
    """

    vocabulary: int
    actions: int

    def start(self, batch: Batch) -> "ShiftReduceChoices":
        source_BS = batch.source_BS
        first = self.vocabulary - self.actions
        action_A = torch.arange(first, self.vocabulary, device=source_BS.device)
        zero_B = torch.zeros_like(batch.source_length_B)
        candidates_BC = torch.cat([source_BS, action_A.expand(source_BS.shape[0], -1)], 1)
        length_B, positions = batch.source_length_B, source_BS.shape[1]
        return ShiftReduceChoices(candidates_BC, length_B, positions, first, shifted_N=zero_B, stack_N=zero_B)


@dataclass(frozen=True)
class ShiftReduceChoices:
    candidates_BC: Int[Tensor, "B C"]
    length_B: Int[Tensor, " B"]
    positions: int
    first_action: int
    shifted_N: Int[Tensor, " N"]
    stack_N: Int[Tensor, " N"]

    def allowed(self) -> Bool[Tensor, "N C"]:
        rows = self.shifted_N.shape[0] // self.length_B.shape[0]
        column_C = torch.arange(self.candidates_BC.shape[1], device=self.shifted_N.device)
        action_1C = column_C[None] >= self.positions
        left_N1 = (self.shifted_N < self.length_B.repeat_interleave(rows))[:, None]
        shift_NC = (column_C == self.shifted_N[:, None]) & left_N1 & ~action_1C
        return shift_NC | (action_1C & (self.stack_N[:, None] >= 2))

    def advance(self, tokens_N: Int[Tensor, " N"]) -> "ShiftReduceChoices":
        shift_N = (tokens_N < self.first_action).to(self.stack_N.dtype)
        return replace(self, shifted_N=self.shifted_N + shift_N, stack_N=self.stack_N + 2 * shift_N - 1)

    def select(self, rows_N: Int[Tensor, " N"]) -> "ShiftReduceChoices":
        return replace(
            self, shifted_N=self.shifted_N.index_select(0, rows_N), stack_N=self.stack_N.index_select(0, rows_N)
        )
