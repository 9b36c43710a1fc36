"""What an audit measures of a classifier, and the checks of the rules on it.

What the rows answer is in `lrputils.report.audit_answers`, how it is said in `audit_sentences`, the
folder and the page in `audit`: each imports from those before it.
"""

from __future__ import annotations

import pandas as pd

from lrputils.attribution import METHODS, attribute
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import has_answers
from lrputils.model.readout import readouts
from lrputils.propagation.composites import is_covered
from lrputils.propagation.conservation import TOLERANCE, check
from lrputils.runs.settings import Settings
from lrputils.study.by_text import Run
from lrputils.study.evaluation import REFERENCE
from lrputils.study.variants import LayerSweep, Variant, at_every_readout

LRP = ("attnlrp", "cp-lrp")
# What is compared at its cost beside AttnLRP and CP-LRP, and what tables call it.
_COMPARED = {
    "grad-x-input": METHODS["grad-x-input"].label,
    "attention-x-grad": METHODS["attention-x-grad"].label,
    "mask-gradient": METHODS["mask-gradient"].label,
    "mask-gradient:groups=2": "Half-removal",
    "mask-gradient:groups=2:with_open=True": "Nine-pass map",
    "ig:steps=8": "Integrated Gradients, 8 steps",
    "budgeted-loo:budget=9": "Budgeted LOO, 9 passes",
    "budgeted-loo:budget=0.5": "Budgeted LOO, a half",
}
COMPARED = {variant.name: variant for variant in map(Variant.of, _COMPARED)}
_LABELS = dict(zip(COMPARED, _COMPARED.values(), strict=True))
GRADIENTS = ("ig steps=8", "grad-x-input")  # judged in place of `LRP` where a model has no rules
# A float32 sum of a batch of another shape differs in the last digits.
_ROUNDING = 1e-4


def variants(classifier: Classifier, settings: Settings) -> list[Variant | LayerSweep]:
    """Return what an audit measures of a text, beside leave-one-out by the attention mask.

    Layers are left out where curves are asked for: each of their many maps would have two.
    """
    removal = "delete" if classifier.tokenizer.mask_token_id is None else "mask"
    other = Variant.of(f"{REFERENCE}:removal={removal}", {"progress": False})
    ruled = is_covered(classifier)
    compared = [each for each in COMPARED.values() if ruled or not METHODS[each.method].rules]
    found: list[Variant | LayerSweep] = [other, *compared]
    if not ruled:
        return found
    lrp = at_every_readout(*LRP, model=classifier.model)
    found = [*lrp, *found]
    return found if settings.curves else [*found, LayerSweep(readouts(classifier.architecture))]


def label(name: str) -> str:
    """Return what tables call a method."""
    known = METHODS[name].label if name in METHODS else name  # another tool's has no label
    return _LABELS.get(name, known)


def call(name: str, readout: str, units: str = "token") -> str:
    """Return the Python that computes a method's map, an LRP map at a read-out.

    Of another tool's map it is the tool's name.
    """
    if name not in {*COMPARED, *METHODS}:
        return name
    variant = COMPARED.get(name) or Variant(name, name, {"readout": readout})
    options = {**variant.options, **({} if units == "token" else {"units": units})}
    given = "".join(f", {key}={value!r}" for key, value in options.items())
    return f'lrp.attribute(clf, inputs, "{variant.method}"{given})'


def judged(run: Run) -> tuple[str, str]:
    """Return the two methods of which an audit tells whether they track leave-one-out."""
    return LRP if run.rows.method.isin(LRP).any() else GRADIENTS


class Audited(Run):
    """The rows of an audit; ids may repeat in a data set, so texts go by their `position`.

    Attributes:
        rows: of `lrputils.runs.datasets.read`; `method` has the options behind the name.
        units: what is removed and scored.
        names: of the methods, leave-one-out last.
        tools: those of `names` whose maps another tool made.
    """

    def __init__(self, rows: pd.DataFrame, units: str = "token") -> None:
        self.units = units
        own = rows.method[~rows.method.isin([*METHODS, *COMPARED])].unique()
        self.tools = [name for name in own if not name.startswith(f"{REFERENCE} ")]
        if "options" in rows:
            names = (rows.method + " " + rows.options).str.strip()
            rows = rows.assign(method=names).drop(columns="options")
        self.rows = rows
        there = dict.fromkeys(rows.method)
        known = (*LRP, *COMPARED, *self.tools, REFERENCE)
        self.names = [name for name in known if name in there]

    def maps(self) -> pd.DataFrame:
        """Return the maps of LOO and the judged ones as `experiments.frame.read_maps` does."""
        removal = self.rows.method.str.extract(f"^{REFERENCE} removal=(.+)$")[0]
        rows = self.rows.assign(
            method=self.rows.method.mask(removal.notna(), REFERENCE),
            removal=removal.mask(self.rows.method == REFERENCE, "attention-mask").fillna(""),
            model="",
            data="",
            id=self.rows.position,
        )
        return rows[(rows.family == "") & rows.method.isin([REFERENCE, *judged(self)])]


def gates(classifier: Classifier, texts: Texts, max_length: int | None = None) -> pd.DataFrame:
    """Check a model's propagation rules, if it has some, and its batches on a few texts.

    Returns:
        A row a check: `off` by how much, `allowed`, and whether it `passed`.
    """
    inputs = classifier.encode(texts, max_length, truncate=True)
    ruled = is_covered(classifier)
    method = LRP[0] if ruled else GRADIENTS[1]
    together = attribute(classifier, inputs, method)
    apart = 0.0
    for text, row in zip(texts, together, strict=True):
        one = classifier.encode([text], max_length, truncate=True)
        alone = attribute(classifier, one, method)[0]
        change = (row[: len(alone)] - alone).abs().max() / alone.abs().max()
        apart = max(apart, float(change))
    rows = {"a batch gives what its texts give alone": (apart, _ROUNDING)}
    if ruled:
        # Of an answer the logits: a logarithm of all of them does not conserve.
        report = check(classifier.model, inputs, target="logit" if has_answers(inputs) else None)
        rows = {
            "the logits stay the same under the rules": (report.logit_change, _ROUNDING),
            "CP-LRP without constants conserves relevance": (report.words, TOLERANCE),
            **rows,
        }
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["off", "allowed"])
    return table.assign(passed=table.off <= table.allowed)
