"""Given tokens scored again, with gradient: the gold history, gold and rival side by side, or any sequences."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from argbeam.data.vocabulary import STANDARD, SpecialTokens
from argbeam.models.contract import Model, Unrolls
from argbeam.models.state import State
from argbeam.runtime import device as devices

if devices.TRITON_INSTALLED:
    from argbeam.losses import replay_kernel

# Rows that are normalised over the vocabulary at once: 64 pairs of gold and rival with 32 tokens each.
_PART = 4096


@dataclass(frozen=True)
class Replayed:
    """Scores of the gold tokens and of the rivals' tokens, side by side."""

    score_TB2: Float[Tensor, "T B 2"]

    @property
    def gold_score_BT(self) -> Float[Tensor, "B T"]:
        return self.score_TB2[..., 0].T

    @property
    def rival_score_BT(self) -> Float[Tensor, "B T"]:
        return self.score_TB2[..., 1].T


def gold_outputs(
    model: Model, state: State, gold_BT: Int[Tensor, "B T"], specials: SpecialTokens = STANDARD
) -> Float[Tensor, "B T H"]:
    """Input of the output layer before each gold token, after the gold tokens before it."""
    return unroll(model, state, shifted(gold_BT, specials.bos).T).transpose(0, 1)


def unroll(
    model: Model, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None = None
) -> Float[Tensor, "T N H"]:
    """Input of the output layer after each of these tokens: step by step, or in one pass of the model's own.

    Where `restarted_TB` is true, the second row of a pair takes the first row's state before it reads.
    """
    at_once = model.unroll(state, read_TN, restarted_TB) if isinstance(model, Unrolls) else None
    if at_once is not None:
        return at_once
    row_N = torch.arange(read_TN.shape[1], device=read_TN.device)
    outputs = []
    for t, read_N in enumerate(read_TN):
        if restarted_TB is not None and t > 0:
            # After a restart the rival's row is taken from the row before it, which is gold's.
            state = state.select(row_N - restarted_TB[t].repeat_interleave(2) * (row_N % 2))
        state = model.step(state, read_N)
        outputs.append(model.output(state))
    return torch.stack(outputs)


def token_logprobs(
    model: Model, state: State, tokens_BRT: Int[Tensor, "B R T"], specials: SpecialTokens = STANDARD
) -> Float[Tensor, "B R T"]:
    """Log-probability of every token of R sequences per sentence, normalised over the whole vocabulary."""
    tokens_NT = tokens_BRT.flatten(0, 1)
    output_XH = gold_outputs(model, state.repeated(tokens_BRT.shape[1]), tokens_NT, specials).flatten(0, 1)
    return _logprobs(model, output_XH, tokens_NT.flatten()).view_as(tokens_BRT)


def replay(
    model: Model,
    state: State,
    gold_BT: Int[Tensor, "B T"],
    rival_BT: Int[Tensor, "B T"],
    restart_BT: Bool[Tensor, "B T"],
    *,
    normalised: bool = False,
    specials: SpecialTokens = STANDARD,
) -> Replayed:
    """Step a gold lane and a rival lane together; after a restart the rival's state is the gold lane's.

    Scores are raw, or, if `normalised`, log-probabilities over the whole vocabulary.

    Autograd then does the merge of Algorithm 1 (Wiseman & Rush 2016) by itself: the gradient of a rival's segment joins
    the gold lane's where the segment began, and the graph holds 2T steps whatever the beam. Restart column t means that
    both lanes have read gold's token t when they score the tokens of column t + 1.
    """
    use_kernel = devices.kernels_usable(gold_BT, rival_BT)
    read_TB2, restarted_TB, tokens_TB2 = (replay_kernel.lanes if use_kernel else lanes)(
        gold_BT, rival_BT, restart_BT, specials.bos
    )
    outputs_TNH = unroll(model, state.repeated(2), read_TB2.flatten(1), restarted_TB)
    output_XH, tokens_X = outputs_TNH.flatten(0, 1), tokens_TB2.flatten()
    if normalised:
        scores_X = _logprobs(model, output_XH, tokens_X)
    else:
        # Two tokens are scored at each step: one look-up of their rows of the output layer serves all steps.
        scores_X = model.scores(output_XH[:, None], tokens_X[:, None])
    return Replayed(scores_X.view_as(tokens_TB2))


