"""Hugging Face's Trainer, such that a killed run goes on to the weights of an unbroken one."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

WARMUP = 0.06  # the share of the steps over which the learning rate rises


class _Unbroken(TrainerCallback):
    """What the Trainer leaves open: the order of texts where a run goes on, and a broken loss."""

    due = False  # a checkpoint

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # A run that goes on in the middle of an epoch has to find the texts in the same order.
        torch.manual_seed(hash((args.seed, int(state.epoch or 0))))

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # Not between epochs but a step later: from there the Trainer would order the next epoch
        # by other random numbers.
        self.due |= control.should_save
        control.should_save = self.due and state.epoch % 1 != 0
        self.due &= not control.should_save

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: Mapping[str, float], **kwargs: Any
    ) -> None:
        if not math.isfinite(loss := logs.get("loss", 0.0)):
            raise ValueError(
                f"the loss is {loss} after step {state.global_step}; a learning rate lower "
                f"than {args.learning_rate:g} may help"
            )


def fit(
    model: nn.Module,
    rows: Sequence[Mapping[str, Any]],
    collator: Callable[[list], dict[str, torch.Tensor]],
    folder: Path,
    *,
    epochs: float,
    batch: int,
    learning_rate: float,
    seed: int = 0,
    validation: Sequence[Mapping[str, Any]] = (),
    device: str = "auto",
    quiet: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Train `model` in place; go on from the last whole checkpoint in `folder`, if there is one.

    The model takes what `collator` makes of rows, each with `input_ids`, and returns its loss. The
    learning rate rises to the given one over the first `WARMUP`, then falls linearly to zero; there
    are twenty checkpoints. The accuracy on `validation`, rows with `label`, is shown after each
    epoch.

    Returns:
        `epochs`, `steps` and `loss`, the last logged; ValueError if that is no longer a number.
    """
    gpu = device != "cpu" and torch.cuda.is_available()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=epochs,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=batch,
            train_sampling_strategy="group_by_length",
            learning_rate=learning_rate,
            warmup_steps=WARMUP,
            weight_decay=0.01,
            bf16=gpu and torch.cuda.is_bf16_supported(),
            use_cpu=not gpu,
            dataloader_pin_memory=gpu,
            seed=seed,
            save_strategy="steps",
            save_steps=0.05,
            save_total_limit=1,
            logging_steps=0.05,
            logging_nan_inf_filter=False,
            eval_strategy="epoch" if validation else "no",
            report_to="none",
            disable_tqdm=quiet,
            remove_unused_columns=False,
        ),
        train_dataset=rows,
        eval_dataset=validation,
        data_collator=collator,
        compute_metrics=_accuracy,
        callbacks=[_Unbroken(), *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    with redirect_stdout(sys.stderr):  # progress is no result
        trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    return {
        "epochs": trainer.state.epoch,
        "steps": trainer.state.global_step,
        "loss": [log["loss"] for log in trainer.state.log_history if "loss" in log][-1],
    }


def _accuracy(predicted: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def last_checkpoint(folder: Path) -> str | None:
    """Return the last checkpoint that was written to its end: with a whole `trainer_state.json`."""
    states = folder.glob("checkpoint-*/trainer_state.json")  # the Trainer writes it last
    whole = [path.parent for path in states if path.read_text().rstrip().endswith("}")]
    return str(max(whole, key=lambda path: int(path.name.split("-")[1]))) if whole else None
