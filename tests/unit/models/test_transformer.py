"""Transformers against torch's own layers, an independent beam search, and rotations by complex numbers."""

import math
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from argbeam.data.batches import Example, make_batch
from argbeam.data.vocabulary import BOS, EOS
from argbeam.errors import ConfigError
from argbeam.losses.replay import shifted
from argbeam.models import Transformer, TransformerLm
from argbeam.models.attention.layers import Positions, TransformerLayer
from argbeam.search.score_rules import LastScore, LogprobSum, ScoreRule, ScoreSum
from argbeam.search.search import Search, SearchSettings
from argbeam.search.stop_rules import Stop, StopBest, StopTop
from argbeam.search.successors import Permutation, Unconstrained
from loss_cases import MODELS, TRANSFORMERS, VOCABULARY, score
from oracles import (
    Tokens,
    brute_force_beam,
    brute_force_refilled,
    brute_force_stop_top,
    permutation,
    unconstrained,
)
from refusals import refusal
from small_models import SOURCES, TARGETS, batch_of, transformer_lm_model, transformer_model
from toy_cases import sequences


def sinusoids(length: int, width: int) -> Tensor:
    """Vaswani et al. 2017, section 3.5, with all sines before all cosines."""
    half = width // 2
    rows = [[p / 10000 ** (i / half) for i in range(half)] for p in range(length)]
    return torch.tensor([[*map(math.sin, row), *map(math.cos, row)] for row in rows], dtype=torch.float64)


def copied(layer: TransformerLayer, torchs: nn.Module) -> Any:
    """torch's layer with the weights of ours."""
    attentions = [(torchs.self_attn, layer.own_in, layer.own_out)]
    norms = [(torchs.norm1, layer.own_norm)]
    if hasattr(layer, "source_in"):
        packed = nn.Linear(layer.source_in.in_features, 3 * layer.source_in.out_features).double()
        parts = (layer.source_in, layer.source_memory)
        packed.weight = nn.Parameter(torch.cat([part.weight for part in parts]))
        packed.bias = nn.Parameter(torch.cat([part.bias for part in parts]))
        attentions.append((torchs.multihead_attn, packed, layer.source_out))
        norms.append((torchs.norm2, layer.source_norm))
    norms.append((torchs.norm3 if len(norms) == 2 else torchs.norm2, layer.wide_norm))
    with torch.no_grad():
        for theirs, packed, out in attentions:
            theirs.in_proj_weight.copy_(packed.weight)
            theirs.in_proj_bias.copy_(packed.bias)
            theirs.out_proj.load_state_dict(out.state_dict())
        for theirs, ours in (*norms, (torchs.linear1, layer.widen), (torchs.linear2, layer.narrow)):
            theirs.load_state_dict(ours.state_dict())
    return torchs


def torch_layer(kind: Any, layer: TransformerLayer, heads: int) -> Any:
    width, inner = layer.narrow.out_features, layer.narrow.in_features
    made = kind(width, heads, inner, dropout=0.0, batch_first=True, norm_first=True)
    return copied(layer, made.double().eval())


def read(embedding: nn.Embedding, tokens: list[int], *, ordered: bool = True) -> Tensor:
    x_1TH = embedding.weight[tokens][None] * math.sqrt(embedding.embedding_dim)
    return x_1TH + sinusoids(len(tokens), embedding.embedding_dim) if ordered else x_1TH


