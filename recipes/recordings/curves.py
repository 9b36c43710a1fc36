"""r and perturbation curves of AttnLRP, CP-LRP and the paper's layer ablations, at every read-out.

Figure 2 and Table A3 in both of the paper's measures. A row a text, map and removal of the curves:
tokens are hidden by the attention mask or, for the methods themselves, replaced by [MASK].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import readouts
from lrputils.study.evaluation import Evaluation, evaluate, of_label
from lrputils.study.variants import ABLATIONS, Label, LayerSweep, Variant

_ROWS = 512  # of replaced texts in one forward pass


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
        target = torch.tensor([of_text.target.iloc[0]])
        means = replaced(classifier, inputs, torch.stack(maps)[:, None], target)
        parts.append(of_text.assign(**{k: v[:, 0].numpy() for k, v in means.items()}))
    return pd.concat(parts)


@torch.inference_mode()
def replaced(
    classifier: Classifier, inputs: Inputs, scores: Tensor, target: Tensor
) -> dict[str, Tensor]:
    """Means of both curves and `delta`, where what goes is replaced by [MASK], not hidden."""
    mask_id = inputs.replacements["mask"]
    scores, content = scores.double().cpu().numpy(), inputs.content_mask.cpu().numpy()
    means = np.full((2, len(scores), len(content)), np.nan)
    for text, length in enumerate(inputs.lengths.tolist()):
        own = np.flatnonzero(content[text, :length])
        gone = np.zeros((2, len(scores), len(own) + 1, length), bool)
        for o, sign in enumerate((1, -1)):  # least relevant first, then most
            for m, each in enumerate(scores[:, text, own]):
                order = own[np.argsort(sign * each, kind="stable")]
                for step in range(1, len(own) + 1):
                    gone[o, m, step, order[:step]] = True
        sets, number = np.unique(gone.reshape(-1, length), axis=0, return_inverse=True)
        ids = inputs["input_ids"][text, :length]
        rows = torch.where(torch.from_numpy(sets).to(ids.device), mask_id, ids)
        logits = torch.cat(
            [
                classifier.model(input_ids=part, attention_mask=torch.ones_like(part)).logits
                for part in rows.split(_ROWS)
            ]
        )[:, target[text]]
        values = logits.double().cpu().numpy()[number].reshape(gone.shape[:3])
        means[:, :, text] = values.mean(-1)
    lerf, morf = torch.from_numpy(means)
    return {"lerf": lerf, "morf": morf, "delta": lerf - morf}
