"""r and perturbation curves of AttnLRP, CP-LRP and the paper's layer ablations, at every read-out.

Figure 2 and Table A3 in both of the paper's measures. A row a text, map and removal of the curves:
tokens are hidden by the attention mask or, for the methods themselves, replaced by [MASK].
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.readout import readouts
from lrputils.removal.perturbation import curve_mean, perturbation_curves
from lrputils.study.evaluation import Evaluation, evaluate, of_label
from lrputils.study.variants import ABLATIONS, Label, LayerSweep, Variant


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    chunk: int = 1,
    removals: Sequence[str] = ("attention-mask",),
    places: Sequence[str] | None = None,
    families: Sequence[str] = ABLATIONS,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, map and removal, the predicted class explained; longer texts are cut.

    Args:
        chunk: tokens that go at once along the curves.
        removals: "attention-mask", and "mask" (one token at a time, methods alone).
        places: read-outs; all that the model has if not given.
        families: of layer ablations, see `LayerSweep`.

    Returns:
        `id`, `target`, `label`, `logit`, `tokens`; `method`, `readout`, `family`, `layer`;
        `removal`, `r`, `r_content`, `r_normalised`, `flipped`, `lerf`, `morf`, `delta`.
    """
    if strays := [name for name in removals if name not in ("attention-mask", "mask")]:
        raise ValueError(f"removals={strays} are neither 'attention-mask' nor 'mask'")
    places = list(places or readouts(classifier.architecture))
    methods = ("attnlrp", "cp-lrp")
    asked = [Variant(name, name, {"readout": place}) for name in methods for place in places]
    asked += [LayerSweep(places, families)] if families else []
    how = {"batch_size": batch_size, "max_length": max_length, "truncate": True}
    chunk = chunk if "attention-mask" in removals else None
    found = evaluate(classifier, texts, asked, chunk=chunk, progress=False, **how)
    parts = [found.rows.assign(removal=name) for name in removals if name != "mask"]
    if "mask" in removals:
        parts.append(_masked(classifier, texts, found, max_length))
    rows = pd.concat(parts).sort_values("position", kind="stable")
    return rows.drop(columns="position")


def _masked(
    classifier: Classifier, texts: Texts, found: Evaluation, max_length: int | None
) -> pd.DataFrame:
    """The rows of the methods themselves, with the curves' means under [MASK]."""
    rows = found.rows[found.rows.family == ""].assign(removal="mask")
    parts = []
    for position, of_text in rows.groupby("position"):
        inputs = classifier.encode([texts[position]], max_length, truncate=True)
        labels = map(Label._make, of_text[[*Label._fields]].itertuples(index=False))
        maps = [torch.from_numpy(of_label(found.maps, label)[position]) for label in labels]
        how = {"target": torch.tensor([of_text.target.iloc[0]]), "removal": "mask"}
        curves = perturbation_curves(classifier, inputs, torch.stack(maps)[:, None], **how)
        morf, lerf = (curve_mean(each)[:, 0].cpu().numpy() for each in curves)
        parts.append(of_text.assign(morf=morf, lerf=lerf, delta=lerf - morf))
    return pd.concat(parts)
