"""A trie: outputs are entries of a list, such as words, names or item codes.

Nodes are numbered level by level: 0 is nowhere, 1 the root, and edge e leads to node e + 2. The edges of a node lie
side by side (compressed rows, CSR). The first levels also have a table of all tokens. All prefixes of a step have the
same length, so that every shape follows from the step, and nothing is read back from the device.

Worked example, entries `a` and `a b`, tokens a = 4, b = 5 and the end symbol 3: edges 0: 1 -4-> 2, 1: 2 -3-> 3,
2: 2 -5-> 4, 3: 4 -3-> 5; `first_X` = 0 0 1 3 3 4 4.
"""

import io
import zipfile
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.data.vocabulary import STANDARD, SpecialTokens
from argbeam.errors import DataError
from argbeam.runtime import device as devices
from argbeam.runtime.device import power_of_two
from argbeam.search.successors import NO_END, Listed

if devices.TRITON_INSTALLED:
    from argbeam.search.constraints import trie_kernel

NOWHERE, ROOT = 0, 1
# Levels have a table while all tables together have at most so many entries, of 4 bytes each.
_DENSE = 1 << 23

IntArray = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True)
class TrieTables:
    """A trie on one device. No prefix of t tokens has more successors than `widths[t]`, a power of two.

    Behind the last edge tokens and distances have zeros for the widest node, so that a list may run over the end.
    """

    first_X: Int[Tensor, " X"]
    place_W: Int[Tensor, " W"]  # 0 1 2 ..., as many as the widest node has
    token_Y: Int[Tensor, " Y"]
    key_E: Int[Tensor, " E"]  # node * V + token of each edge: in order, for a binary search
    to_end_Y: Int[Tensor, " Y"]  # the fewest tokens to the end of an entry, that of the edge included
    child_DV: Int[Tensor, "D V"]
    to_end_DV: Int[Tensor, "D V"]
    dense_levels: int
    widths: tuple[int, ...]

    def width(self, depth: int) -> int:
        return self.widths[depth] if depth < len(self.widths) else 1


