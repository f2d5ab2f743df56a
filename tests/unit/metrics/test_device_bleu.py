"""Segment BLEU against sacreBLEU, and the authors' variant against a loop over lists."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.metrics.device_bleu import authors_segment_bleu, segment_bleu
from loss_oracles import naive_one_minus_authors_bleu, naive_one_minus_bleu

Case = tuple[list[list[int]], list[list[int]], list[list[bool]]]


@st.composite
def batches(draw: st.DrawFn) -> Case:
    """Tokens from few types, so that n-grams repeat and clipping matters."""
    size, length = draw(st.integers(1, 3)), draw(st.integers(1, 14))
    tokens = st.integers(0, draw(st.integers(0, 4)))
    violations = st.one_of(st.booleans(), st.integers(0, 5).map(lambda number: number == 0))

    def rows(cell: st.SearchStrategy) -> list:
        return draw(st.lists(st.lists(cell, min_size=length, max_size=length), min_size=size, max_size=size))

    return rows(tokens), rows(tokens), rows(violations)


def segments(violation_row: list[bool]) -> list[tuple[int, int]]:
    """(start, end) columns of each violation, the end included."""
    found, start = [], 0
    for column, violates in enumerate(violation_row):
        if violates:
            found.append((start, column))
            start = column + 1
    return found


def tensors(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.tensor(case[0]), torch.tensor(case[1]), torch.tensor(case[2])


@pytest.mark.parametrize(
    ("bleu", "cost"),
    [(segment_bleu, naive_one_minus_bleu), (authors_segment_bleu, naive_one_minus_authors_bleu)],
    ids=["sacreBLEU", "authors"],
)
@settings(deadline=None, max_examples=150)
@given(case=batches())
def test_the_bleu_of_every_segment_is_sacrebleus_or_the_authors_loop(bleu, cost, case: Case) -> None:
    expected = torch.zeros(len(case[0]), len(case[0][0]), dtype=torch.float64)
    for row, (rival, gold, violation) in enumerate(zip(*case, strict=True)):
        for start, end in segments(violation):
            sides = (tuple(side[start : end + 1]) for side in (rival, gold))
            expected[row, end] = 1 - cost(*sides, gold[start - 1] if start else None)
    torch.testing.assert_close(bleu(*tensors(case), dtype=torch.float64), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(bleu(*tensors(case)), expected.float(), rtol=0, atol=1e-6)


def test_two_segments_by_hand() -> None:
    """Gold 1 2 | 3 4 5, rival 1 9 | 3 4 9, violations at columns 1 and 4.

    First: p1 = 1/2, p2 = (1/2)/1, so (1/4)^(1/2) = 1/2.
    Second: p1 = 2/3, p2 = 1/2, p3 = (1/2)/1, so (1/6)^(1/3).
    Authors', with the start symbol s: s 1 9 against s 1 2 has p1 = 2/3, p2 = 1/2, p3 = (1/2)/1, so (1/6)^(1/4);
    2 3 4 9 against 2 3 4 5 has p1 = 3/4, p2 = 2/3, p3 = 1/2, p4 = (1/2)/1, so (1/8)^(1/4).
    """
    case = tensors(([[1, 9, 3, 4, 9]], [[1, 2, 3, 4, 5]], [[False, True, False, False, True]]))
    expected = torch.tensor([[0, 0.5, 0, 0, (1 / 6) ** (1 / 3)]])
    torch.testing.assert_close(segment_bleu(*case), expected)
    expected = torch.tensor([[0, (1 / 6) ** 0.25, 0, 0, 0.125**0.25]])
    torch.testing.assert_close(authors_segment_bleu(*case), expected)


@pytest.mark.parametrize("bleu", [segment_bleu, authors_segment_bleu])
def test_no_shape_and_no_branch_depends_on_the_data(bleu) -> None:
    """Tensors on the meta device have shapes and no values: reading one back raises."""
    tokens_BT = torch.empty(3, 7, dtype=torch.long, device="meta")
    assert bleu(tokens_BT, tokens_BT, tokens_BT.bool()).shape == (3, 7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("bleu", [segment_bleu, authors_segment_bleu])
def test_a_captured_graph_gives_the_eager_numbers_for_new_tokens(bleu) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> list[torch.Tensor]:
        rival_BT, gold_BT = torch.randint(0, 4, (2, 8, 20), generator=generator)
        return [rival_BT.cuda(), gold_BT.cuda(), (torch.rand(8, 20, generator=generator) < 0.3).cuda()]

    held = draw()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        bleu(*held)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_BT = bleu(*held)
    fresh = draw()
    for buffer, values in zip(held, fresh, strict=True):
        buffer.copy_(values)
    graph.replay()
    torch.testing.assert_close(captured_BT, bleu(*fresh), rtol=0, atol=0)
