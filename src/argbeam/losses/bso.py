"""Beam-search optimization (Wiseman & Rush 2016, section 4): search, find violations, push gold above its rivals."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.losses.contract import LossOutput
from argbeam.losses.replay import replay, since_restart
from argbeam.metrics.device_bleu import authors_segment_bleu, segment_bleu
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.search.gold import Gold, Policy, Restart
from argbeam.search.result import Violations
from argbeam.search.score_rules import LastScore, ScoreSum
from argbeam.search.search import beam_search
from argbeam.search.stop_rules import Stop, StopTop
from argbeam.search.successors import Successors

Cost = Callable[
    [Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T"]],
    Float[Tensor, "B T"],
]
"""A cost of rivals: `cost(rival_BT, gold_BT, violation_BT)` is read at the violations, each of which ends a segment."""

DECILES = 10


class Normalise(Enum):
    """What a sum over a batch is divided by. BSO's authors divide by nothing and rescale the gradient's norm."""

    NONE = "none"
    SENTENCES = "sentences"
    WORDS = "words"

    def count(self, sentences: Float[Tensor, ""], words: Float[Tensor, ""]) -> Float[Tensor, ""] | None:
        """The divisor, at least 1: a batch of padding alone has a loss of zero."""
        count = {Normalise.NONE: None, Normalise.SENTENCES: sentences, Normalise.WORDS: words}[self]
        return None if count is None else count.clamp(min=1)


def zero_one(rival_BT: Tensor, gold_BT: Tensor, violation_BT: Tensor) -> Tensor:
    """Every violation costs the same."""
    return torch.ones_like(rival_BT, dtype=torch.get_default_dtype())


def one_minus_bleu(rival_BT: Tensor, gold_BT: Tensor, violation_BT: Tensor) -> Tensor:
    """1 - SB: a rival with many n-grams of gold costs little (section 5.2, "Delta")."""
    return 1 - segment_bleu(rival_BT, gold_BT, violation_BT)


def one_minus_authors_bleu(rival_BT: Tensor, gold_BT: Tensor, violation_BT: Tensor) -> Tensor:
    """1 - SB with the authors' own sentence BLEU, whose first segment begins with the start symbol."""
    return 1 - authors_segment_bleu(rival_BT, gold_BT, violation_BT, start_symbol=True)


@dataclass(frozen=True)
class Bso:
    """The loss of section 4.1: over all violations, cost * (margin - f(gold) + f(rival)).

    `policy` says which violations there are: all of a search that restarts (BSO), the one where gold falls off the beam
    (`EarlyUpdate`), or the worst one (`MaxViolation`). f is the newest word's score; with the rule `ScoreSum`, by which
    models are then searched as well, the sum of the scores since the last restart.

    `successors` are those of the training search: with the task's constraint this is ConBSO. `stop` is None in tasks of
    fixed length. The beam grows from `start_beam` by one every `epochs_per_beam` epochs up to `train_beam`.
    """

    successors: Successors
    train_beam: int
    stop: Stop = StopTop()  # noqa: RUF009 - frozen and without state
    open_length: bool = True
    start_beam: int = 2
    epochs_per_beam: int = 2
    margin: float = 1.0
    cost: Cost = zero_one
    cost_scale: float = 1.0
    normalise: Normalise = Normalise.NONE
    reset_optimizer: bool = False
    policy: Callable[[float], Policy] = Restart
    rule: LastScore | ScoreSum = LastScore()  # noqa: RUF009 - frozen and without state
    weights = None

    def at(self, epoch: int) -> "BsoStep":
        beam = curriculum_beam(epoch, start=self.start_beam, end=self.train_beam, epochs_per_beam=self.epochs_per_beam)
        return BsoStep(self, beam)