def encoder_decoder_by_torch(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    memory = read(model.encoder.embedding, source, ordered=model.ordered_source)
    for layer in model.encoder.layers:
        memory = torch_layer(nn.TransformerEncoderLayer, layer, model.encoder.heads)(memory)
    memory, x_1TH = model.encoder.norm(memory), read(model.decoder.embedding, [BOS, *target[:-1]])
    causal_TT = nn.Transformer.generate_square_subsequent_mask(len(target), dtype=torch.float64)
    for layer in model.decoder.layers:
        made = torch_layer(nn.TransformerDecoderLayer, layer, model.decoder.heads)
        x_1TH = made(x_1TH, memory, tgt_mask=causal_TT)
    return model.output_layer(model.decoder.norm(x_1TH))[0]


def decoder_by_torch(model: TransformerLm, source: list[int], target: list[int]) -> Tensor:
    """Prompt and target in one sequence; the prompt sees all of itself and nothing else."""
    prompt = read(model.encoder.embedding, source, ordered=model.ordered_source)
    x_1AH = torch.cat([prompt, read(model.decoder.embedding, [BOS, *target[:-1]])], 1)
    hidden_AA = torch.ones(x_1AH.shape[1], x_1AH.shape[1]).triu(1).bool()
    hidden_AA[: len(source), : len(source)] = False
    for layer in model.decoder.layers:
        x_1AH = torch_layer(nn.TransformerEncoderLayer, layer, model.decoder.heads)(x_1AH, src_mask=hidden_AA)
    return model.output_layer(model.decoder.norm(x_1AH))[0, len(source) :]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("make", "by_torch"), [(transformer_model, encoder_decoder_by_torch), (transformer_lm_model, decoder_by_torch)]
)
def test_the_model_is_that_of_torch_s_layers(make: Any, by_torch: Any, layers: int, ordered: bool) -> None:
    """In a padded batch, with all weights drawn, those of norms and biases too."""
    model, batch = make(layers=layers, ordered_source=ordered), batch_of()
    with torch.no_grad():
        scores_BTV = score(model, model.encode(batch, None), batch.target_BT)
        for b, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            expected_TV = by_torch(model, source, target)
            torch.testing.assert_close(scores_BTV[b, : len(target)], expected_TV, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("make", "by_torch"), [(transformer_model, encoder_decoder_by_torch), (transformer_lm_model, decoder_by_torch)]
)
def test_attention_is_that_of_torch_s_last_layer(make: Any, by_torch: Any, layers: int) -> None:
    """The mean of the heads; of the decoder alone, what its own tokens look at in the prompt."""
    plain, weights = nn.MultiheadAttention.forward, list[Tensor]()

    def watched(module: nn.MultiheadAttention, *inputs: Tensor, **how: Any) -> Any:
        found = plain(module, *inputs, **how | {"need_weights": True})
        weights.append(found[1])
        return found

    model, batch = make(layers=layers), batch_of()
    found_BTS = model.attention(batch, shifted(batch.target_BT, BOS))
    for b, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        with patch.object(nn.MultiheadAttention, "forward", watched):  # with gradient: without it torch has a short cut
            by_torch(model, source, target)
        expected_TS = weights[-1][0, -len(target) :, : len(source)]
        torch.testing.assert_close(found_BTS[b, : len(target), : len(source)], expected_TS, rtol=0, atol=1e-12)
        assert not found_BTS[b, :, len(source) :].any()


@pytest.mark.parametrize("make", [transformer_model, transformer_lm_model])
def test_a_bag_of_words_has_no_order(make: Any) -> None:
    sources = [[4, 5, 6, 7, 8], [8, 6, 4, 5, 7]]
    for rotary in (False, True):
        found = []
        for ordered in (True, False):
            model = make(layers=2, rotary=rotary, ordered_source=ordered)
            batch = batch_of(sources, [TARGETS[0]] * 2)
            with torch.no_grad():
                one, other = score(model, model.encode(batch, None), batch.target_BT)
            found.append((one - other).abs().max().item())
        assert found[0] > 1e-3
        assert found[1] < 1e-12


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    sizes = {"source_vocabulary": 9, "target_vocabulary": 9, "layers": 1, "feed_forward": 8, "dropout": 0.0}
    refused = partial(refusal, Transformer, **sizes, error=ConfigError)
    assert refused(hidden=8, heads=3) == "heads = 3: must divide hidden = 8"
    assert refused(hidden=6, heads=2, rotary=True).endswith("hidden = 6, into even widths where positions are rotary")


def test_rotary_positions_turn_pairs_of_units_and_products_depend_on_distance_alone() -> None:
    """Units e and e + 2 of a head of four are a complex number, turned by p / 100^(e/1) at position p."""
    generator = torch.Generator().manual_seed(1)
    x_PY = torch.randn(6, 24, generator=generator, dtype=torch.float64)  # two heads: query, key, value of 8 each
    positions = Positions.of(6, 4, rotary=True, like=x_PY)
    turned_PY = positions.turn(x_PY)
    assert torch.equal(turned_PY[:, 16:], x_PY[:, 16:])
    for start in (0, 4, 8, 12):
        pair_PE = torch.complex(x_PY[:, start : start + 2], x_PY[:, start + 2 : start + 4])
        angle_PE = torch.arange(6)[:, None] / torch.tensor([1.0, 100.0], dtype=torch.float64)
        expected_PE = pair_PE * torch.polar(torch.ones_like(angle_PE), angle_PE)
        found_PE = torch.complex(turned_PY[:, start : start + 2], turned_PY[:, start + 2 : start + 4])
        torch.testing.assert_close(found_PE, expected_PE, rtol=0, atol=1e-12)
    same_PY = positions.turn(x_PY[:1].expand(6, -1))
    products_PP = same_PY[:, :4] @ same_PY[:, 8:12].T
    for distance in range(1, 5):
        torch.testing.assert_close(products_PP.diagonal(distance), products_PP[0, distance].expand(6 - distance))
    assert torch.equal(positions.until(30).table_PD[:6], positions.table_PD)


