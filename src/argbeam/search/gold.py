"""The training search: its step with gold, and the policies that say which of its violations are trained on.

A search with restarts compares gold with the last place of the beam and continues from gold after every violation. A
search without restarts is the search of decoding; gold is compared with the best wrong prefix of every step, and at
most one step of a sentence is trained on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.vocabulary import SpecialTokens, one_of
from argbeam.runtime import device as devices
from argbeam.search.result import Beam, Beams, SearchStep, TopSuccessors, Violations
from argbeam.search.score_rules import NEVER
from argbeam.search.stop_rules import Stop
from argbeam.search.top_k import TokenScores

if devices.TRITON_INSTALLED:
    from argbeam.search.segment_kernel import segments


class Policy(Protocol):
    """A gold policy. A violation: gold's score is less than a margin above the rival's.

    The margin is `margin`, plus `margin_per_token` for every token since the last restart where scores add up.
    """

    restarts: ClassVar[bool]  # after a violation the beam is gold's prefix alone

    @property
    def margin(self) -> float: ...

    @property
    def margin_per_token(self) -> float: ...

    def trained(
        self, violation_TB: Bool[Tensor, "T B"], behind_TB: Float[Tensor, "T B"], stop_B: Int[Tensor, " B"]
    ) -> Bool[Tensor, "T B"]:
        """The violations that a loss sees.

        `behind_TB` is the rival's score minus gold's, `stop_B` the step at which the search has lost gold, or its last.
        """


@dataclass(frozen=True)
class Restart:
    """BSO, after LaSO (Wiseman & Rush 2016, section 4.2): every violation is trained on, and the search restarts."""

    margin: float = 1.0
    margin_per_token: float = 0.0
    restarts: ClassVar[bool] = True

    def trained(self, violation_TB: Tensor, behind_TB: Tensor, stop_B: Tensor) -> Tensor:
        return violation_TB


@dataclass(frozen=True)
class EarlyUpdate:
    """Trained on: the step at which gold falls off the beam (Collins & Roark 2004), or the last one."""

    margin: float = 1.0
    margin_per_token: float = 0.0
    restarts: ClassVar[bool] = False

    def trained(self, violation_TB: Tensor, behind_TB: Tensor, stop_B: Tensor) -> Tensor:
        return violation_TB & _at(stop_B, violation_TB)


@dataclass(frozen=True)
class MaxViolation:
    """Trained on: the worst violation of the whole search (Huang et al. 2012)."""

    margin: float = 1.0
    margin_per_token: float = 0.0
    restarts: ClassVar[bool] = False

    def trained(self, violation_TB: Tensor, behind_TB: Tensor, stop_B: Tensor) -> Tensor:
        worst_B = behind_TB.masked_fill(~violation_TB, NEVER).argmax(0)
        return violation_TB & _at(worst_B, violation_TB)


@dataclass(frozen=True)
class Gold:
    """The gold sequences of a training search, padded, and the policy at violations."""

    tokens_BT: Int[Tensor, "B T"]
    length_B: Int[Tensor, " B"]
    policy: Policy


@dataclass(frozen=True)
class GoldToken:
    """Gold at one step of a training search.

    `active_B`: the sentence has a token here. `best_wrong_B`: the rival is the best wrong prefix, not the K-th.
    A prefix that ends in one of `ends` leaves the beam, as under the stop rule `top`; under other rules there are none.
    """

    policy: Policy
    ends: tuple[int, ...]
    token_B: Int[Tensor, " B"]
    active_B: Bool[Tensor, " B"]
    best_wrong_B: Bool[Tensor, " B"]


@dataclass(frozen=True)
class Verdict:
    """One step judged against gold. `rival_B` is the rival's place among the successors.

    `gold_score_B` is less than gold's score by what the margin has grown by. `gold_on_beam_B`: gold is one of the K
    best.
    """

    violation_B: Bool[Tensor, " B"]
    rival_B: Int[Tensor, " B"]
    rival_score_B: Float[Tensor, " B"]
    rival_is_gold_B: Bool[Tensor, " B"]
    rival_ended_B: Bool[Tensor, " B"]
    gold_on_beam_B: Bool[Tensor, " B"]
    gold_score_B: Float[Tensor, " B"]


def gold_tokens(
    gold: Gold, active_TB: Bool[Tensor, "T B"], length_B: Int[Tensor, " B"], stop: Stop | None, specials: SpecialTokens
) -> list[GoldToken]:
    """Gold at every step of a search."""
    # The rival is the best wrong prefix at the last step, and without restarts at every step.
    best_wrong_TB = torch.ones_like(active_TB)
    if gold.policy.restarts:
        best_wrong_TB = torch.arange(1, len(active_TB) + 1, device=length_B.device)[:, None] == length_B
    ends = specials.ends if stop is not None and stop.ended_gives_up_place else ()
    by_step = zip(gold.tokens_BT.unbind(1), active_TB, best_wrong_TB, strict=False)
    return [GoldToken(gold.policy, ends, *here) for here in by_step]


def kept_with_gold(beam_size: int) -> int:
    """Successors kept by a step with gold: the last rival is the second best of all where gold is the best."""
    return max(beam_size, 2)


def gold_step(
    beam: Beam,
    scores: TokenScores,
    allowed_NC: Bool[Tensor, "N C"],
    gold: GoldToken,
    start: Beam,
) -> tuple[SearchStep, Verdict]:
    """One step of the training search (Wiseman & Rush 2016, section 4.2): successors, rival, verdict, restart.

    `start` is the beam of the empty prefix.
    """
    batch, beam_size = beam.score_BK.shape
    kept = kept_with_gold(beam_size)
    # A margin that grows with every token is the same as a gold lane that loses as much: restarts begin from its score.
    gold_token_score_B = scores.in_gold_lane(gold.token_B) - gold.policy.margin_per_token
    best = scores.top_successors(beam, allowed_NC, kept=kept)
    gold_score_B = scores.rule.prefix_scores(beam.gold_score_B[:, None], gold_token_score_B[:, None, None])[:, 0, 0]
    # A successor is gold if its parent was and its newest token is; the token alone does not say.
    is_gold_BJ = beam.is_gold_BK.gather(1, best.parents_BJ) & (best.tokens_BJ == gold.token_B[:, None])
    verdict = _judge(best, is_gold_BJ, gold, gold_score_B, beam_size)
    parents_BK, tokens_BK = best.parents_BJ[:, :beam_size], best.tokens_BJ[:, :beam_size]
    score_BK, is_gold_BK = best.scores_BJ[:, :beam_size], is_gold_BJ[:, :beam_size]
    if gold.policy.restarts:
        # After a violation: gold's prefix in place 0 and nothing else. Gold's lane lies behind the beam's rows.
        restart_B1 = verdict.violation_B[:, None]
        parents_BK = torch.where(restart_B1, beam_size, parents_BK)
        tokens_BK = torch.where(restart_B1, gold.token_B[:, None], tokens_BK)
        score_BK = torch.where(restart_B1, gold_score_B[:, None] + start.score_BK, score_BK)
        is_gold_BK = torch.where(restart_B1, start.is_gold_BK, is_gold_BK)
    if gold.ends:
        score_BK = score_BK.masked_fill(one_of(tokens_BK, gold.ends), NEVER)
    parents_BR = torch.cat([parents_BK, torch.full_like(parents_BK[:, :1], beam_size)], 1)
    first_row_B1 = (beam_size + 1) * torch.arange(batch, device=parents_BR.device)[:, None]
    tokens_BR = torch.cat([tokens_BK, gold.token_B[:, None]], 1)
    after = Beam(score_BK, is_gold_BK, gold_score_B)
    return SearchStep(best, after, (first_row_B1 + parents_BR).flatten(), tokens_BR.flatten()), verdict


def violations_of(
    beams: Beams,
    verdicts: Sequence[Verdict],
    gold: Gold,
    *,
    stop: Stop | None,
    specials: SpecialTokens,
    stack: Callable[[list[Tensor]], Tensor],
) -> Violations:
    """The verdicts of all steps, the violations that the policy trains on, and their rivals' tokens.

    `stack` puts what the steps found together.
    """
    gold_score_TB = stack([v.gold_score_B for v in verdicts])
    rival_score_TB = stack([v.rival_score_B for v in verdicts])
    rival_TB = stack([v.rival_B for v in verdicts])
    rival_ended_TB = stack([v.rival_ended_B for v in verdicts])
    rival_is_gold_TB = stack([v.rival_is_gold_B for v in verdicts])
    on_beam_TB = stack([v.gold_on_beam_B for v in verdicts])
    last_B = stop_B = (gold.length_B - 1).clamp(min=0)
    if not gold.policy.restarts:
        lost_TB = ~on_beam_TB
        if stop is not None and stop.ended_gives_up_place:
            before_last_TB = torch.arange(len(verdicts), device=last_B.device)[:, None] < last_B
            ended_TBJ = specials.ended(beams.tokens_TBJ) & before_last_TB[..., None]
            rival_ended_TB = ended_TBJ.gather(2, rival_TB[..., None])[..., 0]
            lost_TB = lost_TB | ended_TBJ[:, :, 0]  # decoding would end here
        stop_B = torch.minimum((~lost_TB).long().cumprod(0).sum(0), last_B)
    violation_TB = stack([v.violation_B for v in verdicts])
    violation_TB = gold.policy.trained(violation_TB, rival_score_TB - gold_score_TB, stop_B)
    return Violations(
        violation_BT=violation_TB.T,
        rival_BT=segment_tokens(beams, gold.tokens_BT, violation_TB, rival_TB[..., None])[:, 0],
        rival_is_gold_BT=(rival_is_gold_TB & violation_TB).T,
        rival_ended_BT=(rival_ended_TB & violation_TB).T,
        gold_score_BT=gold_score_TB.T,
        rival_score_BT=rival_score_TB.T,
        gold_on_beam_B=on_beam_TB.gather(0, last_B[None])[0],
        stop_B=stop_B,
    )


def _judge(best: TopSuccessors, is_gold_BJ: Tensor, gold: GoldToken, gold_score_B: Tensor, beam_size: int) -> Verdict:
    """The rival, and whether it violates the margin."""
    first_wrong_B = is_gold_BJ[:, 0].long()  # place 1 if gold is first, else place 0
    rival_B = torch.where(gold.best_wrong_B, first_wrong_B, beam_size - 1)
    ended_violates_B = torch.zeros_like(gold.best_wrong_B)
    if gold.ends:
        # An ended prefix that comes too near to gold would end the search: it is the rival before the K-th is.
        ended_BK = one_of(best.tokens_BJ[:, :beam_size], gold.ends)
        ended_score_B, ended_B = best.scores_BJ[:, :beam_size].masked_fill(~ended_BK, NEVER).max(1)
        ended_violates_B = ~gold.best_wrong_B & (gold_score_B < ended_score_B + gold.policy.margin)
        rival_B = torch.where(ended_violates_B, ended_B, rival_B)
    rival_score_B = best.scores_BJ.gather(1, rival_B[:, None])[:, 0]
    violation_B = gold.active_B & (gold_score_B < rival_score_B + gold.policy.margin)
    there_BJ = is_gold_BJ & (best.scores_BJ != NEVER)
    rival_is_gold_B, on_beam_B = there_BJ.gather(1, rival_B[:, None])[:, 0], there_BJ[:, :beam_size].any(1)
    return Verdict(violation_B, rival_B, rival_score_B, rival_is_gold_B, ended_violates_B, on_beam_B, gold_score_B)


def segment_tokens(
    beams: Beams, gold_BT: Int[Tensor, "B T"], end_TB: Bool[Tensor, "T B"], place_TBN: Int[Tensor, "T B N"]
) -> Int[Tensor, "B N T"]:
    """The tokens of N successors at the end of each segment, read back to the end before it; gold's after the last.

    A violation ends a segment: the beam after it is gold's prefix alone.
    """
    if devices.kernels_usable(beams.tokens_TBJ, gold_BT, place_TBN):
        return segments(beams.tokens_TBJ, beams.parents_TBJ, gold_BT, end_TB, place_TBN)
    columns: list[Tensor] = []
    place_BN = torch.zeros_like(place_TBN[0])
    for t in reversed(range(len(end_TB))):
        # An end starts the reading of its segment, and ends that of the later one.
        place_BN = torch.where(end_TB[t, :, None], place_TBN[t], place_BN)
        columns.append(beams.tokens_TBJ[t].gather(1, place_BN))
        place_BN = beams.parents_TBJ[t].gather(1, place_BN)
    tokens_BNT = torch.stack(columns[::-1], 2)
    # Columns with an end still to come belong to its segment.
    ahead_BT = end_TB.T.flip(1).cummax(1).values.flip(1)
    return torch.where(ahead_BT[:, None], tokens_BNT, gold_BT[:, None])


def _at(step_B: Tensor, like_TB: Tensor) -> Tensor:
    """A mask of one step of each sentence."""
    return torch.arange(like_TB.shape[0], device=like_TB.device)[:, None] == step_B
