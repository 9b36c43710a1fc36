"""The gated product of SwiGLU, y = g ⊙ σ(g) ⊙ u, as a product of three with brackets.

g = W_g x, s = σ(g), u = W_u x. What σ gets it passes on to g (the identity rule), so that a tree's
shares say what the gate W_g x and the branch W_u x get, and a composite sends just that back.
"""

from __future__ import annotations

import pandas as pd
import torch

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.model.architectures import describe
from lrputils.model.forwards import replaced
from lrputils.model.handles import Handle
from lrputils.model.inputs import Inputs
from lrputils.model.readout import read
from lrputils.products import parse, shares
from lrputils.propagation.composites import ATTN_LRP
from lrputils.removal.leave_one_out import leave_one_out

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

    A row a bracketing: `gate`, `up`, and the same where s is a constant, as its node passes nothing
    back; `rule`, what `Composite.product` calls it.
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


def compared(model: Handle, inputs: Inputs) -> dict[str, pd.DataFrame]:
    """AttnLRP's r "with LOO" and "with (g * s) * u", (text, bracketing), without special tokens."""
    where, loo = inputs.content_mask, leave_one_out(model, inputs, progress=False)
    maps = {name: attribute(model, inputs, composite) for name, composite in COMPOSITES.items()}
    return {
        f"with {what}": pd.DataFrame({n: stats.pearson(m, other, where) for n, m in maps.items()})
        for what, other in {"LOO": loo, IMPLEMENTED: maps[IMPLEMENTED]}.items()
    }


def changed_without(model: Handle, inputs: Inputs) -> float:
    """The share of predictions that change where every SwiGLU block gives zero."""
    architecture = describe(model)
    kind, modules = architecture.kind, architecture.model.modules()
    blocks = [module for module in modules if kind.operation(module) == "product"]
    target = read(architecture, inputs).target
    with replaced(dict.fromkeys(blocks, lambda inner, x: torch.zeros_like(x))):
        return float((read(architecture, inputs).target != target).double().mean())
