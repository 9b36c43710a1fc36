"""Attributions for transformers, compared with exact Leave-One-Out.

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
    "aopc": "perturbation",
    "ATTN_LRP": "propagation",
    "attention_matters": "uniform_attention",
    "attribute": "attribution",
    "bootstrap_interval": "stats",
    "check": "conservation",
    "Classifier": "models",
    "Composite": "propagation",
    "CP_LRP": "propagation",
    "curve_mean": "perturbation",
    "describe": "architectures",
    "estimate": "stats",
    "evaluate": "evaluation",
    "Evaluation": "evaluation",
    "Inputs": "inputs",
    "integrated_gradients": "attribution",
    "kendall": "stats",
    "layerwise_bypass": "layerwise",
    "LayerSweep": "variants",
    "leave_one_out": "removal",
    "load_classifier": "models",
    "load_texts": "data.texts",
    "METHODS": "attribution",
    "paired_difference": "stats",
    "pearson": "stats",
    "Perturbation": "perturbation",
    "perturbation_curve": "perturbation",
    "perturbation_curves": "perturbation",
    "perturbation_scores": "perturbation",
    "propagating": "propagation",
    "ratio_of_means": "stats",
    "relevance_paths": "paths",
    "routes_by_layer": "paths",
    "spearman": "stats",
    "sum_to_one": "stats",
    "Texts": "data.texts",
    "Variant": "variants",
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
