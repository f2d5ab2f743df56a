"""A step of the training search on a GPU, in one kernel."""

from typing import TypeGuard

from torch import Tensor

from argbeam.runtime import device as devices
from argbeam.search.gold import GoldToken, Verdict, kept_with_gold
from argbeam.search.result import Beam, SearchStep, StepMemory
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreSum
from argbeam.search.top_k import AllScores, TokenScores

if devices.TRITON_INSTALLED:
    from argbeam.search import fused_step_kernel


def kernel_fits(scores: TokenScores, beam_size: int, gold: GoldToken) -> TypeGuard[AllScores]:
    """Whether the kernel can take a training step."""
    return (
        isinstance(scores, AllScores)
        and isinstance(scores.rule, LastScore | ScoreSum | LogprobSum)
        and devices.kernels_usable(scores.given_BRC)
        and fused_step_kernel.fits(beam_size, scores.columns, kept_with_gold(beam_size))
        and len(gold.ends) <= fused_step_kernel.MOST_ENDS
    )


def kernel_step(
    beam: Beam, scores: AllScores, allowed_NC: Tensor, gold: GoldToken, memory: StepMemory, t: int
) -> tuple[SearchStep, Verdict]:
    """`gold.gold_step` in one kernel, for step t; what it leaves lies in `memory`."""
    return fused_step_kernel.search_step(
        beam,
        scores.given_BRC,
        scores.candidates_BRC,
        allowed_NC,
        gold,
        memory,
        t,
        sums=scores.rule.adds_up,
        normalise=scores.raw,
    )
