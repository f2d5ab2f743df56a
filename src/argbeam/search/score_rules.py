"""Score rules: how prefixes are ranked. The rule belongs to the trained model and is stored with it."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from argbeam.models.contract import Scorer

NEVER = -torch.inf


class ScoreRule(Protocol):
    """Ranks prefixes by the scores of their words."""

    name: ClassVar[str]
    normalised: ClassVar[bool]  # scores are made into probabilities word by word, so that perplexity means something
    adds_up: ClassVar[bool]  # a prefix ranks by a sum over its words, not by its newest word alone

    def words(
        self, model: Scorer, output_BRH: Float[Tensor, "B R H"], candidates_BC: Int[Tensor, "B C"] | None
    ) -> Float[Tensor, "B R C"]:
        """What each successor's newest word is worth."""

    def rank(self, total_BK: Float[Tensor, "B K"], words_BKC: Float[Tensor, "B K C"]) -> Float[Tensor, "B K C"]:
        """The rank of each successor from its parent's rank; minus infinity where the parent is dead."""

    def finished(self, total_BK: Float[Tensor, "B K"], length: int) -> Float[Tensor, "B K"]:
        """A finished prefix's rank among finished prefixes of other lengths."""

    def bound(self, total_B: Float[Tensor, " B"], limit_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The best that a prefix of this rank can still become when it finishes."""


@dataclass(frozen=True)
class LastScore:
    """BSO: a prefix ranks by the raw score of its newest word alone (Wiseman & Rush 2016, section 4)."""

    name: ClassVar[str] = "last_score"
    normalised: ClassVar[bool] = False
    adds_up: ClassVar[bool] = False

    def words(self, model: Scorer, output_BRH: Tensor, candidates_BC: Tensor | None) -> Tensor:
        return model.scores(output_BRH, candidates_BC)

    def rank(self, total_BK: Tensor, words_BKC: Tensor) -> Tensor:
        return torch.where(total_BK[..., None] == NEVER, NEVER, words_BKC)

    def finished(self, total_BK: Tensor, length: int) -> Tensor:
        return total_BK

    def bound(self, total_B: Tensor, limit_B: Tensor) -> Tensor:
        return torch.where(total_B > NEVER, torch.inf, total_B)


@dataclass(frozen=True)
class ScoreSum:
    """Globally normalised models: a prefix ranks by the sum of its words' raw scores (Andor et al. 2016)."""

    name: ClassVar[str] = "score_sum"
    normalised: ClassVar[bool] = False
    adds_up: ClassVar[bool] = True

    def words(self, model: Scorer, output_BRH: Tensor, candidates_BC: Tensor | None) -> Tensor:
        return model.scores(output_BRH, candidates_BC)

    def rank(self, total_BK: Tensor, words_BKC: Tensor) -> Tensor:
        return total_BK[..., None] + words_BKC

    def finished(self, total_BK: Tensor, length: int) -> Tensor:
        return total_BK

    def bound(self, total_B: Tensor, limit_B: Tensor) -> Tensor:
        return torch.where(total_B > NEVER, torch.inf, total_B)


@dataclass(frozen=True)
class LogprobSum:
    """Cross-entropy: the sum of log-probabilities, normalised over the whole vocabulary, constrained or not.

    A finished prefix of length n ranks by its sum divided by n to the power `length_power` (Wu et al. 2016 divide by a
    shifted length); 0 is the plain sum.
    """

    length_power: float = 0.0
    name: ClassVar[str] = "logprob_sum"
    normalised: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True

    def words(self, model: Scorer, output_BRH: Tensor, candidates_BC: Tensor | None) -> Tensor:
        logprobs_BRV = model.scores(output_BRH).log_softmax(-1)
        if candidates_BC is None:
            return logprobs_BRV
        return logprobs_BRV.gather(2, candidates_BC[:, None].expand(-1, logprobs_BRV.shape[1], -1))

    def rank(self, total_BK: Tensor, words_BKC: Tensor) -> Tensor:
        return total_BK[..., None] + words_BKC

    def finished(self, total_BK: Tensor, length: int) -> Tensor:
        return total_BK / math.pow(length, self.length_power)

    def bound(self, total_B: Tensor, limit_B: Tensor) -> Tensor:
        # Sums only fall; divided by the largest length they fall least.
        return total_B / limit_B.to(total_B.dtype).pow(self.length_power)


SCORE_RULES: dict[str, ScoreRule] = {rule.name: rule for rule in (LastScore(), ScoreSum(), LogprobSum())}
