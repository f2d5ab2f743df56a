"""Where a search leaves the plain path: a training step as one kernel, and what models and choices do at once."""

from typing import TypeGuard

from torch import Tensor

from argbeam.models.contract import Model, Shortcuts
from argbeam.models.state import State
from argbeam.runtime import triton_guard as kernels
from argbeam.search.gold import GoldStep
from argbeam.search.live_rows import Live
from argbeam.search.result import Beam, Found, Verdict
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreSum
from argbeam.search.successors import AdvancesFrom, Choices
from argbeam.search.top_k import AllWords, LiveWords

if kernels.INSTALLED:
    from argbeam.search import fused_step_kernel as search_step


def kernel_fits(words: AllWords | LiveWords, beam_size: int, kept: int) -> TypeGuard[AllWords]:
    """Whether a training step can be the kernel that does as `search.gold_step` does."""
    return (
        isinstance(words, AllWords)
        and isinstance(words.rule, LastScore | ScoreSum | LogprobSum)
        and kernels.usable(words.words_BRC)
        and search_step.fits(beam_size, words.words_BRC.shape[2], kept)
    )


def kernel_step(
    beam: Beam, words: AllWords, allowed_NC: Tensor, gold: GoldStep, *, kept: int
) -> tuple[Found, Verdict, Beam, Tensor, Tensor]:
    """`search.gold_step` in one kernel."""
    batch, lanes, _ = words.words_BRC.shape
    out = search_step.search_step(
        words.words_BRC,
        allowed_NC,
        words.candidates_BC,
        beam.total_BK,
        beam.is_gold_BK,
        gold.word_B,
        gold.total_B,
        gold.active_B,
        gold.best_wrong_B,
        kept=kept,
        margin=gold.policy.margin,
        sums=words.rule.adds_up,
        restarts=gold.policy.restarts,
        ended_gives_up_place=gold.ended_gives_up_place,
    )
    found = Found(out.parents_BJ, out.tokens_BJ, out.ranks_BJ)
    verdict = Verdict(
        out.violation_B, out.rival_B, out.rival_rank_B, out.rival_ended_B, out.is_gold_BJ, out.gold_rank_B
    )
    rows_BR, tokens_BR = out.next_rows_N.view(batch, lanes), out.next_tokens_N.view(batch, lanes)
    # Rows of the batch stand where parents would: nothing reads them after a step.
    beam = Beam(rows_BR[:, :-1], tokens_BR[:, :-1], out.next_total_BK, out.next_is_gold_BK)
    return found, verdict, beam, out.next_rows_N, out.next_tokens_N


def step_from(model: Model, state: State, rows_N: Tensor, tokens_N: Tensor, live: Live | None) -> State:
    """The states after the next word of each hypothesis, which goes on from one of the rows. Only live ones count."""
    stepped = None
    if isinstance(model, Shortcuts) and live is not None:
        place_X = live.places.place_X
        some = model.step_from(state, rows_N[place_X], tokens_N[place_X], live.places)
        stepped = None if some is None else some.select(live.row_BR.flatten())
    elif isinstance(model, Shortcuts):
        stepped = model.step_from(state, rows_N, tokens_N, None)
    return model.step(state.select(rows_N), tokens_N) if stepped is None else stepped


def advanced(choices: Choices, rows_N: Tensor, tokens_N: Tensor) -> Choices:
    if isinstance(choices, AdvancesFrom):
        return choices.advance_from(rows_N, tokens_N)
    return choices.select(rows_N).advance(tokens_N)
