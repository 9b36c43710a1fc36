"""What decides a run's rows, beside the model and the texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lrputils.attribution import METHODS
from lrputils.mistakes import about
from lrputils.model.architectures import describe
from lrputils.model.classifier import Classifier
from lrputils.model.readout import READOUTS, readouts, resolve_target
from lrputils.model.units import check_units
from lrputils.removal.certified import check_options
from lrputils.runs.options import check_numbers
from lrputils.study.agreement import refuse_unknown
from lrputils.study.evaluation import REFERENCE
from lrputils.study.variants import LayerSweep, Variant

LONG = ("cut", "refuse")
_LOO = 4  # what is set aside for a text, in leave-one-outs: an audit's variants take as much


@dataclass(frozen=True)
class Settings:
    """What decides the rows, beside the model and the texts.

    Attributes:
        methods: names from `lrputils.attribution.METHODS`; leave-one-out is among them anyway.
        readouts: where each method that has a choice is read, of `READOUTS` those that the model
            has; its usual one if not given.
        layers: AttnLRP with CP-LRP's rule in some layers too: each set of `LayerSweep`.
        curves: perturb the texts along every map, this many tokens at once.
        max_length: longest text in tokens; the model's own limit if not given.
        target: the class explained, a number or a label; the predicted one if not given.
        units: what is removed and scored: each "token", "word" or "sentence".
        labels: what a label of the texts is called in the model, as `{"Positive": "LABEL_1"}`.
        long: "cut" longer texts, or "refuse" to begin.
        shard: most texts of a shard: what a kill can lose, and what one rank takes at a time. Of
            long texts it has fewer, so that no more than about two minutes are lost.
        batch_size: texts a batch. Batches are formed inside a shard, so that the rows do not depend
            on who measured it.
        precision: of leave-one-out: see `lrputils.certified_loo`. Below float32 the rows have its
            `bound`.
        tolerance: texts whose bound is above it are measured in float32.
    """

    methods: tuple[str, ...] = ("attnlrp", "cp-lrp")
    max_length: int | None = None
    long: str = "cut"
    shard: int = 64
    batch_size: int = 16
    precision: str = "float32"
    tolerance: float = 0.002
    target: int | str | None = None
    units: str = "token"
    readouts: tuple[str, ...] | None = None
    layers: bool = False
    curves: int | None = None
    labels: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        names = tuple(METHODS.find(name).name for name in self.methods)
        object.__setattr__(self, "methods", names)
        check_numbers(vars(self))
        check_units(self.units)
        if self.units != "token" and self.precision != "float32":
            raise ValueError(
                about("units", self.units) + " are measured in float32: leave precision out"
            )
        refuse_unknown("readout", self.readouts or (), READOUTS)
        if self.long not in LONG:
            raise ValueError(about("long", self.long) + f" is not one of {list(LONG)}")

    def work(self, tokens: int) -> float:
        """Return how many tokens are read for a text of so many: by all methods, pass by pass."""
        passes = METHODS[REFERENCE].price(tokens)
        passes += sum(METHODS[name].price(tokens) for name in self.methods if name != REFERENCE)
        if self.curves:  # two along each map, on half of the text on average
            maps = 1 + len(self.methods) * len(self.readouts or ("word",))
            passes += maps * tokens / self.curves
        return tokens * max(passes, _LOO * tokens)

    def asked(
        self, classifier: Classifier, variants: Sequence[Variant | LayerSweep] = ()
    ) -> dict[str, Any]:
        """Return what `lrputils.evaluate` is asked for: the methods, and `variants` behind them.

        Raises:
            TypeError: a method whose rules do not cover the model.
            ValueError: an unknown class, or a precision that the model does not have.
        """
        if self.layers or any(METHODS[name].rules for name in self.methods):
            describe(classifier)
        methods: list[str | Variant | LayerSweep] = [*self.methods]
        had = set(readouts(classifier.architecture)) | {"word"}
        places = [place for place in self.readouts or ("word",) if place in had]
        if self.readouts:
            methods = [
                Variant(name, name, {"readout": place}) if place else name
                for name in self.methods
                for place in (places if "readout" in METHODS[name].options else [""])
            ]
        methods += [LayerSweep(places)] * self.layers
        classes = len(classifier.labels) or len(classifier.tokenizer)
        resolve_target(self.target, torch.zeros(1, classes), classifier.model)
        options = {}
        if self.precision != "float32":
            loo = {"precision": self.precision, "tolerance": self.tolerance}
            check_options(classifier.architecture, **loo)
            options[REFERENCE] = loo
        names = ("max_length", "batch_size", "target", "units")
        how = {name: getattr(self, name) for name in names}
        how |= {"options": options, "chunk": self.curves}
        return {"methods": (*methods, *variants), **how}
