"""What is evaluated: a method with given options, or the layer ablations of AttnLRP.

Each gives maps by name. How the maps compare with leave-one-out is in `lrputils.evaluation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from lrputils.architectures import describe
from lrputils.attribution import METHODS, attribute
from lrputils.inputs import Inputs
from lrputils.layerwise import layerwise_bypass
from lrputils.propagation import Composite
from lrputils.readout import READOUTS

FAMILIES = ("front", "back", "single")


@dataclass(frozen=True)
class Variant:
    """A method, or a composite, with given options and name."""

    name: str
    method: str | Composite
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.method, Composite) and self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}; choose from {list(METHODS)}")

    def maps(self, model: nn.Module, inputs: Inputs, target: Tensor) -> dict[str, Tensor]:
        """Return `{name: scores}`, scores (batch, tokens)."""
        return {self.name: attribute(model, inputs, self.method, target=target, **self.options)}


@dataclass(frozen=True)
class LayerSweep:
    """AttnLRP with CP-LRP's rule in some layers: the paper's ablations, Figure 2 and Table A3.

    The maps are called `front k` (CP-LRP's rule in layers 1 to k), `back k` (layers k to the last)
    and `single k` (layer k alone), layers counted from 1; away from the word embeddings with
    ` @ read-out` behind.

    Attributes:
        readout: "word", "sum" or "post-norm".
        families: which of `FAMILIES`.
    """

    readout: str = "word"
    families: Sequence[str] = FAMILIES

    def __post_init__(self) -> None:
        strays = [family for family in self.families if family not in FAMILIES]
        if strays or not self.families:
            raise ValueError(f"families={list(self.families)} are not among {list(FAMILIES)}")

    def maps(self, model: nn.Module, inputs: Inputs, target: Tensor) -> dict[str, Tensor]:
        """Return `{name: scores}` of all ablations, scores (batch, tokens)."""
        sets = layer_sets(describe(model).layers, self.families)
        scores = layerwise_bypass(
            model, inputs, list(sets.values()), target=target, readout=self.readout
        )
        place = "" if self.readout == "word" else f" @ {self.readout}"
        return {f"{name}{place}": rows for name, rows in zip(sets, scores, strict=True)}


def layer_sets(layers: int, families: Sequence[str] = FAMILIES) -> dict[str, frozenset[int]]:
    """Return the bypassed layers, counted from 0, of each ablation by its name in `LayerSweep`."""
    sets = {
        "front": lambda k: range(k),
        "back": lambda k: range(k - 1, layers),
        "single": lambda k: (k - 1,),
    }
    return {
        f"{family} {k}": frozenset(sets[family](k))
        for family in families
        for k in range(1, layers + 1)
    }


def at_every_readout(*methods: str, model: nn.Module | None = None) -> list[Variant]:
    """Return each method at each read-out, named `method @ read-out`.

    With a `model`, read-outs that it does not have are left out: "post-norm" in one without a
    LayerNorm behind its embeddings.
    """
    places = list(READOUTS)
    if model is not None and describe(model).embedding_norm is None:
        places.remove("post-norm")
    return [
        Variant(f"{method} @ {place}", method, {"readout": place})
        for method in methods
        for place in places
    ]
