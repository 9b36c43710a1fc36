"""A text classifier of one's own: a pretrained one, fine-tuned by Hugging Face's Trainer.

A killed training goes on to the weights of an unbroken one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

from lrputils.data.files import digest, find_model, is_path
from lrputils.data.given import sides
from lrputils.data.texts import OWN, Texts, load_texts
from lrputils.model.architectures import describe
from lrputils.model.classifier import EMBEDDED, NAME, Classifier, load_classifier, quietly
from lrputils.runs import results
from lrputils.runs.folders import claimed
from lrputils.runs.options import shortened
from lrputils.stats import Estimate, estimate
from lrputils.study.attention import correct

_WARMUP = 0.06  # the share of the steps over which the learning rate rises
_HELD_OUT = "(held out)"  # the end of the name of a set held out from the training data

_CARD = """\
---
{{ card_data }}
---

# {{ name }}

A {{ kind }} for the classes {{ labels }}: {{ layers }} layers, {{ parameters }} parameters in \
half precision. Its `Classifier.identity` is `{{ identity }}`.

```python
import lrputils as lrp

clf = lrp.load_classifier(folder)
```

## Accuracy

On {{ validation.name }}: {{ accuracy }}, of the stored weights, computed in float32, longer texts \
cut to the model's positions; with a 95% interval over texts (Wilson's).\
{% if seen %} **It was trained on texts of the same file.**{% endif %}

## Training

{{ "%.2f" | format(epochs) }} epochs, {{ steps }} steps, last loss {{ "%.2f" | format(loss) }}.
The last weights are the ones kept; none were chosen by an accuracy.

Hardware: {{ device }}. Versions: {{ versions }}.

## Data

| role | set | texts | identity |
| --- | --- | --- | --- |
| training | {{ data.name }} | {{ data | length }} | {{ data.identity }} |
| validation | {{ validation.name }} | {{ validation | length }} | {{ validation.identity }} |
| base model | {{ base }} | – | {{ base_identity }} |

## Command

```sh
{{ command }}
```

Of a local file or folder only the last two parts of its path are stated.

## Limits

