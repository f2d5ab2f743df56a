"""Small models of each kind in float64, and a batch for them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from torch import nn

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.models import ConvSeq2Seq, LstmLanguageModel, LstmSeq2Seq, Transformer, TransformerLm
from loss_cases import initialised
from oracles import example_of


def small(kind: type, *, layers: int = 1, hidden: int = 5, dropout: float = 0.0, seed: int = 1, **own: int) -> Any:
    """A model of this class with weights from -0.8 to 0.8."""
    model = kind(layers=layers, hidden=hidden, embedding=4, dropout=dropout, **own)
    return initialised(model, seed, bound=0.8)


def small_transformer(
    kind: type, *, layers: int = 1, hidden: int = 4, dropout: float = 0.0, seed: int = 1, **own: bool
) -> Any:
    """A Transformer of this class with weights from -0.8 to 0.8; two heads where they divide the width."""
    sizes = {"layers": layers, "hidden": hidden, "heads": 2 - hidden % 2, "feed_forward": 7}
    model = kind(source_vocabulary=9, target_vocabulary=8, dropout=dropout, **sizes, **own)
    return initialised(model, seed, bound=0.8)


lstm_model = partial(small, LstmSeq2Seq, source_vocabulary=9, target_vocabulary=8)
language_model = partial(small, LstmLanguageModel, vocabulary=8)
conv_model = partial(small, ConvSeq2Seq, source_vocabulary=9, target_vocabulary=8, window=3, positions=3)
transformer_model = partial(small_transformer, Transformer)
transformer_lm_model = partial(small_transformer, TransformerLm)

Made = Callable[..., nn.Module]
MODELS: dict[str, Made] = {"lstm": lstm_model, "lstm_lm": language_model, "conv": conv_model}
MODELS |= {"transformer": transformer_model, "transformer_lm": transformer_lm_model}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)

SOURCES = [[4, 5, 6, 7, 8], [8], [5, 4, 4]]
TARGETS = [[4, 5, 6, 7], [5], [7, 7]]


def examples(sources: Sequence[Sequence[int]] = SOURCES, targets: Sequence[Sequence[int]] = TARGETS) -> list[Example]:
    pairs = zip(sources, targets, strict=True)
    return [example_of(t, source=s, sentence=10 + i) for i, (s, t) in enumerate(pairs)]


def batch_of(sources: Sequence[Sequence[int]] = SOURCES, targets: Sequence[Sequence[int]] = TARGETS) -> Batch:
    return make_batch(examples(sources, targets))
