"""The model card: what was trained, on what, by which command, and how good it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from lrputils.data import files
from lrputils.model.classifier import Classifier
from lrputils.runs import results
from lrputils.stats import Estimate, estimate
from lrputils.training.corpus import HELD_OUT

_TEMPLATE = """\
---
{{ card_data }}
---

# {{ name }}

A {{ kind }} for the classes {{ labels }}: {{ layers }} layers, {{ pieces }} word pieces, \
{{ parameters }} parameters in half precision. Its `Classifier.identity` is `{{ identity }}`.

```python
import lrputils as lrp

clf = lrp.load_classifier(folder)
```

## Accuracy

Of the stored weights, computed in float32, longer texts cut to the model's positions; with 95% \
intervals over texts (Wilson's).\
{% if seen %} **It was trained on texts of the same file as {{ seen }}.**{% endif %}

{{ accuracy }}

## Training

{{ stages }}

The last weights are the ones kept; none were chosen by an accuracy.

Hardware: {{ device }}. Versions: {{ versions }}.

## Data

{{ sets }}

## Command

```sh
{{ command }}
```

Of a local file or folder only the last two parts of its path are stated.

## Limits

It knows the register of its training texts only. Its probabilities are not calibrated. Where a set
under *Accuracy* was looked at while options were chosen, its accuracy is optimistic.
"""


def write(
    folder: Path,
    classifier: Classifier,
    stages: Mapping[str, Mapping[str, Any]],
    sets: Sequence[Mapping[str, Any]],
    right: Mapping[str, np.ndarray],
    command: str,
    base: str | None = None,
) -> Path:
    """Write `README.md` into a trained classifier's folder and return its path.

    `stages`: name → `fit`'s answer; `sets`: `Corpus.table()`, and what else was learned from;
    `right`: validation set → whether each text is classified correctly, booleans (texts,);
    `command` repeats the training, without local paths; `base`: the model that it started from.
    """
    name = folder.resolve().name
    facts = results.provenance(command=command, parameters={}, seconds=0, device=classifier.device)
    accuracy = {validation: estimate(values) for validation, values in right.items()}
    learned = {row["identity"] for row in sets if row["role"] == "training"}
    others = {
        row["set"] for row in sets if row["role"] != "training" and row["identity"] in learned
    }
    seen = [name for name in right if name in others and not name.endswith(HELD_OUT)]
    card = ModelCard.from_template(
        ModelCardData(
            library_name="transformers",
            pipeline_tag="text-classification",
            base_model=None if base is None or files.is_path(base) else base,
            model_name=name,
            eval_results=[_result(*found) for found in accuracy.items()],
        ),
        template_str=_TEMPLATE,
        name=name,
        kind=type(classifier.model).__name__,
        labels=", ".join(classifier.labels),
        layers=classifier.architecture.layers,
        pieces=f"{len(classifier.tokenizer):,}",
        parameters=f"{sum(p.numel() for p in classifier.model.parameters()):,}",
        identity=classifier.identity,
        accuracy=table(
            {"set": name, "texts": found.used, "accuracy": percent(found)}
            for name, found in accuracy.items()
        ),
        seen=", ".join(seen),
        stages=table({"stage": name} | stage for name, stage in stages.items()),
        device=facts["device"],
        versions=", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
        sets=table(sets),
        command=command,
    )
    card.save(folder / "README.md")
    return folder / "README.md"


def _result(validation: str, accuracy: Estimate) -> EvalResult:
    return EvalResult(
        task_type="text-classification",
        dataset_type="text",
        dataset_name=validation,
        metric_type="accuracy",
        metric_value=round(accuracy.value, 4),
    )


def percent(value: Estimate, unit: str = "%") -> str:
    """Write a share with its interval in hundredths: "85.3% [82.9, 87.6]"."""
    low, high = 100 * value.low, 100 * value.high
    return f"{100 * value.value:.1f}{unit} [{low:.1f}, {high:.1f}]"


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write rows of one form as a Markdown table; floats with two decimals."""
    rows = list(rows)
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