@dataclass(frozen=True, eq=False)
class Trie:
    """The entries of a list, each with the end symbol at its end where outputs have open length.

    `entries` counts them without duplicates. Make one with `of`; `saved` is a file of it for `from_bytes`.
    """

    first_X: IntArray
    token_E: IntArray
    vocabulary: int
    entries: int
    end_symbol: bool = True
    _tables: dict[torch.device, TrieTables] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(
        entries: Iterable[Sequence[int]],
        *,
        vocabulary: int,
        end_symbol: bool = True,
        specials: SpecialTokens = STANDARD,
    ) -> "Trie":
        """The trie of entries, token ids without the end symbol, which `end_symbol` adds to each of them.

        Duplicates count once. An entry may be empty, or a prefix of another one.
        """
        tokens, lengths = array("i"), array("q")
        for entry in entries:
            try:
                tokens.extend(entry)
            except OverflowError:
                raise DataError(
                    f"entry {len(lengths) + 1} of a trie: a token id beyond 32 bits; 0 to {vocabulary - 1} are accepted"
                ) from None
            if end_symbol:
                tokens.append(specials.eos)
            lengths.append(len(entry) + end_symbol)
        if not lengths:
            raise DataError("a trie without entries: no output would be valid; at least one entry is expected")
        flat_I, length_N = np.frombuffer(tokens, np.int32), np.frombuffer(lengths, np.int64)
        _check_tokens(flat_I, length_N, vocabulary, specials, end_symbol=end_symbol)
        first_X, token_E, entry_count = _edges(flat_I, length_N, vocabulary)
        return Trie(first_X, token_E, vocabulary, entry_count, end_symbol)

    def start(self, batch: Batch) -> "TrieChoices":
        device = batch.source_BS.device
        if device not in self._tables:  # once, and before any capture: the first use of a shape runs eagerly
            self._tables[device] = self._on(device)
        return TrieChoices(self._tables[device], torch.full_like(batch.source_length_B, ROOT), 0, self.end_symbol)

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Whether a whole sequence, end symbol included, is an entry."""
        first_X, token_E = self._views
        node = ROOT
        for token in tokens:
            last = first_X[node + 1]
            edge = bisect_left(token_E, token, first_X[node], last)
            if edge == last or token_E[edge] != token:
                return False
            node = edge + 2
        return node != ROOT and first_X[node] == first_X[node + 1]

    @cached_property
    def saved(self) -> bytes:
        """The trie as bytes, for `from_bytes`: a NumPy archive without pickled objects."""
        branching_X = np.diff(self.first_X)[ROOT:]
        about = np.array([self.vocabulary, self.entries, self.end_symbol], np.int64)
        stream = io.BytesIO()
        np.savez_compressed(stream, about=about, tokens=_narrow(self.token_E), branching=_narrow(branching_X))
        return stream.getvalue()

    @staticmethod
    def from_bytes(data: bytes, *, where: str = "trie") -> "Trie":
        """The trie that `saved` holds; `where` names its file in errors."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                about, tokens, branching = (archive[name] for name in ("about", "tokens", "branching"))
            vocabulary, entries, end_symbol = (int(value) for value in about)
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{where}: not a saved trie ({error})") from None
        first_X = np.concatenate([[0, 0], np.cumsum(branching, dtype=np.int64)]).astype(np.int32)
        if len(branching) != len(tokens) + 1 or first_X[-1] != len(tokens) or not (tokens < vocabulary).all():
            raise DataError(f"{where}: not a saved trie: {len(tokens)} edges, {len(branching)} nodes")
        return Trie(first_X, tokens.astype(np.int32), vocabulary, entries, bool(end_symbol))

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Nodes of each level, the root's first."""
        counts, first, last = [], ROOT, ROOT + 1
        while first < last:
            counts.append(last - first)
            first, last = last, int(self.first_X[last]) + 2
        return tuple(counts)

    @cached_property
    def _views(self) -> tuple[memoryview, memoryview]:
        # Single elements of an array are slow to read, and a list of millions takes much memory.
        return self.first_X.data, self.token_E.data

    def _on(self, device: torch.device) -> TrieTables:
        """Tables of the first levels, the edges of all levels."""
        ends = np.cumsum((ROOT, *self.levels))
        branching_X = np.diff(self.first_X)
        widths = [int(branching_X[a:b].max()) for a, b in pairwise(ends)]
        dense_levels = max(1, int((ends[1:] * self.vocabulary <= _DENSE).sum()))
        nodes = int(ends[dense_levels])
        child_DV = np.zeros((nodes, self.vocabulary), np.int32)
        to_end_DV, to_end_E = np.full_like(child_DV, NO_END, np.int16), self._to_end()[2:] + np.int16(1)
        edges = np.arange(self.first_X[nodes], dtype=np.int32)
        place = np.repeat(np.arange(nodes), branching_X[:nodes]), self.token_E[edges]
        child_DV[place], to_end_DV[place] = edges + 2, to_end_E[edges]
        parent_E = np.repeat(np.arange(len(branching_X)), branching_X)
        key_E = parent_E * self.vocabulary + self.token_E

        def table(array: IntArray) -> Tensor:
            return torch.from_numpy(array.copy()).to(device)

        # Kernels come in sizes of powers of two: few sizes for many levels.
        rounded = tuple(power_of_two(max(1, width)) for width in widths)
        place_W = np.arange(max(rounded), dtype=np.int32)
        token_Y, to_end_Y = (np.pad(array_E, (0, len(place_W))) for array_E in (self.token_E, to_end_E))
        of_edges = (table(token_Y), table(key_E), table(to_end_Y))
        of_nodes = (table(self.first_X), table(place_W))
        return TrieTables(*of_nodes, *of_edges, table(child_DV), table(to_end_DV), dense_levels, rounded)

    def _to_end(self) -> IntArray:
        """The fewest tokens from each node to the end of an entry, from the last level to the first."""
        to_end_X = np.zeros(len(self.first_X) - 1, np.int16)
        for first, last in reversed(list(pairwise(np.cumsum((ROOT, *self.levels)).tolist()))):
            edge_X = self.first_X[first : last + 1]
            inner_X = np.flatnonzero(np.diff(edge_X))
            if len(inner_X):
                below_E = to_end_X[edge_X[0] + 2 : edge_X[-1] + 2]
                nearest_X = np.minimum.reduceat(below_E, edge_X[inner_X] - edge_X[0])
                to_end_X[first + inner_X] = np.minimum(nearest_X + 1, NO_END - 2)  # an end, however far
        return to_end_X


