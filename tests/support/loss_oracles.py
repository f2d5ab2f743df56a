"""Brute force for the losses: one sentence at a time, alone and unpadded, every prefix scored from scratch."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import sacrebleu
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from argbeam.data.batches import Batch
from argbeam.data.vocabulary import BOS, EOS
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.score_rules import LastScore, ScoreRule
from argbeam.search.stop_rules import Stop
from oracles import Next, Score, Tokens, columns_of, training_search

Rescore = Callable[[Tokens], Float[Tensor, ""]]
"""A prefix's score with gradient."""

SegmentCost = Callable[[Tokens, Tokens, int | None], float]
"""A cost of one segment: the rival's tokens, gold's tokens, and gold's token before both (None at the beginning)."""


def naive_total(
    model: Model,
    batch: Batch,
    noise: Noise | None,
    loss: Callable[[Tokens, Tokens, Score, Rescore], Float[Tensor, ""] | None],
    *,
    rule: ScoreRule = LastScore(),  # noqa: B008 - frozen and without state
) -> Float[Tensor, ""]:
    """The sum of `loss(source, gold, score, rescore)` over the sentences: a prefix's score by the rule, and the same
    with gradient."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(batch.source_BS.shape[0]):
        one, one_noise = alone(batch, row), noise_alone(noise, row)
        gold = tuple(one.target_BT[0].tolist())
        if gold:
            score, rescore = _prefix_scores(partial(scores_along, model, one, one_noise), rule)
            part = loss(tuple(one.source_BS[0].tolist()), gold, score, rescore)
            total = total if part is None else total + part
    return total


def bso_of_one(
    successors: Callable[[Tokens], Next],
    *,
    beam: int,
    margin: float,
    stop: Stop | None,
    cost: SegmentCost,
    margin_per_token: float = 0.0,
) -> Callable[[Tokens, Tokens, Score, Rescore], Float[Tensor, ""]]:
    """BSO of one sentence: search, score each violating prefix and gold's again, each from its first token, and sum
    cost * (margin - f(gold) + f(rival)); the margin grows with the tokens since the last restart."""

    def loss(source: Tokens, gold: Tokens, score: Score, rescore: Rescore) -> Float[Tensor, ""]:
        margins = (margin, margin_per_token)
        search = training_search(successors(source), score, gold, beam=beam, margin=margins, stop=stop, ties=False)
        total, restart = torch.zeros((), dtype=torch.float64), 0
        for t, segment in enumerate(search.rivals, 1):
            if segment is not None:
                weight = cost(segment, gold[restart:t], gold[restart - 1] if restart else None)
                behind = rescore((*gold[:restart], *segment)) - rescore(gold[:t])
                lead = margin + margin_per_token * len(segment)
                total = total + weight * (lead if search.rival_is_gold[t - 1] else lead + behind)
                restart = t
        return total

    return loss


def scores_along(model: Model, one: Batch, noise: Noise | None, tokens: Tokens) -> list[Float[Tensor, " V"]]:
    """The scores of the whole vocabulary at each token of one sequence, the last of which is not read."""
    state, found = model.encode(one, noise), []
    for read in (BOS, *tokens)[: len(tokens)]:
        state = model.step(state, torch.tensor([read]))
        found.append(model.scores(model.output(state)[None])[0, 0])
    return found


def prefix_logprob(model: Model, one: Batch, noise: Noise | None, tokens: Tokens) -> Float[Tensor, ""]:
    """The log-probability of a whole sequence of a single sentence."""
    scores = scores_along(model, one, noise, tokens)
    logprobs = (scores[t].log_softmax(0)[token] for t, token in enumerate(tokens))
    return sum(logprobs, torch.zeros((), dtype=torch.float64))


def _prefix_scores(along: Callable[[Tokens], list[Tensor]], rule: ScoreRule) -> tuple[Score, Rescore]:
    """f of a prefix, or the sum of f over its own prefixes: as a number and with gradient. Scores after equal tokens
    are computed once. Of log-probabilities: each score less the log of the sum of exp over the vocabulary."""

    def added(following: Callable[[Tokens], Any]) -> Callable[[Tokens], Any]:
        def score(prefix: Tokens) -> Any:
            first = 1 if rule.adds_up else len(prefix)
            return sum(following(prefix[: t - 1])[prefix[t - 1]] for t in range(first, len(prefix) + 1))

        return score

    def last(read: Tokens) -> Tensor:
        scores_V = along((*read, EOS))[-1]
        return scores_V - scores_V.exp().sum().log() if rule.normalised else scores_V

    numbers = torch.no_grad()(lambda read: last(read).tolist())
    return added(cache(numbers)), added(cache(last))


def alone(batch: Batch, row: int) -> Batch:
    """One sentence of a batch without its neighbours and without padding."""
    source_length, target_length = int(batch.source_length_B[row]), int(batch.target_length_B[row])
    one = slice(row, row + 1)
    return Batch(
        source_BS=batch.source_BS[one, :source_length],
        source_length_B=batch.source_length_B[one],
        target_BT=batch.target_BT[one, :target_length],
        target_length_B=batch.target_length_B[one],
        sentence_B=batch.sentence_B[one],
    )


def noise_alone(noise: Noise | None, row: int) -> Noise | None:
    return None if noise is None else Noise(noise.seed, noise.update, noise.sentence_B[row : row + 1])


def gradients(loss: Float[Tensor, ""], model: nn.Module) -> dict[str, Tensor]:
    """The gradient of every parameter, zeros where the loss does not depend on it."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    if not loss.requires_grad:
        return {name: torch.zeros_like(p) for name, p in zip(names, parameters, strict=True)}
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))


