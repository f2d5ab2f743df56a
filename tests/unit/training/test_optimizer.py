"""Adagrad against PyTorch's own, in float64."""

import pytest
import torch
from torch import nn

from argbeam.training.optimizer import Adagrad


def parameters(seed: int) -> dict[str, list[nn.Parameter]]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"encoder": [(3, 4), (4,)], "output": [(5,)]}
    return {
        name: [nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64)) for s in group]
        for name, group in shapes.items()
    }


@pytest.mark.parametrize("max_norm", [0.5, 5.0, 1e9])
@pytest.mark.parametrize("epsilon", [1e-10, 0.1])
def test_steps_are_those_of_torch_adagrad_after_clipping(max_norm: float, epsilon: float) -> None:
    """A large epsilon shows that it is added to the root, not under it. The caller's gradients stay as they are."""
    ours, theirs = parameters(0), parameters(0)
    rates = {"encoder": 0.02, "output": 0.2}
    optimizer = Adagrad(ours, rates=rates, max_norm=max_norm, epsilon=epsilon)
    reference = torch.optim.Adagrad([{"params": theirs[name], "lr": rate} for name, rate in rates.items()], eps=epsilon)
    generator = torch.Generator().manual_seed(1)
    flat = [p for name in rates for p in theirs[name]]
    for _ in range(5):
        gradients = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in flat]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        for parameter, gradient in zip(flat, gradients, strict=True):
            parameter.grad = gradient * min(1.0, max_norm / norm.item())
        reference.step()
        before = [gradient.clone() for gradient in gradients]
        assert optimizer.step(gradients).item() == pytest.approx(norm.item(), rel=1e-12)
        assert all(map(torch.equal, gradients, before))
        for mine, sums, other in zip(optimizer.parameters, optimizer.sums, flat, strict=True):
            torch.testing.assert_close(mine.detach(), other.detach(), rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(sums, reference.state[other]["sum"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    optimizer = Adagrad(parameters(0), rates={"encoder": 0.02, "output": 0.2}, max_norm=5.0)
    gradients = [torch.ones_like(p) for p in optimizer.parameters]
    optimizer.step(gradients)
    values = [*optimizer.parameters, *optimizer.sums]
    before = [value.detach().clone() for value in values]
    gradients[1][2] = bad
    assert not optimizer.step(gradients).isfinite()
    assert all(map(torch.equal, values, before))


def test_reset_forgets_the_gradients_seen() -> None:
    """The first step from empty sums is rate * sign(gradient); after a reset it is so again."""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = Adagrad({"all": [weight]}, rates={"all": 0.1}, max_norm=1e9)
    for _ in range(2):
        before = weight.detach().clone()
        optimizer.step([torch.tensor([2.0, -3.0], dtype=torch.float64)])
        assert (weight - before).tolist() == pytest.approx([-0.1, 0.1])
        optimizer.reset()


@pytest.mark.parametrize(("average", "inside"), [(0.75, -0.614), (0.0, -1.707)])
def test_the_average_is_what_the_decay_says_and_is_seen_inside_only(average: float, inside: float) -> None:
    """A gradient of 1 from empty sums steps by -rate / root n: weights -1, -1.707; with decay 0.75 the average goes
    0, -0.25, -0.75 * 0.25 - 0.25 * 1.707 = -0.614. Without an average the weights are seen as they are."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = Adagrad({"all": [weight]}, rates={"all": 1.0}, max_norm=1e9, average=average)
    memory = weight.data_ptr()
    for _ in range(2):
        optimizer.step([torch.ones(1, dtype=torch.float64)])
    with optimizer.averaged():
        assert weight.item() == pytest.approx(inside, abs=1e-3)
        assert weight.data_ptr() == memory
    assert weight.item() == pytest.approx(-1 - 0.5**0.5)
