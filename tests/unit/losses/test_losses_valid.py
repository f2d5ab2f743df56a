"""Losses of constrained models against plain loops: softmax over valid successors, BEAR's weights, APAO's prefixes."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.data.vocabulary import EOS, PAD
from argbeam.errors import ArgbeamError, DataError
from argbeam.losses.apao import Apao, distinct_prefixes
from argbeam.losses.cross_entropy import CrossEntropy, PruningWeights
from argbeam.losses.sampling import random_walks
from argbeam.models.noise import Noise
from argbeam.search.score_rules import LogprobSum
from argbeam.search.search import SearchSettings, result_of, search_in_parts
from argbeam.search.successors import Permutation
from loss_cases import MODELS, TASKS, Task, assert_same_loss, drawn_batch
from loss_oracles import alone, noise_alone, scores_along
from oracles import Tokens, brute_force_beam, enumerate_sequences

CASES = [
    ("permutation", "LSTM, 1 layer"),
    ("shift reduce", "attention with a cache"),
    ("open length, stop best", "LSTM, 2 layers"),
    ("trie", "LSTM, 1 layer"),
]
Along = list[tuple[Tensor, int, list[int]]]
"""Scores of the vocabulary, gold's token and the valid tokens at every step."""


def case(task: str, model: str, *, noise: bool = True) -> tuple[nn.Module, Batch, Noise | None]:
    batch = drawn_batch(TASKS[task], random.Random(5), sentences=3, padding_rows=1, padding=1)
    return MODELS[model](3, 0.3), batch, Noise(1, torch.tensor(7), batch.sentence_B) if noise else None


