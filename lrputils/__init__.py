"""Attributions for transformers, held against exact Leave-One-Out.

    import lrputils as lrp

    clf = lrp.load_classifier("folder-or-hub-name")
    inputs = clf.encode(["a film that is never dull"])
    scores = lrp.attribute(clf.model, inputs, "attnlrp")
    loo = lrp.leave_one_out(clf.model, inputs)
    r = lrp.pearson(scores, loo, where=inputs.content_mask)

Names are loaded on first use, so that importing the package does not import `transformers`.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from lrputils import _torchvision  # noqa: F401  (must run before anything imports torchvision)

# In a notebook without widgets, libraries that ask for tqdm's automatic bar say so on every import.
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = "0.1.0"

_HOME = {
    "describe": "architectures",
    "METHODS": "attribution",
    "attribute": "attribution",
    "integrated_gradients": "attribution",
    "Texts": "data.texts",
    "load_texts": "data.texts",
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "Inputs": "inputs",
    "Classifier": "models",
    "load_classifier": "models",
    "Perturbation": "perturbation",
    "aopc": "perturbation",
    "curve_mean": "perturbation",
    "perturbation_curve": "perturbation",
    "perturbation_scores": "perturbation",
    "ATTN_LRP": "propagation",
    "CP_LRP": "propagation",
    "Composite": "propagation",
    "propagating": "propagation",
    "leave_one_out": "removal",
    "bootstrap_interval": "stats",
    "estimate": "stats",
    "kendall": "stats",
    "paired_difference": "stats",
    "pearson": "stats",
    "spearman": "stats",
    "sum_to_one": "stats",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lrputils' has no attribute {name!r}; it has {__all__}")
    value = getattr(import_module(f"lrputils.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
