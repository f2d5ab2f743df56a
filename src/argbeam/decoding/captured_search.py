"""A search without gold as CUDA graphs, for each shape of batch.

`search.search_in_parts` pauses every few steps. Each part between two pauses is one graph, and so is the reading of the
result after each part. All graphs work in the same fixed places: the host copies a batch in and replays parts until the
device says that every sentence is over. It waits for the device once a part.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.runtime.graph_cache import MOST_SHAPES, Graph, GraphCache, Recorder
from argbeam.search.result import SearchResult
from argbeam.search.search import Pause, Search


class CapturedSearch:
    """Runs searches by graphs, with the results of `Search`. Weights may change in place between searches."""

    def __init__(self, recorder: Recorder, most: int = MOST_SHAPES) -> None:
        self.graphs = GraphCache[_SearchGraphs](recorder, most)

    def __call__(self, search: Search, batch: Batch, length_B: Int[Tensor, " B"], *, steps: int) -> SearchResult:
        """The result lies in fixed places: the next call overwrites it."""
        # An entry holds its model, so that no other model can have the same id.
        shape = (id(search.model), search.successors, search.settings, *batch.shape, steps)
        captured = self.graphs.get(shape, lambda: _SearchGraphs(search, batch, length_B, steps))
        if captured is not None:
            try:
                return captured.replay(self.graphs, batch, length_B)
            except Exception as error:  # if the search itself is wrong, it fails again below
                self.graphs.fail(error)
        return search(batch, length_B, steps=steps)


class _SearchGraphs:
    """The graphs of a search over batches of one shape, each captured when it is first needed.

    All graphs share a pool of memory, and a graph may write to a place that is free when it is captured. This is safe:
    a search is always replayed from its first part on, in the order of capture, and everything that later parts and
    readings need is held here or in the paused search. The cache is an argument and not an attribute: in a cycle of
    references the graphs would be freed by the garbage collector, perhaps during another capture, which then fails.
    """

    def __init__(self, search: Search, batch: Batch, length_B: Tensor, steps: int) -> None:
        self.search = search
        self.batch, self.length_B = batch.clone(length_B.device), length_B.clone()
        self.pauses = search.parts(self.batch, self.length_B, steps=steps)
        self.parts: list[tuple[Graph, Pause]] = []
        self.readings: dict[int, tuple[Graph, SearchResult]] = {}

    @torch.no_grad()
    def replay(self, cache: GraphCache["_SearchGraphs"], batch: Batch, length_B: Tensor) -> SearchResult:
        self.batch.copy_from(batch)
        self.length_B.copy_(length_B, non_blocking=True)
        number = 0
        while not self._ends_with(cache, number):
            number += 1
        if number not in self.readings:
            with cache.capturing() as graph:
                result = self.parts[number][1].result()
            self.readings[number] = graph, result
        graph, result = self.readings[number]
        graph.replay()
        return result

    def _ends_with(self, cache: GraphCache["_SearchGraphs"], number: int) -> bool:
        """Run the part of this number; whether the search is over after it."""
        if number == len(self.parts):
            with cache.capturing() as graph:
                pause = next(self.pauses)
            self.parts.append((graph, pause))
        graph, pause = self.parts[number]
        graph.replay()
        return pause.over is None or bool(pause.over)
