"""Texts of which any set of units is left, and f of them: what every exact removal is made of.

A unit is a set of tokens that go at once, by default a single token; f is the explained output.
Leave-one-out, pairs, Shapley values and perturbation curves are values of f at sets of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrputils.model.architectures import Architecture
from lrputils.model.inputs import Inputs, check_token, has_answers, special_tokens, to_the_left
from lrputils.model.readout import (
    ANSWER_OUTPUTS,
    Target,
    explained,
    probabilities,
    resolve_output,
    resolve_target,
)
from lrputils.model.units import Spans, check_units
from lrputils.progress import bar
from lrputils.removal.packing import beginnings_of, evaluate
from lrputils.removal.rows import Row, Text, split, window

REMOVALS = ("attention-mask", "mask", "pad", "unk", "zero", "delete")
OUTPUTS = ("logit", "difference", "probability")


class Coalitions:
    """The units of a batch's texts, f of each whole text, and f of what is left of it.

    Arguments are those of `lrputils.leave_one_out`; special tokens are units of "token" alone, and
    only if `special`.

    Attributes:
        texts: of the batch, without padding.
        whole: f of each, (batch,).
        chosen: the explained class of each, (batch,); of a difference (batch, 2); of answers
            see `resolve_output`.
        units: of each text the number of the unit that each token belongs to, (tokens,); −1: none.
        where: boolean (batch, tokens) on the inputs' device, where the units' scores stand.

    Raises:
        ValueError: an unknown option, or inputs that do not say which tokens are special.
    """

    def __init__(
        self,
        architecture: Architecture,
        inputs: Mapping[str, Any],
        *,
        target: Target = None,
        output: str | None = None,
        units: str | Spans = "token",
        special: bool = False,
        per_token: bool = False,
        batch_tokens: int | None = None,
    ):
        self.architecture, self.inputs = architecture, inputs
        self._answering = has_answers(inputs)
        self._per_token = per_token
        if self._answering:
            self.chosen = resolve_output(output or target, len(inputs["input_ids"]))
            output = ANSWER_OUTPUTS[int(self.chosen[0])]
        elif per_token:
            raise ValueError("per_token=True is of an answer's tokens: encode(texts, answer=…)")
        elif (output := output or OUTPUTS[0]) not in OUTPUTS:
            raise ValueError(f"output={output!r} is not one of {OUTPUTS}")
        self._output = output
        self._checked: set[str] = set()  # removals whose replacement the model has
        self.texts = split(architecture, inputs, output)
        self.units, self.where = units_of(architecture, inputs, self.texts, units, special=special)
        self._window = window(architecture)
        self._every = [np.arange(len(text)) for text in self.texts]
        sizes = [torch.ones(1, len(text) - text.read + 1) for text in self.texts]
        self._heads = [int(architecture.head_tokens(size)) for size in sizes]
        whole = [Row(number, len(text)) for number, text in enumerate(self.texts)]
        self._how = {"batch_tokens": batch_tokens}
        if self._answering:
            self._how["beginnings"] = beginnings_of(architecture, self.texts, batch_tokens)
        logits = evaluate(architecture, self.texts, whole, lambda x, _: x, **self._how)
        if not self._answering:
            self.chosen = resolve_target(target, logits, architecture.model)
        if output == "difference":
            self.chosen = _beside_the_next(self.chosen, logits)
        self.whole = self._read(logits, torch.arange(len(whole), device=logits.device))

    def _read(self, logits: Tensor, texts: Tensor) -> Tensor:
        """f (n,), from logits (n, classes) of these texts' rows, or what is said of their answers.

        With `per_token` each of an answer's tokens by itself, (n, tokens of the longest).
        """
        if self._answering:
            return logits if self._per_token else logits.sum(1)
        if self._output == "probability":
            logits = probabilities(self.architecture.model, logits)
        return explained(logits, self.chosen[texts])

    def each(self) -> list[np.ndarray]:
        """Of each text its units, each as a set of its own, (units, 1)."""
        return [np.arange(own.max(initial=-1) + 1)[:, None] for own in self.units]

    def row(
        self,
        number: int,
        units: Sequence[int],
        removal: str = "attention-mask",
        *,
        head_stays: bool = True,
    ) -> Row:
        """What is left of a text without some of its units, one at least.

        The token that the head reads keeps its own query under the attention mask, if `head_stays`.
        In a text longer than the model's attention window tokens are hidden: deleting them would
        pull others into it.

        Raises:
            ValueError: nothing would be left of the text, or a tokenizer without the replacement.
        """
        member = np.zeros(len(self.texts[number]) + 1, bool)  # the last is that of no unit
        member[units] = True
        gone, tokens = np.flatnonzero(member[self.units[number]]), len(self.texts[number])
        left, first = tokens - len(gone), int(gone[0])
        if removal not in ("attention-mask", "delete"):
            known = {"zero": None, **getattr(self.inputs, "replacements", {})}
            if removal not in known:
                raise ValueError(
                    f"removal={removal!r} needs the tokenizer's [{removal.upper()}] token, and "
                    f"these inputs know {sorted({*known} - {'zero'}) or 'none'}: encode texts by "
                    "`clf.encode(texts)`, with a tokenizer that has the token"
                )
            swap_id = known[removal]
            if swap_id is not None and removal not in self._checked:
                words = self.architecture.model.get_input_embeddings()
                check_token(words, swap_id, f"removal={removal!r}")
                self._checked.add(removal)
            return Row(number, tokens, swapped=tuple(gone), swap_id=swap_id, start=first)
        head, read = self._heads[number], self.texts[number].read
        if removal == "attention-mask" and tokens > self._window and (left or head_stays):
            length = tokens if head_stays else np.delete(self._every[number], gone)[-1] + 1
            return Row(number, int(length), hidden=tuple(gone[gone < length]), start=first)
        if removal == "attention-mask" and head_stays and head in gone:
            kept = np.delete(self._every[number], gone[gone != head])
            hidden, start = int(np.searchsorted(kept, head)), min(first, left + 1 - read)
            return Row(number, left + 1, partial(np.copy, kept), hidden=(hidden,), start=start)
        if left < read:
            raise ValueError(
                f"Text {number} is a single token or unit; removal='delete' would leave "
                "nothing of it. Use removal='attention-mask'"
            )
        kept, shifted = partial(np.delete, self._every[number], gone), removal == "delete"
        return Row(number, left, kept, shifted=shifted, start=min(first, left - read))

    def run(self, rows: Sequence[Row], name: str, *, progress: bool = True) -> Tensor:
        """f of rows of these texts, (rows,), under a progress bar of this name."""
        options = {"total": len(rows), "desc": name, "unit": "row", "delay": 3, "leave": False}
        with bar(progress, **options) as shown:
            return evaluate(
                self.architecture,
                self.texts,
                rows,
                self._read,
                **self._how,
                done=shown.update,
            )

    def values(
        self,
        sets: Iterable[Iterable[Any]],
        name: str,
        *,
        progress: bool = True,
        **removed: Any,
    ) -> list[Tensor]:
        """f of each text without each of some sets of its units, (sets,) a text.

        Equal sets of a text run once. `name`: of the progress bar; `removed`: options of `row`.
        """
        rows: list[Row] = []
        places: list[list[int]] = []
        for number, own in enumerate(sets):
            known, place = {b"": number}, []  # without nothing it is the whole text
            for units in own:
                key = np.sort(np.asarray(units, dtype=np.int64)).tobytes()
                if key not in known:
                    known[key] = len(self.texts) + len(rows)
                    rows.append(self.row(number, units, **removed))
                place.append(known[key])
            places.append(place)
        values = torch.cat([self.whole, self.run(rows, name, progress=progress).to(self.whole)])
        return [values[torch.tensor(place, dtype=torch.long)] for place in places]

    def at_units(self, values: Tensor) -> Tensor:
        """Numbers of all units, text after text, at the units' first tokens: (batch, tokens, …)."""
        scores = values.new_zeros(*self.where.shape, *values.shape[1:]).to(self.where.device)
        scores[self.where] = values.to(scores.device)
        return scores


