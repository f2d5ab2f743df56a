"""CUDA graphs on the CPU: a tape of operations that is played again over the same tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from argbeam.runtime import device as devices

# Operations whose result the host reads, or whose shape depends on values.
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "lift_fresh")


@dataclass(frozen=True)
class Operation:
    """Something asked of the device; `made` are its results in memory of their own, and where they stand among all."""

    function: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    made: list[tuple[int, Tensor]]


@dataclass
class Tape:
    """Operations in their order."""

    operations: list[Operation] = field(default_factory=list)
    replays: int = 0

    def replay(self) -> None:
        """Do every operation again, with the values its arguments have now; results go to their old places."""
        self.replays += 1
        with torch.no_grad():
            for operation in self.operations:
                results = _tensors(operation.function(*operation.arguments, **operation.named))
                for number, place in operation.made:
                    place.data.copy_(results[number])

    def forget(self) -> None:
        """Put rubbish wherever there is a result."""
        for operation in self.operations:
            for _, place in operation.made:
                place.data.fill_(torch.nan if place.is_floating_point() else 77)


@dataclass
class TapeRecorder:
    """Records tapes. A recorded operation has not been done, so that nobody may read its result before a replay."""

    tapes: list[Tape] = field(default_factory=list)
    starts: int = 1

    def start_over(self) -> None:
        self.starts += 1

    @contextmanager
    def record(self) -> Iterator[Tape]:
        tape = Tape()
        self.tapes.append(tape)
        with as_on_a_device(), _Writing(tape):
            yield tape
        tape.forget()

    def forget(self) -> None:
        """What other graphs do to memory that is not in use, done to all of it."""
        for tape in self.tapes:
            tape.forget()


@contextmanager
def as_on_a_device() -> Iterator[None]:
    """Empty rows of a beam are scored with all others, which is what a search does where shapes are fixed, and gold is
    not checked."""
    with patch.object(devices, "host_may_look", lambda _: False):
        yield


class _Writing(TorchDispatchMode):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func).removeprefix("aten.").split(".")[0]
        if name in WAITS:
            raise RuntimeError(f"{name} while a graph is recorded\nand more of it")
        named = kwargs or {}
        results = func(*args, **named)
        given = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, named))}
        made = [
            (number, result)
            for number, result in enumerate(_tensors(results))
            if result.numel() and result.untyped_storage().data_ptr() not in given
        ]
        self.tape.operations.append(Operation(func, args, named, made))
        return results


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
