"""Special tokens belong to the vocabulary: any ids will do, there may be several end symbols, and outputs may pad."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import BOS, EOS, PAD, UNK, SpecialTokens, Vocabulary
from argbeam.errors import ConfigError, DataError
from argbeam.losses import Bso, CrossEntropy, Loss
from argbeam.losses.crf import Crf
from argbeam.losses.mixer import Baseline, Mixer
from argbeam.losses.mrt import Mrt, Sampled, Searched
from argbeam.losses.scheduled_sampling import Linear, ScheduledSampling
from argbeam.models.noise import Noise
from argbeam.search.score_rules import LogprobSum
from argbeam.search.search import beam_search
from argbeam.search.stop_rules import StopBest, StopTop
from argbeam.search.successors import Unconstrained
from loss_cases import small_lstm
from loss_oracles import TableModel
from oracles import ToyModel, enumerate_sequences, logprob_sum
from refusals import refusal

# New ids: PAD and BOS move behind other tokens. Tokens that may be written keep their order, so that draws agree.
MOVED = {PAD: 4, UNK: 0, BOS: 8, EOS: 1, 4: 2, 5: 3, 6: 5, 7: 6, 8: 7}
SPECIALS = SpecialTokens(pad=4, unk=0, bos=8, ends=(1,), unwritten=(4, 8))
ANYTHING = Unconstrained(9, end_symbol=True)
EXAMPLES = [Example((4, 5, 8), (5, 4, 7, EOS), 3), Example((4,), (4, EOS), 8), Example((6, 7), (UNK, 6, 6, 8, EOS), 9)]

LOSSES: dict[str, Loss] = {
    "cross_entropy": CrossEntropy(),
    "bso, top": Bso(ANYTHING, 3, start_beam=3, stop=StopTop()),
    "bso, sums": Bso(ANYTHING, 3, start_beam=3, stop=StopBest(), rule=LogprobSum()),
    "crf": Crf(ANYTHING, 3, start_beam=3),
    "scheduled_sampling": ScheduledSampling(ANYTHING, Linear(0.5)),
    "mixer": Mixer(ANYTHING, Baseline(4).double()),
    "mrt, sampled": Mrt(ANYTHING, Sampled(4)),
    "mrt, searched": Mrt(ANYTHING, Searched(4)),
}


def moved_model(model: nn.Module) -> nn.Module:
    """The model with the rows of its tables at the new ids."""
    twin = copy.deepcopy(model)
    order_V = torch.tensor([old for old, _ in sorted(MOVED.items(), key=lambda pair: pair[1])])
    with torch.no_grad():
        for name, weight in twin.named_parameters():
            if "embedding" in name or "output_layer" in name:
                weight.copy_(weight[order_V])
    return twin


def moved_batch() -> Batch:
    moved = [
        Example(tuple(MOVED[t] for t in e.source), tuple(MOVED[t] for t in e.target), e.sentence) for e in EXAMPLES
    ]
    return make_batch(moved, size=4, specials=SPECIALS)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_does_not_depend_on_the_ids_of_special_tokens(name: str) -> None:
    model, batch = small_lstm(9), make_batch(EXAMPLES, size=4)
    twin, step = moved_model(model), LOSSES[name].at(1)
    noise = Noise(1, torch.tensor(4), batch.sentence_B)
    torch.testing.assert_close(
        step(twin, moved_batch(), noise).total, step(model, batch, noise).total, rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("stop", [StopTop(), StopBest(), StopBest(cut_off=True), None])
def test_a_search_does_not_depend_on_the_ids_of_special_tokens(stop: StopTop | StopBest | None) -> None:
    model = small_lstm(9)
    found = []
    for network, batch in ((model, make_batch(EXAMPLES, size=4)), (moved_model(model), moved_batch())):
        result = beam_search(
            network, network.encode(batch, None), ANYTHING.start(batch), beam_size=3, length_B=batch.target_length_B,
            steps=6, rule=LogprobSum(1.0), stop=stop, n_best=3, specials=batch.specials,
        )  # fmt: skip
        found.append(result)
    moved_BNT = torch.tensor([MOVED[token] for token in range(9)])[found[0].tokens_BNT]
    assert torch.equal(moved_BNT, found[1].tokens_BNT)
    torch.testing.assert_close(found[0].score_BN, found[1].score_BN)
    assert torch.equal(found[0].length_BN, found[1].length_BN)


@pytest.mark.parametrize("unwritten", [(), (PAD, BOS)])
def test_a_beam_as_wide_as_the_space_finds_outputs_with_any_end_symbol_and_with_padding(
    unwritten: tuple[int, ...],
) -> None:
    """Two end symbols, 3 and 4, and at most three tokens of six; PAD may be a token like any other."""
    specials = SpecialTokens(ends=(EOS, 4), unwritten=unwritten)
    written = [token for token in range(6) if token not in unwritten]
    space = [
        tokens
        for end in specials.ends
        for tokens in enumerate_sequences(lambda prefix: written, length=3, end=end)
        if not {*tokens[:-1]} & {*specials.ends}
    ]
    model, batch = ToyModel(6, seed=5), make_batch([Example((4,), (), 7)], specials=specials)
    result = beam_search(
        model, model.encode(batch, None), Unconstrained(6, end_symbol=True).start(batch), beam_size=100,
        length_B=torch.tensor([3]), steps=5, rule=LogprobSum(), stop=StopBest(), n_best=100, specials=specials,
    )  # fmt: skip
    score = logprob_sum(model, 7)
    found = [
        tuple(row[:length])
        for row, length in zip(result.tokens_BNT[0].tolist(), result.length_BN[0].tolist(), strict=True)
        if length
    ]
    assert found == sorted(space, key=lambda tokens: -score(tokens))


def test_a_rival_may_end_in_any_end_symbol() -> None:
    """K = 3, gold 5 3. At the first step 5 scores 1, 4 scores 0.9 and 6 scores 0.5. As an end symbol 4 would end the
    search within the margin of 1 and is the rival: the loss is 1 - 1 + 0.9. Otherwise it is the third, 6: 1 - 1 + 0.5.
    """
    table = {(): {5: 1.0, 4: 0.9, 6: 0.5}, (5,): {3: 2.0, 5: 0.5}}
    batch = make_batch([Example((5,), (5, 3), 0)])
    model, loss = TableModel(table, vocabulary=7), Bso(Unconstrained(7, end_symbol=True), 3, start_beam=3)
    for ends, total, ended in (((3, 4), 0.9, 1), ((3,), 0.5, 0)):
        out = loss.at(0)(model, replace(batch, specials=SpecialTokens(ends=ends)), None)
        assert (out.total.item(), out.sums["rival_ended"].item(), out.sums["violations"].item()) == (total, ended, 1)


def test_a_vocabulary_of_any_special_tokens_survives_its_file() -> None:
    words = ("</s>", "a", "<pad>", "b")
    specials = SpecialTokens(pad=2, unk=None, bos=2, ends=(0,), unwritten=())
    vocabulary = Vocabulary(words, specials)
    again = Vocabulary.from_json(vocabulary.to_json())
    assert again == vocabulary and again.specials.ends == (0,)
    assert again.encode(["b", "a"]) == [3, 1]
    assert "no token for unknown words" in refusal(again.encode, ["c"])
    assert "special token 7 in a vocabulary of 4" in refusal(Vocabulary, words, replace(specials, pad=7))
    text = '{"specials": {"padding": 1}, "words": ["a"]}'
    assert "not the ids of special tokens" in refusal(Vocabulary.from_json, text, error=DataError)


@pytest.mark.parametrize(("ends", "unwritten"), [((), ()), ((3,), (0, 3))])
def test_special_tokens_need_an_end_that_may_be_written(ends: tuple[int, ...], unwritten: tuple[int, ...]) -> None:
    assert "end symbol" in refusal(SpecialTokens, ends=ends, unwritten=unwritten, error=ConfigError)
