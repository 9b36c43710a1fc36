"""What a run is of, and what decides its rows: in Python, and as options of the command line.

Every name, default and sentence stands here alone. Nothing heavy is imported before it is needed,
so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from lrputils.mistakes import about, one_of
from lrputils.runs.options import LISTED, Names, check_numbers

if TYPE_CHECKING:
    from lrputils.data.texts import TextStream
    from lrputils.model.classifier import Classifier
    from lrputils.study.variants import LayerSweep, Variant


@dataclass(frozen=True)
class Chosen:
    """A classifier and texts.

    Attributes:
        model: folder or hub name, also name@revision (default: embedded)
        dataset: file, folder, hub name (default: reviews)
        subset: a data set's configuration, where it has several
        split: of the data set
        text_column: of texts, or A,B of pairs (default: usual)
        label_column: of labels (default: usual names)
        answers: of a language model's answers, to be explained; own: what it says itself
        limit: at most this many texts
        seed: draw the texts by this seed
        device: auto (a GPU if there is one), cpu, cuda:1
        template: a prompt with {text}, by which a language model is a classifier
        verbalizers: the classes in such a model's own words, a token each, as ' bad, good'
        calibrate: set its thresholds on the first N texts, whose labels are not read
    """

    model: str | None = None
    dataset: str | None = None
    subset: str | None = None
    split: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    answers: str | None = None
    limit: int | None = None
    seed: int | None = None
    device: str = "auto"
    template: str | None = None
    verbalizers: str | None = None
    calibrate: int | None = None

    @property
    def of_texts(self) -> dict[str, Any]:
        """How the texts are chosen from the data set."""
        names = ("subset", "split", "text_column", "label_column", "answers", "limit", "seed")
        return {name: getattr(self, name) for name in names}

    def load(self) -> tuple[Classifier, TextStream]:
        """Return the classifier and the stream of texts."""
        from lrputils.data.texts import stream_texts

        texts = stream_texts(self.dataset, **self.of_texts)  # what is not there is refused at once
        from lrputils.model.classifier import load_classifier
        from lrputils.model.readout import NO_ANSWERS

        classifier = load_classifier(
            self.model,
            device=self.device,
            template=self.template,
            verbalizers=self.verbalizers,
            calibrate_on=next(texts.parts(self.calibrate)) if self.calibrate else None,
        )
        if self.answers and not classifier.architecture.language_model:
            raise ValueError(f"{type(classifier.model).__name__} {NO_ANSWERS}")
        return classifier, replace(texts, each=classifier.answered) if self.answers else texts


@dataclass(frozen=True)
class Drawn(Chosen):
    """A classifier, and some texts of a data set.

    Attributes:
        limit: so many texts
        seed: draw the texts by this seed
    """

    limit: int | None = 200
    seed: int | None = 0


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What is explained of each text.

    Attributes:
        target: explain this class, a number or label (default: the predicted)
        units: what is removed and scored: token, word or sentence
        scores: files of other tools' maps, to be compared as the methods are: columns id or text,
            tokens, scores; in Python also a mapping of names to tables
        labels: what labels are called in the model, as Positive=LABEL_1; in Python also a mapping
        max_length: cut texts to N tokens (default: the model's own limit)
        batch_size: texts a batch; batches are formed inside a part, so that the rows do not depend
            on who measured it
    """

    target: str | int | None = None
    units: str = "token"
    scores: Annotated[tuple[str, ...] | Mapping[str, Any] | None, LISTED] = None
    labels: Annotated[tuple[str, ...] | Mapping[str, str] | None, LISTED] = None
    max_length: int | None = None
    batch_size: int = 16

    def __post_init__(self) -> None:
        from lrputils.model.units import check_units

        check_numbers(vars(self))
        check_units(self.units)
        if isinstance(self.labels, tuple):
            pairs = [pair.partition("=") for pair in self.labels]
            for label in (label for label, equals, _ in pairs if not equals):
                raise ValueError(
                    about("labels", label) + ": write label=class, as Positive=LABEL_1"
                )
            named = {label.strip(): name.strip() for label, _, name in pairs}
            object.__setattr__(self, "labels", named or None)


@dataclass(frozen=True)
class Settings(Explained):
    """What decides the rows, beside the model and the texts.

    Attributes:
        methods: beside loo; see lrputils.METHODS. With options: mask-gradient:groups=2
        readouts: where LRP is read, of word, sum, post-norm those that the model has (default: each
            method's own)
        layers: also AttnLRP with CP-LRP's rule in some layers, each set of Table A3
        curves: remove N tokens at once along every map, the most or the least relevant first:
            columns morf, lerf, delta and the curves
        part_size: texts a part; a kill loses the part that is open (default: a tenth of the
            texts, 64 at most; in a folder that has parts their size)
    """

    methods: Names = ("attnlrp", "cp-lrp")
    readouts: Names | None = None
    layers: bool = False
    curves: int | None = None
    part_size: int | None = None

    def __post_init__(self) -> None:
        from lrputils.attribution import METHODS
        from lrputils.model.readout import READOUTS

        super().__post_init__()
        found = [(METHODS.setting(text)[0].name, text.partition(":")) for text in self.methods]
        names = tuple(name + colon + given for name, (_, colon, given) in found)
        object.__setattr__(self, "methods", names)
        for place in self.readouts or ():
            one_of("readouts", place, READOUTS)

    def asked(
        self, classifier: Classifier, variants: Sequence[Variant | LayerSweep] = ()
    ) -> dict[str, Any]:
        """Return what `lrputils.evaluate` is asked for: the methods, and `variants` behind them.

        Raises:
            TypeError: a method whose rules do not cover the model.
            ValueError: an unknown class.
        """
        import torch

        from lrputils.attribution import METHODS
        from lrputils.model.readout import ANSWER_OUTPUTS, readouts, resolve_target
        from lrputils.propagation.composites import covered
        from lrputils.study.supplied import supplied
        from lrputils.study.variants import LayerSweep, Variant

        if self.layers or any(METHODS.setting(text)[0].rules for text in self.methods):
            covered(classifier)
        methods: list[str | Variant | LayerSweep] = [*self.methods]
        had = set(readouts(classifier.architecture)) | {"word"}
        places = [place for place in self.readouts or ("word",) if place in had]
        if self.readouts:
            methods = [
                Variant.of(text, {"readout": place} if place else {})
                for text in self.methods
                for place in (places if "readout" in METHODS.setting(text)[0].options else [""])
            ]
        methods += [LayerSweep(places)] * self.layers
        classes = len(classifier.labels) or len(classifier.tokenizer)
        if not (classifier.architecture.language_model and self.target in ANSWER_OUTPUTS):
            resolve_target(self.target, torch.zeros(1, classes), classifier.model)
        names = ("max_length", "batch_size", "target", "units")
        how = {name: getattr(self, name) for name in names}
        how |= {"chunk": self.curves, "truncate": True}
        return {"methods": (*methods, *variants, *supplied(self.scores)), **how}
