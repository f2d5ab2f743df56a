"""Beam-search optimization (Wiseman & Rush 2016, section 4): search, find violations, push gold above its rivals."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.errors import ConfigError
from argbeam.losses.contract import LossOutput
from argbeam.losses.replay import Replayed, replay, segment_begins, since_restart
from argbeam.metrics.device_bleu import authors_segment_bleu, segment_bleu
from argbeam.models.contract import Model
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.runtime import device as devices
from argbeam.search.gold import Gold, Policy, Restart
from argbeam.search.result import Beams, Violations
from argbeam.search.score_rules import LastScore, ScoreRule
from argbeam.search.search import SearchSettings, result_of, search_in_parts
from argbeam.search.stop_rules import Stop, StopTop
from argbeam.search.successors import Successors, check_end_symbol, check_gold_on_host

if devices.TRITON_INSTALLED:
    from argbeam.losses import hinge_kernel

Cost = Callable[[Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T"]], Float[Tensor, "B T"]]
"""A cost of rivals: `cost(rival_BT, gold_BT, violation_BT)` is read at the violations, each of which ends a segment."""

DECILES = 10
_BY_TENTH = ("words", "violations")
# Searched and replayed scores differ by less, relative to their size, in any precision.
_ROUNDING = 0.02


class Normalise(Enum):
    """Divisor of a sum over a batch. BSO's authors divide by nothing and rescale the gradient's norm."""

    NONE = "none"
    SENTENCES = "sentences"
    WORDS = "words"

    def count(self, sentences: Float[Tensor, ""], tokens: Float[Tensor, ""]) -> Float[Tensor, ""] | None:
        """The divisor, at least 1: a batch of padding alone has a loss of zero."""
        count = {Normalise.NONE: None, Normalise.SENTENCES: sentences, Normalise.WORDS: tokens}[self]
        return None if count is None else count.clamp(min=1)


def zero_one(rival_BT: Tensor, gold_BT: Tensor, violation_BT: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Every violation costs the same."""
    return torch.ones_like(rival_BT, dtype=dtype)


