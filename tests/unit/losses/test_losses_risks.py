"""Risks of whole outputs, against sacreBLEU and against loops over lists."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argbeam.data.vocabulary import EOS
from argbeam.losses.risks import Risk, one_minus_sentence_bleu, token_error, zero_one
from argbeam.metrics.device_bleu import sentence_bleu
from loss_oracles import NAIVE_RISKS

outputs = st.lists(st.integers(4, 7), max_size=9)
golds = st.lists(st.integers(4, 7), min_size=1, max_size=9)


def of(risk: Risk, pairs: list[tuple[list[int], list[int]]], *, more: int = 0) -> list[float]:
    """The risks of (output, gold) in one batch."""
    width = max(max(len(a), len(b)) for a, b in pairs) + more

    def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        # Behind the end lies anything.
        return torch.tensor([row + [5] * (width - len(row)) for row in rows]), torch.tensor([len(row) for row in rows])

    output, gold = padded([a for a, _ in pairs]), padded([b for _, b in pairs])
    return risk(*output, *gold).tolist()


def naive(risk: str, pairs: list[tuple[list[int], list[int]]]) -> list[float]:
    return [NAIVE_RISKS[risk](tuple(a), tuple(b)) for a, b in pairs]


@given(pairs=st.lists(st.tuples(outputs, golds), min_size=1, max_size=4), more=st.integers(0, 3))
@settings(max_examples=150)
def test_sentence_bleu_is_sacrebleus(pairs: list[tuple[list[int], list[int]]], more: int) -> None:
    """Of every length on either side, the empty output included."""
    found = of(lambda *rows: sentence_bleu(*rows, dtype=torch.float64), pairs, more=more)
    assert found == pytest.approx([1 - risk for risk in naive("sentence_bleu", pairs)], abs=1e-9)


@given(pairs=st.lists(st.tuples(outputs, golds, st.booleans()), min_size=1, max_size=4))
@settings(max_examples=60)
def test_the_end_symbol_is_no_token_of_bleu(pairs: list[tuple[list[int], list[int], bool]]) -> None:
    ended = [([*a, EOS] if ends else a, [*b, EOS]) for a, b, ends in pairs]
    assert of(one_minus_sentence_bleu, ended) == pytest.approx(naive("sentence_bleu", ended), abs=1e-6)


@given(pairs=st.lists(st.tuples(outputs, golds), min_size=1, max_size=4), more=st.integers(0, 3))
@settings(max_examples=60)
def test_counting_risks_are_loops(pairs: list[tuple[list[int], list[int]]], more: int) -> None:
    pairs = [*pairs, (pairs[0][1], pairs[0][1])]
    assert of(zero_one, pairs, more=more) == naive("zero_one", pairs)
    assert of(token_error, pairs, more=more) == pytest.approx(naive("token_error", pairs), abs=1e-6)
