"""Tokens that a model draws: their distribution, where they end, and what they do not depend on."""

import math
from collections import Counter
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS, PAD
from argbeam.errors import ArgbeamError
from argbeam.losses.sampling import draw, needed, sample, until_end, with_room
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.search.successors import Permutation, ShiftReduce, Successors, Unconstrained
from loss_oracles import TableModel
from oracles import Tokens, ToyModel, enumerate_sequences, permutation, shift_reduce

# After the empty prefix 4, 5 and the end stand 3 : 2 : 1; after 4 the end and 5 stand 1 : 1; after 5 they stand 1 : 3.
ODDS: dict[Tokens, dict[int, float]] = {
    (): {4: math.log(3), 5: math.log(2), EOS: 0.0},
    (4,): {EOS: 0.0, 5: 0.0},
    (5,): {EOS: 0.0, 5: math.log(3)},
}
# With a limit of two words.
PROBABILITIES = {(EOS,): 1 / 6, (4, EOS): 1 / 4, (4, 5): 1 / 4, (5, EOS): 1 / 12, (5, 5): 1 / 4}


def chi_square(found: Counter[Tokens], expected: dict[Tokens, float], draws: int) -> float:
    """How many standard deviations Pearson's statistic lies above its mean; what cannot be drawn must not be."""
    assert found.keys() <= expected.keys()
    statistic = sum((found[key] - draws * p) ** 2 / (draws * p) for key, p in expected.items())
    freedom = len(expected) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def sampled(
    network: Model, successors: Successors, batch: Batch, *, update: int, rows: int, room: int = 0
) -> torch.Tensor:
    """Samples of the gold lengths, and `room` more."""
    return sample(
        network,
        network.encode(batch, None),
        successors.start(batch),
        Noise(1, torch.tensor(update), batch.sentence_B),
        rows=rows,
        length_B=batch.target_length_B + room,
        steps=batch.target_BT.shape[1] + room,
    ).tokens_BRT


def words_of(row: list[int]) -> Tokens:
    return tuple(word for word in row if word != PAD)


def test_sampled_sequences_have_the_models_distribution() -> None:
    """4,000 sentences of three rows; Pearson's statistic must lie within four deviations of its mean."""
    batch = make_batch([Example((4,), (4, 4), number) for number in range(4000)])
    words_BRT = sampled(TableModel(ODDS, vocabulary=6), Unconstrained(6, end_symbol=True), batch, update=7, rows=3)
    found = Counter(words_of(row) for row in words_BRT.flatten(0, 1).tolist())
    assert abs(chi_square(found, PROBABILITIES, 12000)) < 4
    # Rows are independent: pairs of rows have the products of their probabilities.
    pairs = Counter((*words_of(a), -1, *words_of(b)) for a, b, _ in words_BRT.tolist())
    both = {(*a, -1, *b): PROBABILITIES[a] * PROBABILITIES[b] for a, b in product(PROBABILITIES, repeat=2)}
    assert abs(chi_square(pairs, both, 4000)) < 4


def test_a_column_is_drawn_by_adding_up_probabilities() -> None:
    """[0.2, 0.5, 0.3]: the borders are 0.2 and 0.7. Without the middle one, 0.4 and 0.6 are left: the border is 0.4."""
    scores_C = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    uniform_X = torch.tensor([0.0, 0.1, 0.25, 0.69, 0.71, 1 - 2.0**-32], dtype=torch.float64)
    every = torch.tensor([True, True, True])
    assert draw(scores_C.expand(6, 3), every, uniform_X).tolist() == [0, 0, 1, 1, 2, 2]
    assert draw(scores_C.expand(6, 3), torch.tensor([True, False, True]), uniform_X).tolist() == [0, 0, 0, 2, 2, 2]


