"""What a calibrated estimate reaches on texts that its calibration has not seen, from an audit.

Its rows hold the exact leave-one-out of every text, and both maps that a calibration adds up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lrputils import stats
from lrputils.removal.calibration import fitted
from lrputils.removal.combined import Calibration, at_one_size, plain
from lrputils.report.audit import Audited
from lrputils.study.evaluation import REFERENCE

GROUPS, FOLDS = 2, 5
_MAPS = ("mask-gradient", "mask-gradient-2", REFERENCE)


class Calibrated(NamedTuple):
    """One open pass and half-removal, added by coefficients that are fitted on these texts.

    Attributes:
        how: the calibration, fitted on all texts.
        r: mean r with leave-one-out over a text's own tokens, each text held out in its fold.
        gain: r less that of the plain mean, which needs no exact map.
    """

    how: Calibration
    r: stats.Estimate
    gain: stats.Estimate

    @property
    def call(self) -> str:
        """The Python that computes the map."""
        numbers = ", ".join(f"{value:.3f}" for value in self.how.coefficients)
        how = f"lrp.Calibration(({numbers}), {self.how.groups}, {self.how.texts})"
        return f'lrp.attribute(clf, inputs, "mask-gradient", calibration={how})'

    def __str__(self) -> str:
        value, low, high = self.r[:3]
        gain, least, most = self.gain[:3]
        return (
            f"One pass and two groups, 9 passes, weighted by these texts' exact maps: "
            f"mean r {value:.2f} [{low:.2f}, {high:.2f}] on texts held out, n = "
            f"{self.r.used}. That is {gain:+.3f} [{least:+.3f}, {most:+.3f}] beside their plain "
            f"mean, which is fitted to nothing."
        )


def calibrated(run: Audited) -> Calibrated:
    """Fit a calibration on the texts of an audit, and judge it in folds."""
    maps = list(_maps(run))
    r, mean = [], []
    for number, (whole, grouped, exact, where) in enumerate(maps):
        fold = number % FOLDS
        how = fitted([m for i, m in enumerate(maps) if i % FOLDS != fold], GROUPS)
        shapes = at_one_size(whole, grouped, where, GROUPS)
        for found, coefficients in ((r, how.coefficients), (mean, plain(GROUPS))):
            scores = shapes @ shapes.new_tensor(coefficients)
            found.append(float(stats.pearson(scores, exact, where)[0]))
    gain = stats.paired_difference(r, mean)
    return Calibrated(fitted(maps, GROUPS), stats.estimate(r), gain)


def _maps(run: Audited) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Each text's open map, grouped map, exact map and own tokens, (1, tokens)."""
    rows = run.rows[(run.rows.family == "") & run.rows.method.isin(_MAPS)]
    for _, text in rows.groupby("position", sort=False):
        text = text.set_index("method")
        found = (torch.tensor(text.scores[name], dtype=torch.float64)[None] for name in _MAPS)
        yield (*found, torch.tensor(text.content.iloc[0], dtype=torch.bool)[None])
