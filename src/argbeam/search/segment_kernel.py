"""Tokens of successors, read back through their parents from the end of each segment: all steps in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def segments(tokens_TBJ: Tensor, parents_TBJ: Tensor, gold_BT: Tensor, end_TB: Tensor, place_TBN: Tensor) -> Tensor:
    """`gold.segment_tokens`, the tokens and parents of the beams given apart."""
    steps, batch, places = place_TBN.shape
    tokens_TBJ, parents_TBJ = tokens_TBJ.contiguous(), parents_TBJ.contiguous()
    out_BNT = gold_BT.new_empty(batch, places, steps)
    _segments[(batch * places,)](
        tokens_TBJ, parents_TBJ, gold_BT, *gold_BT.stride(), end_TB.view(torch.uint8), *end_TB.stride(),
        place_TBN, *place_TBN.stride(), out_BNT, steps, batch, places, KEPT=tokens_TBJ.shape[2], num_warps=1,
    )  # fmt: skip
    return out_BNT


@triton.jit
def _segments(
    tokens, parents, gold, gold_b, gold_t, end, end_t, end_b, place, place_t, place_b, place_n,
    out, steps, batch, places, KEPT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    b, n = row // places, row % places
    at = tl.full((), 0, tl.int64)
    ahead = tl.full((), 0, tl.int32)
    for back in range(steps):
        t = steps - 1 - back
        # An end starts the reading of its segment, and ends that of the later one.
        is_end = tl.load(end + t * end_t + b * end_b) != 0
        at = tl.where(is_end, tl.load(place + t * place_t + b * place_b + n * place_n), at)
        # Columns with an end still to come belong to its segment, those behind the last one to gold.
        ahead = tl.where(is_end, 1, ahead)
        successor = (t * batch + b).to(tl.int64) * KEPT + at
        token = tl.load(tokens + successor)
        token = tl.where(ahead != 0, token, tl.load(gold + b * gold_b + t * gold_t))
        tl.store(out + row * steps + t, token)
        at = tl.load(parents + successor)
