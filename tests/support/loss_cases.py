"""Tasks, models and batches on which losses are compared with brute force."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.losses.replay import gold_outputs
from argbeam.models import ConvSeq2Seq, LstmLanguageModel, LstmSeq2Seq, Model, Transformer, TransformerLm
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.constraints.trie import Trie
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import Permutation, ShiftReduce, Successors, Unconstrained
from loss_oracles import CachedAttention, gradients
from oracles import Next, Tokens, permutation, shift_reduce, unconstrained
from transformer import Transformer as ExampleTransformer

WORDS = (1, 4, 5, 6)  # UNK is a word like any other
VOCABULARY = 9
ACTIONS = 2
FIRST_ACTION = VOCABULARY - ACTIONS
EXAMPLES = [
    Example((4, 5, 6), (6, 5, EOS), 3),
    Example((7,), (7, 7, 7, 7, EOS), 8),
    Example((5, 4, 5, 4, 5), (1, EOS), 20),
]


@dataclass(frozen=True)
class Task:
    """A kind of successors, its brute force, and gold sequences it can reach."""

    successors: Successors
    naive: Callable[[Tokens], Next]
    target: Callable[[random.Random, Tokens], Tokens]
    stop: Stop | None


def score(model: Model, state: State, gold_BT: Tensor) -> Tensor:
    """Scores of the whole vocabulary at every step of the gold history, as (B, T, V)."""
    return model.scores(gold_outputs(model, state, gold_BT))


def any_words(rng: random.Random, source: Tokens) -> Tokens:
    return tuple(rng.choices(WORDS, k=rng.randint(1, 4)))


def shuffled(rng: random.Random, source: Tokens) -> Tokens:
    return tuple(rng.sample(source, k=len(source)))


def derivation(rng: random.Random, source: Tokens) -> Tokens:
    """Shift and reduce at random until one item is left."""
    output: list[int] = []
    left, stack = list(source), 0
    while left or stack > 1:
        shift = bool(left) and (stack < 2 or rng.random() < 0.5)
        output.append(left.pop(0) if shift else rng.randrange(FIRST_ACTION, VOCABULARY))
        stack += 1 if shift else -1
    return tuple(output)


OPEN = Task(
    Unconstrained(VOCABULARY, end_symbol=True),
    lambda source: unconstrained(VOCABULARY, end_symbol=True),
    lambda rng, source: (*any_words(rng, source), EOS),
    StopTop(),
)
FIXED = Task(
    Unconstrained(VOCABULARY, end_symbol=False),
    lambda source: unconstrained(VOCABULARY, end_symbol=False),
    any_words,
    None,
)
# Of one token to three; some begin as others do, or are the beginning of others.
ENTRIES = [(4,), (4, 5), (4, 5, 6), (4, 6, 4), (5, 4), (6, 6, 5), (6,), (7, 5)]
OUTPUTS = [(*entry, EOS) for entry in ENTRIES]
TASKS = {
    "open length, stop top": OPEN,
    "open length, stop best": replace(OPEN, stop=StopBest()),
    "fixed length": FIXED,
    "permutation": Task(Permutation(), permutation, shuffled, None),
    "shift reduce": Task(
        ShiftReduce(VOCABULARY, actions=ACTIONS),
        lambda source: shift_reduce(source, vocabulary=VOCABULARY, actions=ACTIONS),
        derivation,
        None,
    ),
    "trie": Task(
        Trie.of(ENTRIES, vocabulary=VOCABULARY),
        lambda source: lambda prefix: sorted({o[len(prefix)] for o in OUTPUTS if o[: len(prefix)] == prefix != o}),
        lambda rng, source: rng.choice(OUTPUTS),
        StopTop(),
    ),
}


def small_lstm(
    vocabulary: int = VOCABULARY,
    *,
    kind: type[LstmSeq2Seq] = LstmSeq2Seq,
    layers: int = 2,
    hidden: int = 4,
    embedding: int = 3,
    dropout: float = 0.3,
    input_feeding: bool = True,
    bound: float = 1.0,
    seed: int = 1,
) -> Any:
    """An LSTM in float64 with weights from -bound to bound."""
    sizes = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary, "hidden": hidden, "embedding": embedding}
    return initialised(kind(layers=layers, dropout=dropout, input_feeding=input_feeding, **sizes), seed, bound)


def initialised(model: Any, seed: int, bound: float = 1.0) -> Any:
    model.initialise(bound=bound, generator=torch.Generator().manual_seed(seed))
    return model.double()


def drawn(model: nn.Module, seed: int) -> nn.Module:
    """The model in float64 with every weight from -1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.copy_(2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1)
    return model


