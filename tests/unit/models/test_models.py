"""What holds for every model that a recipe can ask for, and for the output layer."""

import math
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import BOS
from argbeam.decoding.batch_decoder import perplexity
from argbeam.losses.replay import unroll
from argbeam.metrics.bleu import corpus_bleu
from argbeam.models import (
    ConvSeq2Seq,
    LstmLanguageModel,
    LstmSeq2Seq,
    Network,
    Transformer,
    TransformerLm,
    make_model,
    network,
)
from argbeam.models.network import VocabularyScorer
from argbeam.models.noise import Noise
from argbeam.models.recurrence.steps import linear
from argbeam.models.state import Places
from argbeam.runs.load import Run, load
from argbeam.search.score_rules import LogprobSum
from argbeam.settings import ConvModel, LstmLmModel, LstmModel, Model, TransformerLmModel, TransformerModel
from loss_cases import MODELS, TRANSFORMERS, VOCABULARY, score, small_lstm
from loss_oracles import alone
from small_models import MODELS as SMALL
from small_models import (
    TARGETS,
    Made,
    batch_of,
    conv_model,
    every_model,
    examples,
    language_model,
    lstm_model,
    transformer_lm_model,
    transformer_model,
)
from small_runs import final_tensors, finish, same_tensors, short_text, small_recipe, stop_after

CPU = torch.device("cpu")


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
            torch.testing.assert_close(found_BRV, scores_BTV[:, t, None].expand(-1, 2, -1), rtol=0, atol=1e-12)
            read_N = batch.target_BT[:, t].repeat_interleave(2)
    assert (start.time, state.time) == (0, 4)


@every_model
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_neither_neighbours_nor_padding_change_a_sentence(make: Made, dropout: float) -> None:
    """Alone without padding, or in a batch padded further than it needs to be: scores and gradients are the same."""
    model = make(layers=2, dropout=dropout)
    batch = batch_of()
    padded = make_batch(examples(), source_length=9, target_length=7, size=5)

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
        torch.testing.assert_close(*pairs, rtol=0, atol=1e-11)


@every_model
def test_gradients_are_the_numerical_ones(make: Made) -> None:
    """Of the sum of squared scores with dropout, for every parameter, along random directions."""
    model = make(layers=2, hidden=3, dropout=0.4)
    batch = batch_of([[4, 5, 6, 5], [6]], [[4, 5], [6, 7]])
    noise = Noise(1, torch.tensor(0), batch.sentence_B)

    def loss(*_: Tensor) -> Tensor:
        return score(model, model.encode(batch, noise), batch.target_BT).square().sum()

    assert torch.autograd.gradcheck(loss, tuple(model.parameters()), fast_mode=True)


@pytest.mark.parametrize("make", [*SMALL.values(), partial(lstm_model, input_feeding=False)])
@pytest.mark.parametrize("bf16", [False, True])
def test_gradients_of_two_losses_are_the_same_asked_for_together_or_in_two_calls(make: Made, bf16: bool) -> None:
    """Of the same pass: the second call must not count what the first one has counted."""
    model, batch = make(layers=2).float(), batch_of()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        scores_BTV = score(model, model.encode(batch, None), batch.target_BT)
    one, other = scores_BTV[0].float().square().sum(), scores_BTV[1].float().square().sum()
    weights = list(model.parameters())
    ask = partial(torch.autograd.grad, inputs=weights, retain_graph=True, materialize_grads=True)
    apart = [ask(one), ask(other), ask(one)]
    torch.testing.assert_close(apart[0], apart[2], rtol=0, atol=0)
    together = ask(one + other)
    for a, b, both in zip(apart[0], apart[1], together, strict=True):
        torch.testing.assert_close(a + b, both, rtol=0.03 if bf16 else 1e-5, atol=0.01 if bf16 else 1e-6)


PASSES = [
    partial(make, rotary=rotary, ordered_source=ordered)
    for make in (transformer_model, transformer_lm_model)
    for rotary, ordered in ((False, True), (True, True), (True, False))
]