@dataclass(frozen=True)
class TrieChoices:
    """The node that each prefix has reached, after `depth` tokens."""

    tables: TrieTables
    node_N: Int[Tensor, " N"]
    depth: int
    end_symbol: bool
    candidates_BC = None

    @property
    def vocabulary(self) -> int:
        return self.tables.child_DV.shape[1]

    def allowed(self) -> Bool[Tensor, "N V"] | Bool[Tensor, "1 V"]:
        return self.to_end() < NO_END

    def to_end(self) -> Int[Tensor, "N V"] | Int[Tensor, "1 V"]:
        if self.depth == 0:
            return self.tables.to_end_DV[ROOT : ROOT + 1]
        if self.depth < self.tables.dense_levels:
            return self.tables.to_end_DV[self.node_N]
        listed = self._successors()
        assert listed.to_end is not None
        to_end_NW = listed.to_end().to(torch.int32).masked_fill(~listed.real_NW, NO_END)
        none_NV = torch.full((len(to_end_NW), self.vocabulary), NO_END, dtype=torch.int32, device=to_end_NW.device)
        return none_NV.scatter_reduce_(1, listed.tokens_NW, to_end_NW, "amin")

    def listed(self) -> Listed | None:
        if 2 * self.tables.width(self.depth) > self.vocabulary:
            return None
        return self._successors()

    def advance(self, tokens_N: Int[Tensor, " N"]) -> "TrieChoices":
        if self.depth < self.tables.dense_levels:
            node_N = self.tables.child_DV[self.node_N, tokens_N].long()
        else:
            key_N = self.node_N * self.vocabulary + tokens_N
            edge_N = torch.searchsorted(self.tables.key_E, key_N).clamp(max=len(self.tables.key_E) - 1)
            node_N = torch.where(self.tables.key_E[edge_N] == key_N, edge_N + 2, NOWHERE)
        return replace(self, node_N=node_N, depth=self.depth + 1)

    def advance_from(self, rows_N: Int[Tensor, " N"], tokens_N: Int[Tensor, " N"]) -> "TrieChoices":
        if self.depth >= self.tables.dense_levels or not devices.kernels_usable(self.node_N, tokens_N):
            return self.select(rows_N).advance(tokens_N)
        node_N = trie_kernel.children(self.tables.child_DV, self.node_N, rows_N, tokens_N)
        return replace(self, node_N=node_N, depth=self.depth + 1)

    def select(self, rows_N: Int[Tensor, " N"]) -> "TrieChoices":
        return replace(self, node_N=self.node_N.index_select(0, rows_N))

    def _successors(self) -> Listed:
        """The tokens of the edges of each prefix's node."""
        tables, width = self.tables, self.tables.width(self.depth)

        def edges_of(span_N2: Tensor) -> Tensor:
            return span_N2[:, :1] + tables.place_W[:width]

        spans_X2 = tables.first_X.unfold(0, 2, 1)
        if devices.kernels_usable(self.node_N):
            tokens_NW, real_NW = trie_kernel.edges(tables.first_X, tables.token_Y, self.node_N, width)
            return Listed(tokens_NW, real_NW, lambda: tables.to_end_Y[edges_of(spans_X2[self.node_N])])
        span_N2 = spans_X2[self.node_N]
        edges_NW = edges_of(span_N2)
        real_NW = edges_NW < span_N2[:, 1:]
        return Listed(tables.token_Y[edges_NW].long(), real_NW, lambda: tables.to_end_Y[edges_NW])


def _edges(flat_I: IntArray, length_N: IntArray, vocabulary: int) -> tuple[IntArray, IntArray, int]:
    """`first_X`, `token_E` and the count of different entries: level by level, one sort of the prefixes each."""
    start_N = np.cumsum(length_N) - length_N
    node_N = np.full(len(length_N), ROOT, np.int64)
    parents, tokens = [], []
    alive_N, level, next_node = np.flatnonzero(length_N > 0), 0, ROOT + 1
    while len(alive_N):
        key_N = node_N[alive_N] * vocabulary + flat_I[start_N[alive_N] + level]
        edge_E, edge_N = np.unique(key_N, return_inverse=True)
        parents.append(edge_E // vocabulary)
        tokens.append((edge_E % vocabulary).astype(np.int32))
        node_N[alive_N] = next_node + edge_N
        next_node, level = next_node + len(edge_E), level + 1
        alive_N = alive_N[length_N[alive_N] > level]
    branching_X = np.bincount(np.concatenate(parents), minlength=next_node)
    first_X = np.concatenate([[0], np.cumsum(branching_X)]).astype(np.int32)
    return first_X, np.concatenate(tokens), len(np.unique(node_N))


def _check_tokens(
    flat_I: IntArray, length_N: IntArray, vocabulary: int, specials: SpecialTokens, *, end_symbol: bool
) -> None:
    """Raise a DataError for an entry that no output could equal."""
    never = [token for token in (specials.unk, *specials.ends, *specials.unwritten) if token is not None]
    wrong_I = (flat_I < 0) | (flat_I >= vocabulary) | np.isin(flat_I, never)
    if end_symbol:
        wrong_I[np.cumsum(length_N) - 1] = False
    if wrong_I.any():
        place = int(wrong_I.argmax())
        entry = int(np.searchsorted(np.cumsum(length_N), place, side="right"))
        raise DataError(
            f"entry {entry + 1} of a trie: token id {flat_I[place]}; 0 to {vocabulary - 1} are accepted, "
            "without end symbols, unknown and unwritten tokens"
        )
    if (not end_symbol and len(np.unique(length_N)) > 1) or not length_N.max():
        raise DataError(
            f"a trie without the end symbol with entries of {length_N.min()} to {length_N.max()} tokens; "
            "one length of at least 1 is accepted"
        )


def _narrow(numbers: IntArray) -> IntArray:
    """The numbers in the smallest unsigned type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))
