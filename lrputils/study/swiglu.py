"""The gated product of SwiGLU, y = g ⊙ σ(g) ⊙ u, as a product of three with brackets.

g = W_g x, s = σ(g), u = W_u x. What σ gets it passes on to g (the identity rule), so that a tree's
shares say what the gate W_g x and the branch W_u x get, and a composite sends just that back.
"""

from __future__ import annotations

import pandas as pd

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.products import parse, shares
from lrputils.propagation.composites import ATTN_LRP
from lrputils.study.evaluation import evaluate
from lrputils.study.variants import Variant

IMPLEMENTED = "(g * s) * u"
# A bracketing → the composite that follows it. The first is AttnLRP's.
BRACKETINGS = {
    IMPLEMENTED: ATTN_LRP,
    "g * (s * u)": ATTN_LRP.but(product="quarter-up"),
    "(g * u) * s": ATTN_LRP.but(product="quarter-up"),
    "product(g, s, u)": ATTN_LRP.but(product="third-up"),
}
HELD = "gate held constant"
COMPOSITES = {**BRACKETINGS, HELD: ATTN_LRP.but(product="gate-held")}


def table() -> pd.DataFrame:
    """Which share of y's relevance the gate (g and s) and u get, by bracketing.

    Returns:
        a row a bracketing: `gate`, `up`, and the same where s is a constant, as its node passes
        nothing back; `rule`, what `Composite.product` calls it.
    """
    rows = {}
    for expression, composite in BRACKETINGS.items():
        tree = parse(expression, dict.fromkeys("gsu", 1))
        whole, fixed = shares(tree), shares(tree, constant="s")
        rows[expression] = {
            "gate": float(whole["g"] + whole["s"]),
            "up": float(whole["u"]),
            "gate, σ constant": float(fixed["g"]),
            "up, σ constant": float(fixed["u"]),
            "rule": composite.product,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def compared(
    classifier: Classifier, texts: Texts, max_length: int | None = None
) -> dict[str, pd.DataFrame]:
    """AttnLRP's maps under each bracketing, special tokens left out.

    Returns:
        "with LOO" and "with (g * s) * u": r, (text, bracketing).
    """
    variants = [Variant(name, composite) for name, composite in COMPOSITES.items()]
    how = {"max_length": max_length, "truncate": True, "progress": False}
    found = evaluate(classifier, texts, variants, **how)
    pairs = {
        name: [
            stats.pearson(one[words], other[words])[0]
            for one, other, words in zip(
                found.maps[name], found.maps[IMPLEMENTED], found.content, strict=True
            )
        ]
        for name in COMPOSITES
    }
    return {
        "with LOO": found.per_text("r_content", list(COMPOSITES)),
        f"with {IMPLEMENTED}": pd.DataFrame(pairs),
    }
