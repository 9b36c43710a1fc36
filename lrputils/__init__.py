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

from lrputils.data import _torchvision  # noqa: F401  (must run before anything imports torchvision)

# In a notebook without widgets, libraries that ask for tqdm's automatic bar say so on every import.
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = "0.2.0"

# Room → the public names that it has.
_NAMES = {
    "attribution": "attribute METHODS",
    "data.texts": "load_texts Texts",
    "model.architectures": "describe",
    "model.classifier": "Classifier load_classifier",
    "model.inputs": "Inputs",
    "model.readout": "contrast",
    "propagation.composites": "ATTN_LRP Composite CP_LRP propagating",
    "propagation.conservation": "check",
    "propagation.layerwise": "layerwise_bypass relevance_paths",
    "removal.leave_one_out": "leave_one_out leave_two_out",
    "removal.perturbation": "curve_mean perturbation_curves",
    "removal.shapley": "shapley_values",
    "report.audit": "audit",
    "report.explain": "explain",
    "stats": (
        "bootstrap_interval estimate paired_difference pearson ratio_of_means spearman sum_to_one"
    ),
    "study.evaluation": "evaluate Evaluation",
    "study.variants": "LayerSweep Variant",
}
_HOME = {name: room for room, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lrputils' has no attribute {name!r}; it has {__all__}")
    value = getattr(import_module(f"lrputils.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
