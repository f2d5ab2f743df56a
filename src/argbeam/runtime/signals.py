"""Stop signals as requests: the work reads them and ends at a safe point."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals(report: Callable[[], object], *, only_first: bool = False) -> Iterator[list[int]]:
    """The SIGINT, SIGTERM and SIGHUP received inside, in order; each calls `report`.

    With `only_first` the handlers of before return after the first signal, so that a second one ends the process.
    """
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if only_first:
            restore()
        report()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield received
    finally:
        restore()
