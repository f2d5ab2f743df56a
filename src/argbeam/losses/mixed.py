"""A sequence loss with some cross-entropy mixed in (Edunov et al. 2018, the weighted combined objective)."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.losses.contract import Loss, LossOutput, LossWeights, StepLoss
from argbeam.losses.cross_entropy import CrossEntropy
from argbeam.models.contract import Model, Scorer, Shortcuts, Unrolls
from argbeam.models.noise import Noise
from argbeam.models.state import Places, State
from argbeam.search.score_rules import ScoreRule
from argbeam.search.stop_rules import Stop


@dataclass(frozen=True)
class Mixed:
    """(1 - weight) * sequence loss + weight * cross-entropy, both as sums over the batch.

    The divisor is the sequence loss's: a sentence has the same share of both, however the sum is normalised.
    """

    sequence: Loss
    weight: float

    @property
    def reset_optimizer(self) -> bool:
        return self.sequence.reset_optimizer

    @property
    def rule(self) -> ScoreRule:
        return self.sequence.rule

    @property
    def stop(self) -> Stop:
        return self.sequence.stop

    @property
    def weights(self) -> LossWeights | None:
        return self.sequence.weights

    def at(self, epoch: int) -> "MixedStep":
        return MixedStep(self.sequence.at(epoch), self.weight)


@dataclass(frozen=True)
class MixedStep:
    """The mixture in one epoch."""

    sequence: StepLoss
    weight: float

    @property
    def beam(self) -> int:
        return self.sequence.beam

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        once = EncodedOnce(model)
        sequence = self.sequence(once, batch, noise)
        gold = CrossEntropy()(once, batch, noise)
        total = (1 - self.weight) * sequence.total + self.weight * gold.total
        sums = {
            **sequence.sums,
            "loss": total.detach(),
            "sequence_loss": sequence.total.detach(),
            "cross_entropy": gold.total.detach(),
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

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        if self.encoded is None:
            self.encoded, self.steps = self.model.encode(batch, noise), batch.target_BT.shape[1]
        assert batch.target_BT.shape[1] <= self.steps, "noise was drawn for fewer steps"
        return self.encoded

    def step(self, state: State, tokens_N: Int[Tensor, " N"]) -> State:
        return self.model.step(state, tokens_N)

    def unroll(
        self, state: State, read_TN: Int[Tensor, "T N"], restarted_TB: Bool[Tensor, "T B"] | None = None
    ) -> Float[Tensor, "T N H"] | None:
        return self.model.unroll(state, read_TN, restarted_TB) if isinstance(self.model, Unrolls) else None

    def output(self, state: State) -> Float[Tensor, "N H"]:
        return self.model.output(state)

    def scores(
        self, output_GRH: Float[Tensor, "G R H"], candidates_GC: Int[Tensor, "G C"] | None = None
    ) -> Float[Tensor, "G R C"]:
        return self.model.scores(output_GRH, candidates_GC)

    def step_from(
        self, state: State, rows_X: Int[Tensor, " X"], tokens_X: Int[Tensor, " X"], places: Places | None
    ) -> State | None:
        return self.model.step_from(state, rows_X, tokens_X, places) if isinstance(self.model, Shortcuts) else None

    def scorer_of(self, candidates_GC: Int[Tensor, "G C"] | None) -> Scorer:
        return self.model.scorer_of(candidates_GC) if isinstance(self.model, Shortcuts) else self.model