def _beside_the_next(chosen: Tensor, logits: Tensor) -> Tensor:
    """The contrast of each row's class and the one that comes next, (batch, 2)."""
    if logits.shape[1] < 2:
        raise ValueError("output='difference' needs two classes or more; the model has one")
    if chosen.dim() == 2:
        raise ValueError("a contrast is a difference already: leave output='difference' out")
    next_best = logits.scatter(1, chosen[:, None], -torch.inf).argmax(dim=1)
    return torch.stack([chosen, -1 - next_best], dim=1)


def units_of(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    texts: Sequence[Text],
    units: str | Spans,
    *,
    special: bool = False,
) -> tuple[list[np.ndarray], Tensor]:
    """`Coalitions.units` and `Coalitions.where`."""
    units = check_units(units)
    if architecture.kind.vision:
        if units != "token":
            raise ValueError(f"units={units!r} are of texts; patches of an image are its tokens")
        valid = torch.ones(len(texts), len(texts[0]), device=inputs["pixel_values"].device).bool()
        where = valid.clone()
        where[:, 0] = special  # [CLS]
    else:
        valid = inputs.get("attention_mask")
        valid = torch.ones_like(inputs["input_ids"]) if valid is None else valid
        valid = where = valid.bool()
    if units != "token":
        found = Inputs.of(to_the_left(inputs)).units(units)
        numbers, where = found.numbers, found.mask
    else:
        if has_answers(inputs):
            where = valid & ~inputs["answer_mask"].bool()
        if not architecture.kind.vision and not special:
            where = valid & ~special_tokens(inputs)
        numbers = (where.cumsum(1) - 1).masked_fill(~where, -1)
    rows = zip(numbers.cpu().numpy(), valid.cpu().numpy(), strict=True)
    return [row[here] for row, here in rows], where
