"""One text's maps under each convention that an LRP experiment must choose.

The paper's question, does LRP track leave-one-out, has an answer for each choice of rules, read-out
and removal; how maps are then normalised, which tokens count and which coefficient compares them is
in `lrputils.study.specifications`, which reads these maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from torch import Tensor

from lrputils.attribution import attribute
from lrputils.attribution.relevance import lrp_everywhere
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.propagation.composites import ATTN_LRP, CANONISED_LRP, CP_LRP, GRADIENT, Composite
from lrputils.removal.leave_one_out import REMOVALS, leave_one_out
from lrputils.study.by_text import in_order, predicted

# What stands for attention: the two methods, controls that change one thing, and the gradient.
ATTENTION = {
    "attnlrp": ATTN_LRP,
    "cp-lrp": CP_LRP,
    **{
        name: ATTN_LRP.but(attention=name)
        for name in ("half-value", "whole-value", "query-closed", "key-closed", "identity")
    },
    "grad-x-input": GRADIENT,
}
# Attention as one unit, and by its plain gradient with AttnLRP's rules around it (RelP for GPT-2):
# measured where they are asked for.
FURTHER = {
    ("canonised-lrp", ""): CANONISED_LRP,
    ("canonised-path", ""): ATTN_LRP.but(attention="path"),
    ("attention-gradient", ""): ATTN_LRP.but(attention="gradient"),
}
# What else an implementation may do otherwise, for both methods.
OTHERWISE = (
    {"norm": "held"},
    {"norm": "gradient"},
    {"activation": "gradient"},
    {"head": "gradient"},
)


def composites(layers: int) -> dict[tuple[str, str], Composite]:
    """Return the composites of a model by (method, its other rules; "" for the default).

    "front-half" and "back-half" are AttnLRP with CP-LRP's rule in that half of the layers.
    """
    named = ATTENTION | {
        "front-half": ATTN_LRP.bypass(range(layers // 2)),
        "back-half": ATTN_LRP.bypass(range(layers // 2, layers)),
    }
    found = {(name, ""): composite for name, composite in named.items()}
    for change in OTHERWISE:
        rules = " ".join(f"{operation}={rule}" for operation, rule in change.items())
        found |= {(name, rules): ATTENTION[name].but(**change) for name in ("attnlrp", "cp-lrp")}
    return found


def maps(
    classifier: Classifier,
    texts: Texts,
    removals: Sequence[str] = ("attention-mask",),
    *,
    methods: Sequence[str] | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return every map of every text, the predicted class explained; longer texts are cut.

    Args:
        removals: those of `leave_one_out` to measure, one map each.
        methods: of `composites` or `FURTHER`, or "mask-gradient"; all but `FURTHER` if not given.
            Those named are also read at the blocks, see `lrputils.attribution.relevance`.

    Returns:
        one row a text and map: `id`, `target`, `label` (the text's own class, None without one),
        `logit`, `method` (of `composites`, "loo" or "mask-gradient"), `rules`, `readout` and
        `removal` ("" where there is no choice), `scores` and `content` (false at special tokens),
        both float32 or boolean arrays (tokens,).

    Raises:
        ValueError: see `refuse_unknown`.
    """
    refuse_unknown(removals, methods)
    rows = []
    for inputs, target, texts_rows in predicted(classifier, texts, batch_size, max_length):
        found = list(_maps(classifier, inputs, target, removals, methods))
        for number, row in enumerate(texts_rows):
            length = len(row["content"])
            rows += [
                {**row, **label, "scores": scores[number, :length].cpu().numpy()}
                for label, scores in found
            ]
    return in_order(rows)


def refuse_unknown(removals: Sequence[str], methods: Sequence[str] | None) -> None:
    """Raise ValueError if there is no such removal or method, or none to measure."""
    methods_known = ["mask-gradient", *dict.fromkeys(name for name, _ in composites(1) | FURTHER)]
    for kind, names, known in (
        ("removal", removals, list(REMOVALS)),
        ("method", methods or (), methods_known),
    ):
        if strays := [name for name in names if name not in known]:
            raise ValueError(f"unknown {kind}(s) {strays}; choose from {known}")
    if not removals and methods is not None and not methods:
        raise ValueError("no removals and no methods: there is nothing to measure")


def _maps(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    removals: Sequence[str],
    methods: Sequence[str] | None,
) -> Iterator[tuple[dict[str, str], Tensor]]:
    model, none = classifier.model, dict.fromkeys(("rules", "readout", "removal"), "")
    for removal in removals:
        scores = leave_one_out(model, inputs, target=target, removal=removal, progress=False)
        yield {**none, "method": "loo", "removal": removal}, scores
    if methods is None or "mask-gradient" in methods:
        scores = attribute(model, inputs, "mask-gradient", target=target)
        yield {**none, "method": "mask-gradient"}, scores
    known = composites(classifier.architecture.layers)
    for (method, rules), composite in (known if methods is None else known | FURTHER).items():
        if methods is not None and method not in methods:
            continue
        how = {"target": target, "composite": composite, "blocks": methods is not None}
        everywhere = lrp_everywhere(model, inputs, **how)
        for readout, scores in everywhere.items():
            yield {**none, "method": method, "rules": rules, "readout": readout}, scores
