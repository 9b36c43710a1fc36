"""One stage of training: Hugging Face's Trainer, with a clock beside its steps.

The Trainer does what it does well: the loop, mixed precision, clipping, checkpoints with the
optimizer's and the random generators' state, and going on from one. Added are a schedule that
also reaches zero when the time is up, checkpoints by time, progress, and a check of the loss.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from lrputils.training.batches import Batches
from lrputils.training.recipe import Conditions, Stage

Evaluate = Callable[[], dict[str, float]]  # accuracies by name

WARMUP = 0.06
WEIGHT_DECAY = 0.01
_LOG_SECONDS = 5.0


class Clock:
    """Steps and seconds that a stage has taken, also before it was interrupted."""

    def __init__(self, steps: int, minutes: float | None):
        self.steps = steps
        self.limit = math.inf if minutes is None else 60 * minutes
        self._before = 0.0
        self._started = time.monotonic()

    def start(self, before: float) -> None:
        """Begin, `before` seconds having passed in earlier runs."""
        self._before, self._started = before, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds of training and evaluation so far."""
        return self._before + time.monotonic() - self._started

    def progress(self, step: int) -> float:
        """From 0 to 1: by steps or by time, whichever is further."""
        return min(1.0, max(step / self.steps, self.seconds / self.limit))


def rate_at(progress: float) -> float:
    """The learning rate as a share of the highest: linear up over `WARMUP`, linear down to zero."""
    return min(progress / WARMUP, (1 - progress) / (1 - WARMUP))


class _ClockedTrainer(Trainer):
    """A Trainer whose learning rate follows a `Clock`."""

    clock: Clock

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        # The first step is taken at a rate above zero, so that it is not wasted.
        self.lr_scheduler = LambdaLR(
            optimizer or self.optimizer,
            lambda step: rate_at(max(self.clock.progress(step), 1 / (1 + num_training_steps))),
        )
        self._created_lr_scheduler = True
        return self.lr_scheduler


class _Keeper(TrainerCallback):
    """Stops on time, asks for checkpoints and evaluations, and shows progress."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        batches: Batches,
        conditions: Conditions,
        evaluate: Evaluate | None,
    ):
        self.name, self.clock, self.batches, self.evaluate = name, clock, batches, evaluate
        self.interval = 60 * conditions.checkpoint_minutes
        self.bar = tqdm(
            total=1.0,
            desc=name,
            disable=conditions.quiet,
            bar_format="{desc} {percentage:3.0f}% |{bar:20}| {elapsed}<{remaining}{postfix}",
            mininterval=1.0 if sys.stderr.isatty() else 10.0,
            miniters=0,  # or what a resumed run begins with would set the pace of drawing
        )
        self._saved = self._logged = time.monotonic()
        self._tokens = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.clock.start(max((entry.get("seconds", 0.0) for entry in state.log_history), default=0))
        self.bar.initial = self.bar.n = self.clock.progress(state.global_step)
        self._saved = self._logged = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, now = state.global_step, time.monotonic()
        control.should_training_stop |= self.clock.progress(step) >= 1
        done = control.should_training_stop
        self._tokens += int(self.batches.tokens[step - 1])
        control.should_log = done or now - self._logged >= _LOG_SECONDS
        self.bar.update(self.clock.progress(step) - self.bar.n)
        if self.evaluate and step in self.batches.epoch_ends and not done:
            accuracy = self.evaluate()
            epochs = sum(end <= step for end in self.batches.epoch_ends)
            self._note(state, epochs=epochs, accuracy=accuracy)
            self._say(step, accuracy)
        if done or now - self._saved >= self.interval:
            self._note(state)
            control.should_save = not done
            self._saved = now

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise ValueError(
                f"{self.name}: the loss is {logs['loss']} after step {state.global_step}; a lower "
                f"learning rate than {args.learning_rate} may help"
            )
        now = time.monotonic()
        rate = self._tokens / max(now - self._logged, 1e-9)
        self.bar.set_postfix_str(f"loss {logs['loss']:.3f}, {rate:,.0f} tokens/s", refresh=False)
        self._logged, self._tokens = now, 0

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.close()

    def _say(self, step: int, accuracy: dict[str, float]) -> None:
        if accuracy and not self.bar.disable:
            shown = ", ".join(f"{name} {value:.1%}" for name, value in accuracy.items())
            self.bar.write(f"{self.name}, step {step}: {shown}", file=sys.stderr)

    def _note(self, state: Any, **values: Any) -> None:
        entry = {"step": state.global_step, "seconds": self.clock.seconds, **values}
        state.log_history.append(entry)


def run_stage(
    name: str,
    model: nn.Module,
    batches: Batches,
    stage: Stage,
    folder: Path,
    *,
    seed: int,
    conditions: Conditions | None = None,
    evaluate: Evaluate | None = None,
) -> dict[str, Any]:
    """Train `model` in place, on a GPU if there is one; return what happened.

    Matrix products are in bfloat16 where the device multiplies it faster than float32.

    Goes on from the last whole checkpoint in `folder`, if there is one.

    Args:
        name: what the progress calls the stage.
        model: takes a batch as keyword arguments and returns its loss.
        batches: one a step.
        stage: learning rate and time limit are read here.
        folder: for checkpoints.
        seed: of dropout.
        conditions: device, checkpoints, progress.
        evaluate: called after each epoch but the last; returns accuracies by name.

    Returns:
        `steps`, `epochs`, `tokens` (without padding), `seconds`, `loss` and `rate` (the
        last logged), and `accuracy`: a list of `{"step", "epochs", "accuracy"}`.
    """
    conditions = conditions or Conditions()
    clock = Clock(len(batches), stage.minutes)
    keeper = _Keeper(name, clock, batches, conditions, evaluate)
    trainer = _ClockedTrainer(
        model=model,
        args=_arguments(stage, folder, len(batches), seed, conditions.device),
        train_dataset=batches,
        data_collator=_only,
        callbacks=[keeper],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.clock = clock
    try:
        trainer.train(resume_from_checkpoint=_last_checkpoint(folder))
    finally:
        keeper.bar.close()
    return _summary(trainer.state, batches, clock)


def _only(batches: list[dict]) -> dict:
    """The Trainer's data set has whole batches for rows; a batch of rows is one of them."""
    (batch,) = batches
    return batch


