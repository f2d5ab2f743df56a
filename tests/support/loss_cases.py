"""Tasks, models and batches on which losses are compared with brute force."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.models import ConvSeq2Seq, LstmLanguageModel, LstmSeq2Seq
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import Permutation, ShiftReduce, Successors, Unconstrained
from loss_oracles import CachedAttention
from oracles import Next, Words, permutation, shift_reduce, unconstrained
from transformer import Transformer

WORDS = (1, 4, 5, 6)  # UNK is a word like any other
VOCABULARY = 9
ACTIONS = 2
FIRST_ACTION = VOCABULARY - ACTIONS


@dataclass(frozen=True)
class Task:
    """A kind of successors, its brute force, and gold sequences it can reach."""

    successors: Successors
    naive: Callable[[Words], Next]
    target: Callable[[random.Random, Words], Words]
    stop: Stop | None


def any_words(rng: random.Random, source: Words) -> Words:
    return tuple(rng.choices(WORDS, k=rng.randint(1, 4)))


def shuffled(rng: random.Random, source: Words) -> Words:
    return tuple(rng.sample(source, k=len(source)))


def derivation(rng: random.Random, source: Words) -> Words:
    """Shift and reduce at random until one item is left."""
    output: list[int] = []
    left, stack = list(source), 0
    while left or stack > 1:
        shift = bool(left) and (stack < 2 or rng.random() < 0.5)
        output.append(left.pop(0) if shift else rng.randrange(FIRST_ACTION, VOCABULARY))
        stack += 1 if shift else -1
    return tuple(output)


TASKS = {
    "open length, stop top": Task(
        Unconstrained(VOCABULARY, end_symbol=True),
        lambda source: unconstrained(VOCABULARY, end_symbol=True),
        lambda rng, source: (*any_words(rng, source), EOS),
        StopTop(),
    ),
    "open length, stop best": Task(
        Unconstrained(VOCABULARY, end_symbol=True),
        lambda source: unconstrained(VOCABULARY, end_symbol=True),
        lambda rng, source: (*any_words(rng, source), EOS),
        StopBest(),
    ),
    "fixed length": Task(
        Unconstrained(VOCABULARY, end_symbol=False),
        lambda source: unconstrained(VOCABULARY, end_symbol=False),
        any_words,
        None,
    ),
    "permutation": Task(Permutation(), permutation, shuffled, None),
    "shift reduce": Task(
        ShiftReduce(VOCABULARY, actions=ACTIONS),
        lambda source: shift_reduce(source, vocabulary=VOCABULARY, actions=ACTIONS),
        derivation,
        None,
    ),
}


def lstm(layers: int, seed: int, dropout: float) -> nn.Module:
    model = LstmSeq2Seq(
        source_vocabulary=VOCABULARY,
        target_vocabulary=VOCABULARY,
        layers=layers,
        hidden=4,
        embedding=3,
        dropout=dropout,
        input_feeding=seed % 4 != 0,
    ).double()
    model.initialise(bound=1.0, generator=torch.Generator().manual_seed(seed))
    return model


def drawn(model: nn.Module, seed: int) -> nn.Module:
    """The model with every weight from -1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1)
    return model


def attention(seed: int, dropout: float) -> nn.Module:
    return drawn(CachedAttention(vocabulary=VOCABULARY, hidden=4, dropout=dropout).double(), seed)


def language_model(seed: int, dropout: float) -> nn.Module:
    model = LstmLanguageModel(vocabulary=VOCABULARY, layers=2, hidden=4, embedding=3, dropout=dropout).double()
    model.initialise(bound=1.0, generator=torch.Generator().manual_seed(seed))
    return model


def convolution(seed: int, dropout: float) -> nn.Module:
    """Four positions in a window of three, with vectors for three: windows cross both ends, and a vector is shared."""
    model = ConvSeq2Seq(
        source_vocabulary=VOCABULARY,
        target_vocabulary=VOCABULARY,
        layers=1 + seed % 2,
        hidden=4,
        embedding=3,
        dropout=dropout,
        window=3,
        positions=3,
    ).double()
    model.initialise(bound=1.0, generator=torch.Generator().manual_seed(seed))
    return model


def transformer(seed: int, dropout: float) -> nn.Module:
    """The example's, which reads gold and rivals in one pass. It has no dropout."""
    layers = 1 + seed % 2
    return drawn(Transformer(vocabulary=VOCABULARY, hidden=4, heads=2, layers=layers, longest=12).double(), seed)


MODELS: dict[str, Callable[[int, float], nn.Module]] = {
    "LSTM, 1 layer": lambda seed, dropout: lstm(1, seed, dropout),
    "LSTM, 2 layers": lambda seed, dropout: lstm(2, seed, dropout),
    "attention with a cache": attention,
    "language model": language_model,
    "convolutional encoder": convolution,
    "Transformer": transformer,
}


def drawn_batch(task: Task, rng: random.Random, *, sentences: int, padding_rows: int, padding: int) -> Batch:
    """Sentences of different lengths, padded further than needed, with rows that hold no sentence."""
    examples = []
    for _ in range(sentences):
        source = tuple(rng.choices(WORDS, k=rng.randint(1, 4)))
        examples.append(Example(source, task.target(rng, source), rng.randrange(1000)))
    longest = max(len(e.source) for e in examples), max(len(e.target) for e in examples)
    return make_batch(
        examples,
        source_length=longest[0] + padding,
        target_length=longest[1] + padding,
        size=sentences + padding_rows,
    )
