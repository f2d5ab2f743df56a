"""Transformers (Vaswani et al. 2017), pre-norm: an encoder-decoder, and a decoder alone whose prompt is the source.

    encoder-decoder    m = encoder(x_1 ... x_S);  o_t = decoder(y_0 ... y_{t-1}), attending to m too
    decoder alone      o_t = decoder(x_1 ... x_S y_0 ... y_{t-1}): x attends to all x, y to all x and to y before it

The output layer reads o_t. Source and target have vectors of their own and count their positions apart; a source
without order, a bag of words, has no positions.
"""

from abc import abstractmethod

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.models.attention.cache import as_bias, attend
from argbeam.models.attention.decoder import TransformerDecoder, source_mask
from argbeam.models.attention.layers import Stack, vectors_of, with_mask, working_dtype
from argbeam.models.network import EncoderDecoder
from argbeam.models.noise import Noise
from argbeam.models.recurrence.steps import ENCODER_SITE
from argbeam.models.state import Places, State


class SourceVectors(nn.Module):
    """The vectors of source tokens."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)


class StepsWithCache(EncoderDecoder):
    """What both Transformers share: all but `encode`. `tied`: target vectors are the weights of the output layer."""

    decoder: TransformerDecoder
    encoder: Stack | SourceVectors
    crosses: bool
    """Whether the decoder attends to an encoder's output; without it the source has vectors only."""

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        layers: int,
        hidden: int,
        heads: int,
        feed_forward: int,
        dropout: float,
        tied: bool = True,
        rotary: bool = False,
        ordered_source: bool = True,
    ) -> None:
        super().__init__()
        sizes = (layers, hidden, heads, feed_forward)
        self.decoder = TransformerDecoder(target_vocabulary, *sizes, rotary=rotary, crosses=self.crosses)
        self.output_layer = nn.Linear(hidden, target_vocabulary)
        if tied:
            self.output_layer.weight = self.decoder.embedding.weight
        if self.crosses:
            self.encoder = Stack(source_vocabulary, *sizes, rotary=rotary)
        else:
            self.encoder = SourceVectors(source_vocabulary, hidden)
        self.dropout, self.ordered_source = dropout, ordered_source

    @abstractmethod
    def encode(self, batch: Batch, noise: Noise | None) -> State: ...

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        return self.decoder.step(state, tokens_N, None, None)

    def step_from(
        self, state: State, rows_X: Int[Tensor, " X"], tokens_X: Int[Tensor, " X"], places: Places | None
    ) -> State:
        return self.decoder.step(state, tokens_X, rows_X, places)

    def attention(self, batch: Batch, read_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T S"]:
        return self.decoder.attention(self.encode(batch, None), read_BT)

    def unroll(
        self, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None = None
    ) -> Float[Tensor, "T N H"] | None:
        return self.decoder.read(state, read_TN, restarted_TB) if state.time == 0 else None


class Transformer(StepsWithCache):
    """Encoder and decoder of as many layers each."""

    encoder: Stack
    crosses = True

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        memory_BSH = self.encoder.norm(read_source(self.encoder, self.encoder.embedding, batch, noise, self)[0])
        sources = [layer.source_memory(memory_BSH) for layer in self.decoder.layers]
        return self.decoder.start(batch, noise, dropout=self.dropout, sources=sources)


class TransformerLm(StepsWithCache):
    """A decoder alone: the source is its prompt, of which every token sees all others (a prefix language model)."""

    encoder: SourceVectors
    crosses = False

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        prompts = read_source(self.decoder, self.encoder.embedding, batch, noise, self)[1]
        return self.decoder.start(batch, noise, dropout=self.dropout, prompts=prompts)


def read_source(
    stack: Stack, embedding: nn.Embedding, batch: Batch, noise: Noise | None, network: StepsWithCache
) -> tuple[Float[Tensor, "B S H"], list[Float[Tensor, "B S X"]]]:
    """The last layer's x, and each layer's keys and values. Every token sees all tokens of its source."""
    steps, width = batch.source_BS.shape[1], stack.hidden
    first, masks = stack.masks(noise, ENCODER_SITE, steps=steps, rate=network.dropout).each(lambda mask_BSW: mask_BSW)
    positions = stack.positions(steps) if network.ordered_source else None
    x_BSH = vectors_of(embedding, batch.source_BS)
    x_BSH = with_mask(x_BSH if positions is None else positions.add(x_BSH), first)
    bias_B1S = as_bias(source_mask(batch)[:, None], working_dtype(stack.embedding.weight))
    memories = []
    for layer, noise_of_layer in zip(stack.layers, masks, strict=True):
        qkv_BSY = layer.queries_keys_values(x_BSH)
        qkv_BSY = qkv_BSY if positions is None else positions.turn(qkv_BSY)
        query_BSH, slots_BSX = qkv_BSY[..., :width], qkv_BSY[..., width:]
        memories.append(slots_BSX)
        x_BSH = layer.add_own(x_BSH, attend(query_BSH, slots_BSX, bias_B1S, stack.heads), noise_of_layer)
        x_BSH = layer.add_wide(x_BSH, noise_of_layer)
    return x_BSH, memories
