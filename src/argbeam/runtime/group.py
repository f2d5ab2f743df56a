"""Several processes that work as one, each on its share: started by torchrun, joined by torch.distributed.

Everything else takes a `Group` as an argument, `ALONE` by default. Numbers on the device are added by the device's own
backend (NCCL on CUDA, gloo on the CPU); all else goes as JSON through gloo, and never waits for a device.
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

from argbeam.errors import ArgbeamError, DeviceError, ToldError
from argbeam.runtime.watchdog import Links

T = TypeVar("T")

# The others wait while the first process reads a slow pipe or fits a vocabulary. A death is noticed by the links.
_PATIENCE = timedelta(hours=24)
# For all processes to be there.
_JOIN = timedelta(minutes=10)
# Seconds in which the links tell of a death that an exchange has met first.
_TELL = 10.0


@dataclass(frozen=True)
class Group:
    """This process's place, `rank`, among `size` ones that call the same methods in the same order."""

    rank: int = 0
    size: int = 1
    links: Links | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the first process: the one that writes."""
        return self.rank == 0

    def share(self, things: Sequence[T]) -> list[T]:
        """This process's part: of [a, b, c, d, e] among two, the first has a, c and e."""
        return list(things[self.rank :: self.size])

    def share_of(self, count: int) -> int:
        """How many of `count` things a process has at most."""
        return -(-count // self.size)

    def add(self, flat: Tensor) -> None:
        """Put the sum over all processes in place. On CUDA nothing waits, and a graph can record it."""
        if self.size > 1:
            self._exchange(lambda: dist.all_reduce(flat))

    def any(self, asked: bool) -> bool:
        """Whether it is true in any process."""
        if self.size == 1:
            return asked
        flag = torch.tensor(int(asked))
        self._exchange(lambda: dist.all_reduce(flag, op=dist.ReduceOp.MAX))
        return bool(flag)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks; JSON's types only."""
        return [value] if self.size == 1 else [self._from(rank, value) for rank in range(self.size)]

    def first(self, make: Callable[[], Any]) -> Any:
        """What `make` gives in the first process; it is called there only. An error there ends all of them."""
        if self.size == 1:
            return make()
        error, value = None, None
        if self.leads:
            try:
                value = make()
            except ArgbeamError as raised:
                error = raised
        found = self._from(0, {"value": value, "failed": error is not None})
        if found["failed"]:
            if self.links is not None:
                self.links.leave(well=True)
            raise ToldError("the first process has told why") if error is None else error
        return found["value"]

    def agree(self, facts: dict[str, Any]) -> None:
        """An error if the processes see different facts: they would train different models."""
        for rank, others in enumerate(self.gather(facts)):
            for name, value in facts.items():
                if others[name] != value:
                    raise ArgbeamError(
                        f"process {self.rank} has {name} {value}, process {rank} has {others[name]}; "
                        "all processes must see the same files and use the same versions"
                    )

    def _from(self, rank: int, value: Any) -> Any:
        """The value of one process; no pickle, which is what torch's own exchange of objects would do."""
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
        except RuntimeError as error:  # what torch raises where a process is gone
            if self.links is not None and self.links.told.wait(_TELL):
                raise ToldError("another process has ended") from None
            raise ArgbeamError(f"the other processes are out of reach: {_line(error)}") from None


ALONE = Group()


@contextmanager
def joined() -> Iterator[Group]:
    """The group that torchrun started this process in; `ALONE` where it was started by itself."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    try:
        group = _join(size)
    except (RuntimeError, OSError) as error:
        raise ArgbeamError(f"the other processes are out of reach: {_line(error)}") from None
    links = group.links
    assert links is not None
    try:
        yield group
        group.any(False)  # no process leaves while another still needs its answer
    except BaseException:
        links.leave(well=False)
        raise
    links.leave(well=True)
    gc.collect()  # NCCL waits for graphs that hold its exchanges
    dist.destroy_process_group()


def _join(size: int) -> Group:
    # Not every build of torch has them.
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, _ = next(rendezvous("env://", timeout=_JOIN))
    # torchrun may start a group again with the same store, in which the addresses of its dead processes still stand.
    store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    both = torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if both else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    return Group(rank, size, Links(rank, size, os.environ["MASTER_ADDR"], Group(rank, size).first))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def take_cuda_device() -> None:
    """Make "cuda" the GPU that is this process's own on its machine."""
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise DeviceError(
            f"process {local} of this machine has no GPU of its own: there are {count}; start {count} at most, "
            "or set runtime.device=cpu"
        )
    torch.cuda.set_device(local)