@dataclass(frozen=True)
class BsoStep:
    """BSO with the beam of one epoch."""

    bso: Bso
    beam: int

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        bso = self.bso
        gold_BT, length_B = batch.target_BT, batch.target_length_B
        state = model.encode(batch, noise)
        policy = bso.policy(bso.margin)
        found = beam_search(
            model,
            state,
            bso.successors.start(batch),
            beam_size=self.beam,
            length_B=length_B,
            steps=gold_BT.shape[1],
            rule=bso.rule,
            stop=bso.stop if bso.open_length else None,
            gold=Gold(gold_BT, length_B, policy),
            n_best=0,
        ).violations
        assert found is not None
        again = replay(model, state, gold_BT, found.rival_BT, found.violation_BT)
        cost_BT = bso.cost_scale * bso.cost(found.rival_BT, gold_BT, found.violation_BT)
        # Elsewhere a cost may be anything: 0 times its NaN would be one in the gradient.
        cost_BT = torch.where(found.violation_BT, cost_BT, 0.0)
        difference_BT = again.rival_BT - again.gold_BT
        if bso.rule.adds_up:
            difference_BT = since_restart(difference_BT, found.violation_BT)
        # A rival that is gold itself costs the margin and teaches nothing: the K-th place is not good enough.
        difference_BT = torch.where(found.rival_is_gold_BT, 0.0, difference_BT)
        loss_BT = cost_BT.to(difference_BT.dtype) * (bso.margin + difference_BT)
        total = torch.where(found.violation_BT, loss_BT, 0.0).sum()
        sentences = (length_B > 0).sum().to(total.dtype)
        words = length_B.sum().to(total.dtype)
        sums = {
            "loss": total.detach(),
            "sentences": sentences,
            "words": words,
            **diagnostics(found, length_B),
            **({} if policy.restarts else stopping(found, length_B)),
        }
        return LossOutput(total, bso.normalise.count(sentences, words), sums)


def curriculum_beam(epoch: int, *, start: int, end: int, epochs_per_beam: int) -> int:
    """The train beam of an epoch: `start`, plus 1 every `epochs_per_beam` epochs, up to `end` (section 5.1)."""
    return min(end, start + epoch // epochs_per_beam)


def diagnostics(found: Violations, length_B: Int[Tensor, " B"]) -> dict[str, Tensor]:
    """Sums that tell how the search went: `*_by_tenth` are counts by tenths of the sentence."""
    violation_BT = found.violation_BT
    dtype = found.gold_score_BT.dtype
    position_T = torch.arange(violation_BT.shape[1], device=length_B.device)
    tenth_BT = (DECILES * position_T // length_B.clamp(min=1)[:, None]).clamp(max=DECILES - 1)
    real_BT = position_T < length_B[:, None]
    # The words of segments that end in a violation are those up to the last violation of the sentence.
    last_B = torch.where(violation_BT, position_T + 1, 0).amax(1)

    def by_tenth(mask_BT: Tensor) -> Tensor:
        hot_BTD = tenth_BT[..., None] == torch.arange(DECILES, device=length_B.device)
        return (hot_BTD & mask_BT[..., None]).sum((0, 1)).to(dtype)

    return {
        "violations": violation_BT.sum().to(dtype),
        "rival_is_gold": found.rival_is_gold_BT.sum().to(dtype),
        "rival_ended": found.rival_ended_BT.sum().to(dtype),
        "segment_words": last_B.sum().to(dtype),
        "gold_on_beam": (found.gold_on_beam_B & (length_B > 0)).sum().to(dtype),
        "violations_by_tenth": by_tenth(violation_BT),
        "words_by_tenth": by_tenth(real_BT),
    }


def stopping(found: Violations, length_B: Int[Tensor, " B"]) -> dict[str, Tensor]:
    """Sums that tell how far searches without restarts kept gold: sentences that lost it early, words up to there."""
    dtype = found.gold_score_BT.dtype
    return {
        "stopped_early": (found.stop_B < length_B - 1).sum().to(dtype),
        "stop_words": (found.stop_B + 1).minimum(length_B).sum().to(dtype),
    }