def score_of(model: nn.Module, rule: ScoreRule, source: Tokens, tokens: Tokens) -> float:
    """The prefix read from scratch, in one pass."""
    batch = make_batch([Example(source, tokens, 0)])
    scores_TV = score(model, model.encode(batch, None), batch.target_BT)[0]
    if isinstance(rule, LogprobSum):
        scores_TV = scores_TV.log_softmax(-1)
    scores = [scores_TV[t, token].item() for t, token in enumerate(tokens)]
    return scores[-1] if rule == LastScore() else sum(scores)


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("constrained", [False, True])
def test_decoding_finds_what_an_independent_beam_search_finds(name: str, constrained: bool) -> None:
    """Which reads every prefix from scratch; three sentences of different lengths in one batch."""
    sources: list[Tokens] = [(4, 5, 6, 5), (7,), (6, 4, 8)]
    successors = Permutation() if constrained else Unconstrained(VOCABULARY, end_symbol=False)
    with torch.no_grad():
        for seed, beam in ((2, 3), (6, 4)):
            model = MODELS[name](seed, 0.3)
            search = Search(model, successors, SearchSettings(beam, LogprobSum()))
            batch = make_batch([Example(source, (), i) for i, source in enumerate(sources)])
            result = search(batch, batch.source_length_B, steps=4)
            for b, source in enumerate(sources):
                follow = permutation(source) if constrained else unconstrained(VOCABULARY, end_symbol=False)
                expected = brute_force_beam(
                    follow, partial(score_of, model, LogprobSum(), source), beam=beam, length=len(source)
                )
                (best,) = expected.sequences
                assert tuple(result.tokens_BNT[b, 0, : len(source)].tolist()) == best
                found = score_of(model, LogprobSum(), source, best)
                assert result.score_BN[b, 0].item() == pytest.approx(found, abs=1e-10)


# Rule, stop rule, and the same search over lists.
OPEN_LENGTH = {
    "last score, top": (LastScore(), StopTop(), brute_force_stop_top),
    "sums of scores, top": (ScoreSum(), StopTop(), brute_force_stop_top),
    "sums of log-probabilities, top": (LogprobSum(), StopTop(), brute_force_stop_top),
    "sums of log-probabilities, best": (LogprobSum(), StopBest(), brute_force_refilled),
    "log-probabilities by length, best": (LogprobSum(1.0), StopBest(), partial(brute_force_refilled, length_power=1.0)),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize(("rule", "stop", "over_lists"), OPEN_LENGTH.values(), ids=OPEN_LENGTH)
def test_decoding_of_open_length_finds_what_an_independent_beam_search_finds(
    name: str, rule: ScoreRule, stop: Stop, over_lists: Any
) -> None:
    """The two best outputs of each sentence, of different lengths and limits in one batch."""
    sources: list[Tokens] = [(4, 5, 6, 5), (7,), (6, 4, 8)]
    limits, follow = [5, 3, 4], unconstrained(VOCABULARY, end_symbol=True)
    model = MODELS[name](2, 0.3)
    settings = SearchSettings(3, rule, stop, n_best=2)
    batch = make_batch([Example(source, (), i) for i, source in enumerate(sources)])
    with torch.no_grad():
        result = Search(model, Unconstrained(VOCABULARY, end_symbol=True), settings)(
            batch, torch.tensor(limits), steps=5
        )
        for b, source in enumerate(sources):
            prefix_score = cache(partial(score_of, model, rule, source))
            expected = over_lists(follow, prefix_score, beam=3, length=limits[b], n_best=2)
            assert sequences(result, b) == expected.sequences
            assert result.finished_BN[b, : len(expected.finished)].tolist() == expected.finished


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("with_gradient", [False, True])
def test_states_that_continue_one_state_do_not_disturb_one_another(name: str, with_gradient: bool) -> None:
    """Two go on from the same state with other tokens, in turn, past the room that was made for keys and values."""
    model, batch = MODELS[name](3, 0.0), make_batch([Example((4, 5), (), 0), Example((6,), (), 1)])
    generator = torch.Generator().manual_seed(2)
    with torch.set_grad_enabled(with_gradient):
        start = model.step(model.encode(batch, None).repeated(3), torch.full((6,), BOS))
        read = torch.randint(EOS + 1, VOCABULARY, (2, 20, 6), generator=generator)
        together = [start, start]
        for t in range(20):
            together = [model.step(state, read[i, t]) for i, state in enumerate(together)]
        for i, state in enumerate(together):
            alone = model.step(model.encode(batch, None).repeated(3), torch.full((6,), BOS))
            for tokens_N in read[i]:
                alone = model.step(alone, tokens_N)
            torch.testing.assert_close(model.output(state), model.output(alone), rtol=0, atol=1e-12)
