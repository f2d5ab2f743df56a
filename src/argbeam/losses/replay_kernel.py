"""What the gold lane and the rival lane read, where the rival's restarts, and what they score: all in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PER_PROGRAM = 256


def lanes(gold_BT: Tensor, rival_BT: Tensor, restart_BT: Tensor, bos: int) -> tuple[Tensor, Tensor, Tensor]:
    """`replay.lanes`."""
    batch, steps = gold_BT.shape
    read_TB2 = gold_BT.new_empty(steps, batch, 2)
    restarted_TB = restart_BT.new_empty(steps, batch)
    tokens_TB2 = torch.empty_like(read_TB2)
    count = batch * steps
    _lanes[(-(-count // _PER_PROGRAM),)](
        gold_BT, *gold_BT.stride(), rival_BT, *rival_BT.stride(), restart_BT.view(torch.uint8), *restart_BT.stride(),
        read_TB2, restarted_TB.view(torch.uint8), tokens_TB2, bos, batch, count, BLOCK=_PER_PROGRAM,
    )  # fmt: skip
    return read_TB2, restarted_TB, tokens_TB2


@triton.jit
def _lanes(
    gold, gold_b, gold_t, rival, rival_b, rival_t, restart, restart_b, restart_t, read, restarted, tokens, bos, batch,
    count, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = place < count
    t, b = place // batch, place % batch
    before = here & (t > 0)
    gold_at, rival_at = gold + b * gold_b + t * gold_t, rival + b * rival_b + t * rival_t
    read_gold = tl.load(gold_at - gold_t, mask=before, other=bos)
    again = tl.load(restart + b * restart_b + (t - 1) * restart_t, mask=before, other=0)
    read_rival = tl.where(again != 0, read_gold, tl.load(rival_at - rival_t, mask=before, other=bos))
    tl.store(read + 2 * place, read_gold, mask=here)
    tl.store(read + 2 * place + 1, read_rival, mask=here)
    tl.store(restarted + place, again, mask=here)
    tl.store(tokens + 2 * place, tl.load(gold_at, mask=here, other=0), mask=here)
    tl.store(tokens + 2 * place + 1, tl.load(rival_at, mask=here, other=0), mask=here)