def lanes(
    gold_BT: Int[Tensor, "B T"], rival_BT: Int[Tensor, "B T"], restart_BT: Bool[Tensor, "B T"], bos: int
) -> tuple[Int[Tensor, "T B 2"], Bool[Tensor, "T B"], Int[Tensor, "T B 2"]]:
    """What gold's lane and the rival's read at each step, whether the rival's restarts before, and what they score."""
    read_gold_BT = shifted(gold_BT, bos)
    restarted_BT = shifted(restart_BT.long(), 0).bool()
    read_rival_BT = torch.where(restarted_BT, read_gold_BT, shifted(rival_BT, bos))
    read_BT2, tokens_BT2 = torch.stack([read_gold_BT, read_rival_BT], 2), torch.stack([gold_BT, rival_BT], 2)
    return read_BT2.transpose(0, 1), restarted_BT.T, tokens_BT2.transpose(0, 1)


def replay_each(
    model: Model, state: State, tokens_BRT: Int[Tensor, "B R T"], specials: SpecialTokens = STANDARD
) -> Float[Tensor, "B R T"]:
    """Score of every token of R sequences per sentence, each after its own tokens before it."""
    batch, sequences, steps = tokens_BRT.shape
    tokens_NT = tokens_BRT.flatten(0, 1)
    output_XH = gold_outputs(model, state.repeated(sequences), tokens_NT, specials).flatten(0, 1)
    return model.scores(output_XH[:, None], tokens_NT.flatten()[:, None]).view(batch, sequences, steps)


def since_restart(score_BT: Float[Tensor, "B T"], restart_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Sums over the columns after the last restart before each column, that column included.

    Scores [1, 2, 3, 4] with a restart at the second column have the sums [1, 3, 3, 7].
    """
    sum_BX = F.pad(score_BT.cumsum(1), (1, 0))
    return sum_BX[:, 1:] - sum_BX.gather(1, segment_begins(restart_BT))


def segment_begins(restart_BT: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The first column of each column's segment: behind the last restart among the columns before it."""
    next_T = torch.arange(1, restart_BT.shape[1] + 1, device=restart_BT.device)
    return shifted(restart_BT * next_T, 0).cummax(1).values


def in_parts(of_rows: Callable[..., Tensor], *rows: Shaped[Tensor, "X ..."]) -> Float[Tensor, "X ..."]:
    """`of_rows(*rows)`, which scores the whole vocabulary in each row; the first are the inputs of the output layer.

    Many rows are taken in parts, whose scores are computed again for the gradient: no more than one part is held.
    """
    if len(rows[0]) <= _PART:
        return of_rows(*rows)
    # Nothing is drawn in the output layer, and the generator of a GPU cannot be asked during a capture.
    once = partial(checkpoint, of_rows, use_reentrant=False, preserve_rng_state=False)
    parts = zip(*(torch.split(one_X, _PART) for one_X in rows), strict=True)
    return torch.cat([once(*part) for part in parts])


def _logprobs(model: Model, output_XH: Float[Tensor, "X H"], token_X: Int[Tensor, " X"]) -> Float[Tensor, " X"]:
    """Log-probability of one token in each row, over the whole vocabulary."""

    def of_rows(output_XH: Tensor, token_X: Tensor) -> Tensor:
        return -F.cross_entropy(model.scores(output_XH[None])[0], token_X, reduction="none")

    return in_parts(of_rows, output_XH, token_X)


def shifted(x_BT: Tensor, first: int) -> Tensor:
    """Every column moved to the next one; `first` before the first."""
    return torch.cat([torch.full_like(x_BT[:, :1], first), x_BT[:, :-1]], 1)
