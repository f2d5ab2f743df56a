"""The globally normalised model: with early update (Andor et al. 2016, section 2.3), or with BSO's restarts."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.losses.bso import Normalise, SearchesWithGold, searched_output
from argbeam.losses.contract import LossOutput
from argbeam.losses.replay import replay, replay_each, since_restart
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.gold import EarlyUpdate, Restart, segment_tokens
from argbeam.search.result import Beams, Violations, prefix_tokens
from argbeam.search.score_rules import NEVER, ScoreSum
from argbeam.search.stop_rules import Stop, StopTop
from argbeam.search.successors import Successors


@dataclass(frozen=True)
class Crf(SearchesWithGold):
    """Minus the log-probability of gold's prefix among the prefixes of the beam, gold's counted once.

    A prefix's score is the sum of its tokens' raw scores. The beam is that of the step at which gold fell off it, or of
    the last step (section 2.3). Probabilities are normalised over the beam, not token by token, so that later tokens
    can correct an earlier token's score. Settings as in `SearchesWithGold`.

    With `restarts` the search continues from gold's prefix where gold fell off, as BSO's does. The loss is the sum over
    those steps and the last one, each with the beam of its step and the scores since the restart before it: BSO with
    gold's share of a softmax over the whole beam in place of the margin to one rival.
    """

    successors: Successors
    train_beam: int
    stop: Stop = StopTop()  # noqa: RUF009 - frozen and without state
    open_length: bool = True
    start_beam: int = 2
    epochs_per_beam: int = 2
    normalise: Normalise = Normalise.SENTENCES
    reset_optimizer: bool = False
    restarts: bool = False
    rule = ScoreSum()
    weights = None

    def __post_init__(self) -> None:
        self.check_search()

    def at(self, epoch: int) -> "CrfStep":
        return CrfStep(self, self.beam_of(epoch))


@dataclass(frozen=True)
class CrfStep:
    """The CRF with the beam of one epoch."""

    crf: Crf
    beam: int

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        crf, gold_BT, length_B = self.crf, batch.target_BT, batch.target_length_B
        # Without a margin, a violation is a gold prefix that the search loses, or does not return.
        policy = Restart(margin=0.0) if crf.restarts else EarlyUpdate(margin=0.0)
        state = model.encode(batch, noise)
        found, beams = crf.search(model, state, batch, self.beam, policy)
        if crf.restarts:
            total = _at_every_restart(model, state, found, beams, batch, self.beam).sum()
            return searched_output(total, crf.normalise, found, length_B, restarts=True)
        # The beam of the last step, or of the step at which gold was lost.
        step_BK = found.stop_B[:, None].expand(-1, self.beam)
        place_BK = torch.arange(self.beam, device=step_BK.device).expand_as(step_BK)
        beam_BKT = prefix_tokens(beams, place_BK, step_BK, pad=batch.specials.pad)
        alive_BK = beams.scores_TBJ[:, :, : self.beam].gather(0, step_BK[None])[0] != NEVER
        scores_BRT = replay_each(model, state, torch.cat([beam_BKT, gold_BT[:, None]], 1), batch.specials)
        until_B = (found.stop_B + 1).minimum(length_B)
        total = _minus_log_probability(scores_BRT, beam_BKT, alive_BK, gold_BT, until_B).sum()
        return searched_output(total, crf.normalise, found, length_B, restarts=False)


def _at_every_restart(
    model: Model, state: State, found: Violations, beams: Beams, batch: Batch, beam: int
) -> Float[Tensor, "B T"]:
    """Minus the log of gold's share at each step that ends a segment, 0 elsewhere."""
    gold_BT, length_B, restart_BT = batch.target_BT, batch.target_length_B, found.violation_BT
    step_T = torch.arange(gold_BT.shape[1], device=gold_BT.device)
    end_BT = restart_BT | (step_T == length_B[:, None] - 1)
    place_TBK = torch.arange(beam, device=gold_BT.device).expand(*end_BT.T.shape, -1)
    beam_PT = segment_tokens(beams, gold_BT, end_BT.T, place_TBK).flatten(0, 1)
    # Each place of the beam is a pair with gold: a row of its own could not take gold's state after a restart.
    gold_PT, restart_PT = gold_BT.repeat_interleave(beam, 0), restart_BT.repeat_interleave(beam, 0)
    replayed = replay(model, state.repeated(beam), gold_PT, beam_PT, restart_PT, specials=batch.specials)
    score_BKT = since_restart(replayed.rival_score_BT, restart_PT).view(-1, beam, len(step_T))
    gold_score_BT = since_restart(replayed.gold_score_BT, restart_PT)[::beam]
    different_PT = since_restart((beam_PT != gold_PT).to(score_BKT.dtype), restart_PT) > 0
    alive_BKT = (beams.scores_TBJ[:, :, :beam] != NEVER).permute(1, 2, 0)
    # Gold counts once, in its own row.
    counted_BKT = alive_BKT & different_PT.view_as(alive_BKT)
    score_BRT = torch.cat([score_BKT.masked_fill(~counted_BKT, NEVER), gold_score_BT[:, None]], 1)
    return torch.where(end_BT, score_BRT.logsumexp(1) - gold_score_BT, 0.0)


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
