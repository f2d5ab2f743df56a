"""A deterministic grammar as successors: a bounded stack of states for each prefix, all of it tensors on the device."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.runtime import device as devices
from argbeam.search.constraints.automaton import DEAD, END, NOTHING, Automaton, ways_to_end
from argbeam.search.successors import NO_END

if devices.TRITON_INSTALLED:
    from argbeam.search.constraints import pushdown_kernel


@dataclass(frozen=True)
class PushdownTables:
    """An `Automaton` on one device."""

    class_V: Int[Tensor, " V"]
    size_QC: Int[Tensor, "Q C"]
    pushed_QCM: Int[Tensor, "Q C M"]
    ends_Q: Bool[Tensor, " Q"]
    state_QR: Int[Tensor, "Q R"]  # of `WaysToEnd`
    token_QRC: Int[Tensor, "Q R C"]


@dataclass(frozen=True, eq=False)
class Pushdown:
    """The outputs of a deterministic grammar, whose stack holds at most `depth` states; deeper prefixes are not valid.

    A regular grammar needs a depth of 1.
    """

    automaton: Automaton
    depth: int
    _tables: dict[torch.device, PushdownTables] = field(default_factory=dict, repr=False)

    def start(self, batch: Batch) -> "PushdownChoices":
        device, found = batch.source_BS.device, self.automaton
        if device not in self._tables:  # once, and before any capture: the first use of a shape runs eagerly
            ways = ways_to_end(found, self.depth)
            moves = (found.class_V, found.size_QC.astype(np.int16), found.pushed_QCM, found.ends_Q)
            arrays = (*moves, ways.state_QR, ways.token_QRC)
            self._tables[device] = PushdownTables(
                *(torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays)
            )
        start_B1 = torch.full_like(batch.source_length_B, found.start)[:, None]
        stack_BD = torch.nn.functional.pad(start_B1, (0, self.depth - 1), value=NOTHING)
        return PushdownChoices(self._tables[device], stack_BD)

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Whether a whole sequence, end symbol included, is valid."""
        found, stack = self.automaton, [self.automaton.start]  # the top is last
        for place, token in enumerate(tokens):
            token_class = int(found.class_V[token])
            if token_class == END:
                return place + 1 == len(tokens) and all(found.ends_Q[state] for state in stack)
            while stack and not found.size_QC[stack[-1], token_class]:
                if not found.ends_Q[stack.pop()]:
                    return False
            if not stack:
                return False
            state = stack.pop()
            size = int(found.size_QC[state, token_class])
            stack += found.pushed_QCM[state, token_class, :size][::-1].tolist()
            if len(stack) > self.depth:
                return False
        return False