def total_of(
    task: Task, model: nn.Module, batch: Batch, noise: Noise | None, loss: Callable[[Along], Tensor]
) -> Tensor:
    """The sum of `loss` over single sentences, each alone and unpadded."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch.sentence_B)):
        one = alone(batch, row)
        gold = tuple(one.target_BT[0].tolist())
        if gold:
            scores = scores_along(model, one, noise_alone(noise, row), gold)
            successors = task.naive(tuple(one.source_BS[0].tolist()))
            total = total + loss([(scores[t], gold[t], successors(gold[:t])) for t in range(len(gold))])
    return total


def logprob(scores_V: Tensor, token: int, valid: list[int]) -> Tensor:
    return scores_V[token] - torch.stack([scores_V[other] for other in valid]).exp().sum().log()


@pytest.mark.parametrize(("task", "model"), CASES)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_valid_only_is_cross_entropy_with_the_softmax_over_valid_successors(
    task: str, model: str, smoothing: float
) -> None:
    network, batch, noise = case(task, model)

    def one(steps: Along) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for scores_V, gold, valid in steps:
            mean = torch.stack([logprob(scores_V, token, valid) for token in valid]).mean()
            total = total - (1 - smoothing) * logprob(scores_V, gold, valid) - smoothing * mean
        return total

    out = CrossEntropy(smoothing, TASKS[task].successors)(network, batch, noise)
    assert_same_loss(out.total, total_of(TASKS[task], network, batch, noise, one), network)
    assert out.count is not None and out.count.item() == 3


@pytest.mark.parametrize(("task", "model"), CASES)
@pytest.mark.parametrize("constrained", [True, False])
def test_bears_weights_are_the_formula_and_their_sum_divides_the_loss(task: str, model: str, constrained: bool) -> None:
    """1 + 0.5 sigmoid((log p - log p_2) / 0.7): of the second best valid token, or of the only one."""
    network, batch, noise = case(task, model)
    weights: list[float] = []

    def one(steps: Along) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for scores_V, gold, successors in steps:
            valid = successors if constrained else list(range(len(scores_V)))
            ranked = sorted((logprob(scores_V, token, valid).item() for token in valid), reverse=True)
            edge = ranked[min(2, len(ranked)) - 1]
            gold_logprob = logprob(scores_V, gold, valid)
            weight = 1 + 0.5 / (1 + torch.exp((edge - gold_logprob.detach()) / 0.7))
            weights.append(weight.item() if len(valid) > 1 else 0.0)
            total = total - weight * gold_logprob
        return total

    valid = TASKS[task].successors if constrained else None
    out = CrossEntropy(0.0, valid, PruningWeights(2, 0.5, 0.7))(network, batch, noise)
    assert_same_loss(out.total, total_of(TASKS[task], network, batch, noise, one), network)
    assert out.count is not None and out.count.item() == pytest.approx(sum(weights))


def test_gold_that_is_not_valid_is_an_error_with_its_sentence() -> None:
    network, batch, _ = case("open length, stop best", "LSTM, 1 layer")
    with pytest.raises(DataError, match=r"sentence \d+: gold token 1 \(id 4\) is not a valid successor"):
        CrossEntropy(valid=Permutation())(network, batch, None)


@pytest.mark.parametrize(("task", "model", "beam"), [(*CASES[0], 2), (*CASES[0], 50), (*CASES[1], 2)])
def test_a_model_of_valid_successors_is_searched_with_their_log_probabilities(task: str, model: str, beam: int) -> None:
    """Against a search over lists, sentence by sentence; beam 50 is as wide as the space."""
    network, batch, _ = case(task, model, noise=False)
    choices, rule = TASKS[task].successors.start(batch), CrossEntropy(valid=TASKS[task].successors).rule
    state = network.encode(batch, None)
    limit_B = batch.target_length_B.clone()
    found = search_in_parts(
        network,
        state,
        choices,
        SearchSettings(beam, rule, None, n_best=3),
        length_B=limit_B,
        steps=batch.target_BT.shape[1],
    )
    with torch.no_grad():
        result = result_of(found)
    for row in range(3):
        one, length = alone(batch, row), int(limit_B[row])
        successors = TASKS[task].naive(tuple(one.source_BS[0].tolist()))

        def score(prefix: Tokens, one: Batch = one, successors: Callable[[Tokens], list[int]] = successors) -> float:
            steps = scores_along(network, one, None, prefix)
            return sum(logprob(s, prefix[t], successors(prefix[:t])).item() for t, s in enumerate(steps))

        expected = brute_force_beam(successors, score, beam=beam, length=length, n_best=3).sequences
        outputs = [tuple(t for t in tokens if t != PAD) for tokens in result.tokens_BNT[row].tolist()]
        assert [output for output in outputs if output] == expected
        assert result.score_BN[row, 0].item() == pytest.approx(score(expected[0]))
        if beam == 50:
            every = torch.tensor([score(sequence) for sequence in enumerate_sequences(successors, length=length)])
            assert every.exp().sum().item() == pytest.approx(1.0)


def test_a_search_with_gold_refuses_the_rule_of_valid_successors() -> None:
    network, batch, _ = case("permutation", "LSTM, 1 layer")
    from argbeam.losses.bso import Bso

    loss = Bso(Permutation(), 2, open_length=False, rule=LogprobSum(valid_only=True)).at(0)
    with pytest.raises(ArgbeamError, match="valid_logprob_sum in a search with gold"):
        loss(network, batch, None)


@pytest.mark.parametrize(("task", "model"), CASES)
@pytest.mark.parametrize("negatives", [0, 4])
def test_apao_is_cross_entropy_and_the_weighted_losses_of_the_prefixes(task: str, model: str, negatives: int) -> None:
    """Sentence by sentence with the same random sequences; prefixes that occur twice count once."""
    network, batch, noise = case(task, model)
    assert noise is not None
    walks = random_walks(
        TASKS[task].successors.start(batch),
        noise,
        rows=4,
        length_B=batch.target_length_B,
        steps=batch.target_BT.shape[1],
    ).tokens_BRT.tolist()
    rows, tau, eta = iter(range(9)), 0.5, 0.3

    def one(steps: Along) -> Tensor:
        row = next(rows)
        single, quiet = alone(batch, row), noise_alone(noise, row)
        gold, everything = tuple(token for _, token, _ in steps), list(range(9))

        def of_prefix(prefix: Tokens) -> Tensor:
            scores = scores_along(network, single, quiet, prefix)
            parts = [logprob(scores_V, prefix[t], everything) for t, scores_V in enumerate(scores)]
            return torch.stack(parts).sum() / tau

        losses = []
        for t in range(1, len(gold) + 1 - (gold[-1] == EOS)):
            prefixes = {tuple(walk[:t]) for walk in walks[row][:negatives] if PAD not in walk[:t]} | {gold[:t]}
            scores = torch.stack([of_prefix(prefix) for prefix in prefixes])
            share = scores.logsumexp(0) if negatives else torch.zeros((), dtype=torch.float64)
            losses.append((share - of_prefix(gold[:t])) / t)
        weights = [loss.item() * torch.exp(eta * loss.detach()) for loss in losses]
        total = sum((w * loss for w, loss in zip(weights, losses, strict=True)), torch.zeros((), dtype=torch.float64))
        prefix_loss = total / max(sum(float(w) for w in weights), 1e-300)
        return -of_prefix(gold) * tau + 0.7 * len(gold) * prefix_loss

    loss = Apao(TASKS[task].successors, negatives, 0.7, tau, eta)
    out = loss(network, batch, noise)
    assert_same_loss(out.total, total_of(TASKS[task], network, batch, noise, one), network)


def test_apao_without_noise_says_what_it_needs() -> None:
    network, batch, _ = case("permutation", "LSTM, 1 layer")
    with pytest.raises(ArgbeamError, match="apao draws tokens"):
        Apao(Permutation())(network, batch, None)


def test_random_walks_are_valid_and_as_likely_by_successor() -> None:
    """The first token of a permutation of three is each of them in about a third of 3,000 walks."""
    batch = drawn_batch(TASKS["permutation"], random.Random(0), sentences=1, padding_rows=0, padding=0)
    source = batch.source_BS[0].tolist()
    noise = Noise(3, torch.tensor(1), batch.sentence_B)
    walks = random_walks(
        Permutation().start(batch), noise, rows=3000, length_B=batch.target_length_B, steps=len(source)
    ).tokens_BRT
    assert all(sorted(walk) == sorted(source) for walk in walks[0, :50].tolist())
    for token in set(source):
        assert (walks[0, :, 0] == token).double().mean().item() == pytest.approx(1 / len(set(source)), abs=0.03)


def test_prefixes_count_where_they_occur_first() -> None:
    """[a b], [a c], [a b], and one that has ended after its first token."""
    a, b, c, d = 4, 5, 6, 7
    tokens = torch.tensor([[[a, b], [a, c], [a, b], [d, PAD]]])
    assert distinct_prefixes(tokens, tokens != PAD).tolist() == [
        [[True, True], [False, True], [False, False], [True, False]]
    ]
