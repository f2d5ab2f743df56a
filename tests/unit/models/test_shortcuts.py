"""A step of some rows, and products of few rows, against the whole."""

import pytest
import torch

from argbeam.data.batches import Example, make_batch
from argbeam.data.vocabulary import BOS
from argbeam.models.noise import Noise
from argbeam.models.recurrence.steps import linear
from argbeam.models.state import Places
from loss_cases import VOCABULARY, small_lstm


@pytest.mark.parametrize(("layers", "input_feeding"), [(1, True), (2, True), (2, False)])
def test_some_rows_of_a_step_are_those_of_the_whole_step(layers: int, input_feeding: bool) -> None:
    """With dropout, at later steps, for rows that change places."""
    model, lanes = small_lstm(layers=layers, input_feeding=input_feeding), 4
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
