"""Fine-tune a classifier: `python -m experiments.fine_tune --data FILE --out DIR`.

A plain run of Hugging Face's Trainer, whose folder every verb takes as `--model DIR`. What else
training needs (checkpoints, metrics, several GPUs) are the Trainer's own arguments.
"""

from __future__ import annotations

from pathlib import Path

import lrputils as lrp
from experiments.command import main
from lrputils.data.files import find_model
from lrputils.data.given import sides
from lrputils.runs.folders import writable
from lrputils.runs.options import Names


def make(
    *,
    data: str,
    out: Path,
    base: str | None = None,
    columns: str = "",
    labels: Names = (),
    max_length: int = 256,
    epochs: float = 4.0,
    learning_rate: float = 5e-5,
    batch: int = 32,
    seed: int = 0,
) -> Path:
    """Fine-tune a classifier on labelled texts.

    Args:
        data: labelled texts, as `lrputils.load_texts` takes them
        out: a new folder
        base: hub name or folder (default: the package's own classifier)
        columns: of texts (pairs: A,B) and labels (default: usual)
        labels: names of the classes, in order of the sorted labels
        max_length: tokens a text; the rest is cut
        epochs: passes over the texts
        learning_rate: the highest; it falls to zero
        batch: texts a batch
        seed: of the new output layer, dropout and the order of texts

    Raises:
        ValueError: texts without two different labels, or not a name for each.
        FileExistsError: a folder that holds something.
    """
    import torch
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    from lrputils.model.classifier import EMBEDDED

    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"--out {out} holds something already: name a new folder")
    texts = lrp.load_texts(data, columns)
    classes = sorted(set(texts.labels or ()))
    names = list(labels) or [str(label) for label in classes]
    if len(classes) < 2 or len(names) != len(classes):
        raise ValueError(f"{data} has the labels {classes}, and their names are {names}")
    torch.manual_seed(seed)
    _, folder, _ = find_model(str(base or EMBEDDED), parameter="base")
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # decoders have none
    model = AutoModelForSequenceClassification.from_pretrained(
        folder,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        trust_remote_code=False,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )
    read = [list(side) for side in zip(*map(sides, texts), strict=True)]  # one, or a pair's two
    encoded = tokenizer(*read, max_length=max_length, truncation=True)
    rows = Dataset.from_dict({**encoded, "label": [*map(classes.index, texts.labels)]})
    options = TrainingArguments(
        output_dir=str(writable(out)),
        num_train_epochs=epochs,
        per_device_train_batch_size=batch,
        learning_rate=learning_rate,
        weight_decay=0.01,
        dataloader_pin_memory=torch.cuda.is_available(),
        seed=seed,
        save_strategy="no",
        report_to="none",
    )
    collate = DataCollatorWithPadding(tokenizer)
    Trainer(model=model, args=options, train_dataset=rows, data_collator=collate).train()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


if __name__ == "__main__":
    main(make, "python -m experiments.fine_tune")
