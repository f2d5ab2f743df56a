"""A search without gold: launched operation by operation, or as CUDA graphs for each shape of batch.

`search.search_in_parts` pauses every few steps. Each part between two pauses is one graph, and so is the reading of the
result after each part. All graphs work in the same fixed places: the host copies a batch in and replays parts until the
device says that every sentence is over. It waits for the device once a part.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.models.contract import Model
from argbeam.runtime.device import make_recorder
from argbeam.runtime.graph_cache import Graph, Graphs
from argbeam.search.result import SearchResult
from argbeam.search.search import Pause, SearchSettings, result_of, search_in_parts
from argbeam.search.successors import Successors
from argbeam.settings import Runtime


@dataclass(frozen=True)
class Search:
    """A search without gold, complete but for the sentences."""

    model: Model
    successors: Successors
    settings: SearchSettings

    @torch.no_grad()
    def __call__(self, batch: Batch, length_B: Int[Tensor, " B"], *, steps: int) -> SearchResult:
        """`beam_search`, from the sources on."""
        return result_of(self.parts(batch, length_B, steps=steps))

    def parts(self, batch: Batch, length_B: Int[Tensor, " B"], *, steps: int) -> Iterator[Pause]:
        """The same in parts; the encoder belongs to the first."""
        state, choices = self.model.encode(batch, None), self.successors.start(batch)
        yield from search_in_parts(self.model, state, choices, self.settings, length_B=length_B, steps=steps)


class CapturedSearch:
    """Searches by graphs, with the results of `Search`, on the device that the batches lie on.

    A shape is recorded when it is met for the second time: the first search of it leaves every library warm, and
    shapes that never come again cost nothing. Weights are read where they lie: they may change in place.
    """

    def __init__(self, graphs: "Graphs[RecordedSearch]") -> None:
        self.graphs = graphs

    def __call__(self, search: Search, batch: Batch, length_B: Int[Tensor, " B"], *, steps: int) -> SearchResult:
        """The result lies in fixed places: it holds until the next call."""
        # Who holds a recording holds its model, so that no other model can have the same number.
        shape = (id(search.model), search.successors, search.settings, *batch.shape, steps)
        if self.graphs.refused is None and self.graphs.meet(shape):
            try:
                recorded = self.graphs.find(shape)
                if recorded is None:
                    recorded = self.graphs.keep(shape, RecordedSearch(search, batch, length_B, steps))
                return recorded.replay(self.graphs, batch, length_B)
            except Exception as error:  # if the search itself is at fault, it fails again below
                self.graphs.refuse(error)
        return search(batch, length_B, steps=steps)


class RecordedSearch:
    """The graphs of a search over batches of one shape, each recorded when it is first needed.

    They share a pool of memory with all others, and a place that is free when a graph is recorded may be written to by
    it. That is safe because a search is always replayed from its first part on, in the order in which its parts were
    recorded, and what later parts and readings need is held here or in the paused search.
    """

    def __init__(self, search: Search, batch: Batch, length_B: Tensor, steps: int) -> None:
        self.search = search
        self.batch, self.length_B = batch.clone(length_B.device), length_B.clone()
        self.pauses = search.parts(self.batch, self.length_B, steps=steps)
        self.parts: list[tuple[Graph, Pause]] = []
        self.readings: dict[int, tuple[Graph, SearchResult]] = {}

    @torch.no_grad()
    def replay(self, graphs: Graphs["RecordedSearch"], batch: Batch, length_B: Tensor) -> SearchResult:
        self.batch.copy_from(batch)
        self.length_B.copy_(length_B, non_blocking=True)
        number = 0
        while not self._ends_with(graphs, number):
            number += 1
        if number not in self.readings:
            with graphs.recording() as graph:
                result = self.parts[number][1].result()
            self.readings[number] = graph, result
        graph, result = self.readings[number]
        graph.replay()
        return result

    def _ends_with(self, graphs: Graphs["RecordedSearch"], number: int) -> bool:
        """Go on to the pause of this number; whether nothing is left to do there."""
        if number == len(self.parts):
            with graphs.recording() as graph:
                pause = next(self.pauses)
            self.parts.append((graph, pause))
        graph, pause = self.parts[number]
        graph.replay()
        return pause.over is None or bool(pause.over)


def make_captured_search(runtime: Runtime, device: torch.device) -> CapturedSearch | None:
    """Searches by what is recorded; None: one operation at a time."""
    recorder = make_recorder(runtime, device)
    return None if recorder is None else CapturedSearch(Graphs(recorder))
