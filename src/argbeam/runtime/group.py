"""Several processes that train or decode as one, each on its share: started by torchrun, joined by torch.distributed.

Everything else takes a `Group` as an argument, `ALONE` by default. Tensors on the device are added by the device's own
backend (NCCL on CUDA, gloo on the CPU); everything else is sent as JSON through gloo, without waiting for a device.
"""

import gc
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from argbeam.errors import ArgbeamError, ToldError
from argbeam.runtime.watchdog import Watchdog

T = TypeVar("T")

# The others wait while the first process reads a slow pipe or fits a vocabulary. The watchdog notices a death.
_TIMEOUT = timedelta(hours=24)
# For all processes to join.
_JOIN_TIMEOUT = timedelta(minutes=10)
# Seconds for the watchdog to report a death that an exchange has met first.
_REPORT_TIMEOUT = 10.0


@dataclass(frozen=True)
class Group:
    """This process's `rank` among `size` processes that call the same methods in the same order."""

    rank: int = 0
    size: int = 1
    watchdog: Watchdog | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the first process: the one that writes."""
        return self.rank == 0

    def share(self, things: Sequence[T]) -> list[T]:
        """This process's part: of [a, b, c, d, e] among two, the first has a, c and e."""
        return list(things[self.rank :: self.size])

    def share_of(self, count: int) -> int:
        """The most of `count` things that a process has."""
        return -(-count // self.size)

    def add(self, flat: Tensor) -> None:
        """Sum over all processes, in place. On CUDA nothing waits, and a graph can capture it."""
        if self.size > 1:
            self._exchange(lambda: dist.all_reduce(flat))

    def any(self, asked: bool) -> bool:
        """Whether it is true in any process."""
        count = torch.tensor(int(asked))
        self.add(count)
        return bool(count)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks; JSON's types only."""
        return [value] if self.size == 1 else [self._broadcast(rank, value) for rank in range(self.size)]

    def first(self, make: Callable[[], Any]) -> Any:
        """The result of `make` in the first process, which alone calls it. An error there ends all processes."""
        if self.size == 1:
            return make()
        error, value = None, None
        if self.leads:
            try:
                value = make()
            except ArgbeamError as raised:
                error = raised
        sent = self._broadcast(0, {"value": value, "failed": error is not None})
        if sent["failed"]:
            if self.watchdog is not None:
                self.watchdog.leave(well=True)
            raise ToldError("the first process has reported the error") if error is None else error
        return sent["value"]

    def agree(self, facts: dict[str, Any]) -> None:
        """An error if facts differ between processes: they would train different models."""
        for rank, others in enumerate(self.gather(facts)):
            for name, value in facts.items():
                if others[name] != value:
                    raise ArgbeamError(
                        f"process {self.rank} has {name} {value}, process {rank} has {others[name]}; "
                        "all processes must see the same files and use the same versions"
                    )

    def _broadcast(self, rank: int, value: Any) -> Any:
        """The value of one process, as JSON: torch's own exchange of objects pickles."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor(len(data))
        self._exchange(lambda: dist.broadcast(length, rank))
        if rank != self.rank:
            data = torch.empty(int(length), dtype=torch.uint8)
        self._exchange(lambda: dist.broadcast(data, rank))
        return json.loads(data.numpy().tobytes())

    def _exchange(self, work: Callable[[], object]) -> None:
        try:
            work()
        except RuntimeError as error:  # torch's, where a process is gone
            if self.watchdog is not None and self.watchdog.reported.wait(_REPORT_TIMEOUT):
                raise ToldError("another process has ended") from None
            raise _unreachable(error) from None


ALONE = Group()


@contextmanager
def joined() -> Iterator[Group]:
    """The group that torchrun started this process in; `ALONE` without torchrun."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    try:
        group = _join(size)
    except (RuntimeError, OSError) as error:
        raise _unreachable(error) from None
    assert group.watchdog is not None
    try:
        yield group
        group.any(False)  # no process leaves while another still waits for an exchange
    except BaseException:
        group.watchdog.leave(well=False)
        raise
    group.watchdog.leave(well=True)
    gc.collect()  # NCCL waits for graphs that hold its exchanges
    dist.destroy_process_group()


def _join(size: int) -> Group:
    # Not every build of torch has them.
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, _ = next(rendezvous("env://", timeout=_JOIN_TIMEOUT))
    # torchrun may restart a group with the same store, which still holds the addresses of the dead processes.
    store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    return Group(rank, size, Watchdog(rank, size, os.environ["MASTER_ADDR"], Group(rank, size).first))


def _unreachable(error: Exception) -> ArgbeamError:
    return ArgbeamError(f"cannot reach the other processes: {' '.join(str(error).split())[:200]}")