@pytest.mark.parametrize(
    ("make", "before"),
    [
        *((make, 2) for make in (lstm_model, partial(lstm_model, input_feeding=False), language_model)),
        *((make, 0) for make in PASSES),
    ],
)
@pytest.mark.parametrize("pairs", [False, True])
def test_a_pass_gives_the_outputs_and_gradients_of_its_steps(make: Made, before: int, pairs: bool) -> None:
    """With dropout, and with restarts of every second row; a pass may follow tokens that were stepped `before`."""
    model, batch = make(layers=2, dropout=0.4), batch_of(targets=[[4, 5, 6, 7, 4, 5]] * 3)
    generator = torch.Generator().manual_seed(2)
    read_TN = torch.randint(4, 8, (6, 6), generator=generator)
    later_TB = torch.rand(5 - before, 3, generator=generator)
    restarted_TB = torch.cat([torch.zeros(1, 3), later_TB]) > 0.5 if pairs else None
    stepped = SimpleNamespace(encode=model.encode, step=model.step, output=model.output, scores=model.scores)
    found = []
    for one in (model, stepped):
        state = one.encode(batch, Noise(1, torch.tensor(0), batch.sentence_B)).repeated(2)
        for read_N in read_TN[:before]:
            state = one.step(state, read_N)
        outputs_TNH = unroll(one, state, read_TN[before:], restarted_TB)
        weight_TNH = torch.linspace(-1, 1, outputs_TNH.numel(), dtype=torch.float64).view_as(outputs_TNH)
        total = (outputs_TNH * weight_TNH).sum()
        found.append([outputs_TNH, *torch.autograd.grad(total, list(model.parameters()), materialize_grads=True)])
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


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
    assert all(gradient.dtype == torch.float32 for gradient in found[1])
    torch.testing.assert_close(found[1], found[0], rtol=0.1, atol=0.02)


