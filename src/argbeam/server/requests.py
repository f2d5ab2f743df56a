"""Requests of several clients, decoded together by the one thread that has the model.

A request waits in a line. The thread takes the first, and with it all others that wait and ask for the same search, so
that many clients share a batch. A request is checked before it waits: one that cannot be decoded fails alone.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeVar

from argbeam.decoding.batch_decoder import item_of
from argbeam.errors import ArgbeamError, DataError
from argbeam.runs.load import Run


class BusyError(ArgbeamError):
    """Too many requests wait."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a request, and of the requests that wait: bytes of the body, lines, seconds until the answer."""

    bytes: int = 1_000_000
    lines: int = 1_000
    seconds: float = 60.0
    waiting: int = 1_000


@dataclass(frozen=True)
class Output:
    """An output of a line: its text, its score, and whether the search finished it."""

    text: str
    score: float
    finished: bool


Answer = list[list[Output]]
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Request:
    """Lines to decode; with `call` another piece of work for the thread, which is done alone."""

    lines: Sequence[str] = ()
    beam: int = 0
    n_best: int = 1
    call: Callable[[], Any] | None = None
    answer: Future[Any] = field(default_factory=Future)

    def shares_search(self, other: "_Request") -> bool:
        return (self.beam, self.n_best, self.call, other.call) == (other.beam, other.n_best, None, None)


class _GivenUpError(Exception):
    """Nobody waits any more for what is being decoded."""


class RequestQueue:
    """Requests in line, and the thread that answers them. `close` lets it finish what it has begun.

    A client that gives up cancels its answer. Where all clients of a search have, it ends after the batch at hand.
    """

    def __init__(self, run: Run, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self.run, self.limits = run, limits
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._answer_all, name="decoder", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, lines: Sequence[str], *, beam: int = 0, n_best: int = 1) -> Future[Answer]:
        """Put a request in line; a line that cannot be decoded is a DataError."""
        if len(lines) > self.limits.lines:
            raise DataError(f"{len(lines):,} lines; at most {self.limits.lines:,} in one request")
        most = self.run.recipe.decode.max_words
        for number, line in enumerate(lines, start=1):
            item_of(self.run.task, line, most=most, where=f"line {number}")
        return self._put(_Request(lines, beam or self.run.recipe.decode.beam, n_best))

    def call(self, work: Callable[[], Result]) -> Future[Result]:
        """Put other work with the model in line."""
        return self._put(_Request(call=work))

    def _put(self, request: _Request) -> Future[Any]:
        with self._changed:
            if self._closed or len(self._waiting) >= self.limits.waiting:
                raise BusyError(f"{len(self._waiting):,} requests wait; try again later")
            self._waiting.append(request)
            self._changed.notify()
        return request.answer

    def close(self) -> None:
        """Answer what is in line, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _answer_all(self) -> None:
        while together := self._next():
            together = [one for one in together if not one.answer.cancelled()]
            answers: list[Any] = []
            fault: BaseException | None = None
            try:
                answers = self._decode(together)
            except BaseException as error:  # the thread goes on, and each client is told
                fault = error
            for one, answer in zip_longest(together, answers):
                if not one.answer.set_running_or_notify_cancel():
                    continue
                if fault is not None:
                    one.answer.set_exception(fault)
                else:
                    one.answer.set_result(answer)

    def _next(self) -> list[_Request]:
        """The first request in line and those that share its search; none: closed, and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            together: list[_Request] = []
            others: deque[_Request] = deque()
            for one in self._waiting:
                lines = sum(len(other.lines) for other in together) + len(one.lines)
                fits = not together or (one.shares_search(together[0]) and lines <= self.limits.lines)
                (together if fits else others).append(one)
            self._waiting = others
            return together

    def _decode(self, together: Sequence[_Request]) -> list[Any]:
        if not together:
            return []
        if together[0].call is not None:
            return [together[0].call()]

        def go_on(decoded: int) -> None:
            if all(one.answer.cancelled() for one in together):
                raise _GivenUpError

        beam, n_best = together[0].beam, together[0].n_best
        lines = [line for one in together for line in one.lines]
        found = iter(self.run.search_items(lines, beam=beam, n_best=n_best, done=go_on))
        answers: list[Answer] = []
        for one in together:
            answer: Answer = []
            for _ in one.lines:
                _, item, decoded = next(found)
                outputs = [Output(self.run.task.text(item, h.tokens), h.score, h.finished) for h in decoded.hypotheses]
                answer.append(outputs)
            answers.append(answer)
        return answers
