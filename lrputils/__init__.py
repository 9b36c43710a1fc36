"""Attributions for transformers, compared with exact Leave-One-Out.

    import lrputils as lrp

    clf = lrp.load_classifier("folder-or-hub-name")
    lrp.explain(clf, "a film that is never dull")  # a heat map, in a notebook

    inputs = clf.encode(["a film that is never dull"])
    scores = lrp.attribute(clf, inputs, "attnlrp")
    loo = lrp.leave_one_out(clf, inputs)
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

__version__ = "0.2.0"

_HOME = {
    "aopc": "removal.perturbation",
    "ATTN_LRP": "propagation.composites",
    "attention_matters": "study.uniform_attention",
    "attribute": "attribution",
    "bootstrap_interval": "stats",
    "certified_loo": "removal.leave_one_out",
    "check": "propagation.conservation",
    "Classifier": "model.classifier",
    "Composite": "propagation.composites",
    "CP_LRP": "propagation.composites",
    "curve_mean": "removal.perturbation",
    "describe": "model.architectures",
    "estimate": "stats",
    "evaluate": "study.evaluation",
    "Evaluation": "study.evaluation",
    "explain": "report.explain",
    "Inputs": "model.inputs",
    "integrated_gradients": "attribution",
    "kendall": "stats",
    "layerwise_bypass": "propagation.layerwise",
    "LayerSweep": "study.variants",
    "leave_one_out": "removal.leave_one_out",
    "leave_two_out": "removal.leave_two_out",
    "load_classifier": "model.classifier",
    "load_texts": "data.texts",
    "METHODS": "attribution",
    "paired_difference": "stats",
    "pearson": "stats",
    "perturbation_curve": "removal.perturbation",
    "perturbation_curves": "removal.perturbation",
    "perturbation_scores": "removal.perturbation",
    "propagating": "propagation.composites",
    "ratio_of_means": "stats",
    "relevance_paths": "propagation.paths",
    "routes_by_layer": "study.routes",
    "shapley_values": "removal.shapley",
    "spearman": "stats",
    "sum_to_one": "stats",
    "Texts": "data.texts",
    "Variant": "study.variants",
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
