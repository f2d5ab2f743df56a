"""A model whose replayed scores are not those of its search is reported."""

import torch
from torch import Tensor

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import EOS
from argbeam.losses import Bso
from argbeam.models.noise import Noise
from argbeam.models.state import State
from argbeam.search.gold import MaxViolation
from argbeam.search.score_rules import LogprobSum
from argbeam.search.successors import Unconstrained
from argbeam.training.epoch_record import replay_warning
from loss_cases import small_lstm

BATCH = make_batch([Example((4, 5, 6), (6, 5, 4, EOS), 1), Example((7, 4), (4, 7, 7, EOS), 2)])
LOSSES = {
    "last score": Bso(Unconstrained(8, end_symbol=True), 3, start_beam=3),
    "growing margin": Bso(
        Unconstrained(8, end_symbol=True), 3, start_beam=3, rule=LogprobSum(), margin_per_token=0.5
    ),
    "worst violation": Bso(
        Unconstrained(8, end_symbol=True), 3, start_beam=3, rule=LogprobSum(), policy=MaxViolation
    ),
}  # fmt: skip


class DrawsInside:
    """A model with dropout of its own in every step, as in modules of torch."""

    def __init__(self) -> None:
        self.model = small_lstm(8, dropout=0.0)
        self.output, self.scores = self.model.output, self.model.scores

    def encode(self, batch: Batch, noise: Noise | None) -> State:
        return self.model.encode(batch, noise)

    def step(self, state: State, tokens_N: Tensor) -> State:
        after = self.model.step(state, tokens_N)
        dropped = torch.nn.functional.dropout(after.hypothesis["output"], 0.5)
        return State(after.sentence, {**after.hypothesis, "output": dropped}, after.time)


def test_a_model_with_dropout_of_its_own_is_reported() -> None:
    torch.manual_seed(1)
    for loss in LOSSES.values():
        sums = {name: float(value.sum()) for name, value in loss.at(0)(DrawsInside(), BATCH, None).sums.items()}
        assert sums["replay_differs"] > 0
        assert "other scores in the replay than in the search" in str(replay_warning(sums))


def test_dropout_from_the_noise_is_one_network() -> None:
    model, noise = small_lstm(8, dropout=0.5), Noise(1, torch.tensor(3), BATCH.sentence_B)
    for loss in LOSSES.values():
        sums = {name: float(value.sum()) for name, value in loss.at(0)(model, BATCH, noise).sums.items()}
        assert sums["violations"] > sums["replay_differs"] == 0
        assert replay_warning(sums) is None
