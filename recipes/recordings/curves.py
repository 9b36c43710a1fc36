"""r and perturbation curves of AttnLRP, CP-LRP and the paper's layer ablations, at every read-out.

Figure 2 and Table A3 in both of the paper's measures. A row a text, map and removal of the curves:
tokens are hidden by the attention mask or, for the methods themselves, replaced by [MASK].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lrputils.attribution.relevance import lrp_everywhere
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import readouts
from lrputils.propagation.composites import ATTN_LRP, CP_LRP
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.perturbation import Perturbation, perturbation_scores
from lrputils.study.by_text import in_order, predicted
from lrputils.study.evaluation import compare
from lrputils.study.variants import ABLATIONS, Label, LayerSweep

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
    rows = []
    for inputs, target, of_texts in predicted(classifier, texts, batch_size, max_length):
        maps = _maps(classifier, inputs, target, places, families)
        loo = maps[Label("loo")].cpu()
        compared = {label: compare(scores.cpu(), loo, inputs) for label, scores in maps.items()}
        for removal, chosen, found in _curves(classifier, inputs, target, maps, chunk, removals):
            for number, row in enumerate(of_texts):
                told = {k: v for k, v in row.items() if k != "content"}
                told |= {"tokens": len(row["content"]), "removal": removal}
                for m, label in enumerate(chosen):
                    curve = {k: float(v[m, number]) for k, v in found._asdict().items()}
                    rows.append({**told, **label._asdict(), **compared[label][number], **curve})
    return in_order(rows)


def _maps(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    places: Sequence[str] | None,
    families: Sequence[str],
) -> dict[Label, Tensor]:
    model = classifier.model
    places = list(places or readouts(classifier.architecture))
    maps = {Label("loo"): leave_one_out(model, inputs, target=target, progress=False)}
    for method, composite in (("attnlrp", ATTN_LRP), ("cp-lrp", CP_LRP)):
        everywhere = lrp_everywhere(model, inputs, target=target, composite=composite)
        maps |= {Label(method, place): everywhere[place] for place in places}
    if families:
        maps |= LayerSweep(places, families).maps(model, inputs, target)
    return maps


def _curves(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    maps: dict[Label, Tensor],
    chunk: int,
    removals: Sequence[str],
) -> Iterator[tuple[str, list[Label], Perturbation]]:
    """Each removal, the labels of its maps, and their `Perturbation`, (maps, batch)."""
    for removal in removals:
        chosen = [label for label in maps if removal != "mask" or not label.family]
        scores = torch.stack([maps[label] for label in chosen])
        if removal == "attention-mask":
            found = perturbation_scores(classifier.model, inputs, scores, chunk, target=target)
        elif removal == "mask":
            found = replaced(classifier, inputs, scores, target)
        else:
            raise ValueError(f"removal={removal!r} is neither 'attention-mask' nor 'mask'")
        yield removal, chosen, found


@torch.inference_mode()
def replaced(
    classifier: Classifier, inputs: Inputs, scores: Tensor, target: Tensor
) -> Perturbation:
    """`perturbation_scores` where a token that goes is replaced by [MASK] instead of hidden."""
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
    return Perturbation(lerf, morf, lerf - morf)