# Costs of one segment, as loops over lists or by another package.


def naive_one_minus_bleu(rival: Tokens, gold: Tokens, before: int | None) -> float:
    """By sacreBLEU's sentence BLEU; tokens are written as numbers."""
    hypothesis, reference = (" ".join(map(str, side)) for side in (rival, gold))
    score = sacrebleu.sentence_bleu(
        hypothesis, [reference], smooth_method="exp", use_effective_order=True, tokenize="none"
    )
    return 1 - score.score / 100


def naive_one_minus_authors_bleu(rival: Tokens, gold: Tokens, before: int | None) -> float:
    """Segments start with the token before them (the first with the start symbol, here -1), absent orders count as
    precision 1, the k-th order without a match has 2^-k matches."""
    lead = (-1 if before is None else before,)
    rival, gold = (*lead, *rival), (*lead, *gold)
    product, smooth = 1.0, 1.0
    for order in range(1, min(4, len(rival)) + 1):
        ours, theirs = (Counter(side[i : i + order] for i in range(len(side) - order + 1)) for side in (rival, gold))
        matches = float((ours & theirs).total())
        if matches == 0:
            smooth /= 2
            matches = smooth
        product *= matches / ours.total()
    return 1 - product**0.25


def naive_token_error(output: Tokens, gold: Tokens) -> float:
    """The share of places at which the two differ, of the longer one's."""
    return 1 - sum(a == b for a, b in zip(output, gold, strict=False)) / max(len(output), len(gold))


# Risks of whole outputs; of BLEU the end symbol is no token.
NAIVE_RISKS: dict[str, Callable[[Tokens, Tokens], float]] = {
    "sentence_bleu": lambda *sides: naive_one_minus_bleu(*(tuple(t for t in s if t != EOS) for s in sides), None),
    "zero_one": lambda output, gold: float(output != gold),
    "token_error": naive_token_error,
}


