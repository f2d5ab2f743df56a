"""A step of a trie on a GPU: the nodes of moved prefixes after one more token, and the tokens of their edges."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PER_PROGRAM = 128
_EDGES = 512  # that a program lists at most


def children(child_DV: Tensor, node_N: Tensor, rows_N: Tensor, tokens_N: Tensor) -> Tensor:
    """`child_DV[node_N[rows_N], tokens_N]`."""
    # Gold's tokens are a column of the batch, and so not contiguous.
    rows_N, tokens_N = rows_N.contiguous(), tokens_N.contiguous()
    assert child_DV.is_contiguous() and node_N.is_contiguous()
    out_N = torch.empty_like(rows_N)
    count = len(rows_N)
    _children[(-(-count // _PER_PROGRAM),)](
        child_DV, node_N, rows_N, tokens_N, out_N, count, V=child_DV.shape[1], BLOCK=_PER_PROGRAM
    )
    return out_N


def edges(first_X: Tensor, token_Y: Tensor, node_N: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The tokens of each node's edges, and which of them are there: `width` of each node, a power of two."""
    assert first_X.is_contiguous() and token_Y.is_contiguous() and node_N.is_contiguous()
    tokens_NW = torch.empty(len(node_N), width, dtype=torch.int64, device=node_N.device)
    real_NW = torch.empty_like(tokens_NW, dtype=torch.bool)
    block = min(width, _EDGES)
    _edges[(len(node_N), width // block)](
        first_X, token_Y, node_N, tokens_NW, real_NW.view(torch.uint8), W=width, BLOCK=block, num_warps=1
    )
    return tokens_NW, real_NW


@triton.jit(do_not_specialize=["count"])
def _children(child, node, rows, tokens, out, count, V: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = n < count
    came = tl.load(node + tl.load(rows + n, mask=inside, other=0), mask=inside, other=0)
    reached = tl.load(child + came * V + tl.load(tokens + n, mask=inside, other=0), mask=inside, other=0)
    tl.store(out + n, reached.to(tl.int64), mask=inside)


@triton.jit
def _edges(first, token, node, tokens, real, W: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0)
    w = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = first + tl.load(node + n)
    edge = tl.load(at) + w
    out = n.to(tl.int64) * W + w
    tl.store(tokens + out, tl.load(token + edge).to(tl.int64))
    tl.store(real + out, (edge < tl.load(at + 1)).to(tl.uint8))
