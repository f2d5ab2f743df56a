"""The LSTM model against torch.nn.LSTM and against a decoder written out for one row."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from argbeam.data.batches import Batch, make_batch
from argbeam.data.vocabulary import BOS
from argbeam.losses.replay import score
from argbeam.models import LstmSeq2Seq
from argbeam.models.lstm import Encoder
from argbeam.models.network import VocabularyScorer
from argbeam.models.noise import Noise
from oracles import example_of


def model_of(
    *, layers: int = 2, hidden: int = 5, embedding: int = 4, dropout: float = 0.0, input_feeding: bool = True
) -> LstmSeq2Seq:
    model = LstmSeq2Seq(
        source_vocabulary=9,
        target_vocabulary=8,
        layers=layers,
        hidden=hidden,
        embedding=embedding,
        dropout=dropout,
        input_feeding=input_feeding,
    ).double()
    model.initialise(bound=0.8, generator=torch.Generator().manual_seed(layers * 100 + hidden))
    return model


def batch_of(sources: list[list[int]], targets: list[list[int]] | None = None) -> Batch:
    targets = targets or [[4, 5, 6]] * len(sources)
    return make_batch(
        [example_of(t, source=s, sentence=i) for i, (s, t) in enumerate(zip(sources, targets, strict=True))]
    )


def torch_lstm(encoder: Encoder, embedding: int) -> nn.LSTM:
    """torch.nn.LSTM with the encoder's weights; its second bias is zero."""
    lstm = nn.LSTM(embedding, encoder.hidden, encoder.layers, batch_first=True).double()
    with torch.no_grad():
        for i, (inputs, recurrent) in enumerate(zip(encoder.inputs, encoder.recurrent, strict=True)):
            getattr(lstm, f"weight_ih_l{i}").copy_(inputs.weight)
            getattr(lstm, f"bias_ih_l{i}").copy_(inputs.bias)
            getattr(lstm, f"weight_hh_l{i}").copy_(recurrent.weight)
            getattr(lstm, f"bias_hh_l{i}").zero_()
    return lstm


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_encoder_is_torch_lstm_over_packed_sequences(layers: int) -> None:
    """Outputs at real positions, and every layer's states at each sentence's own last word."""
    model = model_of(layers=layers)
    batch = batch_of([[4, 5, 6, 7], [8], [5, 5, 4]])
    with torch.no_grad():
        memory_BSH, last_h, last_c = model.encoder(batch.source_BS, batch.source_length_B, [None] * layers)
        packed = pack_padded_sequence(
            model.encoder.embedding(batch.source_BS),
            batch.source_length_B,
            batch_first=True,
            enforce_sorted=False,
        )
        outputs, (h_LBH, c_LBH) = torch_lstm(model.encoder, 4)(packed)
        outputs_BSH, _ = pad_packed_sequence(outputs, batch_first=True)
    for b, length in enumerate(batch.source_length_B.tolist()):
        torch.testing.assert_close(memory_BSH[b, :length], outputs_BSH[b, :length], rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.stack(last_h), h_LBH, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.stack(last_c), c_LBH, rtol=0, atol=1e-12)


def naive_scores(model: LstmSeq2Seq, source: list[int], words: list[int]) -> list[Tensor]:
    """The scores before each word, for one sentence, with nn.LSTM, nn.LSTMCell and loops over positions.

    Luong et al. 2015: a_s = softmax(h W m_s), o = tanh(W_c [sum of a_s m_s; h]), and o goes with the next word.
    """
    decoder = model.decoder
    embedded_1SE = model.encoder.embedding(torch.tensor([source]))
    memory_1SH, (h_L1H, c_L1H) = torch_lstm(model.encoder, embedded_1SE.shape[2])(embedded_1SE)
    h, c = list(h_L1H[:, 0]), list(c_L1H[:, 0])
    output_H = torch.zeros_like(h[0])
    found = []
    for word in [BOS, *words[:-1]]:
        x = decoder.embedding.weight[word]
        if decoder.input_feeding:
            x = torch.cat([x, output_H])
        for i, (inputs, recurrent) in enumerate(zip(decoder.inputs, decoder.recurrent, strict=True)):
            cell = nn.LSTMCell(x.shape[0], h[i].shape[0]).double()
            cell.weight_ih, cell.bias_ih, cell.weight_hh = inputs.weight, inputs.bias, recurrent.weight
            nn.init.zeros_(cell.bias_hh)
            h_1H, c_1H = cell(x[None], (h[i][None], c[i][None]))
            x, h[i], c[i] = h_1H[0], h_1H[0], c_1H[0]
        exponentials = [math.exp((x @ decoder.attention.weight @ m_H).item()) for m_H in memory_1SH[0]]
        context_H = torch.zeros_like(x)
        for exponential, m_H in zip(exponentials, memory_1SH[0], strict=True):
            context_H = context_H + exponential / sum(exponentials) * m_H
        output_H = torch.tanh(decoder.combine.weight @ torch.cat([context_H, x]))
        found.append(model.output_layer.weight @ output_H + model.output_layer.bias)
    return found