def _arguments(stage: Stage, folder: Path, steps: int, seed: int, device: str) -> TrainingArguments:
    gpu = device != "cpu" and torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=1,
        train_sampling_strategy="sequential",
        learning_rate=stage.learning_rate,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=1.0,
        bf16=multiplies_bfloat16("cuda" if gpu else "cpu"),
        use_cpu=not gpu,
        dataloader_pin_memory=gpu,
        seed=seed,
        save_strategy="no",
        save_total_limit=1,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )


def multiplies_bfloat16(device: str) -> bool:
    """Return whether a kind of device has units that multiply bfloat16; others emulate them."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported()
    matrix_units = getattr(torch.cpu, "_is_amx_tile_supported", None)  # no public name yet
    return matrix_units is not None and matrix_units()


def _last_checkpoint(folder: Path) -> str | None:
    """Return the last checkpoint that was written to its end; remove the others."""
    whole = []
    for checkpoint in folder.glob("checkpoint-*"):
        try:  # the Trainer writes this file last
            json.loads((checkpoint / "trainer_state.json").read_text())
            whole.append(checkpoint)
        except (OSError, ValueError):
            shutil.rmtree(checkpoint)
    last = max(whole, key=lambda path: int(path.name.rsplit("-", 1)[1]), default=None)
    return None if last is None else str(last)


def _summary(state: Any, batches: Batches, clock: Clock) -> dict[str, Any]:
    logged = [entry for entry in state.log_history if "loss" in entry]
    steps, ends = state.global_step, batches.epoch_ends
    return {
        "steps": steps,
        "epochs": float(np.interp(steps, [0, *ends], range(len(ends) + 1))),
        "tokens": int(batches.tokens[:steps].sum()),
        "seconds": clock.seconds,
        "loss": logged[-1]["loss"],
        "rate": logged[-1]["learning_rate"],
        "accuracy": [
            {key: entry[key] for key in ("step", "epochs", "accuracy")}
            for entry in state.log_history
            if "accuracy" in entry
        ],
    }
