"""Smoothed sentence BLEU on the device: of the segment of each violation (the SB of the cost 1 - SB), or of sentences.

Every shape follows from (B, T) alone and nothing is read back: a training step with this cost can be captured.
Wiseman & Rush 2016, section 4.1 (the cost) and section 5.2 (its use in translation).
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MAX_ORDER = 4


def segment_bleu(
    rival_BT: Int[Tensor, "B T"],
    gold_BT: Int[Tensor, "B T"],
    violation_BT: Bool[Tensor, "B T"],
    *,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B T"]:
    """Return the BLEU (0 to 1) of the segment that ends at each violation, and 0 at all other columns.

    The segment of a violation at column t runs from the column after the previous violation to t:
    violation_BT = [F, T, F, F, T, F] has the segments [0, 1] and [2, 3, 4], and column 5 belongs to none.
    The value is sacreBLEU's sentence BLEU with smoothing "exp" and effective order: orders longer than the
    segment do not count, and a segment without a common token has 0.
    """
    correct_BTN, total_BTN = _segment_counts(rival_BT, gold_BT, violation_BT)
    orders_BT = (total_BTN > 0).sum(2)
    bleu_BT = torch.exp(_log_precisions(correct_BTN, total_BTN, dtype).sum(2) / orders_BT)
    return bleu_BT.masked_fill(~violation_BT | (correct_BTN[:, :, 0] == 0), 0.0)


def authors_segment_bleu(
    rival_BT: Int[Tensor, "B T"],
    gold_BT: Int[Tensor, "B T"],
    violation_BT: Bool[Tensor, "B T"],
    *,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B T"]:
    """Return the BLEU that the paper's authors' code computes for each violation, and 0 at all other columns.

    It differs from `segment_bleu` in three ways. The segment starts one token earlier, with the gold token of the last
    restart on both sides. The exponent is 1/4 for short segments too: absent orders count as precision 1, as in
    exp(1/4 * sum of log p_n over n <= min(4, length)). A segment without a common token is smoothed, not 0.

    The first segment starts with the start symbol on both sides. The authors' last step compares with gold less its
    last token, a slip not repeated here. Token ids are 0 or more.
    """
    B, T = rival_BT.shape
    # Segments that share a token are laid out apart: each violation puts the gold token it restarts from once more
    # before the next segment, and slot 0 is the start symbol's. violation_BT = [F, T, F] sends the tokens to the
    # slots [1, 2, 4], and gold's second token to slot 3 on both sides.
    slot_BT = torch.arange(1, T + 1, device=rival_BT.device) + _segment_numbers(violation_BT)
    blank_BW = rival_BT.new_full((B, 2 * T + 1), -1)
    # Where nothing restarts, the slot after a token is the next token's: tokens are scattered over the leads.
    leads_BW = blank_BW.scatter(1, slot_BT + 1, gold_BT)
    violation_BW = torch.zeros_like(blank_BW, dtype=torch.bool).scatter(1, slot_BT, violation_BT)
    correct_BWN, total_BWN = _segment_counts(
        leads_BW.scatter(1, slot_BT, rival_BT), leads_BW.scatter(1, slot_BT, gold_BT), violation_BW
    )
    bleu_BW = torch.exp(_log_precisions(correct_BWN, total_BWN, dtype).sum(2) / MAX_ORDER)
    return bleu_BW.gather(1, slot_BT).masked_fill(~violation_BT, 0.0)


def sentence_bleu(
    tokens_XT: Int[Tensor, "X T"],
    length_X: Int[Tensor, " X"],
    gold_XT: Int[Tensor, "X T"],
    gold_length_X: Int[Tensor, " X"],
    *,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, " X"]:
    """The BLEU (0 to 1) of each row's first `length_X` tokens against gold's; token ids are 0 or more.

    The value is sacreBLEU's sentence BLEU with smoothing "exp", effective order and brevity penalty. Without a common
    token it is 0.
    """
    position_T = torch.arange(tokens_XT.shape[1], device=tokens_XT.device)
    # Tokens behind the end match nothing on the other side.
    tokens_XT = tokens_XT.masked_fill(position_T >= length_X[:, None], -1)
    gold_XT = gold_XT.masked_fill(position_T >= gold_length_X[:, None], -2)
    # Without violations a row is one segment, and its counts stand in every column.
    correct_XTN, _ = _segment_counts(tokens_XT, gold_XT, torch.zeros_like(tokens_XT, dtype=torch.bool))
    correct_XN = correct_XTN[:, 0]
    order_N = torch.arange(1, MAX_ORDER + 1, device=tokens_XT.device)
    total_XN = (length_X[:, None] + 1 - order_N).clamp(min=0)
    orders_X = (total_XN > 0).sum(1).clamp(min=1)
    mean_X = _log_precisions(correct_XN[:, None], total_XN[:, None], dtype)[:, 0].sum(1) / orders_X
    brevity_X = (1 - gold_length_X.to(dtype) / length_X.clamp(min=1).to(dtype)).clamp(max=0.0)
    return torch.exp(mean_X + brevity_X).masked_fill(correct_XN[:, 0] == 0, 0.0)


def _segment_counts(
    rival_BT: Int[Tensor, "B T"], gold_BT: Int[Tensor, "B T"], violation_BT: Bool[Tensor, "B T"]
) -> tuple[Int[Tensor, "B T N"], Int[Tensor, "B T N"]]:
    """Count the clipped matches and the n-grams of the segment each column lies in, for n = 1..MAX_ORDER.

    A rival n-gram matches if fewer equal rival n-grams precede it in its segment than gold has there, which
    adds up to the usual min(rival count, gold count).
    """
    segment_BT = _segment_numbers(violation_BT)
    same_BTT = segment_BT[:, :, None] == segment_BT[:, None, :]
    # Rows and columns stand for the n-gram that ends there: those at (i, j) are equal if the shorter ones at
    # (i-1, j-1) and the tokens at (i, j) are.
    equal_gold_BTT = token_gold_BTT = same_BTT & (rival_BT[:, :, None] == gold_BT[:, None, :])
    earlier_BTT = token_rival_BTT = (same_BTT & (rival_BT[:, :, None] == rival_BT[:, None, :])).tril(-1)
    inside_BT = torch.ones_like(violation_BT)
    correct, total = [], []
    for order in range(1, MAX_ORDER + 1):
        if order > 1:
            equal_gold_BTT = token_gold_BTT & _shift_diagonally(equal_gold_BTT)
            earlier_BTT = token_rival_BTT & _shift_diagonally(earlier_BTT)
            # An n-gram lies inside its segment if the shorter one before it does and ends no segment.
            inside_BT = torch.nn.functional.pad((inside_BT & ~violation_BT)[:, :-1], (1, 0), value=False)
        match_BT = inside_BT & (earlier_BTT.sum(2) < equal_gold_BTT.sum(2))
        correct.append((same_BTT & match_BT[:, None, :]).sum(2))
        total.append((same_BTT & inside_BT[:, None, :]).sum(2))
    return torch.stack(correct, 2), torch.stack(total, 2)


def _segment_numbers(violation_BT: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return the number of violations before each column: [F, T, F, F, T, F] gives [0, 0, 1, 1, 1, 2]."""
    violation_int_BT = violation_BT.long()
    return violation_int_BT.cumsum(1) - violation_int_BT


def _shift_diagonally(equal_BTT: Bool[Tensor, "B T T"]) -> Bool[Tensor, "B T T"]:
    """Move every entry (i, j) to (i+1, j+1); the first row and column become False."""
    return torch.nn.functional.pad(equal_BTT[:, :-1, :-1], (1, 0, 1, 0), value=False)


def _log_precisions(
    correct_BTN: Int[Tensor, "B T N"], total_BTN: Int[Tensor, "B T N"], dtype: torch.dtype
) -> Float[Tensor, "B T N"]:
    """Return log p_n, and 0 for absent orders; the k-th order without a match is given 2^-k matches."""
    unmatched_BTN = correct_BTN == 0
    matches_BTN = torch.where(unmatched_BTN, torch.exp2(-unmatched_BTN.cumsum(2).to(dtype)), correct_BTN.to(dtype))
    log_BTN = matches_BTN.log() - total_BTN.clamp(min=1).to(dtype).log()
    return log_BTN.masked_fill(total_BTN == 0, 0.0)
