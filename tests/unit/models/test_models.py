"""What holds for every model that a recipe can ask for, and the ones beside the paper's LSTM against plain loops."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import BOS
from argbeam.decoding.batch_decoder import perplexity
from argbeam.losses.replay import replay, score, unroll
from argbeam.metrics.bleu import corpus_bleu
from argbeam.models import ConvSeq2Seq, LstmLanguageModel, LstmSeq2Seq, make_model
from argbeam.models.lstm_decoder import LstmDecoder
from argbeam.models.noise import Noise
from argbeam.runs.load import Run, load
from argbeam.search.gold import Gold, Restart
from argbeam.search.score_rules import LastScore, LogprobSum
from argbeam.search.search import beam_search
from argbeam.search.stop_rules import StopTop
from argbeam.search.successors import Permutation, Unconstrained
from argbeam.settings import ConvModel, LstmLmModel, LstmModel
from argbeam.settings.recipe_files import parse_recipe
from loss_oracles import alone
from oracles import Tokens, enumerate_sequences, example_of, permutation
from small_runs import final_tensors, finish, same_tensors, short_text, small_recipe, stop_after

CPU = torch.device("cpu")


def language_model(*, layers: int = 2, hidden: int = 5, dropout: float = 0.0, seed: int = 1) -> LstmLanguageModel:
    model = LstmLanguageModel(vocabulary=8, layers=layers, hidden=hidden, embedding=4, dropout=dropout).double()
    model.initialise(bound=0.8, generator=torch.Generator().manual_seed(seed))
    return model


def conv_model(
    *, layers: int = 1, hidden: int = 5, dropout: float = 0.0, seed: int = 1, window: int = 3, positions: int = 3
) -> ConvSeq2Seq:
    model = ConvSeq2Seq(
        source_vocabulary=9,
        target_vocabulary=8,
        layers=layers,
        hidden=hidden,
        embedding=4,
        dropout=dropout,
        window=window,
        positions=positions,
    ).double()
    model.initialise(bound=0.8, generator=torch.Generator().manual_seed(seed))
    return model


def lstm_model(
    *, layers: int = 1, hidden: int = 5, dropout: float = 0.0, seed: int = 1, input_feeding: bool = True
) -> LstmSeq2Seq:
    sizes = {"source_vocabulary": 9, "target_vocabulary": 8, "layers": layers, "hidden": hidden, "embedding": 4}
    model = LstmSeq2Seq(**sizes, dropout=dropout, input_feeding=input_feeding).double()
    model.initialise(bound=0.8, generator=torch.Generator().manual_seed(seed))
    return model


Made = Callable[..., nn.Module]
MODELS: dict[str, Made] = {"lstm": lstm_model, "lstm_lm": language_model, "conv": conv_model}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)

SOURCES = [[4, 5, 6, 7, 8], [8], [5, 4, 4]]
TARGETS = [[4, 5, 6, 7], [5], [7, 7]]


def batch_of(sources: Sequence[Sequence[int]] = SOURCES, targets: Sequence[Sequence[int]] = TARGETS) -> Batch:
    pairs = zip(sources, targets, strict=True)
    return make_batch([example_of(t, source=s, sentence=10 + i) for i, (s, t) in enumerate(pairs)])


# One sentence at a time, word by word, by torch's own cell and loops over positions and words of a window.


def read_by_cells(decoder: LstmDecoder, h: list[Tensor], c: list[Tensor], x_I: Tensor) -> Tensor:
    """One word through nn.LSTMCell, a layer after the other; `h` and `c` are changed."""
    for i, (inputs, recurrent) in enumerate(zip(decoder.inputs, decoder.recurrent, strict=True)):
        cell = nn.LSTMCell(x_I.shape[0], h[i].shape[0]).double()
        cell.weight_ih, cell.bias_ih, cell.weight_hh = inputs.weight, inputs.bias, recurrent.weight
        nn.init.zeros_(cell.bias_hh)
        h_1H, c_1H = cell(x_I[None], (h[i][None], c[i][None]))
        x_I, h[i], c[i] = h_1H[0], h_1H[0], c_1H[0]
    return x_I


def zeros(decoder: LstmDecoder) -> list[Tensor]:
    return [torch.zeros(decoder.hidden, dtype=torch.float64) for _ in range(decoder.layers)]


def naive_language_model(model: LstmLanguageModel, source: Sequence[int], words: Sequence[int]) -> list[Tensor]:
    """The scores before each word. The source is not looked at."""
    h, c, found = zeros(model.decoder), zeros(model.decoder), []
    for word in [BOS, *words[:-1]]:
        h_H = read_by_cells(model.decoder, h, c, model.decoder.embedding.weight[word])
        found.append(model.output_layer.weight @ h_H + model.output_layer.bias)
    return found


def naive_conv(model: ConvSeq2Seq, source: Sequence[int], words: Sequence[int]) -> list[Tensor]:
    """The scores before each word: z_j from the words of its window that there are, alpha_j and c_t by sums."""
    encoder, side = model.encoder, model.encoder.window // 2
    size = encoder.embedding.weight.shape[1]
    x = [encoder.embedding.weight[word] for word in source]
    last = encoder.position.weight.shape[0] - 1
    a = [x_E + encoder.position.weight[min(j, last)] for j, x_E in enumerate(x)]
    z = []
    for j in range(len(source)):
        z_H = torch.zeros(model.decoder.hidden, dtype=torch.float64)
        for place, k in enumerate(range(j - side, j + side + 1)):
            if 0 <= k < len(source):
                z_H = z_H + encoder.convolution.weight[:, place * size : (place + 1) * size] @ a[k]
        z.append(z_H)
    h, c, found = zeros(model.decoder), zeros(model.decoder), []
    for word in [BOS, *words[:-1]]:
        exponentials = [math.exp((h[-1] @ z_H).item()) for z_H in z]
        context_E = torch.zeros(size, dtype=torch.float64)
        for exponential, x_E in zip(exponentials, x, strict=True):
            context_E = context_E + exponential / sum(exponentials) * x_E
        read_I = torch.cat([model.decoder.embedding.weight[word], context_E])
        h_H = read_by_cells(model.decoder, h, c, read_I)
        found.append(model.output_layer.weight @ h_H + model.output_layer.bias)
    return found


WRITTEN_OUT: dict[str, tuple[Made, Callable[..., list[Tensor]]]] = {
    "lstm_lm": (language_model, naive_language_model),
    **{
        f"conv {window} {positions}": (partial(conv_model, window=window, positions=positions), naive_conv)
        for window, positions in [(1, 1), (3, 3), (5, 9), (7, 2)]
    },
}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_the_model_is_the_one_written_out(layers: int, name: str) -> None:
    """Windows from one word to more than the sentence has, and vectors for fewer positions than words and for more."""
    make, naive = WRITTEN_OUT[name]
    model, batch = make(layers=layers), batch_of()
    with torch.no_grad():
        scores_BTV = score(model, model.encode(batch, None), batch.target_BT)
        for b, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            expected_TV = torch.stack(naive(model, source, target))
            torch.testing.assert_close(scores_BTV[b, : len(target)], expected_TV, rtol=0, atol=1e-12)


def test_the_language_model_does_not_look_at_the_source() -> None:
    model = language_model()
    with torch.no_grad():
        one, other = batch_of(), batch_of([[6], [4, 5], [8, 8, 8]])
        scores_BTV = score(model, model.encode(one, None), one.target_BT)
        again_BTV = score(model, model.encode(other, None), other.target_BT)
    torch.testing.assert_close(scores_BTV, again_BTV, rtol=0, atol=0)


# What the search and the losses rely on.


@every_model
def test_step_by_step_in_the_search_s_rows_equals_score(make: Made) -> None:
    model = make(layers=2)
    batch = batch_of([[4, 5, 6], [7]], [[4, 5, 6, 7], [7, 6, 5, 4]])
    with torch.no_grad():
        start = model.encode(batch, None)
        scores_BTV = score(model, start, batch.target_BT)
        state, read_N = start.select(torch.tensor([0, 0, 1, 1])), torch.full((4,), BOS)
        for t in range(4):
            before = {name: tensor.clone() for name, tensor in state.hypothesis.items()}
            after = model.step(state, read_N)
            assert all(torch.equal(state.hypothesis[name], tensor) for name, tensor in before.items())
            state = after
            found_BRV = model.scores(model.output(state).view(2, 2, -1))
            for row in range(2):
                torch.testing.assert_close(found_BRV[:, row], scores_BTV[:, t], rtol=0, atol=1e-12)
            read_N = batch.target_BT[:, t].repeat_interleave(2)
    assert (start.time, state.time) == (0, 4)


@every_model
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_neither_neighbours_nor_padding_change_a_sentence(make: Made, dropout: float) -> None:
    """Alone without padding, or in a batch padded further than it needs to be: scores and gradients are the same."""
    model = make(layers=2, dropout=dropout)
    batch = batch_of()
    examples = [Example(tuple(s), tuple(t), 10 + i) for i, (s, t) in enumerate(zip(SOURCES, TARGETS, strict=True))]
    padded = make_batch(examples, source_length=9, target_length=7, size=5)

    def scores_of(one: Batch) -> Tensor:
        noise = Noise(3, torch.tensor(5), one.sentence_B) if dropout else None
        return score(model, model.encode(one, noise), one.target_BT)

    found_BTV = scores_of(padded)
    assert found_BTV.isfinite().all()
    for b, target in enumerate(TARGETS):
        expected_TV = scores_of(alone(batch, b))[0]
        here_TV = found_BTV[b, : len(target)]
        torch.testing.assert_close(here_TV, expected_TV, rtol=0, atol=1e-12)
        weights = list(model.parameters())
        pairs = [
            torch.autograd.grad(total.square().sum(), weights, retain_graph=True, materialize_grads=True)
            for total in (here_TV, expected_TV)
        ]
        for one, other in zip(*pairs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@every_model
def test_gradients_are_the_numerical_ones(make: Made) -> None:
    """Of the sum of squared scores with dropout, for every parameter, along random directions."""
    model = make(layers=2, hidden=3, dropout=0.4)
    batch = batch_of([[4, 5, 6, 5], [6]], [[4, 5], [6, 7]])
    noise = Noise(1, torch.tensor(0), batch.sentence_B)

    def loss(*_: Tensor) -> Tensor:
        return score(model, model.encode(batch, noise), batch.target_BT).square().sum()

    assert torch.autograd.gradcheck(loss, tuple(model.parameters()), fast_mode=True)


@pytest.mark.parametrize("make", [lstm_model, partial(lstm_model, input_feeding=False), language_model])
@pytest.mark.parametrize("pairs", [False, True])
def test_a_pass_gives_the_outputs_and_gradients_of_its_steps(make: Made, pairs: bool) -> None:
    """With dropout, and with restarts of every second row; the first two tokens are stepped before."""
    model, batch = make(layers=2, dropout=0.4), batch_of(targets=[[4, 5, 6, 7, 4, 5]] * 3)
    generator = torch.Generator().manual_seed(2)
    read_TN = torch.randint(4, 8, (6, 6), generator=generator)
    restarted_TB = torch.cat([torch.zeros(1, 3), torch.rand(3, 3, generator=generator)]) > 0.5 if pairs else None
    stepped = SimpleNamespace(encode=model.encode, step=model.step, output=model.output, scores=model.scores)
    found = []
    for one in (model, stepped):
        state = one.encode(batch, Noise(1, torch.tensor(0), batch.sentence_B)).repeated(2)
        for read_N in read_TN[:2]:
            state = one.step(state, read_N)
        outputs_TNH = unroll(one, state, read_TN[2:], restarted_TB)
        weight_TNH = torch.linspace(-1, 1, outputs_TNH.numel(), dtype=torch.float64).view_as(outputs_TNH)
        total = (outputs_TNH * weight_TNH).sum()
        found.append([outputs_TNH, *torch.autograd.grad(total, list(model.parameters()), materialize_grads=True)])
    for at_once, step_by_step in zip(*found, strict=True):
        torch.testing.assert_close(at_once, step_by_step, rtol=0, atol=1e-12)


@every_model
def test_gradients_under_autocast_are_near_those_without(make: Made) -> None:
    """Some products are in bfloat16 then, of eight bits; weights and their gradients stay in float32."""
    model, batch = make(layers=2, dropout=0.4).float(), batch_of()
    noise, weights = Noise(1, torch.tensor(0), batch.sentence_B), list(model.parameters())
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False):
            total = score(model, model.encode(batch, noise), batch.target_BT).square().mean()
        found.append(torch.autograd.grad(total, weights, materialize_grads=True))
    assert any(not torch.equal(plain, low) for plain, low in zip(*found, strict=True))
    for plain, low in zip(*found, strict=True):
        assert low.dtype == torch.float32
        torch.testing.assert_close(low, plain, rtol=0.1, atol=0.02)


@every_model
@pytest.mark.parametrize("beam", [1, 3, 6])
def test_with_dropout_replayed_scores_are_the_searched_scores(make: Made, beam: int) -> None:
    model = make(layers=2, dropout=0.4)
    batch = batch_of([[4, 5, 6], [7], [5, 5]], [[4, 5, 6, 3], [7, 3], [4, 4, 3]])
    state = model.encode(batch, Noise(2, torch.tensor(9), batch.sentence_B))
    found = beam_search(
        model,
        state,
        Unconstrained(8, True).start(batch),
        beam_size=beam,
        length_B=batch.target_length_B,
        steps=batch.target_BT.shape[1],
        rule=LastScore(),
        stop=StopTop(),
        gold=Gold(batch.target_BT, batch.target_length_B, Restart(1.0)),
    ).violations
    assert found is not None and found.violation_BT.any()
    again = replay(model, state, batch.target_BT, found.rival_BT, found.violation_BT)
    real_BT = torch.arange(4) < batch.target_length_B[:, None]
    torch.testing.assert_close(again.gold_score_BT[real_BT], found.gold_score_BT[real_BT], rtol=0, atol=1e-12)
    at_BT = found.violation_BT
    torch.testing.assert_close(again.rival_score_BT[at_BT], found.rival_score_BT[at_BT], rtol=0, atol=1e-12)


def log_probability(model: LstmLanguageModel) -> Callable[[Tokens], float]:
    """Of a sequence of words, by the loops above."""

    @cache
    def logprobs(read: Tokens) -> list[float]:
        with torch.no_grad():
            return naive_language_model(model, [], [*read, BOS])[-1].log_softmax(0).tolist()

    return lambda words: math.fsum(logprobs(words[:t])[words[t]] for t in range(len(words)))


@given(
    sources=st.lists(st.lists(st.integers(4, 7), min_size=1, max_size=4), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20)
def test_a_beam_as_wide_as_all_orders_finds_the_likeliest_order(sources: list[list[int]], seed: int) -> None:
    """At most 24 orders of 4 words: every order in the order of its probability, repeated words once."""
    model = language_model(seed=seed)
    batch = batch_of(sources, sources)
    result = beam_search(
        model,
        model.encode(batch, None),
        Permutation().start(batch),
        beam_size=24,
        length_B=batch.source_length_B,
        steps=batch.source_BS.shape[1],
        rule=LogprobSum(),
        n_best=24,
    )
    rank = log_probability(model)
    for b, source in enumerate(sources):
        expected = sorted(enumerate_sequences(permutation(source), length=len(source)), key=rank, reverse=True)
        found = [tuple(row[: len(source)]) for row in result.tokens_BNT[b].tolist()][: len(expected)]
        ranks = result.score_BN[b].tolist()
        assert ranks[: len(expected)] == pytest.approx([rank(words) for words in expected], abs=1e-9)
        # Two orders may tie to the last digits; each found one has the rank it was found with.
        assert [rank(words) for words in found] == pytest.approx(ranks[: len(expected)], abs=1e-9)
        assert sorted(found) == sorted(expected)
        assert all(value == -math.inf for value in ranks[len(expected) :])


# What a recipe relies on.


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        (LstmModel(layers=2, hidden=6, embedding=3, input_feeding=False), LstmSeq2Seq),
        (LstmLmModel(layers=2, hidden=6, embedding=3), LstmLanguageModel),
        (ConvModel(layers=2, hidden=6, embedding=3, window=7, positions=4), ConvSeq2Seq),
    ],
)
def test_a_recipe_s_model_has_the_sizes_asked_for_and_every_weight_one_rate(
    asked: LstmModel | LstmLmModel | ConvModel, made: type
) -> None:
    model = make_model(asked, source_vocabulary=11, target_vocabulary=13)
    assert isinstance(model, made)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    first = {"lstm": 3, "lstm_lm": 3, "conv": 6}[asked.kind]  # word vectors, and with them the context
    assert shapes["decoder.embedding.weight"] == (13, 3)
    assert shapes["decoder.inputs.0.weight"] == (24, first)
    assert shapes["decoder.recurrent.1.weight"] == (24, 6)
    assert shapes["output_layer.weight"] == (13, 6)
    if asked.kind == "conv":
        assert shapes["encoder.convolution.weight"] == (6, 21)
        assert shapes["encoder.position.weight"] == (4, 3)
    assert model.modules_by_rate().keys() == {"encoder", "decoder", "output"}
    listed = [p for group in model.modules_by_rate().values() for p in group]
    assert len(listed) == len({id(p) for p in listed})
    assert {id(p) for p in listed} == {id(p) for p in model.parameters()}


@every_model
def test_weights_follow_the_generator_and_given_vectors_replace_those_listed(make: Made) -> None:
    one, other = make(seed=4), make(seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert 0.7 < max(p.abs().max().item() for p in one.parameters()) <= 0.8
    vector = torch.full((4,), 9.0, dtype=torch.float64)
    one.set_embeddings(source={5: vector}, target={6: vector})
    for name, value in one.state_dict().items():
        expected = other.state_dict()[name].clone()
        if name == "encoder.embedding.weight":
            expected[5] = vector
        if name == "decoder.embedding.weight":
            expected[6] = vector
        assert torch.equal(value, expected), name


@pytest.mark.parametrize("kind", ["lstm_lm", "conv"])
def test_a_stopped_run_of_any_model_goes_on_to_the_same_weights(kind: str, tmp_path: Path) -> None:
    """Cross-entropy and BSO with dropout; stopped in each of the two stages."""
    recipe = small_recipe(f"model.kind={kind}", data=short_text(tmp_path))
    finish(recipe, tmp_path / "whole")
    stop_after(recipe, tmp_path / "stopped", 4)
    stop_after(recipe, tmp_path / "stopped", 6)
    finish(recipe, tmp_path / "stopped")
    assert same_tensors(final_tensors(tmp_path / "whole"), final_tensors(tmp_path / "stopped"))
    run = load(tmp_path / "stopped", device="cpu")
    assert run.rule == LastScore()
    assert [sorted(text.split()) for text in run.decode(["ko ba ti", "lu"])] == [["ba", "ko", "ti"], ["lu"]]


# They learn.


def learnt(folder: Path, task: str, kind: str, *, epochs: int) -> Run:
    table = {
        "name": "learnt",
        "task": {"kind": task},
        "data": {"kind": "generated", "types": 200, "train": 600, "dev": 40, "test": 1},
        "model": {"kind": kind, "hidden": 32, "embedding": 24, "dropout": 0.0},
        "batch": {"size": 32},
        "stages": {
            "train": {
                "epochs": epochs,
                "loss": {"kind": "cross_entropy"},
                "optimizer": {"encoder": 0.1, "decoder": 0.1, "output": 0.3},
                "keep": "last",
            }
        },
        "runtime": {"device": "cpu"},
    }
    finish(parse_recipe(table), folder)
    return load(folder, device="cpu")


def examples_of(run: Run, split: str) -> list[Example]:
    return [run.task.example(item, number) for number, item in enumerate(run.task.read(split).items)]


def bigram_perplexity(train: Sequence[Tokens], dev: Sequence[Tokens], vocabulary: int) -> float:
    """0.7 of the share of the word among those seen after the word before it, 0.3 of its own, add-one smoothed."""
    words = Counter(word for sentence in train for word in sentence)
    pairs = Counter(pair for sentence in train for pair in pairwise((BOS, *sentence)))
    before = Counter(word for sentence in train for word in (BOS, *sentence[:-1]))

    def probability(left: int, word: int) -> float:
        after = pairs[left, word] / before[left] if before[left] else 0.0
        return 0.7 * after + 0.3 * (words[word] + 1) / (words.total() + vocabulary)

    logs = [math.log(probability(*pair)) for sentence in dev for pair in pairwise((BOS, *sentence))]
    return math.exp(-math.fsum(logs) / len(logs))


def bigrams(run: Run) -> float:
    train, dev = ([example.target for example in examples_of(run, split)] for split in ("train", "dev"))
    return bigram_perplexity(train, dev, len(run.task.target))


@pytest.mark.slow
def test_a_language_model_learns_more_than_bigrams_and_orders_words_by_it(tmp_path: Path) -> None:
    """Untrained orders of these sentences score as the shuffled sources do; four times that is order learnt. A wider
    beam finds likelier orders, up to 512 places."""
    run = learnt(tmp_path, "word_ordering", "lstm_lm", epochs=6)
    assert run.rule == LogprobSum()
    found = perplexity(run.model, examples_of(run, "dev"), batch=64, device=CPU)
    assert found < 0.8 * bigrams(run)
    items = run.task.read("dev").items
    shuffled = corpus_bleu(
        [" ".join(item.surface) for item in items], [item.reference for item in items], tokenize="none"
    )
    results = {beam: run.evaluate("dev", beam=beam) for beam in (1, 5, 512)}
    assert results[5].score.value > 4 * shuffled.score
    for item, output in zip(items, results[512].outputs, strict=True):
        assert Counter(output) == Counter(run.task.example(item, 0).source)
    assert math.fsum(results[1].scores) < math.fsum(results[5].scores) < math.fsum(results[512].scores)


@pytest.mark.slow
def test_a_convolutional_model_learns_to_translate_from_the_source(tmp_path: Path) -> None:
    """Bigrams of the target know nothing of the source; given another sentence's source, it is lost."""
    run = learnt(tmp_path, "translation", "conv", epochs=6)
    dev = examples_of(run, "dev")
    measure = partial(perplexity, run.model, batch=64, device=CPU)
    found = measure(dev)
    assert found < 0.6 * bigrams(run)
    crossed = [Example(dev[i - 1].source, example.target, i) for i, example in enumerate(dev)]
    assert measure(crossed) > 1.5 * found
