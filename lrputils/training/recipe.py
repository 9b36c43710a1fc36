"""A recipe: all that decides which classifier a training gives.

The fields of `Recipe` are the options of `lrputils train`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lrputils.runs.options import flag

PRETRAINED_RATE, FROM_SCRATCH_RATE = 5e-5, 5e-4  # learning rates, the highest
_SHAPE = ("vocabulary", "layers", "hidden", "heads", "dropout")  # of a network from scratch


@dataclass(frozen=True)
class Recipe:
    """What to learn from, what to build, how to train it; each field is an option.

    Two trainings of one recipe on one machine give the same weights, also if one was killed.

    Attributes:
        data (DATA): labelled texts to learn from
        validation (DATA): labelled texts to measure on (default: a tenth of --data, held out)
        columns (TEXT,LABEL): of texts (pairs: A,B) and labels (default: usual)
        labels: names of the classes, in order of the sorted labels
        base (MODEL): a model to fine-tune: hub name or folder
        vocabulary: word pieces, at most
        layers: layers of the network
        hidden: its width; feed-forward blocks are four times as wide
        heads: attention heads a layer
        dropout: of hidden states, in a network from scratch
        max_length: tokens a text; the rest is cut
        epochs: passes over --data
        learning_rate: the highest in fine-tuning (default: 5e-05 for a pretrained network, 0.0005
            from scratch)
        batch: texts a batch
        seed: of first weights, dropout and the order of texts
    """

    data: str
    validation: str | None = None
    columns: str = ""
    labels: Sequence[str] = ()
    base: str | None = None
    vocabulary: int = 8192
    layers: int = 6
    hidden: int = 128
    heads: int = 2
    dropout: float = 0.1
    max_length: int = 256
    epochs: float = 4.0
    learning_rate: float | None = None
    batch: int = 32
    seed: int = 0

    def check(self) -> None:
        """Refuse values out of range, or that contradict each other.

        Raises:
            ValueError: names the option.
        """
        for name, value in asdict(self).items():
            may_be_zero = name in ("seed", "dropout")
            if isinstance(value, int | float) and (value < 0 or not (value or may_be_zero)):
                raise ValueError(f"{flag(name)} {value} must be above 0")
        if self.dropout >= 1:
            raise ValueError(f"--dropout {self.dropout} must be below 1")
        if self.hidden % self.heads:
            raise ValueError(f"--hidden {self.hidden} does not divide into --heads {self.heads}")
        given = [flag(name) for name in _SHAPE if getattr(self, name) != getattr(Recipe, name)]
        if self.base and given:
            raise ValueError(f"--base {self.base} decides {', '.join(given)}: leave out either")

    @property
    def rate(self) -> float:
        """The highest learning rate of fine-tuning."""
        return self.learning_rate or (PRETRAINED_RATE if self.base else FROM_SCRATCH_RATE)
