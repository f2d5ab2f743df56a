"""The globally normalised model with early update (Andor et al. 2016, section 2.3; Collins & Roark 2004)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.losses.bso import (
    Normalise,
    check_training_search,
    curriculum_beam,
    search_with_gold,
    searched_output,
)
from argbeam.losses.contract import LossOutput
from argbeam.losses.replay import replay_each
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.search.gold import EarlyUpdate
from argbeam.search.result import prefix_tokens
from argbeam.search.score_rules import NEVER, ScoreSum
from argbeam.search.search import SearchSettings
from argbeam.search.stop_rules import Stop, StopTop
from argbeam.search.successors import Successors


@dataclass(frozen=True)
class Crf:
    """Minus the log-probability of gold's prefix among the prefixes of the beam, gold's counted once.

    A prefix's score is the sum of its tokens' raw scores. The beam is that of the step at which gold fell off it, or of
    the last step (section 2.3). Probabilities are normalised over the beam, not token by token, so that later tokens
    can correct an earlier token's score. Settings as in `Bso`.
    """

    successors: Successors
    train_beam: int
    stop: Stop = StopTop()  # noqa: RUF009 - frozen and without state
    open_length: bool = True
    start_beam: int = 2
    epochs_per_beam: int = 2
    normalise: Normalise = Normalise.SENTENCES
    reset_optimizer: bool = False
    rule = ScoreSum()
    weights = None

    def __post_init__(self) -> None:
        check_training_search(
            self.successors,
            open_length=self.open_length,
            train_beam=self.train_beam,
            start_beam=self.start_beam,
            epochs_per_beam=self.epochs_per_beam,
        )

    def at(self, epoch: int) -> "CrfStep":
        beam = curriculum_beam(epoch, start=self.start_beam, end=self.train_beam, epochs_per_beam=self.epochs_per_beam)
        return CrfStep(self, beam)


@dataclass(frozen=True)
class CrfStep:
    """The CRF with the beam of one epoch."""

    crf: Crf
    beam: int

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        crf, gold_BT, length_B = self.crf, batch.target_BT, batch.target_length_B
        settings = SearchSettings(self.beam, crf.rule, crf.stop if crf.open_length else None, n_best=0)
        # Without a margin, a violation is a search that does not return gold: the records count those.
        policy = EarlyUpdate(margin=0.0)
        state = model.encode(batch, noise)
        found, beams = search_with_gold(model, state, crf.successors, settings, batch, policy)
        # The beam of the last step, or of the step at which gold was lost.
        step_BK = found.stop_B[:, None].expand(-1, self.beam)
        place_BK = torch.arange(self.beam, device=step_BK.device).expand_as(step_BK)
        beam_BKT = prefix_tokens(beams, place_BK, step_BK)
        alive_BK = beams.scores_TBJ[:, :, : self.beam].gather(0, step_BK[None])[0] != NEVER
        scores_BRT = replay_each(model, state, torch.cat([beam_BKT, gold_BT[:, None]], 1))
        until_B = (found.stop_B + 1).minimum(length_B)
        total = _minus_log_probability(scores_BRT, beam_BKT, alive_BK, gold_BT, until_B).sum()
        return searched_output(total, crf.normalise, found, length_B, restarts=False)


def _minus_log_probability(
    scores_BRT: Float[Tensor, "B R T"],
    beam_BKT: Int[Tensor, "B K T"],
    alive_BK: Bool[Tensor, "B K"],
    gold_BT: Int[Tensor, "B T"],
    until_B: Int[Tensor, " B"],
) -> Float[Tensor, " B"]:
    """Minus the log of gold's share among the prefixes on the beam and gold's own, the last; `until_B` tokens count."""
    real_B1T = (torch.arange(gold_BT.shape[1], device=gold_BT.device) < until_B[:, None])[:, None]
    score_BR = torch.where(real_B1T, scores_BRT, 0.0).sum(2)
    # Gold counts once, in its own row: its place on the beam is left out.
    is_gold_BK = ((beam_BKT == gold_BT[:, None]) | ~real_B1T).all(2)
    counted_BR = torch.cat([alive_BK & ~is_gold_BK, torch.ones_like(alive_BK[:, :1])], 1)
    return score_BR.masked_fill(~counted_BR, NEVER).logsumexp(1) - score_BR[:, -1]
