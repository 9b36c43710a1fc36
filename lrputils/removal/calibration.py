"""How one open pass and half-removal add up to leave-one-out, fitted on a few texts.

To train a cheap estimate on exact attributions is amortised attribution (Jethani et al., 2022; Yang
et al., 2023; Covert et al., 2024), here of four coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lrputils.model.classifier import Classifier
from lrputils.removal.combined import Calibration, at_one_size, plain
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.mask_gradient import mask_gradient

# In units of the features' mean square.
_RIDGE = 0.1


def calibrate(
    classifier: Classifier,
    texts: Sequence[str],
    *,
    groups: int = 2,
    max_length: int | None = None,
    batch_size: int = 16,
) -> Calibration:
    """Fit the coefficients that `attribute(clf, inputs, "mask-gradient", calibration=…)` takes.

    Five texts are enough. Coefficients found on one data set or model suit others nearly as well.

    Args:
        classifier: from `lrputils.load_classifier`.
        texts: like those to be explained. Each costs its exact leave-one-out.
        groups: of half-removal, as in `mask_gradient`.
        max_length: longer texts are cut to this many tokens.
        batch_size: texts a batch.

    Raises:
        ValueError: no texts, or what `leave_one_out` refuses.
    """
    maps = []
    for start in range(0, len(texts), batch_size):
        some = list(texts[start : start + batch_size])
        inputs = classifier.encode(some, max_length, truncate=True)
        exact = leave_one_out(classifier, inputs, progress=False)
        whole, grouped = (mask_gradient(classifier, inputs, groups=k) for k in (None, groups))
        maps += zip(whole, grouped, exact, inputs.content_mask, strict=True)
    if not maps:
        raise ValueError("a calibration needs texts, five or more")
    return fitted([tuple(x[None] for x in text) for text in maps], groups)


def fitted(maps: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], groups: int) -> Calibration:
    """Fit by ridge regression over all tokens, drawn towards the plain mean and not towards zero.

    Each text's open map, grouped map, exact map and the tokens that count, (1, tokens) each; in
    every text features and exact map are brought to size one first.
    """
    features, exact = [], []
    for whole, grouped, loo, where in maps:
        where = where.to(whole.device)
        shapes = at_one_size(whole.double(), grouped.double(), where, groups)[where]
        target = loo.double().to(whole.device)[where]
        sizes = shapes[:, 0].abs().mean(), target.abs().mean()
        if all(sizes):
            features.append(shapes / sizes[0])
            exact.append(target / sizes[1])
    start = torch.tensor(plain(groups), dtype=torch.float64)
    if features:
        x, y = torch.cat(features).cpu(), torch.cat(exact).cpu()
        square, off = x.T @ x / len(y), x.T @ (y - x @ start) / len(y)
        start = start + torch.linalg.solve(square + _RIDGE * torch.eye(4).double(), off)
    return Calibration(tuple(start.tolist()), groups, len(maps))
