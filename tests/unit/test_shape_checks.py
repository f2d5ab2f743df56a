"""Shapes are checked in tests: a wrong one is found at once, in functions, properties and dataclasses."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from shape_checks import FIRST, THEN_EVERY, checked, new_test, some_calls

decorated = some_calls(typechecker=checked)


@decorated
def sums(x_BT: Float[Tensor, "B T"], y_B: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    return x_BT.sum(1) + y_B


@decorated
@dataclass
class Pair:
    x_B: Float[Tensor, " B"]
    y_B: Float[Tensor, " B"]

    @decorated
    @property
    def total(self) -> Float[Tensor, ""]:
        return self.x_B


def test_sizes_that_differ_are_refused_wherever_they_stand() -> None:
    with pytest.raises(TypeCheckError):
        sums(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(TypeCheckError):
        Pair(torch.zeros(2), torch.zeros(3))
    with pytest.raises(TypeCheckError):
        _ = Pair(torch.zeros(2), torch.zeros(2)).total
    assert sums(torch.ones(2, 3), torch.zeros(2)).tolist() == [3.0, 3.0]


def test_the_first_calls_of_a_test_are_checked_and_then_some() -> None:
    new_test()
    refused = []
    for number in range(3 * THEN_EVERY):
        try:
            sums(torch.zeros(1, 3), torch.zeros(3))  # a sum that broadcasts
        except TypeCheckError:
            refused.append(number)
    assert refused == [*range(FIRST), THEN_EVERY, 2 * THEN_EVERY]
