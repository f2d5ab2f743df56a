"""Layers of a pre-norm Transformer, its positions, and its dropout.

x = x + W attention(norm(x))      to the own sequence, then in a decoder with an encoder to the source
x = x + W2 relu(W1 norm(x))
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from argbeam.errors import ConfigError
from argbeam.models.noise import Noise

LayerNoise = Sequence[Tensor | None]
"""Masks of a layer: one on each branch, then one between the two products of the last branch."""


class TransformerLayer(nn.Module):
    """The weights of a layer, and its branches but for attention itself; `crosses`: it has a branch for the source."""

    def __init__(self, hidden: int, feed_forward: int, *, crosses: bool) -> None:
        super().__init__()
        self.own_norm = nn.LayerNorm(hidden)
        self.own_in, self.own_out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        if crosses:
            self.source_norm = nn.LayerNorm(hidden)
            self.source_in, self.source_out = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
            self.source_memory = nn.Linear(hidden, 2 * hidden)
        self.wide_norm = nn.LayerNorm(hidden)
        self.widen, self.narrow = nn.Linear(hidden, feed_forward), nn.Linear(feed_forward, hidden)

    def queries_keys_values(self, x_XH: Float[Tensor, "*X H"]) -> Float[Tensor, "*X Y"]:
        """Query, key and value side by side."""
        qkv_XY: Tensor = self.own_in(self.own_norm(x_XH))
        return qkv_XY

    def source_queries(self, x_XH: Float[Tensor, "*X H"]) -> Float[Tensor, "*X H"]:
        query_XH: Tensor = self.source_in(self.source_norm(x_XH))
        return query_XH

    def add_own(self, x_XH: Float[Tensor, "*X H"], found_XH: Float[Tensor, "*X H"], noise: LayerNoise) -> Tensor:
        """x after the branch that found this in the own sequence."""
        return _added(x_XH, self.own_out(found_XH), noise[0])

    def add_source(self, x_XH: Float[Tensor, "*X H"], found_XH: Float[Tensor, "*X H"], noise: LayerNoise) -> Tensor:
        """x after the branch that found this in the source."""
        return _added(x_XH, self.source_out(found_XH), noise[1])

    def add_wide(self, x_XH: Float[Tensor, "*X H"], noise: LayerNoise) -> Float[Tensor, "*X H"]:
        """x after the last branch."""
        wide_XF = with_mask(self.widen(self.wide_norm(x_XH)).relu(), noise[-1])
        return _added(x_XH, self.narrow(wide_XF), noise[-2])


class Stack(nn.Module):
    """Token vectors, layers and a last norm."""

    layers: Sequence[TransformerLayer]

    def __init__(
        self,
        vocabulary: int,
        layers: int,
        hidden: int,
        heads: int,
        feed_forward: int,
        *,
        rotary: bool,
        crosses: bool = False,
    ) -> None:
        super().__init__()
        if hidden % heads or (rotary and hidden // heads % 2):
            even = ", into even widths where positions are rotary" if rotary else ""
            raise ConfigError(f"heads = {heads}: must divide hidden = {hidden}{even}")
        self.hidden, self.heads, self.rotary = hidden, heads, rotary
        self.embedding = nn.Embedding(vocabulary, hidden)
        made = (TransformerLayer(hidden, feed_forward, crosses=crosses) for _ in range(layers))
        self.layers = nn.ModuleList(made)  # type: ignore[assignment]
        self.norm = nn.LayerNorm(hidden)
        # Widths of the places with noise: the vectors, then each layer's branches and its inner width.
        self.widths = [hidden, *([hidden] * (2 + crosses) + [feed_forward]) * layers]

    def masks(self, noise: Noise | None, site: int, *, steps: int, rate: float) -> "StackMasks":
        """All masks are drawn at once and are views of one tensor: few operations."""
        if noise is None or rate == 0:
            return StackMasks([None] * len(self.widths), len(self.layers))
        dtype = working_dtype(self.embedding.weight)
        mask_BTW = noise.mask(site, steps=steps, width=sum(self.widths), rate=rate, dtype=dtype)
        return StackMasks(torch.split(mask_BTW, self.widths, 2), len(self.layers))

    def positions(self, count: int) -> "Positions":
        """The first positions."""
        width = self.hidden // self.heads if self.rotary else self.hidden
        return Positions.of(count, width, rotary=self.rotary, like=self.embedding.weight)


def vectors_of(embedding: nn.Embedding, tokens_X: Int[Tensor, "*X"]) -> Float[Tensor, "*X H"]:
    """The factor makes vectors with a variance of 1 / H as large as positions."""
    vector_XH: Tensor = embedding(tokens_X)
    return vector_XH * math.sqrt(embedding.embedding_dim)


@dataclass(frozen=True)
class StackMasks:
    """Dropout at every step: on the token vectors, then for each layer; None where there is none."""

    masks: Sequence[Float[Tensor, "B T _"] | None]
    layers: int

    def each(self, view: Callable[[Tensor], Tensor]) -> tuple[Tensor | None, list[LayerNoise]]:
        """The mask of the token vectors and those of each layer, each as `view` makes it."""
        first, *rest = [None if mask is None else view(mask) for mask in self.masks]
        size = len(rest) // self.layers
        return first, [rest[i * size : (i + 1) * size] for i in range(self.layers)]


@dataclass(frozen=True)
class Positions:
    """Sinusoidal positions (Vaswani et al. 2017, section 3.5), added to the vectors, or rotary ones (Su et al. 2021),
    by which queries and keys are turned. `table_PD` has one row per position: sines, then cosines."""

    table_PD: Float[Tensor, "P D"]
    rotary: bool

    @staticmethod
    def of(count: int, width: int, *, rotary: bool, like: Tensor) -> "Positions":
        half = (width + 1) // 2
        rate_E = (torch.arange(half, device=like.device, dtype=torch.float64) * (-math.log(10000) / half)).exp()
        angle_PE = torch.arange(count, device=like.device)[:, None] * rate_E
        table_PD = torch.cat([angle_PE.sin(), angle_PE.cos()], 1)[:, :width]
        return Positions(table_PD.to(like.dtype), rotary)

    def until(self, count: int) -> "Positions":
        """At least so many positions."""
        there, width = self.table_PD.shape
        return self if count <= there else self.of(max(count, 2 * there), width, rotary=self.rotary, like=self.table_PD)

    def part(self, first: int, count: int) -> "Positions":
        """These positions alone. One position holds for all vectors."""
        return Positions(self.table_PD[first : first + count], self.rotary)

    def add(self, x_XPH: Float[Tensor, "*X P H"]) -> Float[Tensor, "*X P H"]:
        """Added to vectors; rotary positions are not added."""
        return x_XPH if self.rotary else x_XPH + self.table_PD

    def turn(self, x_XPY: Float[Tensor, "*X P Y"]) -> Float[Tensor, "*X P Y"]:
        """[query; key; value] with queries and keys turned if positions are rotary."""
        if not self.rotary:
            return x_XPY
        third = x_XPY.shape[-1] // 3
        sine_P1E, cosine_P1E = self.table_PD[:, None].to(x_XPY.dtype).chunk(2, 2)
        turned, values = x_XPY[..., : 2 * third], x_XPY[..., 2 * third :]
        left, right = turned.reshape(*turned.shape[:-1], -1, self.table_PD.shape[1]).chunk(2, -1)
        parts = [left * cosine_P1E - right * sine_P1E, right * cosine_P1E + left * sine_P1E]
        return torch.cat([torch.cat(parts, -1).flatten(-2), values], -1)


def with_mask(x_XH: Float[Tensor, "*X H"], mask: Tensor | None) -> Float[Tensor, "*X H"]:
    """Dropout by a mask that broadcasts."""
    return x_XH if mask is None else x_XH * mask


def _added(x_XH: Tensor, branch_XH: Tensor, mask: Tensor | None) -> Tensor:
    """x and a branch with dropout."""
    return x_XH + branch_XH if mask is None else torch.addcmul(x_XH, branch_XH, mask)


def working_dtype(weight: Tensor) -> torch.dtype:
    """The type that products of this weight have: autocast's, where it is on."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
