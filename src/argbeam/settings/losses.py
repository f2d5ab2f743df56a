"""Settings of losses."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from argbeam.settings.strict import MOST_BEAM, Settings


class CrossEntropyLoss(Settings):
    """Negative log-likelihood of the gold tokens after gold prefixes."""

    kind: Literal["cross_entropy"] = "cross_entropy"
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of the target spread evenly over the vocabulary"
    )
    valid_only: bool = Field(
        default=False, description="probabilities over the valid successors of gold's prefix alone (MSL)"
    )
    pruning_weight: float = Field(
        default=0.0, ge=0, description="BEAR's weight of tokens near the edge of the beam; 0: all weigh the same"
    )
    pruning_rank: int = Field(default=10, ge=1, le=MOST_BEAM, description="with pruning_weight: rank of that edge")
    pruning_temperature: float = Field(
        default=1.0, gt=0, description="with pruning_weight: temperature of the distance from that edge"
    )


class SequenceLoss(Settings):
    """Keys of all losses of whole sequences."""

    cross_entropy: float = Field(default=0.0, ge=0, lt=1, description="share of cross-entropy in the loss")
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="label smoothing of that cross-entropy")

    @model_validator(mode="after")
    def _something_to_smooth(self) -> "SequenceLoss":
        if self.label_smoothing and not self.cross_entropy:
            raise ValueError(
                f"label_smoothing = {self.label_smoothing} is for the share of cross-entropy; "
                "must be 0 with cross_entropy = 0"
            )
        return self


class SearchLoss(SequenceLoss):
    """Keys of all losses that train with the beam search."""

    train_beam: int = Field(default=6, ge=1, le=MOST_BEAM, description="K_tr, the last training beam; test beam plus 1")
    start_beam: int = Field(default=2, ge=1, le=MOST_BEAM, description="training beam of the first epoch")
    epochs_per_beam: int = Field(default=2, ge=1, description="epochs before the training beam grows by 1")
    constrained: bool = Field(default=False, description="train under the task's constraint (ConBSO)")
    stop: Literal["top", "best"] = Field(
        default="top", description="open-length tasks: the search ends with its top-ranked or its best hypothesis"
    )
    reset_optimizer: bool = Field(default=False, description="forget past gradients whenever the beam grows")

    @model_validator(mode="after")
    def _beams_ordered(self) -> "SearchLoss":
        first, last = self.start_beam, self.train_beam
        if first > last:
            raise ValueError(f"start_beam = {first} is more than train_beam = {last}; it must not be")
        return self


class BsoLoss(SearchLoss):
    """Beam-search optimization (Wiseman & Rush 2016, section 4), and its relatives without restarts."""

    kind: Literal["bso"] = "bso"
    policy: Literal["restart", "early_update", "max_violation"] = Field(
        default="restart",
        description="violations to train on: all, with restarts; where gold leaves the beam; the largest",
    )
    rule: Literal["last_score", "score_sum", "logprob_sum"] = Field(
        default="last_score",
        description="score of a prefix: its last token's, or the sum of scores or log-probabilities; "
        "default for Transformers: score_sum, for Hugging Face models: logprob_sum",
    )
    margin: float = Field(default=1.0, ge=0, description="required lead of gold's score over the rival's")
    margin_per_token: float = Field(
        default=0.0, ge=0, description="with sums: further lead for every token since the last restart"
    )
    cost: Literal["zero_one", "sentence_bleu", "authors_bleu"] = Field(
        default="zero_one", description="cost of a violation: 1, 1 - sentence BLEU, or the authors' variant of it"
    )
    cost_scale: float = Field(default=1.0, gt=0, description="factor of the cost")
    normalise: Literal["none", "sentences", "words"] = Field(default="none", description="divisor of the loss")

    @model_validator(mode="after")
    def _rule_fits(self) -> "BsoLoss":
        if self.rule == "last_score" and self.margin_per_token:
            raise ValueError(
                f'margin_per_token = {self.margin_per_token} is for sums; must be 0 with rule = "last_score"'
            )
        if self.rule != "last_score" and self.stop == "best":
            raise ValueError(f'stop = "best" is for rule = "last_score" in training; must be "top" with "{self.rule}"')
        return self


class CrfLoss(SearchLoss):
    """The globally normalised model with early update (Andor et al. 2016), or with restarts."""

    kind: Literal["crf"] = "crf"
    restarts: bool = Field(
        default=False, description="restart from gold where it leaves the beam, as BSO does, instead of early update"
    )
    normalise: Literal["none", "sentences", "words"] = Field(default="sentences", description="divisor of the loss")

    @model_validator(mode="after")
    def _stop_fits(self) -> "CrfLoss":
        if self.stop == "best":
            raise ValueError('stop = "best": sums of scores do not compare across lengths; must be "top" with "crf"')
        return self


class ApaoLoss(Settings):
    """Cross-entropy with losses of prefixes against random valid sequences (APAO)."""

    kind: Literal["apao"] = "apao"
    weight: float = Field(default=0.1, ge=0, description="weight of the prefix losses beside cross-entropy")
    negatives: int = Field(
        default=100, ge=0, le=2**16, description="random valid sequences of a sentence; 0: gold's probability alone"
    )
    temperature: float = Field(default=1.0, gt=0, description="divisor of the prefixes' log-probabilities")
    eta: float = Field(default=0.0, ge=0, description="preference for the prefix lengths with the largest losses")


class LinearSchedule(Settings):
    """slope * epoch."""

    kind: Literal["linear"] = "linear"
    slope: float = Field(default=0.05, ge=0, le=1, description="growth of the probability in each epoch")


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
    """Cross-entropy after prefixes with some tokens of the model's own (Bengio et al. 2015)."""

    kind: Literal["scheduled_sampling"] = "scheduled_sampling"
    schedule: Schedule = Field(description="probability of the model's own token as the next input, by epoch")
    highest: float = Field(default=1.0, ge=0.05, le=1, description="highest probability; it grows in steps of 0.05")
    own_word: Literal["sampled", "best"] = Field(
        default="sampled", description="the model's own token: sampled, or the best"
    )


