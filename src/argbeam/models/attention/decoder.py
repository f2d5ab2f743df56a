"""A Transformer's decoder: one token at a time with a cache, or given tokens in one pass.

Letters as in `cache`; Y = query, key and value side by side, Q queries, X rows or some of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.models.attention.cache import Cache, Memory, as_bias, attend, seen_by_pairs, weights_of
from argbeam.models.attention.layers import Positions, Stack, vectors_of, with_mask, working_dtype
from argbeam.models.noise import Noise
from argbeam.models.recurrence.steps import DECODER_SITE
from argbeam.models.state import Places, State
from argbeam.runtime import device as devices


@dataclass(frozen=True)
class Sources:
    """Keys and values of the source, one row per sentence, for each layer that attends to them."""

    slots: Sequence[Float[Tensor, "B S X"]]
    bias_B1S: Float[Tensor, "B 1 S"]


class TransformerDecoder(Stack):
    """Layers over the tokens read so far, after a prompt if there is one, and over the source if they cross."""

    def start(
        self,
        batch: Batch,
        noise: Noise | None,
        *,
        dropout: float,
        prompts: Sequence[Float[Tensor, "B S X"]] = (),
        sources: Sequence[Float[Tensor, "B S X"]] = (),
    ) -> State:
        """The state before the first token; the keys and values of each layer's prompt, or of its source."""
        weight_VH, batch_size, steps = self.embedding.weight, batch.source_BS.shape[0], batch.target_BT.shape[1]
        real_BS, dtype = source_mask(batch), working_dtype(weight_VH)
        prompt_BS = real_BS if prompts else real_BS[:, :0]
        none_B0X = torch.empty(batch_size, 0, 2 * self.hidden, dtype=dtype, device=weight_VH.device)
        memories = [Memory(slots_BSX) for slots_BSX in prompts or [none_B0X] * len(self.layers)]
        return State(
            sentence={
                "cache": Cache(memories, prompt_BS, used=prompt_BS.shape[1], steps=steps),
                "sources": Sources(sources, as_bias(real_BS[:, None], dtype)),
                "masks": self.masks(noise, DECODER_SITE, steps=steps, rate=dropout),
                "positions": self.positions(max(steps, 16)),
            },
            hypothesis={
                "slots": torch.zeros(batch_size, 0, dtype=torch.int64, device=weight_VH.device),
                "output": weight_VH.new_zeros(batch_size, self.hidden),
            },
        )

    def step(
        self, state: State, tokens_X: Int[Tensor, " X"], rows_X: Int[Tensor, " X"] | None, places: Places | None
    ) -> State:
        """The state after one more token; the slots of the tokens before it are read through `rows_X`."""
        if places is None and not torch.is_grad_enabled() and devices.kernels_usable(tokens_X, self.embedding.weight):
            return self._step_by_kernels(state, tokens_X, rows_X)
        shared, time, width = state.sentence, state.time, self.hidden
        cache: Cache = shared["cache"]
        sources: Sources = shared["sources"]
        positions: Positions = shared["positions"].until(time + 1)
        here, rows = positions.part(time, 1), _Rows.of(tokens_X, len(cache.prompt_BS), places)
        slots_XT = state.hypothesis["slots"] if rows_X is None else state.hypothesis["slots"].index_select(0, rows_X)
        slots_XT = torch.cat([slots_XT, (cache.used + rows.place_X % rows.lanes)[:, None]], 1)
        dtype, slots = working_dtype(self.embedding.weight), cache.used + rows.lanes
        bias_BRA = rows.grid(rows.shaped(cache.bias(slots_XT, rows.sentence_X, slots=slots, dtype=dtype)))
        first, noise = shared["masks"].each(lambda mask_BTW: rows.of_sentence(mask_BTW[:, time]))
        x_BRH = with_mask(here.add(vectors_of(self.embedding, rows.shaped(tokens_X))), first)
        memories = []
        for i, layer in enumerate(self.layers):
            qkv_BRY = rows.grid(here.turn(layer.queries_keys_values(x_BRH)))
            memory, slots_BAX = cache.append(i, qkv_BRY[..., width:])
            memories.append(memory)
            found_BRH = attend(qkv_BRY[..., :width], slots_BAX, bias_BRA, self.heads)
            x_BRH = layer.add_own(x_BRH, rows.taken(found_BRH), noise[i])
            if sources.slots:
                query_BRH = rows.grid(layer.source_queries(x_BRH))
                found_BRH = attend(query_BRH, sources.slots[i], sources.bias_B1S, self.heads)
                x_BRH = layer.add_source(x_BRH, rows.taken(found_BRH), noise[i])
            x_BRH = layer.add_wide(x_BRH, noise[i])
        output_XH = self.norm(x_BRH).flatten(0, 1)
        shared = {**shared, "cache": cache.after(memories, rows.lanes), "positions": positions}
        return State(shared, {"slots": slots_XT, "output": output_XH}, time + 1)

    def _step_by_kernels(self, state: State, tokens_N: Int[Tensor, " N"], rows_N: Int[Tensor, " N"] | None) -> State:
        """The same in fewer operations."""
        from argbeam.models.attention import step_kernel as kernels

        shared, time, weight_VH = state.sentence, state.time, self.embedding.weight
        cache: Cache = shared["cache"]
        sources: Sources = shared["sources"]
        positions: Positions = shared["positions"].until(time + 1)
        here, used, lanes = positions.part(time, 1), cache.used, len(tokens_N) // len(cache.prompt_BS)
        first, noise = shared["masks"].each(lambda mask_BTW: mask_BTW[:, time])
        product = partial(kernels.product, lanes=lanes, dtype=working_dtype(weight_VH))
        position_H, turn_D = (None, here.table_PD[0]) if self.rotary else (here.table_PD[0], None)
        before = (state.hypothesis["slots"], rows_N)
        x_NH, slots_NT = kernels.begin(tokens_N, weight_VH, position_H, first, *before, used=used, lanes=lanes)
        memories = []
        for i, layer in enumerate(self.layers):
            qkv_NY = product(x_NH, layer.own_in, norm=layer.own_norm)
            memories.append(cache.writable(i, rows=lanes, dtype=qkv_NY.dtype))
            slots_BAX = memories[i].slots_BAX
            found_NH = kernels.attend_to_slots(
                qkv_NY, slots_BAX, slots_NT, cache.prompt_BS, turn_D, used=used, heads=self.heads
            )
            x_NH = product(found_NH, layer.own_out, mask_BO=noise[i][0], residual_NO=x_NH)
            if sources.slots:
                query_NH = product(x_NH, layer.source_in, norm=layer.source_norm)
                found_NH = kernels.attend_to_source(query_NH, sources.slots[i], sources.bias_B1S, heads=self.heads)
                x_NH = product(found_NH, layer.source_out, mask_BO=noise[i][1], residual_NO=x_NH)
            wide_NF = product(x_NH, layer.widen, norm=layer.wide_norm, relu=True, mask_BO=noise[i][-1])
            x_NH = product(wide_NF, layer.narrow, mask_BO=noise[i][-2], residual_NO=x_NH)
        shared = {**shared, "cache": cache.after(memories, lanes), "positions": positions}
        return State(shared, {"slots": slots_NT, "output": self.norm(x_NH)}, time + 1)

    def attention(self, state: State, read_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T S"]:
        """Weights of the last layer over the source, or over the prompt: means of the heads."""
        watched: list[Tensor] = []
        self.read(state, read_BT.T, None, watched)
        sources: Sources = state.sentence["sources"]
        return watched[-1][..., : sources.bias_B1S.shape[2]]

    def read(
        self,
        state: State,
        read_TN: Int[Tensor, "T N"],
        restarted_TB: Bool[Tensor, "T B"] | None,
        watched: list[Tensor] | None = None,
    ) -> Float[Tensor, "T N H"]:
        """The last layer's output after each token, from the first token on; restarts as in `Unrolls`.

        Each layer's attention weights go into `watched`: over the source, or over the prompt and the own tokens.
        """
        assert state.time == 0, "tokens are read from the first one on"
        shared, steps, width = state.sentence, len(read_TN), self.hidden
        cache: Cache = shared["cache"]
        sources: Sources = shared["sources"]
        positions: Positions = shared["positions"].until(steps).part(0, steps)
        first, noise = shared["masks"].each(lambda mask_BTW: mask_BTW[:, None, :steps])
        tokens_BRT = read_TN.view(steps, len(cache.prompt_BS), -1).permute(1, 2, 0)
        x_BRTH = with_mask(positions.add(vectors_of(self.embedding, tokens_BRT)), first)
        # A rival and its gold see one another: their tokens lie in one row. Other rows see their own tokens alone.
        groups = read_TN.shape[1] if restarted_TB is None else restarted_TB.shape[1]
        repeats = groups // len(cache.prompt_BS)
        bias_GQA = _bias_of(cache, steps, restarted_TB, repeats, dtype=working_dtype(self.embedding.weight))
        for i, layer in enumerate(self.layers):
            qkv_BRTY = positions.turn(layer.queries_keys_values(x_BRTH))
            qkv_GQY = qkv_BRTY.reshape(groups, -1, qkv_BRTY.shape[3])
            slots_GAX = qkv_GQY[..., width:]
            if cache.used:
                prompt_GSX = cache.memories[i].slots_BAX.repeat_interleave(repeats, 0)
                slots_GAX = torch.cat([prompt_GSX.to(slots_GAX.dtype), slots_GAX], 1)
            found_GQH = attend(qkv_GQY[..., :width], slots_GAX, bias_GQA, self.heads)
            x_BRTH = layer.add_own(x_BRTH, found_GQH.view(x_BRTH.shape), noise[i])
            if watched is not None and not sources.slots:
                assert bias_GQA is not None, "a prompt"
                watched.append(weights_of(qkv_GQY[..., :width], slots_GAX, bias_GQA, self.heads))
            if sources.slots:
                query_BQH = layer.source_queries(x_BRTH).flatten(1, 2)
                found_BQH = attend(query_BQH, sources.slots[i], sources.bias_B1S, self.heads)
                if watched is not None:
                    watched.append(weights_of(query_BQH, sources.slots[i], sources.bias_B1S, self.heads))
                x_BRTH = layer.add_source(x_BRTH, found_BQH.view(x_BRTH.shape), noise[i])
            x_BRTH = layer.add_wide(x_BRTH, noise[i])
        output_BRTH: Tensor = self.norm(x_BRTH)
        return output_BRTH.permute(2, 0, 1, 3).flatten(1, 2)


def source_mask(batch: Batch) -> Bool[Tensor, "B S"]:
    """True at the source's tokens, false at padding."""
    return torch.arange(batch.source_BS.shape[1], device=batch.source_BS.device) < batch.source_length_B[:, None]


@dataclass(frozen=True)
class _Rows:
    """The rows of a step: all `lanes` rows of every sentence, as (B, R, ...), or `some` of them, as (X, 1, ...).

    Attention takes as many rows of each sentence: zeros stand for the others.
    """

    place_X: Int[Tensor, " X"]
    lanes: int
    sentences: int
    some: bool

    @staticmethod
    def of(tokens_X: Int[Tensor, " X"], sentences: int, places: Places | None) -> "_Rows":
        if places is not None:
            return _Rows(places.place_X, places.lanes, sentences, some=True)
        place_X = torch.arange(len(tokens_X), device=tokens_X.device)
        return _Rows(place_X, len(tokens_X) // sentences, sentences, some=False)

    @property
    def sentence_X(self) -> Int[Tensor, " X"]:
        return self.place_X // self.lanes

    def shaped(self, x_X: Shaped[Tensor, "X *H"]) -> Shaped[Tensor, "B R *H"]:
        return x_X[:, None] if self.some else x_X.reshape(self.sentences, self.lanes, *x_X.shape[1:])

    def of_sentence(self, x_BH: Float[Tensor, "B H"]) -> Float[Tensor, "X 1 H"]:
        """What holds for all rows of a sentence."""
        return (x_BH.index_select(0, self.sentence_X) if self.some else x_BH)[:, None]

    def grid(self, x_BRH: Float[Tensor, "X Y H"]) -> Float[Tensor, "B R H"]:
        """Every sentence's rows together."""
        if not self.some:
            return x_BRH
        grid_BRH = x_BRH.new_zeros(self.sentences, self.lanes, x_BRH.shape[2])
        grid_BRH.flatten(0, 1).index_copy_(0, self.place_X, x_BRH[:, 0])
        return grid_BRH

    def taken(self, x_BRH: Float[Tensor, "B R H"]) -> Float[Tensor, "X Y H"]:
        """The rows from where `grid` put them."""
        return x_BRH.flatten(0, 1).index_select(0, self.place_X)[:, None] if self.some else x_BRH


def _bias_of(
    cache: Cache, steps: int, restarted_TB: Bool[Tensor, "T B"] | None, repeats: int, *, dtype: torch.dtype
) -> Float[Tensor, "G Q A"] | None:
    """What tokens read in one pass see: the prompt, then themselves; None: the tokens before them and nothing else.

    A sentence has `repeats` groups of rows that see one another.
    """
    prompt_GS = cache.prompt_BS.repeat_interleave(repeats, 0) if cache.used else cache.prompt_BS[:1]
    if restarted_TB is not None:
        seen_GQQ = seen_by_pairs(restarted_TB)
    elif cache.used:
        time_T = torch.arange(steps, device=cache.prompt_BS.device)
        seen_GQQ = (time_T <= time_T[:, None]).expand(len(prompt_GS), -1, -1)
    else:
        return None
    prompt_GQS = prompt_GS[:, None].expand(len(seen_GQQ), seen_GQQ.shape[1], -1)
    return as_bias(torch.cat([prompt_GQS, seen_GQQ], 2), dtype)
