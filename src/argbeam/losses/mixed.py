"""A sequence loss with some cross-entropy mixed in (Edunov et al. 2018, the weighted combined objective)."""

from dataclasses import dataclass

from argbeam.data.batches import Batch
from argbeam.losses.contract import Loss, LossOutput, StepLoss
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.models.contract import Model, Shortcuts, Unrolls
from argbeam.models.noise import Noise
from argbeam.models.state import State


@dataclass
class Mixed:
    """(1 - weight) * sequence loss + weight * cross-entropy, both as sums over the batch.

    The divisor is the sequence loss's: a sentence has the same share of both, however the sum is normalised. With
    `label_smoothing` the cross-entropy is smoothed, as in pre-training: without it a model that was pre-trained with it
    would be drawn away from where it stands.
    """

    sequence: Loss
    weight: float
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        self.rule, self.stop = self.sequence.rule, self.sequence.stop
        self.reset_optimizer, self.weights = self.sequence.reset_optimizer, self.sequence.weights

    def at(self, epoch: int) -> "MixedStep":
        return MixedStep(self.sequence.at(epoch), self.weight, self.label_smoothing)


@dataclass(frozen=True)
class MixedStep:
    """The mixture in one epoch."""

    sequence: StepLoss
    weight: float
    label_smoothing: float = 0.0

    @property
    def beam(self) -> int:
        return self.sequence.beam

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        once = EncodedOnce(model)
        sequence = self.sequence(once, batch, noise)
        gold = CrossEntropy(self.label_smoothing)(once, batch, noise)
        total = (1 - self.weight) * sequence.total + self.weight * gold.total
        sums = {
            **sequence.sums,
            "loss": total.detach(),
            "sequence_loss": sequence.total.detach(),
            "cross_entropy": gold.sums.get("cross_entropy", gold.total.detach()),  # without smoothing, as elsewhere
        }
        return LossOutput(total, sequence.count, sums)


class EncodedOnce:
    """A model that encodes its batch once: two losses share the encoder's states and the dropout drawn with them.

    The second loss may need no more target steps than the first.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.encoded: State | None = None
        self.steps = 0
        self.step, self.output, self.scores = model.step, model.output, model.scores
        if isinstance(model, Unrolls):
            self.unroll = model.unroll
        if isinstance(model, Shortcuts):
            self.step_from, self.scorer_of = model.step_from, model.scorer_of

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        if self.encoded is None:
            self.encoded, self.steps = self.model.encode(batch, noise), batch.target_BT.shape[1]
        assert batch.target_BT.shape[1] <= self.steps, "noise was drawn for fewer steps"
        return self.encoded
