"""One step of the training search, for all sentences at once: selection, verdict against gold, and the next beam.

The same as `gold.gold_step`, in one kernel with a program per sentence. Where rows of scores are long, another kernel
before it finds the maximum of every block of columns: the best tokens lie in the blocks with the highest maxima.
"""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from argbeam.runtime.device import power_of_two
from argbeam.search.gold import GoldToken, Verdict, kept_with_gold
from argbeam.search.result import Beam, SearchStep, StepMemory, TopSuccessors
from argbeam.search.top_k import BLOCK
from argbeam.search.top_k_kernel import block_maxima, by_column, log_of_sum

_BLOCK = tl.constexpr(BLOCK)

# What a program of the second kernel can hold: entries of its tile of scores or of maxima.
_TILE = 16384
# Places that a program fills; it is compiled place by place, which takes over a minute for 64 of them.
_PLACES = 32
# End symbols that a program compares with.
MOST_ENDS = 4
# Rows of up to this many columns are read whole.
_NARROW = 1024


def fits(beam_size: int, columns: int, kept: int) -> bool:
    """Whether a program's tiles hold a step of this size."""
    rows = power_of_two(beam_size)
    if kept > _PLACES:
        return False
    if columns <= _NARROW:
        return rows * power_of_two(columns, 16) <= _TILE
    return rows * power_of_two(-(-columns // BLOCK), 16) <= _TILE and power_of_two(kept) * BLOCK <= _TILE


def search_step(
    beam: Beam,
    scores_BRC: Tensor,
    candidates_BRC: Tensor | None,
    allowed_NC: Tensor,
    gold: GoldToken,
    memory: StepMemory,
    t: int,
    *,
    sums: bool,
    normalise: bool = False,
) -> tuple[SearchStep, Verdict]:
    """`gold.gold_step` for step t, whose results lie in `memory`.

    `scores_BRC` are those of the newest tokens, gold's lane last. `candidates_BRC` and `allowed_NC` have 1 row if all
    rows agree. `sums`: prefixes have the sums of their tokens' scores; `normalise`: of their log-probabilities over
    all columns.
    """
    batch, lanes, columns = scores_BRC.shape
    beam_size = lanes - 1
    kept = kept_with_gold(beam_size)
    scores_BRC, allowed_NC = by_column(scores_BRC), by_column(allowed_NC)
    candidates_BRC = None if candidates_BRC is None else by_column(candidates_BRC)
    rows, places = power_of_two(beam_size), power_of_two(kept)
    wide = columns > _NARROW
    blocks = -(-columns // BLOCK)
    masks = allowed_NC.view(torch.uint8)
    mask_stride = 0 if allowed_NC.shape[0] == 1 else allowed_NC.stride(0)
    maxima_BRN = normaliser_BRN = scores_BRC
    if wide:
        read = lanes if normalise else beam_size  # gold's lane is read for its normaliser alone
        allowed_BRC = allowed_NC.view(-1, 1 if allowed_NC.shape[0] == 1 else lanes, columns)[:, :read]
        maxima_BRN, normaliser_BRN = block_maxima(scores_BRC[:, :read], allowed_BRC, width=BLOCK, normalise=normalise)

    step, verdict = _to_fill(memory, t, batch, beam_size, like=scores_BRC)
    best, after = step.successors, step.beam
    tile = rows * power_of_two(blocks if wide else columns, 16)
    ends = (*gold.ends, *[-1] * (MOST_ENDS - len(gold.ends)))
    listed: Any = scores_BRC if candidates_BRC is None else candidates_BRC
    _step[(batch,)](
        scores_BRC, scores_BRC.stride(0), scores_BRC.stride(1), masks, mask_stride, maxima_BRN, normaliser_BRN,
        listed, listed.stride(0), listed.stride(1) if listed.shape[1] > 1 else 0,
        beam.score_BK.contiguous(), beam.is_gold_BK.contiguous().view(torch.uint8),
        gold.token_B, gold.token_B.stride(0), beam.gold_score_B, beam.gold_score_B.stride(0),
        gold.active_B.view(torch.uint8), gold.best_wrong_B.view(torch.uint8),
        best.tokens_BJ, best.parents_BJ, best.scores_BJ,
        verdict.violation_B.view(torch.uint8), verdict.rival_B, verdict.rival_score_B,
        verdict.rival_is_gold_B.view(torch.uint8), verdict.rival_ended_B.view(torch.uint8),
        verdict.gold_on_beam_B.view(torch.uint8), verdict.gold_score_B,
        step.rows_N, step.tokens_N, after.score_BK, after.is_gold_BK.view(torch.uint8),
        gold.policy.margin, gold.policy.margin_per_token, columns, blocks,
        K=beam_size, KP=rows, J=kept, JP=places,
        COLUMNS=power_of_two(columns, 16) if not wide else 16,
        LISTED=power_of_two(columns, 16) if candidates_BRC is not None else 16,
        BLOCKS=power_of_two(blocks, 16) if wide else 16,
        WIDE=wide, LIST=candidates_BRC is not None, SUMS=sums, RESTARTS=gold.policy.restarts,
        TOP=bool(gold.ends), END=ends[0], END_2=ends[1], END_3=ends[2], END_4=ends[3], NORMALISE=normalise,
        num_warps=8 if tile > 2048 else 4,
    )  # fmt: skip
    return step, verdict


def _to_fill(memory: StepMemory, t: int, batch: int, beam_size: int, *, like: Tensor) -> tuple[SearchStep, Verdict]:
    """Memory for what step t leaves."""
    kept, rows = kept_with_gold(beam_size), batch * (beam_size + 1)
    real, whole, flag = (partial(memory.row, t, like=like, dtype=dtype) for dtype in (None, torch.int64, torch.bool))
    best = TopSuccessors(
        parents_BJ=whole("parents", batch, kept),
        tokens_BJ=whole("tokens", batch, kept),
        scores_BJ=real("scores", batch, kept),
    )
    verdict = Verdict(
        violation_B=flag("violation", batch),
        rival_B=whole("rival", batch),
        rival_score_B=real("rival_score", batch),
        rival_is_gold_B=flag("rival_is_gold", batch),
        rival_ended_B=flag("rival_ended", batch),
        gold_on_beam_B=flag("gold_on_beam", batch),
        gold_score_B=real("gold_score", batch),
    )
    score_BK = like.new_empty(batch, beam_size)
    after = Beam(score_BK, torch.empty_like(score_BK, dtype=torch.bool), verdict.gold_score_B)
    rows_N = like.new_empty(rows, dtype=torch.int64)
    return SearchStep(best, after, rows_N, torch.empty_like(rows_N)), verdict


@triton.jit
def _step(
    scores, scores_b, scores_r, allowed, allowed_n, maxima, normaliser, candidates, candidates_b, candidates_r,
    parent_score, is_gold, gold, gold_b, gold_before, gold_before_b, active, best_wrong,
    tokens_out, parents_out, scores_out, violation_out, rival_out, rival_score_out, rival_is_gold_out, rival_ended_out,
    on_beam_out, gold_score_out, next_rows, next_tokens, next_score, next_is_gold,
    margin, margin_per_token, columns, blocks,
    K: tl.constexpr, KP: tl.constexpr, J: tl.constexpr, JP: tl.constexpr,
    COLUMNS: tl.constexpr, LISTED: tl.constexpr, BLOCKS: tl.constexpr,
    WIDE: tl.constexpr, LIST: tl.constexpr, SUMS: tl.constexpr, RESTARTS: tl.constexpr, TOP: tl.constexpr,
    END: tl.constexpr, END_2: tl.constexpr, END_3: tl.constexpr, END_4: tl.constexpr, NORMALISE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    never = -float("inf")
    k = tl.arange(0, KP)
    j = tl.arange(0, JP)
    parent_score_k = tl.load(parent_score + b * K + k, mask=k < K, other=never)
    scores += b * scores_b

    # The J best successors, best first: scores, parents' places, columns. The normaliser of a row is a constant of it:
    # a parent loses it instead of its tokens.
    if WIDE:
        n = tl.arange(0, BLOCKS)
        inside = (k < K)[:, None] & (n < blocks)[None, :]
        read_row = b * (K + 1 if NORMALISE else K) + k
        place = read_row[:, None] * blocks + n[None, :]
        if NORMALISE:
            row_normaliser = log_of_sum(tl.load(normaliser + place, mask=inside, other=never))
            parent_score_k -= tl.where(k < K, row_normaliser, 0.0)
        best = tl.load(maxima + place, mask=inside, other=never)
        value, row_j, block_j = _largest(_prefix_scores(best, parent_score_k, SUMS), J, JP, BLOCKS)
        column = block_j[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
        # Where fewer blocks than places hold anything, a block must not be read twice.
        real = (value > never)[:, None] & (column < columns)
        lane = (b * (K + 1) + row_j)[:, None] * allowed_n
        valid = tl.load(allowed + lane + column, mask=real, other=0) != 0
        near = tl.load(scores + row_j[:, None] * scores_r + column, mask=real & valid, other=never)
        near_parent_score = _at(parent_score_k, row_j, KP)
        score_j, slot_j, place_j = _largest(_prefix_scores(near, near_parent_score, SUMS), J, JP, _BLOCK)
        parent_j = _at(row_j, slot_j, JP)
        column_j = _at(block_j, slot_j, JP) * _BLOCK + place_j
    else:
        column = tl.arange(0, COLUMNS)
        real = (k < K)[:, None] & (column < columns)[None, :]
        lane = (b * (K + 1) + k)[:, None] * allowed_n
        valid = tl.load(allowed + lane + column[None, :], mask=real, other=0) != 0
        read = real if NORMALISE else real & valid
        value = tl.load(scores + k[:, None] * scores_r + column[None, :], mask=read, other=never)
        if NORMALISE:
            parent_score_k -= tl.where(k < K, log_of_sum(value), 0.0)
            value = tl.where(valid, value, never)
        score_j, parent_j, column_j = _largest(_prefix_scores(value, parent_score_k, SUMS), J, JP, COLUMNS)
    # An empty place is row 0 and column 0; scores that are not numbers must not lead outside either.
    parent_j = tl.minimum(parent_j, K - 1)
    column_j = tl.minimum(column_j, columns - 1)
    token_j = column_j.to(tl.int64)
    if LIST:
        token_j = tl.load(candidates + b * candidates_b + parent_j * candidates_r + column_j)

    # Gold's score, and the rival.
    gold_token = tl.load(gold + b * gold_b)
    if LIST:
        listed = tl.arange(0, LISTED)
        in_gold_lane = candidates + b * candidates_b + K * candidates_r + listed
        same = tl.load(in_gold_lane, mask=listed < columns, other=-1) == gold_token
        gold_score = tl.max(tl.load(scores + K * scores_r + listed, mask=same & (listed < columns), other=never), 0)
    else:
        gold_score = tl.load(scores + K * scores_r + gold_token)
    if NORMALISE:
        if WIDE:
            n = tl.arange(0, BLOCKS)
            gold_lane = tl.load(normaliser + (b * (K + 1) + K) * blocks + n, mask=n < blocks, other=never)
        else:
            column = tl.arange(0, COLUMNS)
            gold_lane = tl.load(scores + K * scores_r + column, mask=column < columns, other=never)
        gold_score -= tl.max(log_of_sum(gold_lane[None, :]), 0)
    gold_score -= margin_per_token
    if SUMS:
        gold_score += tl.load(gold_before + b * gold_before_b)
    wrong = tl.load(best_wrong + b) != 0
    parent_is_gold_j = tl.load(is_gold + b * K + parent_j) != 0
    is_gold_j = parent_is_gold_j & (token_j == gold_token)
    gold_first = tl.max(tl.where((j == 0) & is_gold_j, 1, 0), 0)
    rival = tl.where(wrong, gold_first, K - 1)
    ended_violates = wrong & (not wrong)
    if TOP:
        ended_j = (j < K) & _is_end(token_j, END, END_2, END_3, END_4) & (score_j > never)
        ended_score = tl.max(tl.where(ended_j, score_j, never), 0)
        first_ended = tl.min(tl.where(ended_j & (score_j == ended_score), j, JP), 0)
        ended_violates = (not wrong) & (gold_score < ended_score + margin)
        rival = tl.where(ended_violates, first_ended, rival)
    rival_score = tl.max(tl.where(j == rival, score_j, never), 0)
    violation = (tl.load(active + b) != 0) & (gold_score < rival_score + margin)

    kept = j < J
    tl.store(tokens_out + b * J + j, token_j, mask=kept)
    tl.store(parents_out + b * J + j, parent_j.to(tl.int64), mask=kept)
    tl.store(scores_out + b * J + j, score_j, mask=kept)
    tl.store(violation_out + b, violation.to(tl.uint8))
    tl.store(rival_out + b, rival.to(tl.int64))
    tl.store(rival_score_out + b, rival_score)
    there_j = is_gold_j & (score_j != never)
    tl.store(rival_is_gold_out + b, tl.max(tl.where(there_j & (j == rival), 1, 0), 0).to(tl.uint8))
    tl.store(rival_ended_out + b, ended_violates.to(tl.uint8))
    tl.store(on_beam_out + b, tl.max(tl.where(there_j & (j < K), 1, 0), 0).to(tl.uint8))
    tl.store(gold_score_out + b, gold_score)

    # The next beam: the K best, or at a restart gold's prefix in row 0 and nothing else.
    beam = j < K
    restart = violation if RESTARTS else violation & (not violation)
    next_token_j = tl.where(restart, gold_token, token_j)
    next_score_j = tl.where(restart, tl.where(j == 0, gold_score, never), score_j)
    if TOP:
        next_score_j = tl.where(_is_end(next_token_j, END, END_2, END_3, END_4), never, next_score_j)
    next_gold_j = tl.where(restart, j == 0, is_gold_j)
    first = b * (K + 1)
    tl.store(next_rows + first + j, first + tl.where(restart, K, parent_j), mask=beam)
    tl.store(next_rows + first + K, first + K)
    tl.store(next_tokens + first + j, next_token_j, mask=beam)
    tl.store(next_tokens + first + K, gold_token)
    tl.store(next_score + b * K + j, next_score_j, mask=beam)
    tl.store(next_is_gold + b * K + j, next_gold_j.to(tl.uint8), mask=beam)


@triton.jit
def _is_end(token, END: tl.constexpr, END_2: tl.constexpr, END_3: tl.constexpr, END_4: tl.constexpr):
    return (token == END) | (token == END_2) | (token == END_3) | (token == END_4)


@triton.jit
def _prefix_scores(value, parent_score, SUMS: tl.constexpr):
    """Scores of successors from those of their newest tokens and of their parents, by row."""
    if SUMS:
        value += parent_score[:, None]
    return tl.where(parent_score[:, None] > -float("inf"), value, parent_score[:, None])


@triton.jit
def _largest(value, J: tl.constexpr, JP: tl.constexpr, WIDTH: tl.constexpr):
    """The J largest entries of a tile of rows of `WIDTH`, largest first: value, row, column. Of equals the first."""
    flat = tl.reshape(value, (value.shape[0] * WIDTH,))
    place = tl.arange(0, value.shape[0] * WIDTH)
    j = tl.arange(0, JP)
    best_j = tl.full((JP,), -float("inf"), value.dtype)
    place_j = tl.zeros((JP,), tl.int32)
    for i in tl.static_range(J):
        best, at = tl.max(flat, 0, return_indices=True)
        best_j = tl.where(j == i, best, best_j)
        place_j = tl.where(j == i, at, place_j)
        flat = tl.where(place == at, -float("inf"), flat)
    return best_j, place_j // WIDTH, place_j % WIDTH


@triton.jit
def _at(values, index, P: tl.constexpr):
    """`values[index]`, where there are P values."""
    i = tl.arange(0, P)
    return tl.sum(tl.where(index[:, None] == i[None, :], values[None, :], 0), 1)
