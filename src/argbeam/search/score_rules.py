"""Score rules: the scores that prefixes are sorted by. The rule belongs to the trained model and is stored with it."""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from argbeam.models.contract import Scorer

NEVER = -torch.inf


class ScoreRule(Protocol):
    """Scores prefixes by the scores of their tokens. The methods here: the sum of the tokens' raw scores."""

    normalised: ClassVar[bool] = False  # token scores are log-probabilities, so that perplexity means something
    adds_up: ClassVar[bool] = True  # a prefix's score is a sum over its tokens, not that of its newest token alone

    @property
    def name(self) -> str:
        """The rule as recipes and run folders name it."""

    @property
    def valid_only(self) -> bool:
        """Whether log-probabilities are normalised over valid successors alone."""
        return False

    @property
    def over_vocabulary(self) -> bool:
        """Whether log-probabilities are normalised over the whole vocabulary: a short list needs all scores too."""
        return self.normalised and not self.valid_only

    def token_scores(
        self, scorer: Scorer, output_BRH: Float[Tensor, "B R H"], candidates_BC: Int[Tensor, "B C"] | None
    ) -> Float[Tensor, "B R C"]:
        """Score of each candidate as the next token of each row; of the whole vocabulary without candidates."""
        return scorer.scores(output_BRH, candidates_BC)

    def prefix_scores(
        self, score_BK: Float[Tensor, "B K"], tokens_BKC: Float[Tensor, "B K C"]
    ) -> Float[Tensor, "B K C"]:
        """Score of each successor from its parent's and its newest token's; minus infinity of a dead parent."""
        # A parent without a score has successors without one, even if the tokens' scores, which may be those of another
        # row, are not numbers.
        return torch.where(score_BK[..., None] > NEVER, score_BK[..., None] + tokens_BKC, score_BK[..., None])

    def finished_scores(
        self, score_BK: Float[Tensor, "B K"], length: int | Float[Tensor, "B K"]
    ) -> Float[Tensor, "B K"]:
        """Scores of outputs of this length, or of a length each, to be compared with those of other lengths."""
        return score_BK

    def bound(self, score_B: Float[Tensor, " B"], limit_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Highest score that a prefix of this score can have when it finishes."""
        return torch.where(score_B > NEVER, torch.inf, score_B)


@dataclass(frozen=True)
class LastScore(ScoreRule):
    """The paper's BSO: the raw score of a prefix's newest token alone (Wiseman & Rush 2016, section 4)."""

    name: ClassVar[str] = "last_score"
    adds_up: ClassVar[bool] = False

    def prefix_scores(self, score_BK: Tensor, tokens_BKC: Tensor) -> Tensor:
        # A parent without a score has successors without one: dead ones, and those that are not numbers.
        return torch.where(score_BK[..., None] > NEVER, tokens_BKC, score_BK[..., None])


@dataclass(frozen=True)
class ScoreSum(ScoreRule):
    """The sum of the tokens' raw scores: BSO, and globally normalised models (Andor et al. 2016)."""

    name: ClassVar[str] = "score_sum"


@dataclass(frozen=True)
class LogprobSum(ScoreRule):
    """The sum of log-probabilities, normalised over the whole vocabulary, constrained or not: cross-entropy, and BSO.

    The score of a finished prefix of length n is its sum divided by n to the power `length_power` (Wu et al. 2016
    divide by a shifted length); 0 is the plain sum. With `valid_only` log-probabilities are normalised over the valid
    successors, as in the training of such models.
    """

    length_power: float = 0.0
    valid_only: bool = False
    normalised: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "valid_logprob_sum" if self.valid_only else "logprob_sum"

    def token_scores(self, scorer: Scorer, output_BRH: Tensor, candidates_BC: Tensor | None) -> Tensor:
        if self.valid_only:  # raw: the search normalises them, which knows the valid ones
            return scorer.scores(output_BRH, candidates_BC)
        logprobs_BRV = scorer.scores(output_BRH).log_softmax(-1)
        if candidates_BC is None:
            return logprobs_BRV
        return logprobs_BRV.gather(2, candidates_BC[:, None].expand(-1, logprobs_BRV.shape[1], -1))

    def finished_scores(self, score_BK: Tensor, length: int | Tensor) -> Tensor:
        return score_BK / length**self.length_power

    def bound(self, score_B: Tensor, limit_B: Tensor) -> Tensor:
        # Sums only fall; divided by the largest length they fall least. A power below 0 multiplies them by 1 or more.
        return score_B / limit_B.to(score_B.dtype).pow(max(self.length_power, 0.0))


def with_power(rule: ScoreRule, power: float) -> ScoreRule:
    """The rule with this length power, if it sums log-probabilities; other rules as they are."""
    return replace(rule, length_power=power) if isinstance(rule, LogprobSum) else rule


def over_valid(scores_XC: Float[Tensor, "*X C"]) -> Float[Tensor, "*X C"]:
    """Log-probabilities of scores that are minus infinity where a token is not valid; so they stay, if none is."""
    total_X1 = scores_XC.logsumexp(-1, keepdim=True)
    return torch.where(total_X1 == NEVER, NEVER, scores_XC - total_X1)


_RULES = (LastScore(), ScoreSum(), LogprobSum(), LogprobSum(valid_only=True))
SCORE_RULES: dict[str, ScoreRule] = {rule.name: rule for rule in _RULES}
