"""What is measured of a model before its answers to changed texts are believed.

Of a model without rules it is known that it takes ids and an attention mask, and no more. So it is
measured that the mask hides, that positions do not move with it, that an empty text is empty, that
texts can share a batch, and that the same text gives the same answer later. Families with shortcuts
are known to do all this. It takes some twenty passes of one text, once a model, and once more when
texts are twice as long.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lrputils.model.architectures import Architecture
from lrputils.model.forwards import ArgumentRow, run, run_rows
from lrputils.model.inputs import Inputs, checked_tensors, to_the_left


@dataclass(frozen=True)
class _Proof:
    """What was measured of a model.

    Attributes:
        together: whether a text beside a longer one, padded, gives what it gives alone.
        start: the first token's position, where the model takes positions and counts from there;
            None where they are left to the model.
        reads: why masking does not remove, as "reads what its attention mask hides"; empty where
            it does.
        empty: whether a text that is masked altogether gives the same whatever its words were.
    """

    together: bool = True
    start: int | None = None
    reads: str = ""
    empty: bool = True


# What was measured of each model, by the state in which it was.
_facts: WeakKeyDictionary[nn.Module, dict[Hashable, Any]] = WeakKeyDictionary()

_Fact = TypeVar("_Fact")


def measured(model: nn.Module, state: Hashable, measure: Callable[[], _Fact]) -> _Fact:
    """Return what `measure` finds in a model, found once as long as its state is the same."""
    facts = _facts.setdefault(model, {})
    if state not in facts:
        facts[state] = measure()
    return facts[state]


def prove(architecture: Architecture, row: ArgumentRow) -> _Proof:
    """Measure the model on a text of at least this one's length, if that was not done before.

    Raises:
        ValueError: the model does not run on its own, or the same text gives other logits when it
            comes again.
    """
    if architecture.known:
        return _Proof()
    # The next power of two, if it can.
    size = 1 << max(3, (len(row["input_ids"]) - 1).bit_length())
    size = min(size, architecture.max_positions or size)
    # What a user may change between two calls.
    words, kernel = architecture.word_embeddings.weight, architecture.config._attn_implementation

    def measure() -> _Proof | str:
        try:
            with torch.no_grad():
                return _Measurement(architecture, row["input_ids"], size).proof()
        except ValueError as error:
            return str(error)

    state = "masks and positions", words.dtype, kernel, size
    proof = measured(architecture.model, state, measure)
    if isinstance(proof, str):
        raise ValueError(proof)
    return proof


def prove_batch(architecture: Architecture, inputs: Mapping[str, Any]) -> _Proof:
    """`prove` on the longest text of a batch."""
    if architecture.known:
        return _Proof()
    ids, mask = (part.cpu().numpy() for part in checked_tensors(inputs))
    longest = mask.sum(1).argmax()
    return prove(architecture, {"input_ids": ids[longest][mask[longest] > 0]})


def alone(inputs: Mapping[str, Any]) -> list[tuple[Inputs, Tensor]]:
    """Each text of a batch as a batch of its own without padding, and where it stood, (tokens,)."""
    whole = Inputs.of(to_the_left(inputs))
    return [(whole.rows([n]), own) for n, own in enumerate(checked_tensors(inputs)[1].bool())]


def run_batch(architecture: Architecture, inputs: Mapping[str, Any]) -> Tensor:
    """Logits (batch, classes) of encoded texts, each by itself where they cannot share a batch."""
    together = prove_batch(architecture, inputs).together
    batches = [inputs] if together else [one for one, _ in alone(inputs)]
    return torch.cat([run(architecture, architecture.arguments(batch)) for batch in batches])


def ends(architecture: Architecture) -> np.ndarray:
    """The tokens by which the model may find a text's end, as numbers."""
    end = getattr(architecture.config, "eos_token_id", None)
    return np.atleast_1d(np.array([] if end is None else end))


class _Counting(TorchFunctionMode):
    """Sees whether something is counted up along a text, as positions are by a mask."""

    seen = False

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen |= getattr(function, "__name__", "") == "cumsum"
        return function(*args, **(kwargs or {}))


