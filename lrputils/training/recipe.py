"""A recipe: everything that decides which classifier a training gives.

The default shape is that of the classifier that comes with the package, whose recipe stands in the
help of `lrputils train` and in its card. Two trainings of one recipe on one machine give the same
weights, unless a time limit ends a stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

FINE_TUNING_RATE = 1e-4  # of a pretrained network
FROM_SCRATCH_RATE = 5e-4  # of one that has learned nothing yet
# What the progress and the card call the stages.
STAGES = {
    "pretraining": "masked-language-model pretraining",
    "shallow": "fine-tuning with fewer layers",
    "finetuning": "fine-tuning",
}
_TEXT_OPTIONS = {
    "name": str,
    "split": str,
    "text_column": str,
    "label_column": str,
    "min_words": int,
    "max_words": int,
    "limit": int,
    "seed": int,
    "revision": str,
    "sentences": int,
}


@dataclass(frozen=True)
class Source:
    """Texts to load: what `load_texts` takes, and what to call them.

    Attributes:
        dataset: a file, a folder, a name on the hub, or "reviews" and "reviews-long".
        options: keyword arguments of `load_texts`.
        name: what the card and the progress call them; what `load_texts` calls them if not given.
        sentences: divide the texts into sentences, from which `min_words`, `max_words`, `limit`
            and `seed` then choose.
    """

    dataset: str
    options: tuple[tuple[str, str | int], ...] = ()
    name: str | None = None
    sentences: bool = False

    @classmethod
    def parse(cls, text: str) -> Source:
        """Read `DATASET[,option=value…]`, as in `imdb/test.parquet,limit=2000,seed=0,name=IMDB`.

        Raises:
            ValueError: an option that there is not, or a value of the wrong kind.
        """
        dataset, *parts = text.split(",")
        options: dict[str, str | int] = {}
        for part in parts:
            key, equals, value = part.partition("=")
            if not equals or key not in _TEXT_OPTIONS:
                raise ValueError(
                    f"{part!r} in {text!r} is not an option of texts: write option=value, with one "
                    f"of {', '.join(_TEXT_OPTIONS)}"
                )
            try:
                options[key] = _TEXT_OPTIONS[key](value)
            except ValueError:
                raise ValueError(f"{key}={value!r} in {text!r} is not a whole number") from None
        name, sentences = options.pop("name", None), bool(options.pop("sentences", 0))
        return cls(dataset, tuple(options.items()), name, sentences)

    def __str__(self) -> str:
        """What `parse` reads; of a local path only the last folder and the file."""
        path = Path(self.dataset).expanduser()
        local = path.exists() or path.is_absolute() or self.dataset.startswith(".")
        dataset = "/".join(path.parts[-2:]) if local else self.dataset
        options = dict(self.options)
        if self.sentences:
            options["sentences"] = 1
        if self.name is not None:
            options["name"] = self.name
        return ",".join([dataset, *(f"{key}={value}" for key, value in options.items())])


@dataclass(frozen=True)
class Shape:
    """The network built from scratch, and its vocabulary.

    12 layers of 128 with 8,192 word pieces are 3.5 million parameters: 7 MB in half precision.
    """

    layers: int = 12
    hidden: int = 128
    head_size: int = 64
    vocabulary: int = 8192
    positions: int = 512


@dataclass(frozen=True)
class Stage:
    """How long and by which steps one stage learns.

    Attributes:
        epochs: passes over the texts.
        batch_tokens: tokens a batch, padding included.
        batch_rows: texts a batch at most.
        max_length: tokens a text, special ones included; longer texts are cut in pretraining
            into several, in fine-tuning after so many.
        learning_rate: the highest; it rises to there over the first `WARMUP` of the stage and
            falls linearly to zero at the end of it.
        minutes: the stage ends after this time, if its epochs take longer.
        dropout: of hidden states. A pretraining that sees each text a few times needs none.
    """

    epochs: int
    batch_tokens: int
    batch_rows: int
    max_length: int = 512
    learning_rate: float | None = None
    minutes: float | None = None
    dropout: float = 0.0


@dataclass(frozen=True)
class Shallow:
    """A start with fewer layers, to which others are then added.

    Pretraining and a first fine-tuning see the texts in a network of `layers`, several times as
    fast; the whole network's fine-tuning starts where it ended (`network.deepened`).

    Attributes:
        layers: at first; `None` for no such start.
        epochs: passes of the first fine-tuning over the texts.
        learning_rate: its highest.
        minutes: it ends after this time, if its epochs take longer.
        max_length: tokens a text in it; as in the whole network's fine-tuning if not given.
    """

    layers: int | None = None
    epochs: int = 2
    learning_rate: float = FROM_SCRATCH_RATE
    minutes: float | None = None
    max_length: int | None = None


@dataclass(frozen=True)
class Recipe:
    """What to learn from, what to build, how to train it.

    Attributes:
        train: labelled sets, mixed; all with the same labels.
        taught: texts that the teacher labels, mixed with the labelled ones.
        teacher: a classifier of the same classes, by name on the hub or folder.
        imitate: learn the teacher's hidden states, too.
        unlabelled: texts that give a network built from scratch the vectors it begins with, and
            that it is then pretrained on.
        evaluate: labelled sets whose accuracy is measured, after each epoch and at the end.
        labels: names of the classes in the order of the sorted labels; the labels themselves if
            not given.
        base: a BERT by name on the hub or folder, to start from instead of building one.
        shape: of the network built from scratch.
        shallow: how it begins with fewer layers.
        pretraining: the masked-language-model stage; with 0 epochs there is none.
        finetuning: the classification stage.
        seed: of the first weights, of dropout, masking and the order of texts.
    """

    train: tuple[Source, ...]
    taught: tuple[Source, ...] = ()
    teacher: str | None = None
    imitate: bool = False
    unlabelled: tuple[Source, ...] = ()
    evaluate: tuple[Source, ...] = (Source("reviews"), Source("reviews-long"))
    labels: tuple[str, ...] = ()
    base: str | None = None
    shape: Shape = field(default_factory=Shape)
    shallow: Shallow = field(default_factory=Shallow)
    pretraining: Stage = Stage(
        epochs=30, batch_tokens=8192, batch_rows=2048, max_length=256, learning_rate=1e-3
    )
    finetuning: Stage = Stage(
        epochs=4, batch_tokens=16384, batch_rows=128, max_length=256, dropout=0.1
    )
    seed: int = 0

    def checked(self) -> Recipe:
        """Return the recipe with every value decided.

        Raises:
            ValueError: a value out of range, or values that contradict each other.
        """
        if not self.train:
            raise ValueError("there is nothing to learn from: name at least one set with --train")
        if bool(self.taught) != bool(self.teacher):
            given, missing = ("taught", "teacher") if self.taught else ("teacher", "taught")
            raise ValueError(f"--{given} without --{missing}: name both, or neither")
        if self.imitate and not self.teacher:
            raise ValueError("--imitate without --teacher: there are no hidden states to match")
        if self.base and self.unlabelled and not self.pretraining.epochs:
            raise ValueError(
                f"base={self.base!r} learns nothing from --unlabelled texts with --mlm-epochs 0: "
                "leave out one or the other"
            )
        self._check_shape()
        for name, stage in self.stages().items():
            _check_stage(stage, name, self.shape.positions)
        if self.finetuning.learning_rate is not None:
            return self
        pretrained = "pretraining" in self.stages() or self.base
        rate = FINE_TUNING_RATE if pretrained else FROM_SCRATCH_RATE
        return replace(self, finetuning=replace(self.finetuning, learning_rate=rate))

    def stages(self) -> dict[str, Stage]:
        """Return the stages that take place, by name."""
        pretrained = self.unlabelled and self.pretraining.epochs
        stages = {"pretraining": self.pretraining} if pretrained else {}
        if self.shallow.layers is not None:
            stages["shallow"] = replace(
                self.finetuning,
                epochs=self.shallow.epochs,
                learning_rate=self.shallow.learning_rate,
                minutes=self.shallow.minutes,
                max_length=self.shallow.max_length or self.finetuning.max_length,
            )
        return {**stages, "finetuning": self.finetuning}

    def _check_shape(self) -> None:
        shape, first = self.shape, self.shallow.layers
        if self.base is not None and (shape != Shape() or first is not None):
            given = [f.name for f in fields(Shape) if getattr(shape, f.name) != f.default]
            given += [] if first is None else ["shallow layers"]
            raise ValueError(
                f"base={self.base!r} decides {', '.join(given)}: leave out one or the other"
            )
        _check_positive(shape, ("layers", "hidden", "head_size", "vocabulary", "positions"), "")
        if shape.hidden % shape.head_size:
            raise ValueError(
                f"hidden={shape.hidden} does not divide into heads of head_size={shape.head_size}"
            )
        if first is not None and not 0 < first < shape.layers:
            raise ValueError(
                f"shallow layers={first} must be above 0 and below the {shape.layers} of the whole"
            )


@dataclass(frozen=True)
class Conditions:
    """What does not change the recipe: where and how a training runs.

    Attributes:
        device: "auto" takes the GPU if there is one; "cpu" does not.
        checkpoint_minutes: what an interrupted run loses at most.
        uniform_attention: measure also how far accuracy falls with uniform attention.
        quiet: no progress.
    """

    device: str = "auto"
    checkpoint_minutes: float = 2.0
    uniform_attention: bool = True
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu"):
            raise ValueError(f"device={self.device!r} is neither 'auto' nor 'cpu'")
        if self.checkpoint_minutes < 0:
            raise ValueError(f"checkpoint_minutes={self.checkpoint_minutes} is below 0")


def _check_positive(value: object, names: tuple[str, ...], where: str) -> None:
    for name in names:
        number = getattr(value, name)
        if number is not None and not number > 0:
            raise ValueError(f"{name}={number}{where} must be above 0")


def _check_stage(stage: Stage, name: str, positions: int) -> None:
    numbers = ("epochs", "batch_tokens", "batch_rows", "learning_rate", "minutes")
    _check_positive(stage, numbers, f" of {name}")
    if not 3 <= stage.max_length <= positions:
        raise ValueError(
            f"max_length={stage.max_length} of {name} must be from 3 to the {positions} positions "
            "of the network"
        )
    if not 0 <= stage.dropout < 1:
        raise ValueError(f"dropout={stage.dropout} of {name} must be at least 0 and below 1")
    if stage.batch_tokens < stage.max_length:
        raise ValueError(
            f"batch_tokens={stage.batch_tokens} of {name} is less than one text of "
            f"max_length={stage.max_length}"
        )
