"""Hugging Face's Trainer with a clock: a time limit, checkpoints by time, going on from one."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from tqdm import tqdm
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

WARMUP = 0.06


class Stage(NamedTuple):
    """How long and by which steps a network learns.

    Attributes:
        name: what the progress calls it.
        epochs: passes over the texts.
        batch: texts a batch.
        learning_rate: the highest; it rises to there over the first `WARMUP` and then falls
            linearly to zero, which it reaches also where `minutes` end the stage.
        minutes: the stage ends after this time, if its epochs take longer.
        seed: of dropout, masks and the order of texts.
    """

    name: str
    epochs: float
    batch: int
    learning_rate: float
    minutes: float | None = None
    seed: int = 0


class Conditions(NamedTuple):
    """What does not change the recipe: where and how a training runs.

    Attributes:
        device: "auto" takes the GPU if there is one; "cpu" does not.
        checkpoint_minutes: what a killed run loses at most.
        quiet: no progress.
    """

    device: str = "auto"
    checkpoint_minutes: float = 2.0
    quiet: bool = False


def rate_at(progress: float) -> float:
    """The learning rate as a share of the highest, at a share of the stage."""
    return min(progress / WARMUP, (1 - progress) / (1 - WARMUP))


class _Clock(TrainerCallback):
    """Seconds that a stage has taken, also before it was killed, and what follows from them."""

    def __init__(self, stage: Stage, conditions: Conditions):
        self.stage = stage
        self.limit = math.inf if stage.minutes is None else 60 * stage.minutes
        self.interval = 60 * conditions.checkpoint_minutes
        self.begin = self.saved = time.monotonic()
        self.bar = tqdm(
            total=1.0,
            desc=stage.name,
            disable=conditions.quiet,
            bar_format="{desc} {percentage:3.0f}% |{bar:20}| {elapsed}<{remaining}{postfix}",
            mininterval=0.5 if sys.stderr.isatty() else 10.0,
            miniters=0,  # or what a resumed run begins with would set the pace of drawing
        )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def progress(self, step: int, steps: int) -> float:
        """From 0 to 1: by steps or by time, whichever is further."""
        return min(1.0, max(step / steps, self.seconds / self.limit))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        before = max((entry.get("seconds", 0.0) for entry in state.log_history), default=0.0)
        self.begin, self.saved = time.monotonic() - before, time.monotonic()
        self.bar.initial = self.bar.n = self.progress(state.global_step, state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A run that goes on in the middle of an epoch has to find the texts in the same order.
        torch.manual_seed(hash((self.stage.seed, int(state.epoch or 0))))

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any, **_: Any) -> None:
        # The Trainer's schedules know steps only; this one reaches zero also when time is up.
        share = rate_at(self.progress(state.global_step + 1, state.max_steps + 1))
        for group in optimizer.param_groups:
            group["lr"] = share * args.learning_rate

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.update(self.progress(state.global_step, state.max_steps) - self.bar.n)
        control.should_training_stop |= self.seconds >= self.limit
        control.should_log |= control.should_training_stop
        # Not between epochs: the Trainer would order the next one by other random numbers.
        if state.epoch % 1 and time.monotonic() - self.saved >= self.interval:
            state.log_history.append({"step": state.global_step, "seconds": self.seconds})
            control.should_save, self.saved = True, time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        if (loss := logs.get("loss")) is None:
            return
        self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} after step {state.global_step}; a learning rate lower "
                f"than {args.learning_rate:g} may help"
            )

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
        if not self.bar.disable:
            shown = f"epoch {state.epoch:.3g}: accuracy {metrics['eval_accuracy']:.1%}"
            self.bar.write(shown, file=sys.stderr)


def fit(
    model: nn.Module,
    rows: Sequence[Mapping[str, Any]],
    collator: Callable[[list], dict[str, torch.Tensor]],
    stage: Stage,
    folder: Path,
    conditions: Conditions,
    validation: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Train `model` in place; go on from the last whole checkpoint in `folder`, if there is one.

    Args:
        model: takes what `collator` makes as keyword arguments and returns its loss.
        rows: each with `input_ids`; texts of like length share a batch.
        collator: makes a batch of rows.
        stage: how long, by which steps.
        folder: for checkpoints.
        conditions: device, checkpoints, progress.
        validation: rows with `label`; the accuracy on them is shown after each epoch.

    Returns:
        `epochs`, `steps`, `seconds` and `loss`, the last logged.

    Raises:
        ValueError: the loss is no longer a number.
    """
    gpu = conditions.device != "cpu" and torch.cuda.is_available()
    clock = _Clock(stage, conditions)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=stage.epochs,
            per_device_train_batch_size=stage.batch,
            per_device_eval_batch_size=stage.batch,
            train_sampling_strategy="group_by_length",
            learning_rate=stage.learning_rate,
            lr_scheduler_type="constant",  # the clock has its own
            weight_decay=0.01,
            bf16=gpu and torch.cuda.is_bf16_supported(),
            use_cpu=not gpu,
            dataloader_pin_memory=gpu,
            seed=stage.seed,
            save_strategy="no",  # the clock asks for checkpoints
            save_total_limit=1,
            logging_steps=0.02,  # of all steps
            logging_nan_inf_filter=False,
            eval_strategy="epoch" if validation else "no",
            report_to="none",
            disable_tqdm=True,  # the clock has a bar
            remove_unused_columns=False,
        ),
        train_dataset=rows,
        eval_dataset=validation,
        data_collator=collator,
        compute_metrics=_accuracy,
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    finally:
        clock.bar.close()
    return {
        "epochs": trainer.state.epoch,
        "steps": trainer.state.global_step,
        "seconds": clock.seconds,
        "loss": [log["loss"] for log in trainer.state.log_history if "loss" in log][-1],
    }


def _accuracy(predicted: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def last_checkpoint(folder: Path) -> str | None:
    """Return the last checkpoint that was written to its end; remove the others."""
    whole = {}
    for checkpoint in folder.glob("checkpoint-*"):
        try:  # the Trainer writes this file last
            json.loads((checkpoint / "trainer_state.json").read_text())
            whole[int(checkpoint.name.rsplit("-", 1)[1])] = str(checkpoint)
        except (OSError, ValueError):
            shutil.rmtree(checkpoint)
    return whole[max(whole)] if whole else None
