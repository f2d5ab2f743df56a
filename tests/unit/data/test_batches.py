"""Padding, and the plan of an epoch's batches."""

import random
from collections import Counter
from dataclasses import fields
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.data.batches import Batch, BatchPlan, Example, in_order_of_length, make_batch
from argbeam.data.vocabulary import PAD
from argbeam.errors import DataError
from argbeam.runtime.group import Group

lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40)


def examples_of(sizes: list[tuple[int, int]]) -> list[Example]:
    return [Example((4,) * source, (5,) * target, number) for number, (source, target) in enumerate(sizes)]


def plan_of(sizes: list[tuple[int, int]], *, size: int, seed: int = 1) -> BatchPlan:
    return BatchPlan(examples_of(sizes), size, 2, 3, seed)


def test_a_batch_is_padded_behind_and_below() -> None:
    """Two examples in a batch of three: the third row is padding, with one PAD to attend to."""
    batch = make_batch([Example((4, 5), (6,), 10), Example((7,), (8, 9), 11)], source_length=3, target_length=2, size=3)
    assert batch.source_BS.tolist() == [[4, 5, PAD], [7, PAD, PAD], [PAD, PAD, PAD]]
    assert batch.source_length_B.tolist() == [2, 1, 1]
    assert batch.target_BT.tolist() == [[6, PAD], [8, 9], [PAD, PAD]]
    assert batch.target_length_B.tolist() == [1, 2, 0]
    assert batch.sentence_B.tolist() == [10, 11, 0]
    assert batch.shape == (3, 3, 2)


def test_a_batch_grows_to_its_longest_example() -> None:
    assert make_batch([Example((4,) * 5, (4,) * 7, 0)], source_length=2, target_length=2).shape == (1, 5, 7)


def test_copy_from_overwrites_in_place() -> None:
    one = make_batch([Example((4, 5), (6,), 1)])
    other = make_batch([Example((7, 8), (9,), 2)])
    places = {f.name: getattr(one, f.name).data_ptr() for f in fields(Batch) if f.name != "specials"}
    one.copy_from(other)
    for name, place in places.items():
        assert torch.equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).data_ptr() == place


@given(sizes=lengths, size=st.integers(1, 6))
@settings(max_examples=60)
def test_the_shapes_of_all_epochs_are_the_same(sizes: list[tuple[int, int]], size: int) -> None:
    plan = plan_of(sizes, size=size)
    counts = [
        Counter(plan.batch(numbers).shape for numbers in plan.epoch(epoch, by_length=epoch == 0)) for epoch in range(4)
    ]
    assert all(count == counts[0] for count in counts)
    assert plan.shapes() == set(counts[0])
    rows_of_all = min(size, len(sizes))
    assert all(rows == rows_of_all and source % 2 == 0 and target % 3 == 0 for rows, source, target in counts[0])


@given(sizes=lengths, size=st.integers(1, 6), seed=st.integers(0, 3), epoch=st.integers(0, 5), by_length=st.booleans())
@settings(max_examples=60)
def test_the_order_is_that_of_plain_lists(
    sizes: list[tuple[int, int]], size: int, seed: int, epoch: int, by_length: bool
) -> None:
    """Shuffle, sort by rounded lengths, cut, shuffle the batches: in lists as in arrays, so that seeds keep meaning."""
    draw = random.Random(f"{seed}:{epoch}")
    order = list(range(len(sizes)))
    draw.shuffle(order)
    order.sort(key=lambda i: (-(-sizes[i][1] // 3), -(-sizes[i][0] // 2)))
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    if not by_length:
        draw.shuffle(batches)
    plan = plan_of(sizes, size=size, seed=seed)
    assert list(plan.epoch(epoch, by_length=by_length)) == batches
    assert len(plan) == len(plan.epoch(epoch)) == len(batches)


@given(sizes=lengths, tokens=st.integers(1, 60), epoch=st.integers(0, 3), shares=st.integers(1, 3))
@settings(max_examples=60)
def test_batches_by_tokens_are_as_full_as_their_lengths_allow(
    sizes: list[tuple[int, int]], tokens: int, epoch: int, shares: int
) -> None:
    """Every example once; at most so many tokens a side, or one example; the next example would not have fitted; rows
    are a function of the lengths, shapes the same in every epoch, and processes have the same shape."""
    plan = BatchPlan(examples_of(sizes), 64, 2, 3, 1, tokens=tokens)
    batches = list(plan.epoch(epoch, by_length=True))
    assert sorted(chain(*batches)) == list(range(len(sizes)))
    for numbers, after in zip(batches, [*batches[1:], None], strict=True):
        rows, source, target = plan.batch(numbers).shape
        assert rows == min(len(sizes), max(1, tokens // max(source, target))) >= len(numbers)
        if after is not None:
            longest = max(source, target, *plan.batch(after[:1]).shape[1:])
            assert (len(numbers) + 1) * longest > tokens
        shapes = {plan.batch(numbers, group=Group(rank, shares)).shape for rank in range(shares)}
        assert shapes == {(-(-rows // shares), source, target)}
    assert plan.shapes() == {plan.batch(numbers).shape for numbers in plan.epoch(epoch + 1)}
    assert sorted(map(sorted, plan.epoch(epoch))) == sorted(map(sorted, batches))
    assert len(plan) == len(batches)


def test_the_batches_of_updates_are_those_of_the_epoch_in_its_order() -> None:
    """Seven batches, three an update: 3, 3, 1."""
    plan = BatchPlan(examples_of([(n, n) for n in range(1, 8)]), 1, 1, 1, 1, accumulate=3)
    epoch = plan.epoch(0)
    updates = [epoch.of_update(update) for update in range(plan.updates)]
    assert [len(update) for update in updates] == [3, 3, 1]
    assert list(chain(*updates)) == list(epoch)


def test_evaluation_starts_with_the_longest_source_and_long_ones_are_in_smaller_batches() -> None:
    """Of 4 sentences a batch, 256 words (twice 128) leave 4 / 2^2 = 1; 128 words and fewer leave all 4."""
    examples = examples_of([(length, 1) for length in (2, 5, 3, 4, 1)])
    assert list(in_order_of_length(examples, size=2)) == [[1, 3], [2, 0], [4]]
    examples = [Example((4,) * length, (), i) for i, length in enumerate([128, 256, 3, 3000, 5, 2])]
    assert list(in_order_of_length(examples, size=4)) == [[3], [1], [0, 4, 2, 5]]


def test_a_batch_of_nothing_and_a_source_without_tokens_are_errors() -> None:
    with pytest.raises(DataError, match=r"^make_batch: no examples; a batch has one at least, or a size of rows"):
        make_batch([])
    with pytest.raises(DataError, match=r"^sentence 7: a source without tokens; a source has one at least$"):
        make_batch([Example((4,), (4,), 6), Example((), (4,), 7)])
    assert make_batch([], size=2).shape == (2, 1, 0)


@pytest.mark.parametrize("tokens", [0, 512])
def test_a_batch_larger_than_the_corpus_is_the_corpus(tokens: int) -> None:
    """Three examples of two tokens have three rows, not 64, and not the 128 that 512 tokens hold at a length of 4."""
    examples = [Example((4, 5), (5, 4), number) for number in range(3)]
    plan = BatchPlan(examples, 64, 4, 4, 1, tokens=tokens)
    assert plan.shapes() == {(3, 4, 4)}
    assert plan.batch(plan.epoch(0)[0]).shape == (3, 4, 4)