class _Measurement:
    """The passes of a proof, on a text that is made of the words of a given one."""

    def __init__(self, architecture: Architecture, ids: np.ndarray, size: int):
        self.architecture = architecture
        self.name = type(architecture.model).__name__
        inner = ids[1:-1][~np.isin(ids[1:-1], ends(architecture))]
        inner = inner if len(inner) else ids[:1]
        self.ids = np.concatenate([ids[:1], np.resize(inner, max(1, size - 2)), ids[-1:]])
        self.short = np.delete(self.ids, np.arange(1, 1 + len(self.ids) // 8))
        # Every second word goes.
        self.gone = np.arange(1, len(self.ids) - 1, 2)
        self.start: int | None = None

    def _row(
        self, ids: np.ndarray, hidden: Sequence[int] = (), positions: int | None = None
    ) -> ArgumentRow:
        mask = np.ones_like(ids)
        mask[np.asarray(hidden, int)] = 0
        fields = {"input_ids": ids, "attention_mask": mask}
        if self.architecture.kind.token_types:
            fields["token_type_ids"] = np.zeros_like(ids)
        start = self.start if positions is None else positions
        return fields if start is None else fields | {"position_ids": start + np.arange(len(ids))}

    def run(self, *rows: ArgumentRow) -> Tensor:
        """Logits (rows, classes)."""
        try:
            return run_rows(self.architecture, rows)
        except (RuntimeError, TypeError, IndexError, AttributeError, KeyError) as error:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"{self.name} does not run on {len(rows)} plain text(s) of ids and an attention "
                f"mask: {said}"
            ) from error

    def proof(self) -> _Proof:
        model, ids = self.architecture.model, self.ids
        modules = [*model.modules()]
        before, whole = self.run(self._row(self.short)), self.run(self._row(ids))
        without = self.run(self._row(np.delete(ids, self.gone)))
        self.allowed = 1e-3 * (whole - without).abs().max()
        self.allowed += 10 * torch.finfo(before.dtype).eps * max(1.0, float(whole.abs().max()))
        if [*model.modules()] != modules or not self._same(before, self.run(self._row(self.short))):
            raise ValueError(
                f"{self.name} changes when it runs: after a text of {len(ids)} tokens a shorter "
                "one does not give the logits of before, so that nothing can be compared. Pass "
                "shorter texts, or load it anew with a configuration that does not depend on "
                "earlier texts, as attention_type='original_full' or rope_type='default'"
            )
        self.start = self._counted(whole)
        reads = self._reads(without)
        # Under the mask a query may see less than usual, as that of the head's own token.
        together = self._shares() and (bool(reads) or self._shares([0, len(self.short) - 1]))
        return _Proof(together, self.start, reads, empty=not reads and self._is_empty(together))

    def _same(self, one: Tensor, other: Tensor) -> bool:
        """Whether logits differ by less than a thousandth of what removing half of a text does."""
        return bool((one - other).abs().max() <= self.allowed)

    def _counted(self, whole: Tensor) -> int | None:
        """The position of the first token, found by trying."""
        model = self.architecture.model
        pad = getattr(self.architecture.config, "pad_token_id", None)
        if "position_ids" not in inspect.signature(model.forward).parameters:
            return None
        for start in dict.fromkeys((0, (pad or 0) + 1)):
            with suppress(ValueError):
                if self._same(whole, self.run(self._row(self.ids, positions=start))):
                    return start
        return None

    def _shares(self, hidden: Sequence[int] = ()) -> bool:
        """Whether a text with such places hidden is the same beside a longer one, and the other."""
        pad = getattr(self.architecture.config, "pad_token_id", None)
        if self.architecture.reads_end and pad is None:
            return False  # it finds the end of a text by its padding
        rows = self._row(self.ids), self._row(self.short, hidden)
        return self._same(self.run(*rows), torch.cat([*map(self.run, rows)]))

    def _reads(self, without: Tensor) -> str:
        if self.architecture.config.is_encoder_decoder:  # a decoder has no part of the mask
            return "reads what its attention mask hides"
        with _Counting() as counting:
            first, second = self._hidden(self.gone)
        if not self._same(first, second):
            return "reads what its attention mask hides"
        # To a model without positions too a hidden token is as none.
        moved = self._same(first, without) and counting.seen
        return "counts positions by its attention mask" if moved else ""

    def _is_empty(self, together: bool) -> bool:
        with suppress(ValueError):  # NaN
            same = self._same(*self._hidden(np.arange(len(self.ids))))
            return same and (not together or self._shares(range(len(self.short))))
        return False

    def _hidden(self, places: np.ndarray) -> list[Tensor]:
        """Logits of the text with places hidden, under either of two words at every second one."""
        middle, found = self.architecture.config.vocab_size // 2, []
        for word in (middle, middle + 1):  # special tokens stand at either end
            ids = self.ids.copy()
            ids[self.gone] = word
            found.append(self.run(self._row(ids, places)))
        return found