@given(seed=st.integers(0, 10**6), columns=st.integers(1, 40), scale=st.sampled_from([0.1, 5.0, 200.0]))
@settings(max_examples=60)
def test_what_is_barred_or_impossible_is_never_drawn(seed: int, columns: int, scale: float) -> None:
    """In float32, at the ends of the range too: extreme scores leave most words with a probability of zero."""
    generator = torch.Generator().manual_seed(seed)
    scores_XC = scale * torch.randn(64, columns, generator=generator)
    allowed_XC = torch.rand(64, columns, generator=generator) < 0.5
    allowed_XC[:, 0] |= ~allowed_XC.any(1)
    uniform_X = torch.rand(64, generator=generator, dtype=torch.float64)
    uniform_X[:2] = torch.tensor([0.0, 1 - 2.0**-32], dtype=torch.float64)
    column_X1 = draw(scores_XC, allowed_XC, uniform_X)[:, None]
    assert allowed_XC.gather(1, column_X1).all()
    likely_XC = scores_XC.masked_fill(~allowed_XC, -math.inf).softmax(-1)
    assert (likely_XC.gather(1, column_X1) > 0).all()


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(0, 100),
    more=st.integers(0, 3),
    rows=st.integers(1, 3),
)
@settings(max_examples=40)
def test_a_sentences_samples_do_not_depend_on_neighbours_or_padding(
    lengths: list[int], seed: int, more: int, rows: int
) -> None:
    network = ToyModel(7, seed=seed, scale=2.0)
    examples = [Example((4,), (4,) * n, 10 * i + seed) for i, n in enumerate(lengths)]

    drawn = partial(sampled, network, Unconstrained(7, end_symbol=True), update=3, rows=rows)
    together_BRT = drawn(batch=make_batch(examples, target_length=max(lengths) + more, size=len(lengths) + 1))
    for row, (example, length) in enumerate(zip(examples, lengths, strict=True)):
        alone_1RT = drawn(batch=make_batch([example]))
        assert torch.equal(together_BRT[row, :, :length], alone_1RT[0])
        assert not together_BRT[row, :, length:].any()


@pytest.mark.parametrize("room", [0, 2])
@pytest.mark.parametrize("task", ["permutation", "shift_reduce"])
def test_samples_under_a_constraint_are_valid_and_reach_everything(task: str, room: int) -> None:
    """A source of three words, two of them alike, or of two words to be parsed with two actions: few outputs exist.
    They end where no word is valid any more, also where there is room."""
    source: Tokens = (4, 5, 4)
    successors, following, length = {
        "permutation": (Permutation(), permutation(source), 3),
        "shift_reduce": (ShiftReduce(8, actions=2), shift_reduce(source, vocabulary=8, actions=2), 5),
    }[task]
    valid = enumerate_sequences(following, length=length)
    batch = make_batch([Example(source, (4,) * length, number) for number in range(60)])
    network = ToyModel(8, seed=1, scale=0.5)
    words_BRT = sampled(network, successors, batch, update=0, rows=20, room=room)
    assert {tuple(row) for row in words_BRT.flatten(0, 1).tolist()} == {(*words, *[PAD] * room) for words in valid}


def test_words_are_cut_behind_the_end_and_at_the_limit() -> None:
    words_BT = torch.tensor([[4, EOS, 5, EOS], [4, 5, 4, 5], [EOS, 4, 4, 4], [4, 5, 4, 5]])
    cut_BT, real_BT = until_end(words_BT, torch.tensor([4, 3, 4, 0]))
    assert cut_BT.tolist() == [[4, EOS, PAD, PAD], [4, 5, 4, PAD], [EOS, PAD, PAD, PAD], [PAD] * 4]
    assert torch.equal(real_BT, cut_BT != PAD)


def test_a_batch_with_room_limits_each_output_by_its_own_gold() -> None:
    """Lengths 1 and 3 with two more words; a padding row has none."""
    batch, limit_B = with_room(make_batch([Example((4,), (4,), 0), Example((4,), (4, 5, 4), 1)], size=3), 2)
    assert batch.target_BT.tolist() == [[4, 0, 0, 0, 0], [4, 5, 4, 0, 0], [0] * 5]
    assert limit_B.tolist() == [3, 5, 0]
    assert batch.target_length_B.tolist() == [1, 3, 0]


def test_a_loss_that_draws_cannot_do_without_noise() -> None:
    with pytest.raises(ArgbeamError, match=r"^mixer draws tokens: call it with a Noise"):
        needed(None, "mixer")