def lstm(layers: int, seed: int, dropout: float) -> nn.Module:
    return small_lstm(layers=layers, dropout=dropout, input_feeding=seed % 4 != 0, seed=seed)


def attention(seed: int, dropout: float) -> nn.Module:
    return drawn(CachedAttention(vocabulary=VOCABULARY, hidden=4, dropout=dropout), seed)


def language_model(seed: int, dropout: float) -> nn.Module:
    model = LstmLanguageModel(vocabulary=VOCABULARY, layers=2, hidden=4, embedding=3, dropout=dropout)
    return initialised(model, seed)


def convolution(seed: int, dropout: float) -> nn.Module:
    """Four positions in a window of three, with vectors for three: windows cross both ends, and a vector is shared."""
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY, "hidden": 4, "embedding": 3}
    return initialised(ConvSeq2Seq(layers=1 + seed % 2, dropout=dropout, window=3, positions=3, **sizes), seed)


def transformer(
    kind: type[Transformer | TransformerLm], seed: int, dropout: float, vocabulary: int = VOCABULARY
) -> Any:
    """With either kind of positions, tied vectors or not, and sources with order or without."""
    sizes = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary, "hidden": 4, "heads": 2}
    choices = {"rotary": seed % 2 == 0, "tied": seed % 3 > 0, "ordered_source": seed % 5 > 0}
    return initialised(kind(layers=1 + seed % 2, feed_forward=5, dropout=dropout, **sizes, **choices), seed)


def example_transformer(seed: int, dropout: float) -> nn.Module:
    """The example's, which reads gold and rivals in one pass. It has no dropout."""
    return drawn(ExampleTransformer(vocabulary=VOCABULARY, hidden=4, heads=2, layers=1 + seed % 2, longest=12), seed)


MODELS: dict[str, Callable[[int, float], nn.Module]] = {
    "LSTM, 1 layer": lambda seed, dropout: lstm(1, seed, dropout),
    "LSTM, 2 layers": lambda seed, dropout: lstm(2, seed, dropout),
    "attention with a cache": attention,
    "language model": language_model,
    "convolutional encoder": convolution,
    "example's Transformer": example_transformer,
    "Transformer": lambda seed, dropout: transformer(Transformer, seed, dropout),
    "Transformer, decoder only": lambda seed, dropout: transformer(TransformerLm, seed, dropout),
}
TRANSFORMERS = ("Transformer", "Transformer, decoder only")


def drawn_case(data: st.DataObject, task: Task, models: Sequence[str] = ()) -> tuple[nn.Module, Batch, Noise | None]:
    """A model, one to three sentences with padding, and dropout or none."""
    seed = data.draw(st.integers(0, 10**6))
    batch = drawn_batch(
        task,
        random.Random(seed),
        sentences=data.draw(st.integers(1, 3)),
        padding_rows=data.draw(st.integers(0, 2)),
        padding=data.draw(st.integers(0, 2)),
    )
    model = MODELS[data.draw(st.sampled_from(models or list(MODELS)))](seed, 0.4)
    return model, batch, data.draw(st.sampled_from([None, Noise(seed, torch.tensor(7), batch.sentence_B)]))


def noisy_batch(examples: Sequence[Example], *, update: int = 2, **padding: int) -> tuple[Batch, Noise]:
    """A batch and the noise of one update."""
    batch = make_batch(examples, **padding)
    return batch, Noise(1, torch.tensor(update), batch.sentence_B)


def assert_same_loss(found: Tensor, expected: Tensor, model: nn.Module, tolerance: float = 1e-10) -> None:
    """Loss and every gradient."""
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradients(found, model), gradients(expected, model), rtol=tolerance, atol=tolerance)


def drawn_batch(task: Task, rng: random.Random, *, sentences: int, padding_rows: int, padding: int) -> Batch:
    """Sentences of different lengths, padded further than needed, with rows that hold no sentence."""
    examples = []
    for _ in range(sentences):
        source = tuple(rng.choices(WORDS, k=rng.randint(1, 4)))
        examples.append(Example(source, task.target(rng, source), rng.randrange(1000)))
    longest = max(len(e.source) for e in examples), max(len(e.target) for e in examples)
    return make_batch(
        examples, source_length=longest[0] + padding, target_length=longest[1] + padding, size=sentences + padding_rows
    )