@dataclass(frozen=True)
class PushdownChoices:
    """The stacks of the prefixes, top first.

    A token is taken by the first state from the top that takes it, if all above it may end. Worked example, M = 2: in
    the stack `a b c` state b takes a token and pushes `x y`; the new stack is `x y c`.

    `to_end_NC` is `to_end` by classes of tokens, where a kernel made it together with the stacks.
    """

    tables: PushdownTables
    stack_ND: Int[Tensor, "N D"]
    to_end_NC: Int[Tensor, "N C"] | None = None
    candidates_BC = None

    def allowed(self) -> Bool[Tensor, "N V"]:
        if self.to_end_NC is not None:
            return (self.to_end_NC < NO_END)[:, self.tables.class_V]
        # Of the states that are reached, one at most takes a token: the grammar is deterministic. Those below can end:
        # nothing was pushed that could not.
        token_NDC = _rows(self.tables.token_QRC, self._place_ND())
        allowed_NC = ((token_NDC < NO_END) & self._reached_ND()[..., None]).any(1)
        allowed_NC[:, END] = self.tables.ends_Q[self.stack_ND].all(1)
        return allowed_NC[:, self.tables.class_V]

    def to_end(self) -> Int[Tensor, "N V"]:
        """By the state that takes a token, by those below it, and by the end symbol."""
        if self.to_end_NC is not None:
            return self.to_end_NC[:, self.tables.class_V]
        tables, place_ND = self.tables, self._place_ND()
        state_ND = _rows(tables.state_QR, place_ND)
        below_ND = state_ND.sum(1, keepdim=True, dtype=torch.int32) - state_ND.cumsum(1, dtype=torch.int32)
        then_ND = torch.where(self._reached_ND(), below_ND + 1, NO_END)
        to_end_NC = (_rows(tables.token_QRC, place_ND) + then_ND[..., None]).amin(1).clamp(max=NO_END)
        to_end_NC[:, END] = torch.where(tables.ends_Q[self.stack_ND].all(1), 1, NO_END)
        return to_end_NC.to(torch.int16)[:, tables.class_V]

    def advance(self, tokens_N: Int[Tensor, " N"]) -> "PushdownChoices":
        if self._kernel_fits():
            return self.advance_from(torch.arange(len(tokens_N), device=tokens_N.device), tokens_N)
        tables, depth = self.tables, self.stack_ND.shape[1]
        class_N = tables.class_V[tokens_N]
        size_ND = tables.size_QC[self.stack_ND, class_N[:, None]].long()
        taken_ND = self._reached_ND() & (size_ND > 0)
        place_N1 = taken_ND.int().argmax(1, keepdim=True)
        state_N = self.stack_ND.gather(1, place_N1)[:, 0]
        size_N1 = size_ND.gather(1, place_N1)
        valid_N1 = taken_ND.any(1, keepdim=True) & (size_N1 <= self._room_ND().gather(1, place_N1))
        pushed_NM = tables.pushed_QCM[state_N, class_N]
        # The new stack: what is pushed, then what lay below the state that took the token.
        both_NX = torch.nn.functional.pad(torch.cat([pushed_NM, self.stack_ND], 1), (0, 1), value=NOTHING)
        new_D = torch.arange(depth, device=tokens_N.device)
        below_ND = pushed_NM.shape[1] + place_N1 + 1 + new_D - size_N1
        source_ND = torch.where(new_D < size_N1, new_D, below_ND.clamp(max=both_NX.shape[1] - 1))
        stack_ND = torch.where(valid_N1, both_NX.gather(1, source_ND), NOTHING)
        dead_ND = ~valid_N1 & (new_D == 0)
        return replace(self, stack_ND=stack_ND.masked_fill(dead_ND, DEAD), to_end_NC=None)

    def advance_from(self, rows_N: Int[Tensor, " N"], tokens_N: Int[Tensor, " N"]) -> "PushdownChoices":
        if not self._kernel_fits():
            return self.select(rows_N).advance(tokens_N)
        tables = (getattr(self.tables, table.name) for table in fields(PushdownTables))
        stack_ND, to_end_NC = pushdown_kernel.push(self.stack_ND, rows_N, tokens_N, *tables)
        return replace(self, stack_ND=stack_ND, to_end_NC=to_end_NC)

    def select(self, rows_N: Int[Tensor, " N"]) -> "PushdownChoices":
        to_end_NC = None if self.to_end_NC is None else self.to_end_NC.index_select(0, rows_N)
        return replace(self, stack_ND=self.stack_ND.index_select(0, rows_N), to_end_NC=to_end_NC)

    def _kernel_fits(self) -> bool:
        depth, classes = self.stack_ND.shape[1], self.tables.size_QC.shape[1]
        return devices.kernels_usable(self.stack_ND) and pushdown_kernel.fits(depth, classes)

    def _reached_ND(self) -> Bool[Tensor, "N D"]:
        """Whether all states above may end."""
        ended_ND = self.tables.ends_Q[self.stack_ND].long().cumprod(1)
        return torch.nn.functional.pad(ended_ND[:, :-1], (1, 0), value=1).bool()

    def _room_ND(self) -> Int[Tensor, "N D"]:
        """How many states may take the place of a state and of those above it."""
        depth = self.stack_ND.shape[1]
        states_N1 = (self.stack_ND != NOTHING).sum(1, keepdim=True)
        return depth + 1 + torch.arange(depth, device=states_N1.device) - states_N1

    def _place_ND(self) -> Int[Tensor, "N D"]:
        """Rows of `WaysToEnd`, of each state with its room."""
        rooms = self.tables.state_QR.shape[1]
        return self.stack_ND * rooms + self._room_ND().clamp(max=rooms) - 1


def _rows(table_QRX: Tensor, place_ND: Int[Tensor, "N D"]) -> Tensor:
    """The entries of a table by state and room."""
    return table_QRX.flatten(0, 1).index_select(0, place_ND.flatten()).view(*place_ND.shape, *table_QRX.shape[2:])