It knows the register of its training texts only. Its probabilities are not calibrated. Where the
validation set was looked at while options were chosen, the accuracy is optimistic.
"""


def train(
    data: str,
    out: str | Path,
    *,
    base: str | None = None,
    validation: str | None = None,
    columns: str = "",
    labels: Sequence[str] = (),
    max_length: int = 256,
    epochs: float = 4.0,
    learning_rate: float = 5e-5,
    batch: int = 32,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
    command: str = "",
) -> Path:
    """Fine-tune a classifier and write it to `out`, with its tokenizer and its card.

    Weights are stored in half precision; the accuracy in the card is of these. Two trainings with
    the same values on one machine give the same weights, also if one was killed.

    Args:
        data: labelled texts to learn from, as `load_texts` takes them.
        out: a new folder, an empty one, or the one of the same training that was interrupted.
        base: the model to start from, a folder or a hub name; `None` for the package's own.
        validation: labelled texts to measure on; `None` for a tenth of `data`, held out.
        columns: of texts and labels, as `load_texts` takes them.
        labels: names of the classes, in order of the sorted labels; by default the labels.
        max_length: tokens a text; the rest is cut, of a pair from the longer side.
        epochs: passes over `data`.
        learning_rate: the highest: it rises over the first steps, then falls linearly to zero.
        batch: texts a batch.
        seed: of the new output layer, dropout and the order of texts.
        device: "auto" takes a GPU if there is one.
        quiet: no progress.
        command: what the card says repeats it.

    Raises:
        ValueError: values or texts that contradict each other, a folder that holds another
            training, or a loss that is no longer a number.
        FileExistsError: a folder that holds something else.
        FileNotFoundError, ConnectionError: texts or a base model that are not there.
        TypeError: a base model that the package cannot attribute.
        ImportError: `accelerate`, which the Trainer needs, is not installed.
    """
    for name, value in (("epochs", epochs), ("learning_rate", learning_rate)):
        if value <= 0:
            raise ValueError(f"{name}={value} must be above 0")
    out = Path(out).expanduser()
    _check_free(out)
    if find_spec("accelerate") is None:
        raise ImportError("training needs the package `accelerate`: pip install accelerate")
    texts, held, names = _load(data, validation, columns, labels, seed)
    base_name, folder, commit = find_model(str(base or EMBEDDED), parameter="base")
    with quietly():
        model, tokenizer = _start(folder, names, seed)
    positions = describe(model, rules=False).max_positions
    if positions is not None and max_length > positions:
        raise ValueError(
            f"max_length={max_length} is more than the {positions} positions of {base_name}"
        )
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    started = f"commit {commit}" if commit else digest(map(Path.read_bytes, weights))
    plan = {
        "data": texts.identity,
        "validation": held.identity,
        "base": started,
        "labels": names,
        "max_length": max_length,
        "epochs": epochs,
        "learning_rate": learning_rate,
        "batch": batch,
        "seed": seed,
    }
    with quietly(), claimed(out, plan, "training") as work:
        log = _fit(model, tokenizer, texts, held, work, plan, device, quiet)
        model.half().save_pretrained(out)
        tokenizer.save_pretrained(out)
        clf = load_classifier(out, device=device)
        facts = results.provenance(command=command, parameters={}, seconds=0, device=clf.device)
        accuracy = estimate(correct(clf, held, np.array(held.labels)))
        _write_card(
            out,
            clf,
            accuracy,
            base_model=None if base is None or is_path(base) else base,
            data=texts,
            validation=held,
            seen=held.identity == texts.identity and not held.name.endswith(_HELD_OUT),
            base=base_name if base else NAME,
            base_identity=started,
            device=facts["device"],
            versions=", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
            command=command,
            **log,
        )
    return out


def _check_free(out: Path) -> None:
    """Refuse what is neither new, empty, nor the folder of a training that was interrupted."""
    if not out.exists() or (out / "training").is_dir() or (out.is_dir() and not [*out.iterdir()]):
        return
    what = "a model" if (out / "config.json").is_file() else "something else"
    raise FileExistsError(f"--out {out} already holds {what}: name a new folder")


def _load(
    data: str, validation: str | None, columns: str, labels: Sequence[str], seed: int
) -> tuple[Texts, Texts, tuple[str, ...]]:
    """Return texts to learn from and to measure on, labelled by class numbers, and class names."""
    # load_texts prefers what models are measured on
    one = data in OWN or Path(data).expanduser().is_file()
    texts = load_texts(data, columns, split=None if one else "train")
    texts = replace(texts, name=shortened(data))
    classes = _labels_of(texts)
    if len(classes) < 2:
        raise ValueError(f"{texts.name!r} has no two different labels, only {classes}")
    names = tuple(labels) or tuple(map(str, classes))
    if len(names) != len(classes):
        raise ValueError(
            f"labels={','.join(names)} names {len(names)} classes, but the data have {classes}"
        )
    if validation:
        held = replace(load_texts(validation, columns), name=shortened(validation))
        if unknown := [label for label in _labels_of(held) if label not in classes]:
            raise ValueError(f"{held.name!r} has labels {unknown} that {texts.name!r} lacks")
    elif len(texts) < 4:
        raise ValueError(f"{texts.name!r} has {len(texts)} texts, too few to hold some out")
    else:  # a tenth, at least two
        order = np.random.default_rng(seed).permutation(len(texts)).tolist()
        count = max(2, len(texts) // 10)
        held = replace(texts.take(order[:count]), name=f"{texts.name} {_HELD_OUT}")
        texts = texts.take(order[count:])
    texts, held = (replace(t, labels=tuple(map(classes.index, t.labels))) for t in (texts, held))
    return texts, held, names


def _labels_of(texts: Texts) -> list[int | str]:
    """Return the different labels, sorted."""
    if texts.labels is None:
        raise ValueError(f"{texts.name!r} has no labels: name their column, columns=TEXT,LABEL")
    different = list(dict.fromkeys(texts.labels))
    if {type(label) for label in different} not in ({int}, {str}):
        raise ValueError(
            f"{texts.name!r} has labels that are not all integers, or not all names: {different}"
        )
    return sorted(different)


def _start(
    folder: Path, names: Sequence[str], seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the base, with an output for each class, and its tokenizer."""
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        trust_remote_code=False,
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # decoders have none
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


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