@pytest.mark.parametrize(
    "make",
    [
        *(partial(small_lstm, layers=n, input_feeding=fed) for n, fed in ((1, True), (2, True), (2, False))),
        *(partial(MODELS[name], seed, 0.4) for name in TRANSFORMERS for seed in (1, 2)),
    ],
)
def test_some_rows_of_a_step_are_those_of_the_whole_step(make: Made) -> None:
    """With dropout, at later steps, for rows that change places."""
    model, lanes = make(), 4
    examples = [Example((4, 5, 6, 7)[: 1 + n % 4], (4, 5)[: 1 + n % 2], n) for n in range(6)]
    batch = make_batch(examples, size=7, target_length=8)  # one row of padding
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        state = model.encode(batch, Noise(3, torch.tensor(4), batch.sentence_B))
        state = state.select(torch.arange(7 * lanes) // lanes)
        state = model.step(state, torch.full((7 * lanes,), BOS))
        for count in (1, 5, 20, 28):
            tokens_N = torch.randint(VOCABULARY, (7 * lanes,), generator=generator)
            in_sentence_N = torch.randint(lanes, (7 * lanes,), generator=generator)
            rows_N = torch.arange(7 * lanes) // lanes * lanes + in_sentence_N
            whole = model.step(state.select(rows_N), tokens_N)
            place_X = torch.randperm(7 * lanes, generator=generator)[:count]
            some = model.step_from(state, rows_N[place_X], tokens_N[place_X], Places(place_X, lanes))
            assert set(some.hypothesis) == set(whole.hypothesis)
            assert some.time == whole.time
            for name, x_NH in whole.hypothesis.items():
                torch.testing.assert_close(some.hypothesis[name], x_NH[place_X], rtol=0, atol=1e-12)
            state = whole


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_few_rows_are_those_of_many(bias: bool) -> None:
    """Row by row, at all numbers of rows around those at which the product is turned."""
    generator = torch.Generator().manual_seed(1)
    x_NI, weight_OI, bias_O = (
        torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((70, 5), (7, 5), (7,))
    )
    for rows in (1, 7, 8, 9, 10, 62, 63, 64, 65, 70):
        out_NO = linear(x_NI[:rows], weight_OI, bias_O if bias else None)
        expected = [[sum(a * b for a, b in zip(x, w, strict=True)) for w in weight_OI] for x in x_NI[:rows]]
        expected_NO = torch.tensor(expected) + bias * bias_O
        torch.testing.assert_close(out_NO, expected_NO, rtol=0, atol=1e-12)


# The output layer.


def test_dropout_is_drawn_with_noise_only_and_masks_the_output() -> None:
    """A rate of 0.5: about half of the outputs are 0, the others are twice what they were in the last layer."""
    model = lstm_model(hidden=40, dropout=0.5, input_feeding=False)
    batch = batch_of([[4, 5, 6], [7, 8]], TARGETS[:2])
    noise = Noise(5, torch.tensor(0), batch.sentence_B)
    read_B = torch.full((2,), BOS)
    with torch.no_grad():
        plain_BH = model.output(model.step(model.encode(batch, None), read_B))
        noisy_BH = model.output(model.step(model.encode(batch, noise), read_B))
    kept_BH = noisy_BH != 0
    assert 15 < kept_BH.sum() < 65
    torch.testing.assert_close(noisy_BH[kept_BH], 2 * plain_BH[kept_BH], rtol=0, atol=1e-12)


def test_scores_are_in_full_precision_under_autocast() -> None:
    """All words and listed words score alike to float32's rounding; bfloat16 would be off by about 1 in 256."""
    model, generator = small_lstm(30, hidden=16).float(), torch.Generator().manual_seed(3)
    output_GRH = torch.randn(2, 3, 16, generator=generator)
    listed_GC = torch.randint(0, 30, (2, 5), generator=generator)
    plain_GRV = model.scores(output_GRH)
    with torch.autocast("cpu", torch.bfloat16):
        low_GRV, low_GRC = model.scores(output_GRH), model.scores(output_GRH, listed_GC)
    torch.testing.assert_close(low_GRV, plain_GRV, rtol=0, atol=1e-6)
    torch.testing.assert_close(low_GRC, plain_GRV.gather(2, listed_GC[:, None].expand(-1, 3, -1)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "vocabulary", "gradient", "expected"),
    [
        (2048, 1030, True, True),
        (2048, 1030, False, False),
        (1000, 1030, True, False),
        (49152, 22822, True, False),
    ],
    ids=["small vocabulary", "no gradient to add up", "few rows", "more scores than memory is for"],
)
def test_a_product_takes_the_place_of_look_ups(rows: int, vocabulary: int, gradient: bool, expected: bool) -> None:
    with torch.set_grad_enabled(gradient):
        assert network._product_is_cheaper(rows, vocabulary, on_gpu=True) is expected
        assert not network._product_is_cheaper(rows, vocabulary, on_gpu=False)


def test_one_token_a_row_is_scored_the_same_by_look_up_and_by_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients; on a GPU the product is taken where rows are many and the vocabulary is small."""
    found = []
    for product in (False, True):
        monkeypatch.setattr(network, "_product_is_cheaper", lambda *given, on_gpu, product=product: product)
        model, generator = small_lstm(7, hidden=5).double(), torch.Generator().manual_seed(3)
        output_X1H = torch.randn(9, 1, 5, generator=generator, dtype=torch.float64, requires_grad=True)
        tokens_X1 = torch.randint(7, (9, 1), generator=generator)
        scores_X11 = model.scores(output_X1H, tokens_X1)
        scores_X11.square().sum().backward()
        layer = model.output_layer
        found.append([scores_X11, output_X1H.grad, layer.weight.grad, layer.bias.grad])
    for looked_up, multiplied in zip(*found, strict=True):
        torch.testing.assert_close(multiplied, looked_up)


@pytest.mark.parametrize("more", [0, 3])
def test_scores_of_a_search_are_the_output_layer_s_with_zeros_behind_its_weights_or_without(more: int) -> None:
    """As on a GPU, where a vocabulary of 13 has 3 rows of zeros: they get no score."""
    model = small_lstm(13, hidden=5)
    layer, output_GRH = model.output_layer, torch.randn(4, 5, 5, dtype=torch.float64)
    listed_GC = torch.randint(0, 13, (4, 9))  # some words more than once
    weight_WH, bias_W = F.pad(layer.weight, (0, 0, 0, more)), F.pad(layer.bias, (0, more))
    with torch.no_grad():
        expected_GRV = output_GRH @ layer.weight.T + layer.bias
        for scorer in (model, model.scorer_of(None), VocabularyScorer(model, 13, weight_WH, bias_W)):
            torch.testing.assert_close(scorer.scores(output_GRH), expected_GRV)
        expected_GRC = expected_GRV.gather(2, listed_GC[:, None].expand(-1, 5, -1))
        torch.testing.assert_close(model.scores(output_GRH, listed_GC), expected_GRC, rtol=0, atol=1e-12)


# What a recipe relies on.


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        (LstmModel(layers=2, hidden=6, embedding=3, input_feeding=False), LstmSeq2Seq),
        (LstmLmModel(layers=2, hidden=6, embedding=3), LstmLanguageModel),
        (ConvModel(layers=2, hidden=6, embedding=3, window=7, positions=4), ConvSeq2Seq),
    ],
)
def test_a_recipe_s_model_has_the_sizes_asked_for_and_every_weight_one_rate(asked: Model, made: type) -> None:
    model = make_model(asked, source_vocabulary=11, target_vocabulary=13)
    assert isinstance(model, made)
    every_weight_has_one_rate(model)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    first = {"lstm": 3, "lstm_lm": 3, "conv": 6}[asked.kind]  # word vectors, and with them the context
    assert shapes["decoder.embedding.weight"] == (13, 3)
    assert shapes["decoder.inputs.0.weight"] == (24, first)
    assert shapes["decoder.recurrent.1.weight"] == (24, 6)
    assert shapes["output_layer.weight"] == (13, 6)
    if asked.kind == "conv":
        assert shapes["encoder.convolution.weight"] == (6, 21)
        assert shapes["encoder.position.weight"] == (4, 3)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("asked", "made"), [(TransformerModel, Transformer), (TransformerLmModel, TransformerLm)])
def test_a_recipe_s_transformer_has_the_sizes_asked_for(asked: type, made: type, tied: bool) -> None:
    """Vectors of a variance of 1 / 16, products of Glorot's bound, norms the identity; word ordering has no order."""
    settings = asked(layers=2, hidden=16, heads=4, feed_forward=7, dropout=0.3, tied=tied, positions="rotary")
    model: Any = make_model(settings, source_vocabulary=110, target_vocabulary=130, ordered_source=False)
    assert isinstance(model, made)
    every_weight_has_one_rate(model)
    assert (model.dropout, model.ordered_source, model.decoder.rotary, model.decoder.heads) == (0.3, False, True, 4)
    assert (model.decoder.embedding.weight is model.output_layer.weight) == tied
    model.initialise(bound=None, generator=torch.Generator().manual_seed(1))
    weights = model.state_dict()
    assert weights["encoder.embedding.weight"].shape == (110, 16)
    assert weights["decoder.layers.1.widen.weight"].shape == (7, 16)
    for name in ("encoder.embedding.weight", "decoder.embedding.weight", "output_layer.weight"):
        assert weights[name].std().item() == pytest.approx(0.25, rel=0.1)
    widest = weights["decoder.layers.0.own_in.weight"].abs().max().item()
    assert 0.9 * math.sqrt(6 / 64) < widest <= math.sqrt(6 / 64)
    assert weights["decoder.norm.weight"].tolist() == [1.0] * 16
    assert not weights["output_layer.bias"].any()


def every_weight_has_one_rate(model: Network) -> None:
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
        if value.data_ptr() == one.decoder.embedding.weight.data_ptr():  # a tied output layer too
            expected[6] = vector
        assert torch.equal(value, expected), name


@pytest.mark.parametrize("kind", ["lstm_lm", "conv", "transformer", "transformer_lm"])
def test_a_stopped_run_of_any_model_goes_on_to_the_same_weights(kind: str, tmp_path: Path) -> None:
    """Cross-entropy and BSO with dropout; stopped in each of the two stages."""
    sizes = "hidden=6, heads=2, feed_forward=8, layers=2" if kind.startswith("transformer") else "hidden=6, embedding=5"
    recipe = small_recipe(f"model={{kind='{kind}', {sizes}}}", data=short_text(tmp_path))
    finish(recipe, tmp_path / "whole")
    stop_after(recipe, tmp_path / "stopped", 4)
    stop_after(recipe, tmp_path / "stopped", 6)
    finish(recipe, tmp_path / "stopped")
    assert same_tensors(final_tensors(tmp_path / "whole"), final_tensors(tmp_path / "stopped"))
    run = load(tmp_path / "stopped", device="cpu")
    assert [sorted(text.split()) for text in run.decode(["ko ba ti", "lu"])] == [["ba", "ko", "ti"], ["lu"]]


def test_attention_weights_are_those_that_made_the_output_vector() -> None:
    """o = tanh(W_c [sum of alpha_j m_j; h]), with the memory m and the top layer's h."""
    model = small_lstm(layers=2, dropout=0.0)
    batch = make_batch([Example((4, 5, 6), (), 0), Example((7,), (), 1)])
    state, read_BT = model.encode(batch, None), torch.tensor([[2, 4], [2, 6]])
    with torch.no_grad():
        for read_B in read_BT.unbind(1):
            state = model.step(state, read_B)
        alpha_BTS = model.attention(batch, read_BT)
        context_BH = (alpha_BTS[:, 1:] @ state.sentence["attended"].memory_BSE)[:, 0]
        expected_BH = model.decoder.combine(torch.cat([context_BH, state.hypothesis["h_1"]], 1)).tanh()
    torch.testing.assert_close(model.output(state), expected_BH)
    assert alpha_BTS[1].tolist() == [[1.0, 0.0, 0.0]] * 2


def test_the_convolutional_model_attends_by_the_state_before_a_token() -> None:
    """With one layer the input of the LSTM is [vector of the token; sum of alpha_j x_j], x the source's vectors."""
    model, batch = conv_model(), batch_of()
    read_BT = torch.tensor([[2, 4], [2, 5], [2, 6]])
    with torch.no_grad():
        alpha_BTS = model.attention(batch, read_BT)
        before = model.step(model.encode(batch, None), read_BT[:, 0])
        context_BE = (alpha_BTS[:, 1:] @ model.encoder.embedding(batch.source_BS))[:, 0]
        x_BI = torch.cat([model.decoder.embedding(read_BT[:, 1]), context_BE], 1)
        expected_BH = model.output(model.decoder.read(before, x_BI[None])[1])
    torch.testing.assert_close(model.output(model.step(before, read_BT[:, 1])), expected_BH)
    assert alpha_BTS[1].tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0]] * 2


