"""The model card: what was trained, on what, by which command, and how good it is."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
import yaml

import lrputils
from lrputils.models import Classifier
from lrputils.results import hardware
from lrputils.stats import Estimate
from lrputils.training.corpus import Corpus
from lrputils.training.measure import AttentionMatters
from lrputils.training.network import Base
from lrputils.training.options import command
from lrputils.training.recipe import STAGES, Recipe
from lrputils.training.stage import multiplies_bfloat16


def write(
    folder: Path,
    classifier: Classifier,
    recipe: Recipe,
    corpus: Corpus,
    base: Base | None,
    teacher: Classifier | None,
    stages: Mapping[str, Mapping[str, Any]],
    measured: Mapping[str, AttentionMatters],
) -> Path:
    """Write `README.md` into a trained classifier's folder and return its path.

    Args:
        folder: the classifier's.
        classifier: as loaded from there.
        recipe: it was trained by this one.
        corpus: the recipe's texts.
        base: what it started from, if not from scratch.
        teacher: who labelled the texts that had no label, if anybody.
        stages: name → `run_stage`'s answer.
        measured: evaluation set → accuracies.
    """
    sections = [
        _front(recipe),
        _summary(folder, classifier, base, teacher),
        _accuracy(measured, corpus),
        _attention(measured),
        _training(stages, classifier, _beginning(recipe)),
        _epochs(stages),
        _data(corpus, base, teacher),
        f"## Recipe\n\n```sh\n{command(recipe)}\n```\n\n"
        "Of a local file only the last folder is stated.",
        _limits(teacher),
    ]
    path = folder / "README.md"
    partial = folder / "README.md.partial"
    partial.write_text("\n\n".join(part for part in sections if part) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def _front(recipe: Recipe) -> str:
    entries: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["bert", "text-classification"],
    }
    if recipe.base is not None and not Path(recipe.base).expanduser().exists():
        entries["base_model"] = recipe.base
    return f"---\n{yaml.safe_dump(entries, sort_keys=False)}---"


def _summary(
    folder: Path, classifier: Classifier, base: Base | None, teacher: Classifier | None
) -> str:
    config = classifier.model.config
    parameters = sum(p.numel() for p in classifier.model.parameters())
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    origin = "trained from scratch" if base is None else "trained from a base model"
    origin += "" if teacher is None else " with a teacher"
    return (
        f"# {folder.resolve().name}\n\n"
        f"A BERT text classifier, {origin}, for the classes {', '.join(classifier.labels)}: "
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads a layer, {config.vocab_size:,} word pieces "
        f"(lower-cased), {config.max_position_embeddings} positions; {parameters:,} parameters, "
        f"{weights / 1e6:.1f} MB in half precision. Its `Classifier.identity` is "
        f"`{classifier.identity}`.\n\n"
        f"```python\nimport lrputils as lrp\n\nclf = lrp.load_classifier(folder)\n```"
    )


def _accuracy(measured: Mapping[str, AttentionMatters], corpus: Corpus) -> str:
    if not measured:
        return ""
    rows = [(name, m.accuracy.used, _share(m.accuracy)) for name, m in measured.items()]
    learned = {texts.identity for _, texts in corpus.train}
    seen = [name for name, texts in corpus.evaluate if texts.identity in learned]
    warning = (
        f" **It was trained on texts of the same files as {', '.join(seen)}.**" if seen else ""
    )
    return (
        "## Accuracy\n\nOf the stored weights, computed in float32, longer texts cut to the "
        "model's positions; with 95% bootstrap intervals over texts."
        + warning
        + "\n\n"
        + _table(("set", "texts", "accuracy"), rows)
    )


def _attention(measured: Mapping[str, AttentionMatters]) -> str:
    rows = [
        (name, _share(m.accuracy), _share(m.uniform), _share(m.fall, points=True))
        for name, m in measured.items()
        if m.uniform is not None and m.fall is not None
    ]
    if not rows:
        return ""
    return (
        "## Attention that matters\n\nAccuracy when every attention matrix is replaced by the "
        "uniform one, nothing else changed, and how many points it falls (paired by text). A "
        "classifier that loses nothing reads a bag of words.\n\n"
        + _table(("set", "own attention", "uniform attention", "fall"), rows)
        + _depths(measured)
    )


def _depths(measured: Mapping[str, AttentionMatters]) -> str:
    """Tell where in the network attention matters; nothing where there is one part only."""
    depths = list(next(iter(measured.values())).fall_by_depth)
    if len(depths) < 2:
        return ""
    head = [
        f"layers {d.start + 1} to {d.stop}" if len(d) > 1 else f"layer {d.stop}" for d in depths
    ]
    rows = [
        (name, *(_share(m.fall_by_depth[depth], points=True) for depth in depths))
        for name, m in measured.items()
    ]
    return "\n\nHow many it falls when only some layers attend evenly:\n\n" + _table(
        ("set", *head), rows
    )


def _beginning(recipe: Recipe) -> str:
    """Tell what the network knew before its first step, and what else than classes it learned."""
    text = ""
    if recipe.unlabelled and recipe.base is None:
        text += (
            "The embeddings began as vectors of the word pieces' neighbours in the unlabelled "
            "texts (positive pointwise mutual information, its singular vectors). "
        )
    if recipe.shallow.layers is not None:
        text += (
            f"Until its last stage it had {recipe.shallow.layers} layers; then each was followed "
            "by copies that at first pass on what they get. "
        )
    if recipe.imitate:
        text += (
            "Of the teacher it learned the probabilities of classes and, word by word, hidden "
            "states; the loss is the sum of both. "
        )
    return text and text.rstrip() + "\n\n"


def _training(
    stages: Mapping[str, Mapping[str, Any]], classifier: Classifier, beginning: str
) -> str:
    rows = [
        (
            STAGES[name],
            f"{stage['epochs']:.2f}",
            f"{stage['steps']:,}",
            f"{stage['tokens']:,}",
            f"{stage['loss']:.3f}",
            f"{stage['seconds'] / 60:.1f}",
        )
        for name, stage in stages.items()
    ]
    versions = {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "lrputils": lrputils.__version__,
    }
    return (
        "## Training\n\n"
        + beginning
        + _table(("stage", "epochs", "steps", "tokens seen", "last loss", "minutes"), rows)
        + f"\n\nHardware: {_hardware(classifier.device)}. Versions: "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + "."
    )


def _hardware(device: torch.device) -> str:
    numbers = "bfloat16" if multiplies_bfloat16(device.type) else "float32"
    return f"{hardware(device)}, {numbers}"


def _epochs(stages: Mapping[str, Mapping[str, Any]]) -> str:
    history = stages["finetuning"]["accuracy"]
    if not history or not history[0]["accuracy"]:
        return ""
    names = list(history[0]["accuracy"])
    rows = [
        (entry["step"], entry["epochs"], *(f"{entry['accuracy'][name]:.1%}" for name in names))
        for entry in history
    ]
    return (
        "Accuracy while fine-tuning. The weights at the end are the ones kept; none were chosen "
        "by these numbers:\n\n" + _table(("step", "whole epochs", *names), rows)
    )


def _data(corpus: Corpus, base: Base | None, teacher: Classifier | None) -> str:
    rows = [tuple(entry.values()) for entry in corpus.identities()]
    if base is not None:
        rows.append(("base model", "–", "–", base.identity))
    if teacher is not None:
        rows.append(("teacher", teacher.name, "–", teacher.identity))
    return "## Data\n\n" + _table(("role", "set", "texts", "identity"), rows)


def _limits(teacher: Classifier | None) -> str:
    text = (
        "## Limits\n\nIt knows the register of its training texts only. Its probabilities are not "
        "calibrated. Where a set under *Accuracy* was looked at while the recipe was chosen, its "
        "accuracy is optimistic."
    )
    if teacher is not None:
        text += (
            f" From its teacher, {teacher.name}, it learned errors too; a set that the teacher has "
            "seen, or that was chosen by the teacher's answers, says too much good of it."
        )
    return text


def _share(value: Estimate, *, points: bool = False) -> str:
    unit = " points" if points else "%"
    low, high = 100 * value.low, 100 * value.high
    return f"{100 * value.value:.1f}{unit} [{low:.1f}, {high:.1f}]"


def _table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    lines = [tuple(head)]
    lines += [("---",) * len(lines[0]), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
