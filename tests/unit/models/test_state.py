"""Selecting and mixing rows of states, and the noise drawn for sentences."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argbeam.models.noise import Noise
from argbeam.models.state import State


def state_of(rows: list[list[int]], *, time: int = 0) -> State:
    table_N2 = torch.tensor(rows)
    return State({"memory": torch.arange(2)}, {"a": table_N2, "b": table_N2[:, 0]}, time)


def test_select_lists_rows_and_leaves_the_sentence_part_alone() -> None:
    """Rows 2, 0, 0 of three."""
    state = state_of([[1, 2], [3, 4], [5, 6]], time=7)
    chosen = state.select(torch.tensor([2, 0, 0]))
    assert chosen.hypothesis["a"].tolist() == [[5, 6], [1, 2], [1, 2]]
    assert chosen.hypothesis["b"].tolist() == [5, 1, 1]
    assert chosen.sentence is state.sentence
    assert chosen.time == 7
    assert state.hypothesis["b"].tolist() == [1, 3, 5]


def test_repeated_rows_lie_together() -> None:
    """Rows of one sentence are neighbours, and a row's gradient is the sum over its copies: 1 + 2 + 3 and 4 + 5 + 6."""
    state = state_of([[1, 2], [3, 4]], time=7)
    found = state.repeated(3)
    assert found.hypothesis["b"].tolist() == [1, 1, 1, 3, 3, 3]
    assert found.hypothesis["a"].tolist() == 3 * [[1, 2]] + 3 * [[3, 4]]
    assert (found.sentence, found.time) == (state.sentence, 7)
    h_NH = torch.zeros(2, 1, requires_grad=True)
    weight_NH = torch.arange(1.0, 7.0)[:, None]
    assert gradient_of_copies(h_NH, weight_NH).tolist() == [[6.0], [15.0]]


def gradient_of_copies(h_NH: torch.Tensor, weight_NH: torch.Tensor) -> torch.Tensor:
    copies = State({}, {"h": h_NH}).repeated(len(weight_NH) // len(h_NH))
    return torch.autograd.grad((copies.hypothesis["h"] * weight_NH).sum(), h_NH)[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gradients_of_copies_are_the_same_every_time_on_cuda() -> None:
    h_NH = torch.zeros(64, 256, device="cuda", requires_grad=True)
    weight_NH = torch.randn(64 * 7, 256, device="cuda")
    found = [gradient_of_copies(h_NH, weight_NH) for _ in range(20)]
    assert all(torch.equal(one, found[0]) for one in found)


def mask(
    sentences: list[int], *, seed: int = 3, update: int = 0, site: int = 1, steps: int = 4, rate: float = 0.3
) -> torch.Tensor:
    noise = Noise(seed, torch.tensor(update), torch.tensor(sentences))
    return noise.mask(site, steps=steps, width=64, rate=rate, dtype=torch.float64)


@given(
    sentences=st.lists(st.integers(0, 10**6), min_size=1, max_size=5, unique=True),
    steps=st.integers(1, 6),
    more=st.integers(0, 4),
    data=st.data(),
)
@settings(max_examples=50)
def test_a_sentences_masks_do_not_depend_on_neighbours_order_or_padding(
    sentences: list[int], steps: int, more: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(sentences))
    together_BTH = mask([*order, *[0] * more], steps=steps + more)
    for place, sentence in enumerate(order):
        alone_1TH = mask([sentence], steps=steps)
        assert torch.equal(together_BTH[place, :steps], alone_1TH[0])


def test_masks_differ_between_seeds_updates_sentences_sites_and_steps() -> None:
    """A key that adds up its parts would give sentence 1 at site 2 the masks of sentence 2 at site 1."""
    rows = []
    for seed, update, site in itertools.product((0, 1), (0, 1, 2), (0x10, 0x11, 0x20, 0x21)):
        drawn_BTH = mask([0, 1, 2, 15, 16, 17, 256, 257], seed=seed, update=update, site=site)
        rows += [tuple(row) for row in (drawn_BTH > 0).flatten(0, 1).tolist()]
    assert len(rows) == 2 * 3 * 4 * 8 * 4
    assert len(set(rows)) == len(rows)


def assert_uncorrelated(centred_BTH: torch.Tensor, *, deviation: float) -> None:
    """Products of neighbouring sentences, steps and units: means within five deviations of 0."""
    for dim, size in enumerate(centred_BTH.shape):
        product = centred_BTH.narrow(dim, 1, size - 1) * centred_BTH.narrow(dim, 0, size - 1)
        assert abs(product.mean().item()) <= 5 * deviation / product.numel() ** 0.5


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.3, 0.5])
def test_masks_are_0_or_the_inverse_of_what_is_kept_with_mean_1_and_uncorrelated(rate: float) -> None:
    """The mean's deviation over n draws is sqrt(rate / (1 - rate) / n); five of them bound the error, also by unit."""
    drawn = mask(list(range(500)), steps=10, rate=rate)
    kept = drawn > 0
    assert torch.equal(drawn, kept.double() / (1 - rate))
    variance = rate / (1 - rate)
    assert abs(drawn.mean().item() - 1) <= 5 * (variance / drawn.numel()) ** 0.5 + 1e-12
    by_unit_H = drawn.mean((0, 1))
    assert (by_unit_H - 1).abs().max().item() <= 5 * (variance / 5000) ** 0.5 + 1e-12
    assert_uncorrelated(drawn - 1, deviation=variance)


def uniform(sentences: list[int], *, site: int = 1, update: int = 0, steps: int = 4, width: int = 64) -> torch.Tensor:
    return Noise(3, torch.tensor(update), torch.tensor(sentences)).uniform(site, steps=steps, width=width)


def test_uniform_numbers_are_at_least_0_and_below_1_and_fill_the_range_evenly() -> None:
    """256,000 numbers in 64 bins of 4,000 each: Pearson's statistic within four deviations of its mean, 63."""
    drawn_BTH = uniform(list(range(1000)))
    assert drawn_BTH.dtype == torch.float64
    assert drawn_BTH.min() >= 0 and drawn_BTH.max() < 1
    counts = torch.histc(drawn_BTH, bins=64, min=0, max=1)
    statistic = ((counts - 4000) ** 2 / 4000).sum().item()
    assert abs(statistic - 63) < 4 * (2 * 63) ** 0.5
    assert_uncorrelated(drawn_BTH - 0.5, deviation=1 / 12)


def test_uniform_numbers_are_the_ones_that_masks_are_made_from() -> None:
    """A unit is dropped where its number is below the rate: so all that is known of masks holds of the numbers."""
    for site, update in itertools.product((1, 2), (0, 1)):
        kept_BTH = mask([0, 1, 2], site=site, update=update, rate=0.25) > 0
        assert torch.equal(uniform([0, 1, 2], site=site, update=update) >= 0.25, kept_BTH)


def test_a_sentences_uniform_numbers_do_not_depend_on_neighbours_padding_or_more_rows() -> None:
    together_BTH = uniform([7, 5], steps=6, width=9)
    assert torch.equal(together_BTH[1, :4, :3], uniform([5], steps=4, width=3)[0])