def _fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts,
    held: Texts,
    work: Path,
    plan: Mapping[str, Any],
    device: str,
    quiet: bool,
) -> dict[str, Any]:
    """Train `model` in place, from the last whole checkpoint in `work` on if there is one.

    Returns `epochs`, `steps` and `loss`, the last logged.
    """
    gpu = device != "cpu" and torch.cuda.is_available()
    rows = [_rows(tokenizer, part, plan["max_length"]) for part in (texts, held)]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(work),
            num_train_epochs=plan["epochs"],
            per_device_train_batch_size=plan["batch"],
            per_device_eval_batch_size=plan["batch"],
            train_sampling_strategy="group_by_length",
            learning_rate=plan["learning_rate"],
            warmup_steps=_WARMUP,
            weight_decay=0.01,
            bf16=gpu and torch.cuda.is_bf16_supported(),
            use_cpu=not gpu,
            dataloader_pin_memory=gpu,
            seed=plan["seed"],
            save_strategy="steps",
            save_steps=0.05,
            save_total_limit=1,
            logging_steps=0.05,
            logging_nan_inf_filter=False,
            eval_strategy="epoch",
            report_to="none",
            disable_tqdm=quiet,
        ),
        train_dataset=rows[0],
        eval_dataset=rows[1],
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8),
        compute_metrics=_accuracy,
        callbacks=[_Unbroken()],
    )
    trainer.remove_callback(PrinterCallback)
    with redirect_stdout(sys.stderr):  # progress is no result
        trainer.train(resume_from_checkpoint=_last_checkpoint(work))
    loss = [log["loss"] for log in trainer.state.log_history if "loss" in log][-1]
    return {"epochs": trainer.state.epoch, "steps": trainer.state.global_step, "loss": loss}


def _rows(tokenizer: PreTrainedTokenizerBase, texts: Texts, max_length: int) -> Dataset:
    """Return what the Trainer reads: word pieces and class numbers."""
    columns = [list(side) for side in zip(*map(sides, texts), strict=True)]  # one, or a pair's two
    encoded = tokenizer(*columns, max_length=max_length, truncation=True)
    return Dataset.from_dict({**encoded, "label": texts.labels})


def _accuracy(predicted: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def _last_checkpoint(folder: Path) -> str | None:
    """Return the last checkpoint that was written to its end: with a whole `trainer_state.json`."""
    states = folder.glob("checkpoint-*/trainer_state.json")  # the Trainer writes it last
    whole = [path.parent for path in states if path.read_text().rstrip().endswith("}")]
    return str(max(whole, key=lambda path: int(path.name.split("-")[1]))) if whole else None


def _write_card(
    folder: Path, clf: Classifier, accuracy: Estimate, base_model: str | None, **facts: Any
) -> None:
    """Write `README.md` into a trained classifier's folder."""
    name = folder.resolve().name
    result = EvalResult(
        task_type="text-classification",
        dataset_type="text",
        dataset_name=facts["validation"].name,
        metric_type="accuracy",
        metric_value=round(accuracy.value, 4),
    )
    low, high = 100 * accuracy.low, 100 * accuracy.high
    ModelCard.from_template(
        ModelCardData(
            library_name="transformers",
            pipeline_tag="text-classification",
            base_model=base_model,
            model_name=name,
            eval_results=[result],
        ),
        template_str=_CARD,
        name=name,
        kind=type(clf.model).__name__,
        labels=", ".join(clf.labels),
        layers=clf.architecture.layers,
        parameters=f"{sum(p.numel() for p in clf.model.parameters()):,}",
        identity=clf.identity,
        accuracy=f"{100 * accuracy.value:.1f}% [{low:.1f}, {high:.1f}]",
        **facts,
    ).save(folder / "README.md")