class CachedAttention(nn.Module):
    """A decoder whose state grows: causal self-attention with a cache, and none of the methods that only save time."""

    def __init__(self, *, vocabulary: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.source = nn.Embedding(vocabulary, hidden)
        self.target = nn.Embedding(vocabulary, hidden)
        self.query = nn.Linear(hidden, hidden)
        self.key_value = nn.Linear(hidden, 2 * hidden)
        self.last = nn.Linear(2 * hidden, vocabulary)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        position_S = torch.arange(batch.source_BS.shape[1])
        real_BS1 = (position_S < batch.source_length_B[:, None])[..., None]
        source_BH = (self.source(batch.source_BS) * real_BS1).sum(1)
        (rows, width), dtype = source_BH.shape, source_BH.dtype
        sentence = {"source": source_BH}
        if noise is not None:
            steps = batch.target_BT.shape[1]
            sentence["noise"] = noise.mask(1, steps=steps, width=width, rate=self.dropout, dtype=dtype)
        cache_N0H = torch.zeros(rows, 0, width, dtype=dtype)
        output_NG = torch.zeros(rows, 2 * width, dtype=dtype)
        return State(sentence, {"keys": cache_N0H, "values": cache_N0H, "output": output_NG})

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        shared = state.sentence
        rows = tokens_N.shape[0] // shared["source"].shape[0]
        x_NH = self.target(tokens_N) + shared["source"].repeat_interleave(rows, 0)
        if "noise" in shared:
            x_NH = x_NH * shared["noise"][:, state.time].repeat_interleave(rows, 0)
        key_NH, value_NH = self.key_value(x_NH).chunk(2, 1)
        keys_NTH = torch.cat([state.hypothesis["keys"], key_NH[:, None]], 1)
        values_NTH = torch.cat([state.hypothesis["values"], value_NH[:, None]], 1)
        weights_N1T = (self.query(x_NH)[:, None] @ keys_NTH.transpose(1, 2)).softmax(-1)
        context_NH = (weights_N1T @ values_NTH)[:, 0]
        output_NG = torch.cat([context_NH, x_NH], 1).tanh()
        return State(shared, {"keys": keys_NTH, "values": values_NTH, "output": output_NG}, state.time + 1)

    def output(self, state: State) -> Float[Tensor, "N G"]:
        return state.hypothesis["output"]

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        return columns_of(self.last(output_GRH), candidates_GC)


class TableModel(nn.Module):
    """A weight for the score of each token after each prefix: a gradient reads like a table. Prefixes that the table
    leaves out share one row; tokens that it leaves out score -100."""

    def __init__(self, table: Mapping[Tokens, Mapping[int, float]], *, vocabulary: int) -> None:
        super().__init__()
        self.prefixes = list(table)
        number = {prefix: i for i, prefix in enumerate(self.prefixes)}
        elsewhere = len(table)
        weights = torch.full((elsewhere + 1, vocabulary), -100.0, dtype=torch.float64)
        self.child_XV = torch.full((elsewhere + 1, vocabulary), elsewhere)
        for prefix, tokens in table.items():
            for token, score in tokens.items():
                weights[number[prefix], token] = score
            if prefix:
                self.child_XV[number[prefix[:-1]], prefix[-1]] = number[prefix]
        self.weight_XV = nn.Parameter(weights)

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        return State({}, {"prefix": torch.full_like(batch.sentence_B, self.prefixes.index(()))})

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        prefix_N = state.hypothesis["prefix"]
        if state.time > 0:  # the first token read is BOS
            prefix_N = self.child_XV[prefix_N, tokens_N]
        return State({}, {"prefix": prefix_N}, state.time + 1)

    def output(self, state: State) -> Float[Tensor, "N X"]:
        return nn.functional.one_hot(state.hypothesis["prefix"], self.weight_XV.shape[0]).double()

    def scores(
        self, output_GRH: Float[Tensor, "G R X"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        return columns_of(output_GRH @ self.weight_XV, candidates_GC)

    def gradients(self, loss: Float[Tensor, ""]) -> dict[tuple[Tokens, int], float]:
        """The entries (prefix, token) of the table that have a gradient."""
        gradient_XV = gradients(loss, self)["weight_XV"]
        assert not gradient_XV[-1].any()
        return {
            (self.prefixes[row], column): gradient_XV[row, column].item()
            for row, column in gradient_XV.nonzero().tolist()
        }