class MixerLoss(SequenceLoss):
    """Cross-entropy for the first tokens of a sentence, REINFORCE for the rest (Ranzato et al. 2016)."""

    kind: Literal["mixer"] = "mixer"
    cross_entropy_epochs: int = Field(default=0, ge=0, description="epochs of cross-entropy alone, at the start")
    epochs_per_border: int = Field(default=2, ge=1, description="epochs before the sampled part grows")
    words_per_border: int = Field(default=3, ge=1, description="tokens that join the sampled part then")
    extra_length: int = Field(default=4, ge=0, le=10**6, description="open-length tasks: limit of tokens beyond gold")
    baseline_rate: float = Field(default=0.01, ge=0, description="learning rate of the regression of the reward")
    baseline_weight: float = Field(default=0.01, ge=0, description="weight of that regression's error in the loss")


class MrtLoss(SequenceLoss):
    """Minimum risk training (Shen et al. 2016)."""

    kind: Literal["mrt"] = "mrt"
    candidates: Literal["sampled", "beam"] = Field(
        default="sampled", description="sampled from the model, or the best of a search"
    )
    size: int = Field(default=8, ge=1, le=MOST_BEAM, description="candidates of a sentence, and beam of the search")
    alpha: float = Field(default=0.005, gt=0, description="exponent of the candidates' probabilities in their weights")
    include_gold: bool = Field(default=True, description="add gold to the candidates")
    risk: Literal["sentence_bleu", "zero_one", "token_error"] = Field(
        default="sentence_bleu", description="risk: 1 - sentence BLEU, 1 unless gold, or the share of wrong tokens"
    )
    constrained: bool = Field(default=False, description="candidates follow the task's constraint")
    extra_length: int = Field(default=4, ge=0, le=10**6, description="open-length tasks: limit of tokens beyond gold")


Loss = Annotated[
    CrossEntropyLoss | ApaoLoss | BsoLoss | CrfLoss | ScheduledSamplingLoss | MixerLoss | MrtLoss,
    Field(discriminator="kind"),
]
