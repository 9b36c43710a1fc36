"""Texts of which any set of units is left, and f of them: what every exact removal is made of.

A unit is a set of tokens that go at once, by default a single token; f is the explained output.
Leave-one-out, pairs, Shapley values and perturbation curves are values of f at sets of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrputils.mistakes import about, one_of
from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.inputs import (
    Inputs,
    check_token,
    checked_tensors,
    has_answers,
    special_tokens,
    to_the_left,
)
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
from lrputils.removal.packing import beginnings_of, evaluate, usable
from lrputils.removal.rows import Row, Text, split

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
        model: Handle,
        inputs: Mapping[str, Any],
        *,
        target: Target = None,
        output: str | None = None,
        units: str | Spans = "token",
        special: bool = False,
        per_token: bool = False,
        batch_tokens: int | None = None,
    ):
        self.architecture, self.inputs = describe(model), inputs
        self._answering, self._per_token = has_answers(inputs), per_token
        if self._answering:
            self.chosen = resolve_output(output or target, len(inputs["input_ids"]))
            output = ANSWER_OUTPUTS[int(self.chosen[0])]
        elif per_token:
            raise ValueError("per_token=True is of an answer's tokens: encode(texts, answer=…)")
        else:
            output = one_of("output", output or OUTPUTS[0], OUTPUTS)
        self._output = output
        self.texts = split(self.architecture, inputs, output)
        self.units, self.where = units_of(
            self.architecture, inputs, self.texts, units, special=special
        )
        self._deletes = usable(self.architecture, max(self.texts, key=len))[1].deletes
        whole = [Row(number, len(text)) for number, text in enumerate(self.texts)]
        self._batch_tokens, self._beginnings = batch_tokens, None
        if self._answering:
            self._beginnings = beginnings_of(self.architecture, self.texts, whole, batch_tokens)
        logits = evaluate(
            self.architecture,
            self.texts,
            whole,
            lambda x, _: x,
            batch_tokens=batch_tokens,
            beginnings=self._beginnings,
        )
        if not self._answering:
            self.chosen = resolve_target(target, logits, self.architecture.model)
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

    def values(
        self,
        sets: Iterable[Iterable[Any]],
        name: str,
        *,
        removal: str = REMOVALS[0],
        head_stays: bool = True,
        progress: bool = True,
    ) -> list[Tensor]:
        """f of each text without each of some sets of its units, (sets,) a text.

        Equal sets of a text run once.

        Args:
            sets: of each text the sets.
            name: of the progress bar.
            removal: what happens to the tokens of a set, as in `lrputils.leave_one_out`.
            head_stays: whether under the attention mask the token that the head reads keeps its own
                query.
            progress: whether to draw the bar.

        Raises:
            ValueError: a removal that is none or that the inputs do not have, or nothing would be
                left of a text.
        """
        swap_id, rows, places = self._swap_id(removal), [], []
        for number, own in enumerate(sets):
            known, place = {b"": number}, []  # without nothing it is the whole text
            for units in own:
                key = np.sort(np.asarray(units, dtype=np.int64)).tobytes()
                if key not in known:
                    known[key] = len(self.texts) + len(rows)
                    rows.append(self._row(number, units, removal, swap_id, head_stays))
                place.append(known[key])
            places.append(place)
        with bar(progress, total=len(rows), desc=name, unit="row", delay=3, leave=False) as shown:
            found = evaluate(
                self.architecture,
                self.texts,
                rows,
                self._read,
                batch_tokens=self._batch_tokens,
                done=shown.update,
                beginnings=self._beginnings,
            )
        values = torch.cat([self.whole, found.to(self.whole)])
        return [values[torch.tensor(place, dtype=torch.long)] for place in places]

    def _swap_id(self, removal: str) -> int | None:
        """The token by which a removal replaces others, if it does; see `values`."""
        one_of("removal", removal, REMOVALS)
        if self.architecture.vision and removal != "attention-mask":
            raise ValueError(
                f"removal={removal!r} is about words; for image patches use 'attention-mask'"
            )
        if removal in ("attention-mask", "delete", "zero"):
            return None
        known = getattr(self.inputs, "replacements", {})
        if removal not in known:
            raise ValueError(
                about("removal", removal)
                + f" needs the tokenizer's [{removal.upper()}] token, and these "
                f"inputs know {sorted(known) or 'none'}: encode texts by `clf.encode(texts)`, with "
                "a tokenizer that has the token"
            )
        words = self.architecture.model.get_input_embeddings()
        check_token(words, known[removal], f"removal={removal!r}")
        return known[removal]

    def _row(
        self,
        number: int,
        units: Sequence[int],
        removal: str,
        swap_id: int | None,
        head_stays: bool,
    ) -> Row:
        """What is left of a text without some of its units, one at least.

        Where deletion is not the same as masking tokens are hidden, as where a text is longer than
        the model's attention window: deleting them would pull others into it.
        """
        tokens, read = len(self.texts[number]), self.texts[number].read
        member = np.zeros(tokens + 2, dtype=bool)  # the last is that of no unit
        member[units] = True
        gone = np.flatnonzero(member[self.units[number]])
        if (fixed := self.texts[number].fixed) is not None:
            gone = gone[~fixed[gone]]
        if not len(gone):
            return Row(number, tokens)
        left, first = tokens - len(gone), int(gone[0])
        if removal not in ("attention-mask", "delete"):
            return Row(number, tokens, swapped=gone, swap_id=swap_id, start=first)
        masked = removal == "attention-mask"
        if masked and not self._deletes and (left or head_stays):
            ends = self.architecture.causal and not head_stays
            length = int(np.delete(np.arange(tokens), gone)[-1]) + 1 if ends else tokens
            return Row(number, length, hidden=gone[gone < length], start=first)
        head = tokens - read if self.architecture.causal else 0
        if masked and head_stays and head in gone:
            others = gone[gone != head]
            hidden = head - np.searchsorted(others, [head])
            start = min(first, left + 1 - read)
            return Row(number, left + 1, others, hidden=hidden, start=start)
        if left < read:
            raise ValueError(
                f"Text {number} is a single token or unit; removal='delete' would leave "
                "nothing of it. Use removal='attention-mask'"
            )
        return Row(number, left, gone, shifted=not masked, start=min(first, left - read))

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
    if architecture.vision:
        if units != "token":
            raise ValueError(f"units={units!r} are of texts; patches of an image are its tokens")
        valid = torch.ones(len(texts), len(texts[0]), device=inputs["pixel_values"].device).bool()
        where = valid.clone()
        where[:, 0] = special  # [CLS]
    else:
        valid = where = checked_tensors(inputs)[1].bool()
    if units != "token":
        found = Inputs.of(to_the_left(inputs)).units(units)
        numbers, where = found.numbers, found.mask
    else:
        if has_answers(inputs):
            where = valid & ~inputs["answer_mask"].bool()
        if not architecture.vision and not special:
            where = valid & ~special_tokens(inputs)
        numbers = (where.cumsum(1) - 1).masked_fill(~where, -1)
    rows = zip(numbers.cpu().numpy(), valid.cpu().numpy(), strict=True)
    return [row[here] for row, here in rows], where
