"""Layers with a tape against the plain layers, in float64: the same values, the same gradients."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from argbeam.models.recurrence.stepwise import StepAttention, StepEmbedding, StepLinear

sizes = st.integers(1, 5)
steps = st.integers(1, 4)
seeds = st.integers(0, 2**31)


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Standard normal numbers, as leaves that take a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def gradient_difference(a: Tensor, b: Tensor, leaves: list[Tensor]) -> float:
    """The largest difference between the gradients of two losses, at any entry of any leaf."""
    found = torch.autograd.grad(a, leaves, materialize_grads=True, retain_graph=True)
    expected = torch.autograd.grad(b, leaves, materialize_grads=True)
    # The tape is filled and emptied again by a second pass through the same graph.
    again = torch.autograd.grad(a, leaves, materialize_grads=True)
    pairs = [*zip(found, expected, strict=True), *zip(again, expected, strict=True)]
    return torch.stack([(one - other).abs().max() for one, other in pairs]).max().item()


@given(rows=sizes, width=sizes, times=steps, bias=st.booleans(), seed=seeds)
@settings(max_examples=30)
def test_a_step_linear_is_the_linear_layer_at_every_step(
    rows: int, width: int, times: int, bias: bool, seed: int
) -> None:
    """A recurrence, x <- tanh(W x + b), so that the gradient of one step goes through all before it."""
    linear = nn.Linear(width, width, bias=bias, dtype=torch.float64)
    (x_NI,) = drawn(seed, (rows, width))
    layer = StepLinear.of(linear)
    with torch.no_grad():
        layer(x_NI)  # a search comes first; it leaves nothing behind
    assert layer.tape == []
    ours = theirs = x_NI
    for _ in range(times):
        ours, theirs = torch.tanh(layer(ours)), torch.tanh(linear(theirs))
    assert torch.equal(ours, theirs)
    assert gradient_difference(ours.square().sum(), theirs.square().sum(), [x_NI, *linear.parameters()]) <= 1e-12
    assert layer.tape == []


@given(rows=sizes, width=sizes, vocabulary=st.integers(1, 6), times=steps, seed=seeds)
@settings(max_examples=30)
def test_a_step_embedding_is_the_embedding_at_every_step(
    rows: int, width: int, vocabulary: int, times: int, seed: int
) -> None:
    """Words occur several times in a step and in several steps."""
    embedding = nn.Embedding(vocabulary, width, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    tokens_TN = torch.randint(vocabulary, (times, rows), generator=generator)
    (weight_TNE,) = drawn(seed, (times, rows, width))
    layer = StepEmbedding.of(embedding)
    with torch.no_grad():
        layer(tokens_TN[0])
    ours = torch.stack([layer(tokens_N) for tokens_N in tokens_TN])
    theirs = torch.stack([embedding(tokens_N) for tokens_N in tokens_TN])
    assert torch.equal(ours, theirs)
    assert (
        gradient_difference((ours * weight_TNE).sum(), (theirs * weight_TNE).sum(), [embedding.weight, weight_TNE])
        <= 1e-12
    )
    assert layer.tape == []


def plain_attention(query_BRH: Tensor, keys_BSH: Tensor, memory_BSH: Tensor, padding_B1S: Tensor) -> Tensor:
    match_BRS = (query_BRH @ keys_BSH.transpose(1, 2)).masked_fill(padding_B1S, -torch.inf)
    return F.softmax(match_BRS, -1) @ memory_BSH


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    rows=sizes,
    width=sizes,
    times=steps,
    seed=seeds,
)
@settings(max_examples=30)
def test_a_step_attention_is_softmax_attention_at_every_step(
    lengths: list[int], rows: int, width: int, times: int, seed: int
) -> None:
    """What attention found is the next query, so that gradients go through queries, keys and memory."""
    batch, source = len(lengths), max(lengths)
    shape = (batch, source, width)
    query_BRH, keys_BSH, memory_BSH = drawn(seed, (batch, rows, width), shape, shape)
    padding_B1S = (torch.arange(source) >= torch.tensor(lengths)[:, None])[:, None]
    layer = StepAttention.over(keys_BSH, memory_BSH, padding_B1S)
    with torch.no_grad():
        layer(query_BRH)
    ours = theirs = query_BRH
    for _ in range(times):
        ours = layer(ours)
        theirs = plain_attention(theirs, keys_BSH, memory_BSH, padding_B1S)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    leaves = [query_BRH, keys_BSH, memory_BSH]
    assert gradient_difference(ours.square().sum(), theirs.square().sum(), leaves) <= 1e-12
    assert layer.tape == []


def test_steps_of_different_sizes_share_a_tape() -> None:
    """The gold history has B rows, a replay 2B."""
    linear = nn.Linear(3, 2, dtype=torch.float64)
    one, two = drawn(1, (2, 3), (4, 3))
    layer = StepLinear.of(linear)
    ours = layer(one).sum() + layer(two).square().sum()
    theirs = linear(one).sum() + linear(two).square().sum()
    assert gradient_difference(ours, theirs, [one, two, *linear.parameters()]) <= 1e-12


def test_steps_that_the_loss_does_not_reach_count_for_nothing() -> None:
    linear = nn.Linear(3, 2, dtype=torch.float64)
    one, two = drawn(1, (2, 3), (4, 3))
    layer = StepLinear.of(linear)
    reached, _ = layer(one), layer(two)
    assert gradient_difference(reached.square().sum(), linear(one).square().sum(), list(linear.parameters())) <= 1e-12


def test_a_layer_that_is_not_used_has_no_gradient() -> None:
    linear, embedding = nn.Linear(3, 2), nn.Embedding(4, 3)
    used = nn.Linear(3, 2)
    StepLinear.of(linear), StepEmbedding.of(embedding)
    loss = StepLinear.of(used)(torch.ones(1, 3)).sum()
    leaves = [*linear.parameters(), *embedding.parameters()]
    assert torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True) == (None,) * 3
    zeros = torch.autograd.grad(loss, leaves, materialize_grads=True)
    assert all(not zero.any() for zero in zeros)


@pytest.mark.parametrize("requires", [True, False])
def test_an_input_without_gradient_is_left_alone(requires: bool) -> None:
    linear = nn.Linear(3, 2, dtype=torch.float64)
    x_NI = torch.ones(2, 3, dtype=torch.float64, requires_grad=requires)
    StepLinear.of(linear)(x_NI).sum().backward()
    assert (x_NI.grad is not None) == requires
    torch.testing.assert_close(linear.weight.grad, torch.full((2, 3), 2.0, dtype=torch.float64))


def test_gradients_under_autocast_are_near_those_without() -> None:
    """Products are in bfloat16 then, of eight bits; weights and their gradients stay in float32."""
    torch.manual_seed(1)
    linear, embedding = nn.Linear(4, 4), nn.Embedding(5, 4)
    memory_BSH = torch.randn(2, 3, 4).requires_grad_()
    padding_B1S = torch.tensor([[False, False, True], [False, False, False]])[:, None]
    leaves = [linear.weight, linear.bias, embedding.weight, memory_BSH]
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False):
            words, layer = StepEmbedding.of(embedding), StepLinear.of(linear)
            attention = StepAttention.over(linear(memory_BSH), memory_BSH, padding_B1S)
            x_NH = words(torch.tensor([1, 2, 3, 1]))
            for _ in range(2):
                x_NH = torch.tanh(layer(x_NH))
                x_NH = attention(x_NH.view(2, 2, 4)).flatten(0, 1)
            loss = x_NH.float().square().sum()
        found.append(torch.autograd.grad(loss, leaves))
    for plain, low in zip(*found, strict=True):
        assert low.dtype == torch.float32
        torch.testing.assert_close(low, plain, rtol=0.1, atol=0.02)