# They learn.


def learnt(folder: Path, task: str, kind: str) -> Run:
    sizes = (f"model.kind={kind}", "model.hidden=32", "model.embedding=24", "model.dropout=0.0", "batch.size=32")
    data = {"kind": "generated", "types": 200, "train": 600, "dev": 40, "test": 1}
    rates = {"encoder": 0.1, "decoder": 0.1, "output": 0.3}
    stage = {"epochs": 6, "loss": {"kind": "cross_entropy"}, "optimizer": rates, "keep": "last"}
    finish(small_recipe(*sizes, task=task, data=data, stages={"train": stage}), folder)
    return load(folder, device="cpu")


def examples_of(run: Run, split: str) -> list[Example]:
    return [run.task.example(item, number) for number, item in enumerate(run.task.read(split).items)]


def bigram_perplexity(run: Run) -> float:
    """0.7 of the share of the word among those seen after the word before it, 0.3 of its own, add-one smoothed."""
    train, dev = ([(BOS, *example.target) for example in examples_of(run, split)] for split in ("train", "dev"))
    words = Counter(word for sentence in train for word in sentence[1:])
    pairs = Counter(pair for sentence in train for pair in pairwise(sentence))
    before = Counter(word for sentence in train for word in sentence[:-1])

    def probability(left: int, word: int) -> float:
        after = pairs[left, word] / before[left] if before[left] else 0.0
        return 0.7 * after + 0.3 * (words[word] + 1) / (words.total() + len(run.task.target))

    logs = [math.log(probability(*pair)) for sentence in dev for pair in pairwise(sentence)]
    return math.exp(-math.fsum(logs) / len(logs))


@pytest.mark.slow
def test_a_language_model_learns_more_than_bigrams_and_orders_words_by_it(tmp_path: Path) -> None:
    """Untrained orders of these sentences score as the shuffled sources do; four times that is order learnt. A wider
    beam finds likelier orders, up to 512 places."""
    run = learnt(tmp_path, "word_ordering", "lstm_lm")
    assert run.rule == LogprobSum()
    found = perplexity(run.model, examples_of(run, "dev"), batch=64, device=CPU)
    assert found < 0.8 * bigram_perplexity(run)
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
    run = learnt(tmp_path, "translation", "conv")
    dev = examples_of(run, "dev")
    measure = partial(perplexity, run.model, batch=64, device=CPU)
    found = measure(dev)
    assert found < 0.6 * bigram_perplexity(run)
    crossed = [Example(dev[i - 1].source, example.target, i) for i, example in enumerate(dev)]
    assert measure(crossed) > 1.5 * found
