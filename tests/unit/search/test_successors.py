"""Choices against the same rules over lists, and against checkers that know whole sequences only."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import BOS, EOS, PAD
from argbeam.errors import DataError
from argbeam.search.constraints.forced import Forced
from argbeam.search.successors import Choices, Permutation, ShiftReduce, Successors, Unconstrained, check_gold
from oracles import Next, Tokens, example_of, permutation, shift_reduce


def tokens_allowed(choices: Choices, sentences: int) -> list[list[int]]:
    """For each row the tokens its mask admits; a token that two columns admit would stand twice."""
    allowed_NC = choices.allowed()
    candidates_BC = choices.candidates_BC
    if candidates_BC is None:
        return [[token for token, yes in enumerate(row) if yes] for row in allowed_NC.tolist()]
    rows = allowed_NC.shape[0] // sentences
    tokens_NC = candidates_BC.repeat_interleave(rows, dim=0)
    return [
        sorted(token for token, yes in zip(tokens, row, strict=True) if yes)
        for tokens, row in zip(tokens_NC.tolist(), allowed_NC.tolist(), strict=True)
    ]


def reachable(successors: Successors, batch: Batch, length: int) -> set[Tokens]:
    """Every sequence of this length that the choices of a batch of one sentence admit."""
    frontier: list[tuple[Tokens, Choices]] = [((), successors.start(batch))]
    for _ in range(length):
        frontier = [
            ((*prefix, token), choices.advance(torch.tensor([token])))
            for prefix, choices in frontier
            for token in tokens_allowed(choices, 1)[0]
        ]
    return {prefix for prefix, _ in frontier}


@pytest.mark.parametrize("end_symbol", [True, False])
def test_unconstrained_admits_all_tokens_but_pad_and_bos(end_symbol: bool) -> None:
    batch = make_batch([example_of([4]), example_of([4])])
    choices = Unconstrained(7, end_symbol).start(batch).select(torch.tensor([1, 0, 0]))
    for _ in range(2):
        allowed = tokens_allowed(choices, 2)
        assert all(PAD not in row and BOS not in row and (EOS in row) == end_symbol for row in allowed)
        assert all(len(row) == 7 - (2 if end_symbol else 3) for row in allowed)
        choices = choices.advance(torch.tensor([4, 5, 6]))


@pytest.mark.parametrize("source", [[4], [4, 5], [5, 4, 5], [4, 4, 4], [4, 5, 5, 4], [7, 6, 5, 4, 7]])
def test_permutation_reaches_every_order_of_the_source_and_nothing_else(source: list[int]) -> None:
    """Python's own permutations, as a set: tokens that repeat count once."""
    batch = make_batch([example_of(source, source=source)], source_length=len(source) + 2)
    assert reachable(Permutation(), batch, len(source)) == set(itertools.permutations(source))


def is_parse(symbols: Tokens, source: list[int], first_action: int) -> bool:
    """Run the symbols on a stack of numbers and see whether one item is left and all tokens are read."""
    stack: list[int] = []
    waiting = list(source)
    for symbol in symbols:
        if symbol >= first_action:
            if len(stack) < 2:
                return False
            stack.pop()
        else:
            if not waiting or waiting.pop(0) != symbol:
                return False
            stack.append(symbol)
    return not waiting and len(stack) == 1


@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
@pytest.mark.parametrize("actions", [1, 2])
def test_shift_reduce_reaches_every_parse_and_nothing_else(tokens: int, actions: int) -> None:
    """All sequences of 2n - 1 symbols over the distinct tokens and actions go through the checker: for n tokens
    Catalan(n - 1) trees of shifts, times actions^(n - 1) labels."""
    source = [4, 5, 4, 6][:tokens]
    vocabulary = 7 + actions
    symbols = sorted(set(source)) + list(range(7, vocabulary))
    parses = {
        sequence
        for sequence in itertools.product(symbols, repeat=2 * tokens - 1)
        if is_parse(sequence, source, first_action=7)
    }
    catalan = [1, 1, 2, 5][tokens - 1]
    assert len(parses) == catalan * actions ** (tokens - 1)
    batch = make_batch([example_of([], source=source)], source_length=tokens + 1)
    assert reachable(ShiftReduce(vocabulary, actions), batch, 2 * tokens - 1) == parses


@given(
    sources=st.lists(st.lists(st.integers(4, 6), min_size=1, max_size=4), min_size=1, max_size=3),
    parsing=st.booleans(),
    rows=st.integers(1, 3),
    data=st.data(),
)
@settings(max_examples=60)
def test_rows_go_their_own_ways_and_select_moves_them(
    sources: list[list[int]], parsing: bool, rows: int, data: st.DataObject
) -> None:
    """Random walks with random selections within each sentence, every row beside its prefix as a list."""
    batch = make_batch([example_of([], source=source) for source in sources])
    successors: Successors = ShiftReduce(9, 2) if parsing else Permutation()
    loops: list[Next] = [
        shift_reduce(source, vocabulary=9, actions=2) if parsing else permutation(source) for source in sources
    ]
    start = torch.arange(len(sources)).repeat_interleave(rows)
    choices = successors.start(batch).select(start)
    prefixes: list[Tokens] = [()] * (rows * len(sources))
    steps = min(2 * len(source) - 1 if parsing else len(source) for source in sources)
    for _ in range(steps):
        expected = [sorted(loops[n // rows](prefix)) for n, prefix in enumerate(prefixes)]
        assert tokens_allowed(choices, len(sources)) == expected
        parents = [n // rows * rows + data.draw(st.integers(0, rows - 1)) for n in range(len(prefixes))]
        if not all(expected):
            return
        tokens = [data.draw(st.sampled_from(expected[parent])) for parent in parents]
        choices = choices.select(torch.tensor(parents)).advance(torch.tensor(tokens))
        prefixes = [(*prefixes[parent], token) for parent, token in zip(parents, tokens, strict=True)]


def test_gold_outside_the_constraint_is_a_data_error() -> None:
    """Source 4 5: gold 5 4 is a permutation of it; gold 4 7 is not, and its second token is named."""
    good, bad = Example((4, 5), (5, 4), 0), Example((4, 5), (4, 7), 3)
    check_gold(Permutation(), make_batch([good]))
    check_gold(Unconstrained(8, end_symbol=False), make_batch([good, bad], size=3))
    with pytest.raises(DataError, match=r"^sentence 3: gold token 2 \(id 7\) is not a valid successor"):
        check_gold(Permutation(), make_batch([good, bad], size=3))


@pytest.mark.parametrize("free", [Permutation(), Unconstrained(7, end_symbol=False)])
def test_forced_outputs_are_those_of_the_successors_that_begin_so(free: Successors) -> None:
    batch = make_batch([Example((4, 5, 5, 6), (), 0)])
    everything = reachable(free, batch, 4)
    for prefix in [(), (5,), (5, 4), (5, 5, 6)]:
        expected = {tokens for tokens in everything if tokens[: len(prefix)] == prefix}
        assert reachable(Forced(free, prefix), batch, 4) == expected
    assert reachable(Forced(Permutation(), (4, 4)), batch, 4) == set()
