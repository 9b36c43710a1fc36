"""A training that ends on time, with the learning rate at zero by then."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback, TrainerState

from lrputils.training.trainer import WARMUP


def rate_at(progress: float) -> float:
    """The learning rate as a share of the highest, at a share of the steps or of the time."""
    return min(progress / WARMUP, (1 - progress) / (1 - WARMUP))


class Clock(TrainerCallback):
    """Ends a training after some minutes, those before it was killed included.

    The Trainer's own schedules know steps only; this one goes by steps or by time, whichever is
    further.
    """

    def __init__(self, minutes: float):
        self.limit = 60 * minutes

    def _seconds(self) -> float:
        return time.monotonic() - self.begin

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Count on from the seconds of a killed run."""
        before = max((entry.get("seconds", 0.0) for entry in state.log_history), default=0.0)
        self.begin = time.monotonic() - before

    def on_step_begin(
        self, args: Any, state: TrainerState, control: Any, optimizer: Any, **kwargs: Any
    ) -> None:
        """Set the learning rate."""
        steps = (state.global_step + 1) / (state.max_steps + 1)
        share = rate_at(min(1.0, max(steps, self._seconds() / self.limit)))
        for group in optimizer.param_groups:
            group["lr"] = share * args.learning_rate

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Stop when time is up."""
        control.should_training_stop |= self._seconds() >= self.limit
        control.should_log |= control.should_training_stop

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Note the seconds, which a checkpoint then keeps."""
        state.log_history[-1]["seconds"] = self._seconds()
