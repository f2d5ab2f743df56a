"""The time that the rest of a run takes, by the tokens it has still to read."""

import time
from collections.abc import Sequence

from argbeam.losses import Loss

# A token costs so many rows of a step, forward and backward, and each place of a beam one more, without gradient. So a
# step of BSO with beam 6 counts as three steps of cross-entropy; on an H200 it takes as long as 1.5 (LSTM) to 3.1
# (a Transformer of 6 + 6 x 512).
_ROWS = 3


class TimeLeft:
    """An estimate for the whole run, at the speed since it was made. Stages that end early take less."""

    def __init__(self, stages: Sequence[tuple[Loss, int]], tokens: int) -> None:
        """Each stage's loss and number of epochs; `tokens` are those of an epoch."""
        self.tokens = tokens
        self.work = [[tokens * (_ROWS + loss.at(epoch).beam) for epoch in range(epochs)] for loss, epochs in stages]
        self.started, self.first = 0.0, -1.0

    def seconds(self, stage: int, epoch: int, tokens: float) -> float | None:
        """From this stage and epoch on, of which so many tokens are read; None before there is a speed."""
        epochs, share = self.work[stage], min(1.0, tokens / max(1, self.tokens))
        left = (1 - share) * epochs[epoch] + sum(epochs[epoch + 1 :]) + sum(map(sum, self.work[stage + 1 :]))
        if self.first < 0:
            self.started, self.first = time.perf_counter(), left
        done = self.first - left
        return (time.perf_counter() - self.started) * left / done if done > 0 else None
