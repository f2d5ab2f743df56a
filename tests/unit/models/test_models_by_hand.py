"""Every model against torch's own LSTM and loops over words and positions."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from argbeam.data.vocabulary import BOS
from argbeam.models import ConvSeq2Seq, LstmLanguageModel, LstmSeq2Seq
from argbeam.models.lstm import Encoder
from argbeam.models.network import LstmLayers
from loss_cases import score
from small_models import SOURCES, TARGETS, Made, batch_of, conv_model, language_model, lstm_model


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


def read_by_cells(decoder: LstmLayers, h: list[Tensor], c: list[Tensor], x_I: Tensor) -> Tensor:
    """One word through nn.LSTMCell, a layer after the other; `h` and `c` are changed."""
    for i, (inputs, recurrent) in enumerate(zip(decoder.inputs, decoder.recurrent, strict=True)):
        cell = nn.LSTMCell(x_I.shape[0], h[i].shape[0]).double()
        cell.weight_ih, cell.bias_ih, cell.weight_hh = inputs.weight, inputs.bias, recurrent.weight
        nn.init.zeros_(cell.bias_hh)
        h_1H, c_1H = cell(x_I[None], (h[i][None], c[i][None]))
        x_I, h[i], c[i] = h_1H[0], h_1H[0], c_1H[0]
    return x_I


def zeros(decoder: LstmLayers) -> list[Tensor]:
    return [torch.zeros(decoder.hidden, dtype=torch.float64) for _ in range(decoder.layers)]


def naive_language_model(model: LstmLanguageModel, source: Sequence[int], words: Sequence[int]) -> list[Tensor]:
    """The scores before each word. The source is not looked at."""
    h, c, found = zeros(model.decoder), zeros(model.decoder), []
    for word in [BOS, *words[:-1]]:
        h_H = read_by_cells(model.decoder, h, c, model.decoder.embedding.weight[word])
        found.append(model.output_layer.weight @ h_H + model.output_layer.bias)
    return found


def attend(query_H: Tensor, keys: Iterable[Tensor], values: Iterable[Tensor]) -> Tensor:
    """The values' mean, weighted by the softmax of their keys' products with the query."""
    exponentials = [math.exp((query_H @ key_H).item()) for key_H in keys]
    return sum(e / sum(exponentials) * value_H for e, value_H in zip(exponentials, values, strict=True))


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
        read_I = torch.cat([model.decoder.embedding.weight[word], attend(h[-1], z, x)])
        h_H = read_by_cells(model.decoder, h, c, read_I)
        found.append(model.output_layer.weight @ h_H + model.output_layer.bias)
    return found


def naive_lstm(model: LstmSeq2Seq, source: Sequence[int], words: Sequence[int]) -> list[Tensor]:
    """Luong et al. 2015: a_s = softmax(h W m_s), o = tanh(W_c [sum of a_s m_s; h]), and o goes with the next word."""
    decoder = model.decoder
    embedded_1SE = model.encoder.embedding(torch.tensor([list(source)]))
    memory_1SH, (h_L1H, c_L1H) = torch_lstm(model.encoder, embedded_1SE.shape[2])(embedded_1SE)
    h, c = list(h_L1H[:, 0]), list(c_L1H[:, 0])
    output_H = torch.zeros_like(h[0])
    found = []
    for word in [BOS, *words[:-1]]:
        x = decoder.embedding.weight[word]
        if decoder.input_feeding:
            x = torch.cat([x, output_H])
        x = read_by_cells(decoder, h, c, x)
        context_H = attend(x @ decoder.attention.weight, memory_1SH[0], memory_1SH[0])
        output_H = torch.tanh(decoder.combine.weight @ torch.cat([context_H, x]))
        found.append(model.output_layer.weight @ output_H + model.output_layer.bias)
    return found


WRITTEN_OUT: dict[str, tuple[Made, Callable[..., list[Tensor]]]] = {
    "lstm": (lstm_model, naive_lstm),
    "lstm without input feeding": (partial(lstm_model, input_feeding=False), naive_lstm),
    "lstm_lm": (language_model, naive_language_model),
    **{
        f"conv {window} {positions}": (partial(conv_model, window=window, positions=positions), naive_conv)
        for window, positions in [(1, 1), (3, 3), (5, 9), (7, 2)]
    },
}


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_the_model_is_the_one_written_out(layers: int, name: str) -> None:
    """In a padded batch; windows of one word to more than the sentence has, vectors for fewer positions or more."""
    make, naive = WRITTEN_OUT[name]
    model, batch = make(layers=layers), batch_of()
    with torch.no_grad():
        scores_BTV = score(model, model.encode(batch, None), batch.target_BT)
        for b, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            expected_TV = torch.stack(naive(model, source, target))
            torch.testing.assert_close(scores_BTV[b, : len(target)], expected_TV, rtol=0, atol=1e-12)
