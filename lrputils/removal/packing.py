"""Any number of rows, run in batches of bounded size.

Rows of one length, whatever text they come from, are packed into batches of at most so many tokens.
What a row is, and how the model runs on a batch of them, is in `lrputils.removal.rows`.

A decoder's token sees those before it, so what is taken out of a text changes nothing in front of
the place. Where that takes less, a row runs from there on; the keys and values in front of it are
those of the whole text. This is what generation keeps its cache for, and as exact.

Whether this and the shortcuts of `lrputils.removal.shortcuts` give a model's own result is tried
on it, once: on a text from which tokens are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lrputils.data.given import sides
from lrputils.mistakes import whole_number
from lrputils.model.architectures import Architecture
from lrputils.model.attention import AttentionCall, AttentionFunction, fused, with_all_heads
from lrputils.model.forwards import is_replaced
from lrputils.model.proof import count, laid_out, measured, prove, state_of
from lrputils.removal.rows import Row, Text, logits_of, prepare, put
from lrputils.removal.shortcuts import (
    LEAST_TOKENS,
    PLAIN,
    LastLayer,
    Shortcuts,
    fast_linear,
    last_layer,
)

# Tokens in one batch. Large enough to keep every core busy, small enough to stay in fast memory.
BATCH_TOKENS = {"cpu": 2_048, "cuda": 65_536}
# Rows this much shorter than the longest may join a batch that would otherwise be nearly empty.
_SHORTEST = 0.8
# What a shortcut may raise where a model is another one than it is for.
_FAILURES = AttributeError, IndexError, RuntimeError, TypeError, ValueError
# A pass takes as long as so many tokens more.
PASS = {"cpu": 128, "cuda": 4_096}


def by_length(texts: Sequence[Any], batch_size: int) -> list[list[int]]:
    """Batches of text numbers, so that texts of similar length share one; the shortest first."""
    order = sorted(range(len(texts)), key=lambda number: sum(map(len, sides(texts[number]))))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def evaluate(
    architecture: Architecture,
    texts: Sequence[Text],
    rows: Sequence[Row],
    read: Callable[[Tensor, Tensor], Tensor],
    *,
    batch_tokens: int | None = None,
    done: Callable[[int], Any] = lambda rows: None,
    beginnings: _Beginnings | None = None,
) -> Tensor:
    """Run the model on every row and return what `read` takes from the logits, in the rows' order.

    Args:
        architecture: of the model.
        texts: the texts that rows refer to.
        rows: what to evaluate.
        read: given logits (n, classes) and the numbers of the n rows' texts, returns (n, …).
        batch_tokens: most tokens in one batch. One row is run however long it is. Where memory
            runs out the budget is halved, for the remaining rows.
        done: told of the number of rows of each batch that is done.
        beginnings: of all the texts. The run on the whole texts fills them, later ones use them.

    Returns:
        (rows, …) on the model's device.

    Raises:
        ValueError: a budget below one token, or a value that is NaN or infinite.
    """
    device = next(architecture.model.parameters()).device
    longest = max(texts, key=len)
    architecture, using = usable(architecture, longest)
    budget = prepare(architecture, texts, rows, budget_on(device, batch_tokens), using)
    share = using.shares and any(row.start for row in rows)
    cost = PASS.get(device.type, PASS["cuda"]) if share else None
    if beginnings is not None and rows is beginnings.whole:
        plan = [_Step([*range(len(rows))], len(longest), beginnings)]
    else:
        plan = _plan(architecture, texts, rows, range(len(rows)), budget, cost, using, beginnings)
    numbers, values = [], []
    tokens = sum(row.length for row in rows)
    with torch.inference_mode(), fast_linear(architecture, tokens if using.packed else 0):
        while plan:
            step = plan[0]
            batch = [rows[i] for i in step.rows]
            logits = _attempt(architecture, texts, batch, device, using, step.shared)
            if logits is None:
                cost = None if len(batch) == 1 else cost
                budget = max(1, len(batch) * step.width // 2)
                left = [i for each in plan for i in each.rows]
                plan = _plan(architecture, texts, rows, left, budget, cost, using)
                continue
            values.append(read(logits, put(np.array([row.text for row in batch]), device)))
            numbers += step.rows
            del plan[0]
            done(len(batch))
    if not values:
        return torch.zeros(0, device=device)
    result = torch.cat(values)[put(np.argsort(numbers), device)]
    broken = ~torch.isfinite(result).reshape(len(rows), -1).all(1)
    if broken.any():
        bad = sorted({rows[i].text for i in broken.nonzero()[:, 0].tolist()})
        raise ValueError(
            f"{type(architecture.model).__name__} returns NaN or infinite logits on rows of the "
            f"texts {bad}. Check its weights, and its dtype (float16 overflows)"
        )
    return result


def budget_on(device: torch.device, batch_tokens: int | None = None) -> int:
    """Return the most tokens in one batch: those asked for, or what suits the device.

    Raises:
        ValueError: fewer than one are asked for.
    """
    if batch_tokens is None:
        return BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])
    return whole_number("batch_tokens", batch_tokens)


def beginnings_of(
    architecture: Architecture,
    texts: Sequence[Text],
    whole: list[Row],
    batch_tokens: int | None,
) -> _Beginnings | None:
    """Return what all rows of these texts can share, if one batch of `whole` rows can hold it."""
    device = next(architecture.model.parameters()).device
    architecture, using = usable(architecture, max(texts, key=len))
    found = _Beginnings(architecture, texts, whole, using)
    fits = len(texts) == 1 or found.size <= budget_on(device, batch_tokens)
    return found if fits and using.shares else None


@torch.no_grad()
def usable(architecture: Architecture, text: Text) -> tuple[Architecture, Shortcuts]:
    """Which shortcuts give a model's own result on texts of up to this one's length.

    And the model with its layers, where they are found.
    """
    model, facts = architecture.model, prove(architecture, text.ids)
    if facts.ids is not None:
        types = np.zeros_like(facts.ids) if architecture.token_types else None
        positions = None if facts.start is None else count(facts.ids, facts.start)
        text = Text(facts.ids, positions, types, start=facts.start or None)
    elif not architecture.vision:
        return architecture, PLAIN  # a function
    with suppress(*_FAILURES):
        architecture = laid_out(architecture)
    ruled = is_replaced(architecture.backbone)  # what a rule computes may be another thing
    state = "shortcuts", len(text), ruled, state_of(architecture)
    trial = partial(_Trial, architecture, text, facts.reads)
    return architecture, measured(model, state, lambda: trial().found())


class _Trial:
    """Passes of a text from which tokens are removed, by shortcuts and without."""

    def __init__(self, architecture: Architecture, text: Text, reads: str):
        self.architecture, self.text = architecture, text
        self.device = next(architecture.model.parameters()).device
        size, late = len(text), len(text) // 2
        gone, later = np.arange(1, size - 1, 2), np.arange(late, size - 1, 2)
        self.whole = Row(0, size)
        self.deleted = Row(0, size - len(gone), gone, start=1)
        shifted = Row(0, size - len(later), later, shifted=True, start=late)
        masked = [] if reads else [Row(0, size, hidden=gone, start=1)]
        rows = [self.whole] + ([] if architecture.vision else [shifted]) + masked
        self.expected = [(row, self._run(row, PLAIN)) for row in rows]
        (_, whole), *_, (_, last) = self.expected
        epsilon = torch.finfo(next(architecture.model.parameters()).dtype).eps
        self.allowed = 1e-4 * (whole - last).abs().max()
        self.allowed += 10 * epsilon * max(1.0, float(whole.abs().max()))
        self.masks = bool(masked)

    def _run(self, row: Row, using: Shortcuts) -> Tensor:
        return logits_of(self.architecture, [self.text], [row], self.device, using)

    def _shared(self, row: Row, using: Shortcuts) -> Tensor:
        beginnings = _Beginnings(self.architecture, [self.text], [self.whole], using)
        return beginnings([row], self.device)

    def _packed(self, row: Row, using: Shortcuts) -> Tensor:
        with fast_linear(self.architecture, LEAST_TOKENS):
            self._run(row, using)  # when activations are noted
            return self._run(row, using)

    def _same(self, using: Shortcuts, run: Callable[[Row, Shortcuts], Tensor]) -> bool:
        with suppress(*_FAILURES):
            off = [(run(row, using) - own).abs().max() for row, own in self.expected]
            return bool(torch.stack(off).max() <= self.allowed)
        return False

    def found(self) -> Shortcuts:
        """Those that change rounding alone, one after the other."""
        using, causal = PLAIN, self.architecture.causal
        if self.architecture.config.is_encoder_decoder:
            return using
        if self.masks:
            plain = self.expected
            self.expected = [*plain, (self.deleted, plain[-1][1])]
            for columns in (False, True):
                trial = Shortcuts(deletes=True, columns=columns)
                if not using.deletes and self._same(trial, self._run):
                    using = trial
            self.expected = self.expected if using.deletes else plain
        tried: list[tuple[dict[str, Any], Callable]] = [({"packed": True}, self._packed)]
        if causal:
            tried += [({"routed": True}, self._run), ({"states": True}, self._run)]
        with suppress(*_FAILURES):
            last = last_layer(self.architecture, lambda: self._run(self.whole, PLAIN))
            tried += [({"last": each}, self._run) for each in (LastLayer(last.behind), last)]
        if causal:
            tried += [({"shares": True}, self._shared)]
        for change, run in tried:
            trial = using._replace(**change)
            using = trial if self._same(trial, run) else using
        return using


class _Beginnings:
    """Keys and values of whole texts, computed when they are first asked for.

    Attributes:
        whole: the texts' rows.
        numbers: of the texts.
        size: tokens of the texts' batch, with its padding.
        layers: of each layer keys and values, (texts, groups of heads, tokens, size); empty before.
    """

    def __init__(
        self,
        architecture: Architecture,
        texts: Sequence[Text],
        whole: list[Row],
        using: Shortcuts,
    ):
        self.architecture, self.texts, self.whole, self.using = architecture, texts, whole, using
        self.numbers = [row.text for row in whole]
        self.size = len(whole) * max(row.length for row in whole)
        self.layers: list[tuple[Tensor, Tensor]] = []

    def _keep(self, call: AttentionCall) -> tuple[Tensor, None]:
        self.layers.append((call.key, call.value))
        return fused(call)

    def __call__(self, rows: Sequence[Row], device: torch.device) -> Tensor:
        """Logits (rows, classes) of rows of these texts, of which only what is changed runs."""
        if not self.layers:
            try:
                logits = self._logits(self.whole, device, self._keep)
            except RuntimeError:  # of memory, perhaps
                self.layers = []
                raise
            if rows[0] is self.whole[0]:
                return logits
        longest = max(row.start for row in rows)
        alone = len(self.numbers) == 1
        places = [self.numbers.index(row.text) for row in rows]

        def _behind(kept: Tensor, own: Tensor) -> Tensor:
            # With some masks a model repeats keys for its heads, with others it does not.
            heads, groups = kept.shape[1], own.shape[1]
            same = kept[:, :: heads // groups] if heads > groups else with_all_heads(kept, own)
            same = same[:, :, :longest]
            same = same.expand(len(rows), -1, -1, -1) if alone else same[places]
            return torch.cat([same, own], dim=2)

        def _attention(call: AttentionCall) -> tuple[Tensor, None]:
            keys, values = self.layers[call.layer]
            key, value = _behind(keys, call.key), _behind(values, call.value)
            return fused(call.with_factors(call.query, key, value))

        return self._logits(rows, device, _attention)

    def _logits(
        self, rows: Sequence[Row], device: torch.device, attention: AttentionFunction
    ) -> Tensor:
        return logits_of(self.architecture, self.texts, rows, device, self.using, attention)


class _Step(NamedTuple):
    """A batch: numbers of rows, tokens of the longest, and what they share, if not run whole."""

    rows: list[int]
    width: int
    shared: _Beginnings | None


def _plan(
    architecture: Architecture,
    texts: Sequence[Text],
    rows: Sequence[Row],
    left: Iterable[int],
    budget: int,
    cost: int | None,
    using: Shortcuts,
    beginnings: _Beginnings | None = None,
) -> list[_Step]:
    """Batches of the rows that are left, whole, or behind what they share where that takes less.

    `cost` is that of a pass, in tokens; None where nothing can be shared.
    """
    plain = _steps(rows, left, budget)
    if cost is None:
        return plain
    of_text: dict[int, list[int]] = {}
    for i in left:
        of_text.setdefault(rows[i].text, []).append(i)
    cut, taken, order = [], 0, sorted(of_text, key=lambda number: -len(texts[number]))
    while order:
        # Texts of similar length, whose beginnings one batch computes.
        group = (
            order[: max(1, budget // len(texts[order[0]]))] if beginnings is None else [*of_text]
        )
        order = order[len(group) :]
        whole = [Row(number, len(texts[number])) for number in group]
        shared = beginnings or _Beginnings(architecture, texts, whole, using)
        own = [i for number in group for i in of_text[number]]
        cut += _steps(rows, own, budget, shared, cost)
        taken += 0 if shared.layers else cost + shared.size
    taken += sum(cost + len(step.rows) * step.width for step in cut)
    return cut if taken < sum(cost + len(step.rows) * step.width for step in plain) else plain


def _steps(
    rows: Sequence[Row],
    left: Iterable[int],
    budget: int,
    shared: _Beginnings | None = None,
    padding: int = 0,
) -> list[_Step]:
    """Rows of one length up to the budget; somewhat shorter ones where few have that length.

    Rows that share their beginnings are of any length, as long as a batch has no more padding.
    """
    left = np.fromiter(left, dtype=np.int64)
    some = [rows[i] for i in left]
    sizes = np.array([row.length - (row.start if shared else 0) for row in some], dtype=np.int64)
    kinds = np.array([row.kind for row in some], dtype=bool).reshape(-1, 2)
    order = np.lexsort([-sizes, *kinds.T[::-1]])
    ends = np.flatnonzero((kinds[order][1:] != kinds[order][:-1]).any(1)) + 1
    steps = []
    for alike in np.split(order, ends):
        numbers, widths = left[alike], sizes[alike]
        while len(numbers):
            fits = max(1, budget // int(widths[0]))
            near = widths[:fits]
            if shared:
                count = np.count_nonzero((widths[0] - near).cumsum() <= padding)
            else:
                count = np.count_nonzero(near == widths[0])
                if 4 * count <= fits:
                    count = np.count_nonzero(near >= _SHORTEST * widths[0])
            steps.append(_Step(numbers[:count].tolist(), int(widths[0]), shared))
            numbers, widths = numbers[count:], widths[count:]
    return steps


def _attempt(
    architecture: Architecture,
    texts: Sequence[Text],
    batch: list[Row],
    device: torch.device,
    using: Shortcuts,
    shared: _Beginnings | None,
) -> Tensor | None:
    """Return the batch's logits, or None where it was too large for the memory."""
    try:
        if shared and (any(row.start for row in batch) or not shared.layers):
            return shared(batch, device)
        return logits_of(architecture, texts, batch, device, using)
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        said = ("out of memory", "not enough memory", "can't allocate memory")
        known = any(words in str(error).lower() for words in said)
        if (len(batch) == 1 and not shared) or not known:
            raise
    # Outside the handler: the exception would keep the batch's tensors alive.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None
