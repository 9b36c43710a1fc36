"""What is evaluated: a method with given options, or the layer ablations of AttnLRP.

Each gives maps by label. How the maps compare with leave-one-out is in `lrputils.study.evaluation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from lrputils.attribution import METHODS, attribute
from lrputils.mistakes import one_of
from lrputils.model.architectures import describe
from lrputils.model.inputs import Inputs
from lrputils.model.proof import laid_out
from lrputils.model.readout import READOUTS, readouts
from lrputils.propagation.composites import Composite
from lrputils.propagation.layerwise import bypass_at
from lrputils.removal.mask_gradient import BOTH

ABLATIONS = ("front", "back", "single")


class Label(NamedTuple):
    """Which map it is: columns of an evaluation's rows.

    `readout` is "word" for a method without a choice; `family` of an ablation, one of `ABLATIONS`,
    and `layer` its k, from 1; "" and 0 otherwise.
    """

    method: str
    readout: str = "word"
    family: str = ""
    layer: int = 0


def spelled(options: Mapping[str, Any]) -> str:
    """Return a method's options as rows have them: "groups=2, with_open=True"."""
    return ", ".join(f"{name}={value}" for name, value in options.items())


@dataclass(frozen=True)
class Variant:
    """A method, or a composite, with given options and name."""

    name: str
    method: str | Composite
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.method, Composite):
            METHODS.find(self.method)

    @classmethod
    def of(cls, text: str, options: Mapping[str, Any] = MappingProxyType({})) -> Variant:
        """Make one of what `METHODS.setting` reads, its options behind the given ones."""
        found, named = METHODS.setting(text)
        return cls(f"{found.name} {spelled(named)}".strip(), found.name, {**options, **named})

    @property
    def label(self) -> Label:
        """Its name and read-out."""
        return Label(self.name, self.options.get("readout", "word"))

    @property
    def columns(self) -> tuple[str, str]:
        """Its method and options, as rows have them."""
        method, _, options = self.name.partition(" ")
        return method, options

    def passes(self, tokens: int) -> float:
        """Return how many forward passes a text of so many tokens takes, see `Method`."""
        if isinstance(self.method, Composite):
            return BOTH
        return METHODS.find(self.method).passes(tokens, self.options)

    def maps(
        self, model: nn.Module, inputs: Inputs, target: Tensor, units: str = "token"
    ) -> dict[Label, Tensor]:
        """Return `{label: scores}`, scores (batch, tokens)."""
        given = {"target": target, "units": units, **self.options}
        return {self.label: attribute(model, inputs, self.method, **given)}


@dataclass(frozen=True)
class LayerSweep:
    """AttnLRP with CP-LRP's rule in some layers: the paper's ablations, Figure 2 and Table A3.

    Layers are counted from 1: "front" k has CP-LRP's rule in layers 1 to k, "back" k in layers k to
    the last, "single" k in layer k alone. `readout` may be several of them.
    """

    readout: str | Sequence[str] = "word"
    families: Sequence[str] = ABLATIONS

    def __post_init__(self) -> None:
        for family in self.families or ("",):
            one_of("families", family, ABLATIONS)

    def passes(self, tokens: int) -> float:
        """Return the forward passes of one ablation's map: AttnLRP's."""
        return METHODS.find("attnlrp").passes(tokens)

    def maps(
        self, model: nn.Module, inputs: Inputs, target: Tensor, units: str = "token"
    ) -> dict[Label, Tensor]:
        """Return `{label: scores}` of all ablations, scores (batch, tokens)."""
        sets = layer_sets(laid_out(model).layers, self.families)
        places = [self.readout] if isinstance(self.readout, str) else self.readout
        found = bypass_at(places, model, inputs, list(sets.values()), target)
        if units != "token":
            found = {place: inputs.units(units).sum(maps) for place, maps in found.items()}
        return {
            Label("attnlrp", place, family, k): scores
            for place in places
            for (family, k), scores in zip(sets, found[place], strict=True)
        }


def layer_sets(
    layers: int, families: Sequence[str] = ABLATIONS
) -> dict[tuple[str, int], frozenset[int]]:
    """Return the bypassed layers, counted from 0, of each ablation (family, k) of `LayerSweep`."""
    sets = {
        "front": lambda k: range(k),
        "back": lambda k: range(k - 1, layers),
        "single": lambda k: (k - 1,),
    }
    return {
        (family, k): frozenset(sets[family](k)) for family in families for k in range(1, layers + 1)
    }


def at_every_readout(*methods: str, model: nn.Module | None = None) -> list[Variant]:
    """Return each method at each read-out, of those that `model` has if it is given."""
    places = list(READOUTS) if model is None else readouts(describe(model))
    return [Variant(method, method, {"readout": place}) for method in methods for place in places]