def one_minus_bleu(
    rival_BT: Tensor, gold_BT: Tensor, violation_BT: Tensor, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """1 - SB: a rival with many n-grams of gold costs little (section 5.2, "Delta")."""
    return 1 - segment_bleu(rival_BT, gold_BT, violation_BT, dtype=dtype)


def one_minus_authors_bleu(
    rival_BT: Tensor, gold_BT: Tensor, violation_BT: Tensor, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """1 - SB with the authors' own sentence BLEU, whose first segment begins with the start symbol."""
    return 1 - authors_segment_bleu(rival_BT, gold_BT, violation_BT, dtype=dtype)


COSTS: dict[str, Cost] = {"zero_one": zero_one, "sentence_bleu": one_minus_bleu, "authors_bleu": one_minus_authors_bleu}


def cost_in(cost: Cost, dtype: torch.dtype) -> Cost:
    """The cost in the precision of the model's scores, if it is one of ours."""
    own: Callable[..., Tensor] = cost
    return partial(own, dtype=dtype) if cost in COSTS.values() else cost


class SearchesWithGold(Protocol):
    """A loss whose search trains: its settings, and what follows from them.

    `successors` are those of the training search, `stop` counts in tasks of open length only. The beam grows from
    `start_beam` by one every `epochs_per_beam` epochs up to `train_beam`.
    """

    successors: Successors
    train_beam: int
    stop: Stop
    open_length: bool
    start_beam: int
    epochs_per_beam: int
    rule: ScoreRule

    def check_search(self) -> None:
        """Raise a ConfigError for settings that no training search can have."""
        for name in ("train_beam", "start_beam", "epochs_per_beam"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be at least 1")
        check_end_symbol(self.successors, open_length=self.open_length)

    def beam_of(self, epoch: int) -> int:
        return curriculum_beam(epoch, start=self.start_beam, end=self.train_beam, epochs_per_beam=self.epochs_per_beam)

    def search(self, model: Model, state: State, batch: Batch, beam: int, policy: Policy) -> tuple[Violations, Beams]:
        """`search_with_gold` with these settings."""
        stop = self.stop if self.open_length else None
        settings = SearchSettings(beam, self.rule, stop, n_best=0, specials=batch.specials)
        return search_with_gold(model, state, self.successors, settings, batch, policy)


@dataclass(frozen=True)
class Bso(SearchesWithGold):
    """The loss of section 4.1: over all violations, cost * (margin - f(gold) + f(rival)).

    `policy` chooses the violations: all of a search that restarts (BSO), the one where gold falls off the beam
    (`EarlyUpdate`), or the worst one (`MaxViolation`). `rule`, also that of decoding, says what f is: the newest
    token's score (the paper's), or the sum since the last restart of scores (`ScoreSum`) or log-probabilities
    (`LogprobSum`). Where f is a sum, the margin may grow by `margin_per_token` with every token of it.

    With the task's constraint as `successors` this is ConBSO. Other settings as in `SearchesWithGold`.
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
    policy: Callable[[float, float], Policy] = Restart
    rule: ScoreRule = LastScore()  # noqa: RUF009 - frozen and without state
    margin_per_token: float = 0.0
    weights = None

    def __post_init__(self) -> None:
        self.check_search()
        for name in ("margin", "margin_per_token", "cost_scale"):
            if not math.isfinite(value := getattr(self, name)):
                raise ConfigError(f"{name} = {value}: must be a finite number")
        if self.margin_per_token and not self.rule.adds_up:
            raise ConfigError(
                f"margin_per_token = {self.margin_per_token} is for sums; must be 0 with {self.rule.name}"
            )

    def at(self, epoch: int) -> "BsoStep":
        return BsoStep(self, self.beam_of(epoch))


@dataclass(frozen=True)
class BsoStep:
    """BSO with the beam of one epoch."""

    bso: Bso
    beam: int

    def __call__(self, model: Model, batch: Batch, noise: Noise | None) -> LossOutput:
        bso, gold_BT = self.bso, batch.target_BT
        policy = bso.policy(bso.margin, bso.margin_per_token)
        state = model.encode(batch, noise)
        found, _ = bso.search(model, state, batch, self.beam, policy)
        tokens = (gold_BT, found.rival_BT, found.violation_BT)
        replayed = replay(model, state, *tokens, normalised=bso.rule.normalised, specials=batch.specials)
        if _kernel_fits(bso, replayed):
            return hinge_by_kernel(bso, found, replayed, batch.target_length_B)
        return hinge_loss(bso, found, replayed, gold_BT, batch.target_length_B)


def hinge_loss(
    bso: Bso, found: Violations, replayed: Replayed, gold_BT: Int[Tensor, "B T"], length_B: Int[Tensor, " B"]
) -> LossOutput:
    """Over all violations, cost * (margin - f(gold) + f(rival)), from the replayed scores."""
    rival_BT, violation_BT = found.rival_BT, found.violation_BT
    behind_BT = replayed.rival_score_BT - replayed.gold_score_BT
    position_T = torch.arange(gold_BT.shape[1], device=gold_BT.device)
    broken_BT = behind_BT.isnan() & (position_T < length_B[:, None])
    if bso.rule.adds_up:
        behind_BT = since_restart(behind_BT, violation_BT)
    growth_BT: Tensor | float = 0.0
    if bso.margin_per_token:
        tokens_BT = position_T + 1 - segment_begins(violation_BT)
        growth_BT = bso.margin_per_token * tokens_BT.to(behind_BT.dtype)
    differs_BT = _differences(found, (behind_BT + growth_BT).detach())
    # A rival that is gold itself costs the margin and teaches nothing: the K-th place is not good enough.
    behind_BT = torch.where(found.rival_is_gold_BT, 0.0, behind_BT)
    loss_BT = bso.margin + growth_BT + behind_BT
    if bso.cost is not zero_one:
        cost_BT = cost_in(bso.cost, behind_BT.dtype)(rival_BT, gold_BT, violation_BT)
        # Elsewhere a cost may be anything: 0 times its NaN would be one in the gradient.
        loss_BT = torch.where(violation_BT, cost_BT, 0.0).to(loss_BT.dtype) * loss_BT
    # Nothing violates a margin around NaN: without this the loss would be finite and its gradient NaN.
    total = bso.cost_scale * torch.where(violation_BT, loss_BT, 0.0).masked_fill(broken_BT, torch.nan).sum()
    marks = {"replay_differs": differs_BT}
    restarts = bso.policy(bso.margin, bso.margin_per_token).restarts
    return searched_output(total, bso.normalise, found, length_B, restarts=restarts, marks=marks)


def hinge_by_kernel(bso: Bso, found: Violations, replayed: Replayed, length_B: Int[Tensor, " B"]) -> LossOutput:
    """`hinge_loss` on a GPU, where every violation costs the same and the search restarts."""
    total, sums = hinge_kernel.hinge(
        replayed.score_TB2,
        found,
        length_B,
        adds_up=bso.rule.adds_up,
        margin=bso.margin,
        margin_per_token=bso.margin_per_token,
        scale=bso.cost_scale,
        rounding=_ROUNDING,
        deciles=DECILES,
    )
    return LossOutput(total, bso.normalise.count(sums["sentences"], sums["words"]), sums)


def _kernel_fits(bso: Bso, replayed: Replayed) -> bool:
    """Whether the kernel can take the loss."""
    own = bso.cost is zero_one and bso.policy is Restart
    return own and devices.kernels_usable(replayed.score_TB2) and hinge_kernel.fits(len(replayed.score_TB2))


def _differences(found: Violations, behind_BT: Float[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Violations whose replayed scores are not those of the search, up to rounding: the model is not one network."""
    gold_BT, rival_BT = found.gold_score_BT, found.rival_score_BT
    gap_BT = (rival_BT - gold_BT - behind_BT).abs()
    far_BT = gap_BT > _ROUNDING * (1 + gold_BT.abs() + rival_BT.abs())
    return far_BT & found.violation_BT & ~found.rival_is_gold_BT


def curriculum_beam(epoch: int, *, start: int, end: int, epochs_per_beam: int) -> int:
    """The train beam of an epoch: `start`, plus 1 every `epochs_per_beam` epochs, up to `end` (section 5.1)."""
    return min(end, start + epoch // epochs_per_beam)


@torch.no_grad()
def search_with_gold(
    model: Model, state: State, successors: Successors, settings: SearchSettings, batch: Batch, policy: Policy
) -> tuple[Violations, Beams]:
    """The training search: violations, and the successors of every step. On a CPU gold is checked first."""
    check_gold_on_host(successors, batch, open_length=settings.stop is not None)
    gold = Gold(batch.target_BT, batch.target_length_B, policy)
    choices, steps = successors.start(batch), batch.target_BT.shape[1]
    pauses = search_in_parts(model, state, choices, settings, length_B=gold.length_B, steps=steps, gold=gold)
    result = result_of(pauses)
    assert result.violations is not None
    return result.violations, result.beams


def searched_output(
    total: Float[Tensor, ""],
    normalise: Normalise,
    found: Violations,
    length_B: Int[Tensor, " B"],
    *,
    restarts: bool,
    marks: Mapping[str, Bool[Tensor, "B T"]] | None = None,
) -> LossOutput:
    """The loss with sums about the search, and the numbers of tokens that `marks` mark.

    `*_by_tenth` are counts by tenths of the sentence. Without restarts: sentences that lost gold before their end, and
    tokens up to there. All counts are made together: each operation of its own is a launch on a GPU.
    """
    violation_BT, real_B = found.violation_BT, length_B > 0
    position_T = torch.arange(violation_BT.shape[1], device=length_B.device)
    masks = {
        "words": position_T < length_B[:, None],
        "violations": violation_BT,
        "rival_is_gold": found.rival_is_gold_BT,
        "rival_ended": found.rival_ended_BT,
        **(marks or {}),
    }
    tenth_BT = (DECILES * position_T // length_B.clamp(min=1)[:, None]).clamp(max=DECILES - 1)
    hot_BTD = tenth_BT[..., None] == torch.arange(DECILES, device=length_B.device)
    by_tenth_MD = (torch.stack(list(masks.values()))[..., None] & hot_BTD).sum((1, 2)).to(total.dtype)
    by_sentence = {
        "sentences": real_B,
        # Segments that end in a violation hold the tokens up to the last violation of the sentence.
        "segment_words": (violation_BT * (position_T + 1)).amax(1),
        "gold_on_beam": found.gold_on_beam_B & real_B,
    }
    if not restarts:
        by_sentence["stopped_early"] = found.stop_B < length_B - 1
        by_sentence["stop_words"] = (found.stop_B + 1).minimum(length_B)
    counts_C = torch.stack(list(by_sentence.values())).sum(1).to(total.dtype)
    sums = {"loss": total.detach()} | dict(zip(by_sentence, counts_C.unbind(), strict=True))
    sums |= dict(zip(masks, by_tenth_MD.sum(1).unbind(), strict=True))
    sums |= {f"{name}_by_tenth": by_tenth_MD[place] for place, name in enumerate(masks) if name in _BY_TENTH}
    return LossOutput(total, normalise.count(sums["sentences"], sums["words"]), sums)
