"""The best scores of long rows, found by blocks, against a selection over the whole row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argbeam.search.top_k import BLOCK, BLOCKS, best_columns

LIMIT = BLOCK * BLOCKS
# Rows just below, at and above the length from which they are cut into blocks, and of several more blocks.
columns = st.one_of(
    st.integers(1, 3 * BLOCK),
    st.integers(LIMIT - 2, LIMIT + BLOCK + 2),
    st.sampled_from([BLOCK * (BLOCKS + 1) - 1, BLOCK * (BLOCKS + 4), BLOCK * (BLOCKS + 4) + 1]),
)
kept = st.one_of(st.integers(1, 12), st.integers(BLOCKS - 1, BLOCKS + 6))


def assert_best(scores_BKC: Tensor, kept: int) -> None:
    """Values are those of `topk`, in order; columns hold them, and none is named twice."""
    values_BKP, columns_BKP = best_columns(scores_BKC, kept)
    expected = scores_BKC.topk(min(kept, scores_BKC.shape[2]), dim=2)
    assert torch.equal(values_BKP, expected.values)
    assert torch.equal(scores_BKC.gather(2, columns_BKP), values_BKP)
    for row in columns_BKP.flatten(0, 1).tolist():
        assert len(set(row)) == len(row)


@given(columns=columns, kept=kept, seed=st.integers(0, 2**31), rows=st.integers(1, 3))
@settings(max_examples=100)
def test_the_best_columns_are_those_of_the_whole_row(columns: int, kept: int, seed: int, rows: int) -> None:
    scores_BKC = torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert_best(scores_BKC, kept)
    assert torch.equal(best_columns(scores_BKC, kept)[1], scores_BKC.topk(min(kept, columns), dim=2).indices)


@given(columns=columns, kept=kept, seed=st.integers(0, 2**31), values=st.integers(1, 4))
@settings(max_examples=60)
def test_among_equal_scores_any_are_the_best_but_each_once(columns: int, kept: int, seed: int, values: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    assert_best(torch.randint(values, (1, 2, columns), generator=generator).double(), kept)


@given(columns=columns, kept=kept, seed=st.integers(0, 2**31), valid=st.integers(0, 20))
@settings(max_examples=60)
def test_tokens_that_are_not_valid_come_last(columns: int, kept: int, seed: int, valid: int) -> None:
    """A row may have fewer valid tokens than are kept, or none."""
    generator = torch.Generator().manual_seed(seed)
    scores_BKC = torch.full((2, 2, columns), -torch.inf)
    for row in scores_BKC.flatten(0, 1)[:-1]:
        row[torch.randperm(columns, generator=generator)[:valid]] = torch.randn(1, generator=generator)
    assert_best(scores_BKC, kept)


@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, LIMIT - 1, LIMIT, LIMIT + 4])
def test_the_best_score_is_found_wherever_it_stands(place: int) -> None:
    """Also in the remainder behind the last whole block, of five columns; and all of the best in one block."""
    for best in ([1.0], [1.0, 6.0, 2.0, 5.0, 3.0, 4.0]):
        scores_BKC = torch.zeros(1, 1, LIMIT + 5)
        columns_P = [*range(max(0, place - len(best) + 1), LIMIT + 5)][: len(best)]
        scores_BKC[0, 0, columns_P] = torch.tensor(best)
        values_BKP, columns_BKP = best_columns(scores_BKC, len(best))
        expected = sorted(zip(best, columns_P, strict=True), reverse=True)
        assert [*zip(values_BKP[0, 0].tolist(), columns_BKP[0, 0].tolist(), strict=True)] == expected
