"""Adagrad and AdamW against PyTorch's own, in float64; schedules against PyTorch's."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

from argbeam.errors import ConfigError
from argbeam.losses import CrossEntropy
from argbeam.models import make_model
from argbeam.settings import LstmModel, Stage
from argbeam.training.optimizer import Adagrad, AdamW, Optimizer, make_optimizer
from argbeam.training.schedule import SCHEDULES, RateSchedule
from refusals import refusal

RATES = {"encoder": 0.02, "output": 0.2}


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
    optimizer = Adagrad(ours, rates=RATES, max_norm=max_norm, epsilon=epsilon)
    reference = torch.optim.Adagrad([{"params": theirs[name], "lr": rate} for name, rate in RATES.items()], eps=epsilon)
    flat = [p for name in RATES for p in theirs[name]]
    assert_same_steps(optimizer, reference, flat, steps=5, tolerance=1e-12, max_norm=max_norm)
    for sums, other in zip(optimizer.sums, flat, strict=True):
        torch.testing.assert_close(sums, reference.state[other]["sum"], rtol=1e-12, atol=1e-14)


def assert_same_steps(
    optimizer: Optimizer,
    reference: torch.optim.Optimizer,
    flat: Sequence[nn.Parameter],
    *,
    steps: int,
    tolerance: float,
    max_norm: float = math.inf,
    schedule: LRScheduler | None = None,
) -> None:
    """Both take the same gradients, torch's clipped by hand; after each step they have the same weights."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        gradients = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in flat]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        for parameter, gradient in zip(flat, gradients, strict=True):
            parameter.grad = gradient * min(1.0, max_norm / norm.item())
        reference.step()
        if schedule is not None:
            schedule.step()
        before = [gradient.clone() for gradient in gradients]
        assert optimizer.step(gradients).item() == pytest.approx(norm.item(), rel=1e-12)
        assert all(map(torch.equal, gradients, before))
        for mine, other in zip(optimizer.parameters, flat, strict=True):
            torch.testing.assert_close(mine.detach(), other.detach(), rtol=tolerance, atol=tolerance / 100)


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_steps_are_those_of_torch_adamw_after_clipping(max_norm: float) -> None:
    """Vectors do not decay. The kernel takes the rate as float32, so that digits beyond its seven differ."""
    ours, theirs = parameters(0), parameters(0)
    optimizer = AdamW(ours, rates=RATES, max_norm=max_norm, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)
    kinds = [
        {"params": [p], "lr": rate, "weight_decay": 0.3 if p.ndim == 2 else 0.0}
        for name, rate in RATES.items()
        for p in theirs[name]
    ]
    reference = torch.optim.AdamW(kinds, betas=(0.8, 0.95), eps=1e-3, foreach=False)
    flat = [p for name in RATES for p in theirs[name]]
    assert_same_steps(optimizer, reference, flat, steps=6, tolerance=1e-6, max_norm=max_norm)
    for first, second, other in zip(optimizer.firsts, optimizer.seconds, flat, strict=True):
        torch.testing.assert_close(first, reference.state[other]["exp_avg"], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(second, reference.state[other]["exp_avg_sq"], rtol=1e-12, atol=1e-14)


def after_warmup(optimizer: torch.optim.Optimizer, warmup: int, then: LRScheduler) -> LRScheduler:
    """1/w, 2/w, ... 1 over the first w updates."""
    rising = LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
    return SequentialLR(optimizer, [rising, then], milestones=[warmup])


def vaswani(update: int, warmup: int) -> float:
    """The formula of section 5.3, over its highest value."""
    return float(min((update + 1) ** -0.5, (update + 1) * warmup**-1.5) * warmup**0.5)


TORCH_SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    "constant": lambda optimizer: after_warmup(optimizer, 4, ConstantLR(optimizer, factor=1.0)),
    "cosine": lambda optimizer: after_warmup(optimizer, 4, CosineAnnealingLR(optimizer, T_max=8)),
    "inverse_sqrt": lambda optimizer: LambdaLR(optimizer, lambda update: vaswani(update, 4)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_follows_torchs_schedulers(name: str) -> None:
    """Twelve updates, four of them warm-up."""
    ours, theirs = parameters(0), parameters(0)
    optimizer = AdamW(ours, rates=RATES, max_norm=1e9, schedule=RateSchedule(SCHEDULES[name], 4, 12))
    kinds = [{"params": theirs[group], "lr": rate} for group, rate in RATES.items()]
    reference = torch.optim.AdamW(kinds, betas=(0.9, 0.98), weight_decay=0.0, foreach=False)
    flat = [p for group in RATES for p in theirs[group]]
    assert_same_steps(optimizer, reference, flat, steps=12, tolerance=1e-6, schedule=TORCH_SCHEDULES[name](reference))


@pytest.mark.parametrize(
    ("name", "factors"),
    [("constant", [1, 1, 1]), ("cosine", [1, 0.75, 0.25]), ("inverse_sqrt", [1, 0.5**0.5, 3**-0.5])],
)
def test_without_warm_up_the_first_update_has_the_whole_rate(name: str, factors: list[float]) -> None:
    """Of three updates: (1 + cos(pi n / 3)) / 2 is 1, 3/4, 1/4; 1 / root n is 1, 0.71, 0.58."""
    schedule = RateSchedule(SCHEDULES[name], 0, 3)
    found = [schedule.factor(torch.tensor(n, dtype=torch.float64)).item() for n in (1.0, 2.0, 3.0)]
    assert found == pytest.approx(factors)


def test_a_warm_up_longer_than_the_stage_only_rises() -> None:
    schedule = RateSchedule(SCHEDULES["cosine"], 800, 2)
    assert [schedule.factor(torch.tensor(n)).item() for n in (1.0, 2.0)] == pytest.approx([1 / 800, 2 / 800])


OPTIMIZERS: dict[str, Callable[[dict[str, list[nn.Parameter]]], Optimizer]] = {
    "adagrad": lambda groups: Adagrad(groups, rates=RATES, max_norm=5.0),
    "adamw": lambda groups: AdamW(groups, rates=RATES, max_norm=5.0, weight_decay=0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(
    bad: float, make: Callable[[dict[str, list[nn.Parameter]]], Optimizer]
) -> None:
    """But for AdamW's position in its schedule, which counts updates of both kinds."""
    optimizer = make(parameters(0))
    gradients = [torch.ones_like(p) for p in optimizer.parameters]
    optimizer.step(gradients)
    schedule = optimizer.update if isinstance(optimizer, AdamW) else None
    values = [value for value in (*optimizer.parameters, *optimizer.state) if value is not schedule]
    before = [value.detach().clone() for value in values]
    gradients[1][2] = bad
    assert not optimizer.step(gradients).isfinite()
    assert all(map(torch.equal, values, before))
    assert schedule is None or schedule.item() == 2


@pytest.mark.parametrize("strange", ["expanded", "transposed"])
def test_adamw_takes_gradients_and_weights_of_any_layout(strange: str) -> None:
    """The first step of AdamW is the rate, against the gradient's sign; a kernel could pair the wrong entries."""
    draw = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(4, 3).T if strange == "transposed" else torch.zeros(3, 4))
    gradient = torch.randn(3, 1, generator=draw).expand(3, 4) if strange == "expanded" else torch.randn(3, 4)
    AdamW({"all": [weight]}, rates={"all": 0.1}, max_norm=1e9).step([gradient])
    torch.testing.assert_close(weight.detach(), -0.1 * gradient.sign())


def test_a_reset_of_adamw_forgets_gradients_and_leaves_the_schedule() -> None:
    """A first step has the rate's size whatever the gradient; here a half of it, the rate of the second update."""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = AdamW({"all": [weight]}, rates={"all": 0.1}, max_norm=1e9, schedule=RateSchedule(warmup=4))
    for update in (1, 2, 3):
        before = weight.detach().clone()
        optimizer.step([torch.tensor([2.0, -3.0 * update], dtype=torch.float64)])
        step = 0.1 * update / 4
        assert (weight - before).tolist() == pytest.approx([-step, step])
        optimizer.reset()


def test_a_parameter_has_one_rate() -> None:
    groups = parameters(0)
    with pytest.raises(AssertionError, match="two rates"):
        AdamW({"encoder": groups["encoder"], "output": groups["encoder"]}, rates=RATES, max_norm=1.0)


@pytest.mark.parametrize("rates", [{"encoder": 0.1}, {"encoder": 0.1, "decoder": 0.1, "head": 0.1}, {}])
@pytest.mark.parametrize("kind", [Adagrad, AdamW])
def test_groups_and_rates_have_the_same_names(kind: type[Adagrad] | type[AdamW], rates: dict[str, float]) -> None:
    """A group without a rate would not be trained."""
    groups = {name: [nn.Parameter(torch.zeros(2))] for name in ("encoder", "decoder")}
    message = f"rates, groups of parameters: {', '.join(rates) or 'none'} and encoder, decoder; each group needs a rate"
    assert refusal(kind, groups, rates=rates, max_norm=1.0, error=ConfigError) == message


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


def test_adamw_averages_as_adagrad_does() -> None:
    """A gradient that stays has steps of -rate: weights -1, -2; with decay 0.75 the average goes 0, -0.25,
    -0.75 * 0.25 - 0.25 * 2 = -0.6875."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = AdamW({"all": [weight]}, rates={"all": 1.0}, max_norm=1e9, average=0.75)
    for _ in range(2):
        optimizer.step([torch.ones(1, dtype=torch.float64)])
    with optimizer.averaged():
        assert weight.item() == pytest.approx(-0.6875)
    assert weight.item() == pytest.approx(-2.0)


def test_a_stage_has_the_optimizer_of_its_settings() -> None:
    """Factors of the rate by part, decay of matrices alone, a cosine over epochs times updates, and an average that
    reaches back four epochs at most: of 5 updates, 1 - 1 / 20."""
    optimizer = {"kind": "adamw", "rate": 0.5, "encoder_factor": 0.1, "output_factor": 2.0, "weight_decay": 0.3}
    optimizer |= {"warmup": 7, "schedule": "cosine", "average": 0.999, "betas": [0.5, 0.75]}
    stage = Stage.model_validate({"epochs": 6, "loss": {"kind": "cross_entropy"}, "optimizer": optimizer})
    model = make_model(LstmModel(hidden=3, embedding=2), source_vocabulary=5, target_vocabulary=6)
    made = make_optimizer(model, CrossEntropy(), stage, updates_per_epoch=5)
    assert isinstance(made, AdamW)
    assert made.schedule == RateSchedule(SCHEDULES["cosine"], 7, 30)
    assert (made.betas, made.average) == ((0.5, 0.75), pytest.approx(0.95))
    found = {id(made.parameters[i]): kind for kind, places in made.kinds.items() for i in places}
    for part, rate in (("encoder", 0.05), ("decoder", 0.5), ("output", 1.0)):
        for parameter in model.modules_by_rate()[part]:
            assert found[id(parameter)] == (pytest.approx(rate), 0.3 if parameter.ndim == 2 else 0.0)
