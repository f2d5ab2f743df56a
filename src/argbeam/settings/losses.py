"""Settings of losses."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from argbeam.settings.strict import MOST_BEAM, Settings

StopRule = Literal["top", "best"]


class CrossEntropyLoss(Settings):
    """Log-loss of the gold words given the gold history."""

    kind: Literal["cross_entropy"] = "cross_entropy"


class SequenceLoss(Settings):
    """What losses of whole sequences share."""

    cross_entropy: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="weight of cross-entropy mixed in; the sequence loss has the rest",
    )


class SearchLoss(SequenceLoss):
    """What all losses share that train with the beam search."""

    train_beam: int = Field(
        default=6, ge=1, le=MOST_BEAM, description="K_tr, the beam the curriculum ends with; test beam plus 1"
    )
    start_beam: int = Field(default=2, ge=1, le=MOST_BEAM, description="beam of the first epoch")
    epochs_per_beam: int = Field(default=2, ge=1, description="epochs before the beam grows by 1")
    constrained: bool = Field(default=False, description="train under the task's constraint, as ConBSO does")
    stop: StopRule = Field(
        default="top", description="when search ends in open-length tasks: top-ranked or best ending"
    )
    reset_optimizer: bool = Field(default=False, description="zero Adagrad's sums whenever the beam grows")

    @model_validator(mode="after")
    def _beams_ordered(self) -> "SearchLoss":
        if self.start_beam > self.train_beam:
            raise ValueError(
                f"start_beam = {self.start_beam} is more than train_beam = {self.train_beam}; it must not be"
            )
        return self


class BsoLoss(SearchLoss):
    """Beam-search optimization (Wiseman & Rush 2016, section 4), and its relatives that do not restart."""

    kind: Literal["bso"] = "bso"
    policy: Literal["restart", "early_update", "max_violation"] = Field(
        default="restart",
        description="which violations are trained on: all, restarting after each; where gold falls off; the worst",
    )
    rule: Literal["last_score", "score_sum"] = Field(
        default="last_score",
        description="what ranks prefixes and is held against the margin: the newest word's score, or the sum",
    )
    margin: float = Field(default=1.0, ge=0, description="gold must score better than the rival by this")
    cost: Literal["zero_one", "sentence_bleu", "authors_bleu"] = Field(
        default="zero_one",
        description="cost of a violation: 1, 1 - sentence BLEU, or the authors' variant of it",
    )
    cost_scale: float = Field(default=1.0, gt=0, description="costs are multiplied by this")
    normalise: Literal["none", "sentences", "words"] = Field(default="none", description="what the loss is divided by")


class CrfLoss(SearchLoss):
    """The globally normalised model with early update (Andor et al. 2016)."""

    kind: Literal["crf"] = "crf"
    normalise: Literal["none", "sentences", "words"] = Field(
        default="sentences", description="what the loss is divided by"
    )


class LinearSchedule(Settings):
    """The same step up in every epoch."""

    kind: Literal["linear"] = "linear"
    slope: float = Field(default=0.05, ge=0, le=1, description="how much the probability grows in an epoch")


class ExponentialSchedule(Settings):
    """1 - base^epoch."""

    kind: Literal["exponential"] = "exponential"
    base: float = Field(default=0.95, gt=0, le=1, description="the probability is 1 - base^epoch")


class InverseSigmoidSchedule(Settings):
    """1 - k / (k + exp(epoch / k))."""

    kind: Literal["inverse_sigmoid"] = "inverse_sigmoid"
    k: float = Field(default=6.0, ge=1, description="the probability is 1 - k / (k + exp(epoch / k))")


Schedule = Annotated[LinearSchedule | ExponentialSchedule | InverseSigmoidSchedule, Field(discriminator="kind")]


class ScheduledSamplingLoss(Settings):
    """Cross-entropy after histories with some words of the model's own (Bengio et al. 2015)."""

    kind: Literal["scheduled_sampling"] = "scheduled_sampling"
    schedule: Schedule = Field(description="probability of reading the model's own word, by epoch")
    highest: float = Field(
        default=1.0, ge=0.05, le=1, description="the probability, which goes by twentieths, grows no further than this"
    )
    own_word: Literal["sampled", "best"] = Field(
        default="sampled", description="the model's own word: drawn from its distribution, or its best"
    )


class MixerLoss(SequenceLoss):
    """Cross-entropy for the first words of a sentence, REINFORCE for the rest (Ranzato et al. 2016)."""

    kind: Literal["mixer"] = "mixer"
    cross_entropy_epochs: int = Field(default=0, ge=0, description="epochs before the first words are sampled")
    epochs_per_border: int = Field(default=2, ge=1, description="epochs before more words are sampled")
    words_per_border: int = Field(default=3, ge=1, description="how many more words at a sentence's end are sampled")
    extra_length: int = Field(
        default=4, ge=0, le=10**6, description="words that an output may have more than gold, in open-length tasks"
    )
    baseline_rate: float = Field(default=0.01, ge=0, description="learning rate of the expected reward's regression")
    baseline_weight: float = Field(
        default=0.01, ge=0, description="weight of the regression's error, which has a part in the gradient's norm"
    )


class MrtLoss(SequenceLoss):
    """Minimum risk training (Shen et al. 2016)."""

    kind: Literal["mrt"] = "mrt"
    candidates: Literal["sampled", "beam"] = Field(
        default="sampled", description="candidates drawn from the model, or the best of a beam search"
    )
    size: int = Field(
        default=8, ge=1, le=MOST_BEAM, description="candidates of a sentence, which is also the search's beam"
    )
    alpha: float = Field(default=0.005, gt=0, description="candidates weigh by their probability to this power")
    include_gold: bool = Field(default=True, description="gold is one more candidate")
    risk: Literal["sentence_bleu", "zero_one", "token_error"] = Field(
        default="sentence_bleu",
        description="risk of a candidate: 1 - sentence BLEU, 1 unless it is gold, or the share of wrong words",
    )
    constrained: bool = Field(default=False, description="candidates keep to the task's constraint")
    extra_length: int = Field(
        default=4, ge=0, le=10**6, description="words that a candidate may have more than gold, in open-length tasks"
    )


Loss = Annotated[
    CrossEntropyLoss | BsoLoss | CrfLoss | ScheduledSamplingLoss | MixerLoss | MrtLoss, Field(discriminator="kind")
]
