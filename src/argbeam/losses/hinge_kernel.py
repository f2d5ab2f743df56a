"""BSO's loss on a GPU, from the replayed scores: the loss of each sentence, its slopes and its counts in one launch."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from argbeam.runtime.device import power_of_two
from argbeam.search.result import Violations

# What the kernel sums, in its order: of sentences, of tokens, and of tokens by tenths of the sentence.
_OF_SENTENCES = ("loss", "sentences", "segment_words", "gold_on_beam")
_OF_TOKENS = ("words", "violations", "rival_is_gold", "rival_ended", "replay_differs")
_BY_TENTH = ("words_by_tenth", "violations_by_tenth")
_SINGLE = len(_OF_SENTENCES) + len(_OF_TOKENS)
_LONGEST = 512


def fits(steps: int) -> bool:
    """Whether the kernel takes sentences of so many tokens: it holds a whole one, and compiles for long with more."""
    return steps <= _LONGEST


def hinge(
    scores_TB2: Tensor,
    found: Violations,
    length_B: Tensor,
    *,
    adds_up: bool,
    margin: float,
    margin_per_token: float,
    scale: float,
    rounding: float,
    deciles: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, with gradient, and its sums for the records. Replayed scores are of gold and rival side by side."""
    settings = (adds_up, deciles, margin, margin_per_token, scale, rounding)
    total, sums_C = _Hinge.apply(scores_TB2, found, length_B, settings)
    single = dict(zip((*_OF_SENTENCES, *_OF_TOKENS), sums_C[:_SINGLE].unbind(), strict=True))
    return total, single | dict(zip(_BY_TENTH, sums_C[_SINGLE:].split(deciles), strict=True))


class _Hinge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores_TB2: Tensor, found: Violations, length_B: Tensor, settings: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor]:
        scores_TB2 = scores_TB2.contiguous()
        steps, batch, _ = scores_TB2.shape
        adds_up, deciles, *numbers = settings
        columns = _SINGLE + deciles * len(_BY_TENTH)
        slope_TB2, sums_BC = torch.empty_like(scores_TB2), scores_TB2.new_empty(batch, columns)
        masks = (found.violation_BT, found.rival_is_gold_BT, found.rival_ended_BT)
        _hinge[(batch,)](
            scores_TB2, *(mask_BT.T.contiguous().view(torch.uint8) for mask_BT in masks),
            found.gold_score_BT.T.contiguous(), found.rival_score_BT.T.contiguous(),
            found.gold_on_beam_B.view(torch.uint8), length_B, slope_TB2, sums_BC, steps, batch, *numbers,
            SUMS=adds_up, T=power_of_two(steps, 2), DECILES=deciles, DP=power_of_two(deciles, 2),
            SINGLE=_SINGLE, ALL=columns, num_warps=1 if steps <= 128 else 4,
        )  # fmt: skip
        ctx.save_for_backward(slope_TB2)
        sums_C = sums_BC.sum(0)
        ctx.mark_non_differentiable(sums_C)
        return sums_C[0].clone(), sums_C

    @staticmethod
    def backward(ctx: Any, total: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (slope_TB2,) = ctx.saved_tensors
        return slope_TB2 * total, None, None, None


@triton.jit
def _since_start(value, starts, next_value, next_starts):
    """Two stretches put together: sums begin again where a segment starts."""
    return tl.where(next_starts != 0, next_value, value + next_value), starts | next_starts


@triton.jit(do_not_specialize=["steps", "batch"])
def _hinge(
    scores, violation, rival_is_gold, rival_ended, gold_before, rival_before, on_beam, length, slope, sums,
    steps, batch, margin, margin_per_token, scale, rounding,
    SUMS: tl.constexpr, T: tl.constexpr, DECILES: tl.constexpr, DP: tl.constexpr, SINGLE: tl.constexpr,
    ALL: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    t = tl.arange(0, T)
    inside = t < steps
    at = t * batch + b
    words = tl.load(length + b).to(tl.int32)
    real = t < words
    violates = tl.load(violation + at, mask=inside, other=0) != 0
    same = tl.load(rival_is_gold + at, mask=inside, other=0) != 0
    behind = tl.load(scores + 2 * at + 1, mask=inside, other=0.0) - tl.load(scores + 2 * at, mask=inside, other=0.0)
    broken = (behind != behind) & real
    grown = tl.zeros((T,), tl.float32)
    if SUMS:
        starts = tl.load(violation + at - batch, mask=inside & (t > 0), other=0).to(tl.int32)
        behind, _ = tl.associative_scan((behind, starts), 0, _since_start)
        tokens, _ = tl.associative_scan((grown + 1.0, starts), 0, _since_start)
        grown = margin_per_token * tokens

    # Slopes, from the last token to the first: each token counts for the violation that ends its segment.
    back = (steps - 1 - t) * batch + b
    ends = tl.load(violation + back, mask=inside, other=0).to(tl.int32)
    # A rival that is gold itself costs the margin and teaches nothing.
    teaches = tl.where((ends != 0) & (tl.load(rival_is_gold + back, mask=inside, other=0) == 0), scale, 0.0)
    if SUMS:
        teaches, _ = tl.associative_scan((teaches, ends), 0, _since_start)
    tl.store(slope + 2 * back, -teaches, mask=inside)
    tl.store(slope + 2 * back + 1, teaches, mask=inside)

    gold = tl.load(gold_before + at, mask=inside, other=0.0)
    rival = tl.load(rival_before + at, mask=inside, other=0.0)
    far = tl.abs(rival - gold - (behind + grown)) > rounding * (1 + tl.abs(gold) + tl.abs(rival))
    loss = tl.where(violates, margin + grown + tl.where(same, 0.0, behind), 0.0)
    row = sums + b * ALL
    tl.store(row, scale * tl.sum(tl.where(broken, float("nan"), loss), 0))
    tl.store(row + 1, tl.where(words > 0, 1.0, 0.0))
    tl.store(row + 2, tl.max(tl.where(violates, t + 1, 0), 0).to(tl.float32))
    tl.store(row + 3, tl.where((words > 0) & (tl.load(on_beam + b) != 0), 1.0, 0.0))
    tl.store(row + 4, tl.sum(real.to(tl.float32), 0))
    tl.store(row + 5, tl.sum(violates.to(tl.float32), 0))
    tl.store(row + 6, tl.sum(same.to(tl.float32), 0))
    tl.store(row + 7, tl.sum((tl.load(rival_ended + at, mask=inside, other=0) != 0).to(tl.float32), 0))
    tl.store(row + 8, tl.sum((far & violates & ~same).to(tl.float32), 0))
    tenth = tl.minimum(DECILES * t // tl.maximum(words, 1), DECILES - 1)
    d = tl.arange(0, DP)
    hot = tenth[:, None] == d[None, :]
    row += SINGLE
    tl.store(row + d, tl.sum((hot & real[:, None]).to(tl.float32), 0), mask=d < DECILES)
    tl.store(row + DECILES + d, tl.sum((hot & violates[:, None]).to(tl.float32), 0), mask=d < DECILES)