@pytest.mark.parametrize("input_feeding", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_decoder_is_the_one_written_out(layers: int, input_feeding: bool) -> None:
    """In "general" attention the score of h and m is h^T W m: the model multiplies W into the memory, once."""
    model = model_of(layers=layers, input_feeding=input_feeding)
    sources, targets = [[4, 5, 6, 7], [8], [5, 4, 4]], [[4, 5, 6, 7], [5], [7, 7]]
    batch = batch_of(sources, targets)
    with torch.no_grad():
        scores_BTV = score(model, model.encode(batch, None), batch.target_BT)
        for b, (source, target) in enumerate(zip(sources, targets, strict=True)):
            expected_TV = torch.stack(naive_scores(model, source, target))
            torch.testing.assert_close(scores_BTV[b, : len(target)], expected_TV, rtol=0, atol=1e-12)


@given(
    rows=st.integers(1, 4),
    candidates=st.lists(st.lists(st.integers(0, 7), min_size=3, max_size=3), min_size=2, max_size=2),
)
@settings(max_examples=25)
def test_candidate_scores_are_columns_of_all_scores(rows: int, candidates: list[list[int]]) -> None:
    model = model_of()
    output_GRH = torch.randn(2, rows, 5, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
    with torch.no_grad():
        whole_GRV = model.scores(output_GRH)
        chosen_GRC = model.scores(output_GRH, torch.tensor(candidates))
    for g, words in enumerate(candidates):
        torch.testing.assert_close(chosen_GRC[g], whole_GRV[g][:, words], rtol=0, atol=1e-12)


def test_dropout_is_drawn_with_noise_only_and_masks_the_output() -> None:
    """A rate of 0.5: about half of the outputs are 0, the others are twice what they were in the last layer."""
    model = model_of(layers=1, hidden=40, dropout=0.5, input_feeding=False)
    batch = batch_of([[4, 5, 6], [7, 8]])
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
    model = LstmSeq2Seq(source_vocabulary=9, target_vocabulary=30, layers=1, hidden=16, embedding=4, dropout=0.0)
    generator = torch.Generator().manual_seed(3)
    model.initialise(bound=1.0, generator=generator)
    output_GRH = torch.randn(2, 3, 16, generator=generator)
    listed_GC = torch.randint(0, 30, (2, 5), generator=generator)
    plain_GRV = model.scores(output_GRH)
    with torch.autocast("cpu", torch.bfloat16):
        low_GRV, low_GRC = model.scores(output_GRH), model.scores(output_GRH, listed_GC)
    torch.testing.assert_close(low_GRV, plain_GRV, rtol=0, atol=1e-6)
    torch.testing.assert_close(low_GRC, plain_GRV.gather(2, listed_GC[:, None].expand(-1, 3, -1)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("more", [0, 3])
def test_scores_of_a_search_are_the_output_layer_s_with_zeros_behind_its_weights_or_without(more: int) -> None:
    """As on a GPU, where a vocabulary of 13 has 3 rows of zeros: they get no score."""
    model = LstmSeq2Seq(source_vocabulary=5, target_vocabulary=13, layers=1, hidden=5, embedding=4, dropout=0.0)
    layer, output_GRH = model.output_layer, torch.randn(4, 5, 5)
    weight_WH, bias_W = F.pad(layer.weight, (0, 0, 0, more)), F.pad(layer.bias, (0, more))
    with torch.no_grad():
        expected_GRV = output_GRH @ layer.weight.T + layer.bias
        for scorer in (model, model.scorer_of(None), VocabularyScorer(model, 13, weight_WH, bias_W)):
            torch.testing.assert_close(scorer.scores(output_GRH), expected_GRV)
