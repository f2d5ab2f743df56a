"""Tokens that a model writes itself in training: drawn from its own distribution, by given noise."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.data.vocabulary import STANDARD, SpecialTokens
from argbeam.errors import ArgbeamError
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.score_rules import NEVER
from argbeam.search.successors import Choices, check_width

# Sites of random numbers, apart from those of the models: which token, and whether to read it.
TOKEN_SITE, READ_SITE = 0x5A0001, 0x5A0002

Pick = Callable[[Float[Tensor, "B V"], int], Int[Tensor, " B"]]
"""One token of each row, chosen by the scores of all tokens at step t: `pick(scores_BV, t)`."""


@dataclass(frozen=True)
class Outputs:
    """R outputs per sentence, padding behind their end, and their lengths; one of length 0 is none."""

    tokens_BRT: Int[Tensor, "B R T"]
    length_BR: Int[Tensor, "B R"]


@torch.no_grad()
def write(
    model: Model,
    state: State,
    given_BT: Int[Tensor, "B T"],
    own_BT: Bool[Tensor, "B T"],
    pick: Pick,
    specials: SpecialTokens = STANDARD,
) -> Int[Tensor, "B T"]:
    """Sentences with the model's own tokens where `own_BT` is true, and given tokens elsewhere.

    A choice sees all tokens before it, its own ones included. The caller reads them again with gradient.
    """
    columns = []
    token_B = torch.full_like(given_BT[:, 0], specials.bos)
    for t in range(given_BT.shape[1]):
        state = model.step(state, token_B)
        chosen_B = pick(model.scores(model.output(state)[:, None])[:, 0], t)
        token_B = torch.where(own_BT[:, t], chosen_B, given_BT[:, t])
        columns.append(token_B)
    return torch.stack(columns, 1)


def drawn_tokens(allowed_1V: Bool[Tensor, "1 V"], noise: Noise, *, steps: int) -> Pick:
    """Draw each token from the distribution over those allowed."""
    uniform_BT = noise.uniform(TOKEN_SITE, steps=steps, width=1)[..., 0]
    return lambda scores_BV, t: draw(scores_BV, allowed_1V, uniform_BT[:, t])


def best_tokens(allowed_1V: Bool[Tensor, "1 V"]) -> Pick:
    """Take the best token of those allowed."""
    return lambda scores_BV, t: _masked(scores_BV, allowed_1V).argmax(-1)


@torch.no_grad()
def sample(
    model: Model,
    state: State,
    choices: Choices,
    noise: Noise,
    *,
    rows: int,
    length_B: Int[Tensor, " B"],
    steps: int,
    specials: SpecialTokens = STANDARD,
) -> Outputs:
    """Draw `rows` sequences per sentence, token by token from the model's distribution over valid successors.

    They end in an end symbol, at the length limit, or before a prefix without any valid successor. Two rows of a
    sentence may be equal.
    """
    state = state.select(torch.arange(len(length_B) * rows, device=length_B.device) // rows)

    def scores(token_BR: Tensor, candidates_BC: Tensor | None) -> Tensor:
        nonlocal state
        state = model.step(state, token_BR.flatten())
        return model.scores(model.output(state).view(*token_BR.shape, -1), candidates_BC)

    return _walks(scores, choices, noise, rows=rows, length_B=length_B, steps=steps, specials=specials)


@torch.no_grad()
def random_walks(
    choices: Choices,
    noise: Noise,
    *,
    rows: int,
    length_B: Int[Tensor, " B"],
    steps: int,
    specials: SpecialTokens = STANDARD,
) -> Outputs:
    """`sample` without a model: all valid successors are as likely."""
    start, zero = choices.allowed(), torch.zeros((), device=length_B.device)
    scores_BRC = zero.expand(len(length_B), rows, start.shape[1])
    return _walks(
        lambda token_BR, _: scores_BRC, choices, noise, rows=rows, length_B=length_B, steps=steps, specials=specials
    )


def _walks(
    scores: Callable[[Int[Tensor, "B R"], Int[Tensor, "B C"] | None], Tensor],
    choices: Choices,
    noise: Noise,
    *,
    rows: int,
    length_B: Int[Tensor, " B"],
    steps: int,
    specials: SpecialTokens,
) -> Outputs:
    """Sequences drawn token by token; `scores` gives those of the next tokens after the newest ones."""
    batch = length_B.shape[0]
    rows_N = torch.arange(batch * rows, device=length_B.device) // rows
    uniform_BTR = noise.uniform(TOKEN_SITE, steps=steps, width=rows)
    choices = choices.select(rows_N)
    token_BR = torch.full_like(rows_N, specials.bos).view(batch, rows)
    over_BR = torch.zeros_like(token_BR, dtype=torch.bool)
    columns, length_BR = [], torch.zeros_like(token_BR)
    for t in range(steps):
        allowed_XC = choices.allowed()  # one row, where it holds for all
        allowed_BRC = allowed_XC.view(-1, rows if len(allowed_XC) > 1 else 1, allowed_XC.shape[1])
        column_BR = draw(scores(token_BR, choices.candidates_BC), allowed_BRC, uniform_BTR[:, t])
        token_BR = column_BR if choices.candidates_BC is None else choices.candidates_BC.gather(1, column_BR)
        over_BR = over_BR | (t >= length_B[:, None]) | ~allowed_BRC.any(-1)
        token_BR = token_BR.masked_fill(over_BR, specials.pad)
        length_BR = length_BR + ~over_BR
        over_BR = over_BR | specials.ended(token_BR)
        columns.append(token_BR)
        choices = choices.advance(token_BR.flatten())
    return Outputs(torch.stack(columns, 2), length_BR)


def draw(
    scores_XC: Float[Tensor, "*X C"], allowed_XC: Bool[Tensor, "..."], uniform_X: Float[Tensor, "*X"]
) -> Int[Tensor, "*X"]:
    """A column of each row, with its probability under the softmax over the allowed ones.

    It is the first at which the sum of probabilities from the left exceeds the number between 0 and 1: with
    [0.2, 0.5, 0.3], 0.1 gives column 0, 0.2 gives 1 and 0.9 gives 2. The sums are in float64, where a number below 1
    times the last sum stays below it; a column of probability zero is never the first.
    """
    probability_XC = _masked(scores_XC, allowed_XC).softmax(-1)
    sums_XC = probability_XC.cumsum(-1, dtype=torch.float64)
    return (sums_XC <= uniform_X[..., None] * sums_XC[..., -1:]).sum(-1)


def _masked(scores_XC: Float[Tensor, "*X C"], allowed_XC: Bool[Tensor, "..."]) -> Float[Tensor, "*X C"]:
    """The scores of what is allowed. Successors of another vocabulary are an error."""
    check_width(scores_XC.shape[-1], allowed_XC.shape[-1])
    return scores_XC.masked_fill(~allowed_XC, NEVER)


def until_end(
    tokens_BT: Int[Tensor, "B T"], limit_B: Int[Tensor, " B"], specials: SpecialTokens = STANDARD
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """The tokens up to the first end symbol or the limit, padding behind them, and a mask of them."""
    ends_BT = specials.ended(tokens_BT).long()
    ended_before_BT = (ends_BT.cumsum(1) - ends_BT) > 0
    position_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    real_BT = ~ended_before_BT & (position_T < limit_B[:, None])
    return tokens_BT.masked_fill(~real_BT, specials.pad), real_BT


def with_room(batch: Batch, extra: int) -> tuple[Batch, Int[Tensor, " B"]]:
    """The batch with more columns of padding, for outputs longer than gold, and the limit of each output.

    The limit follows from the sentence's own gold length, so that neither neighbours nor padding change an output.
    """
    limit_B = torch.where(batch.target_length_B > 0, batch.target_length_B + extra, 0)
    return replace(batch, target_BT=F.pad(batch.target_BT, (0, extra), value=batch.specials.pad)), limit_B


def needed(noise: Noise | None, loss: str) -> Noise:
    """The noise; an error without it."""
    if noise is None:
        raise ArgbeamError(
            f"{loss} draws tokens: call it with a Noise, as in Noise(seed, torch.tensor(update), batch.sentence_B), "
            "also where the model has no dropout"
        )
    return noise
