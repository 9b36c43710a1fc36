"""Texts with tokens taken out, as rows of a batch, and the model's logits on such a batch.

A `Row` says which tokens of which text are left. A removed token is deleted while the others keep
their positions: for every remaining query this is the same as masking its key, needs no mask, and
shortens the row. Where deletion is not the same, a row names the key to mask instead.
`lrputils.removal.packing` decides which rows share a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lrputils.mistakes import about
from lrputils.model.architectures import Architecture
from lrputils.model.attention import AttentionFunction, fused
from lrputils.model.forwards import ArgumentRow, is_replaced, replaced, run_rows
from lrputils.model.inputs import to_the_left
from lrputils.model.operations import routed
from lrputils.model.proof import ends, prove
from lrputils.model.readout import ANSWER_OUTPUTS, answers_in, score_tokens
from lrputils.removal.shortcuts import head_token_alone

# Logits held at once where many tokens are read.
_LOGITS = 2**25
_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Text:
    """One text without padding: integer arrays (tokens,); for an image, one vector per patch.

    Of an answer the last token is no part of the text: nothing behind it is read. `answer` is all
    of its tokens, each predicted by the one before it, and `output` what is said of them.
    `uncounted`: the token that takes no position, where the model counts positions by ids.
    """

    ids: np.ndarray | None
    positions: np.ndarray
    types: np.ndarray | None = None
    states: Tensor | None = None
    uncounted: int | None = None
    answer: np.ndarray | None = None
    output: str = ANSWER_OUTPUTS[0]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def read(self) -> int:
        """How many of a decoder's last tokens are read."""
        return 1 if self.answer is None else len(self.answer)


class Row(NamedTuple):
    """What is left of one text.

    Attributes:
        text: number of the text.
        length: how many tokens are left: of those that are not gone the first.
        gone: indices in the text of tokens that are deleted.
        hidden: indices in the row of tokens that no query may see, though their own queries stay.
        swapped: indices in the row of tokens that another one replaces.
        swap_id: the token that replaces them; None for a word embedding of zeros.
        shifted: count positions anew, as if the text had been written without the other tokens.
        start: so many tokens at its start are the text's own, unchanged, but not all of the row.
    """

    text: int
    length: int
    gone: np.ndarray = _NONE
    hidden: np.ndarray = _NONE
    swapped: np.ndarray = _NONE
    swap_id: int | None = None
    shifted: bool = False
    start: int = 0

    def kept(self, text: Text) -> np.ndarray:
        """Indices in its text of the tokens that are left, (length,)."""
        return np.delete(np.arange(len(text)), self.gone)[: self.length]

    @property
    def zeroed(self) -> bool:
        """Whether a word embedding of zeros stands for a token."""
        return bool(len(self.swapped)) and self.swap_id is None

    @property
    def kind(self) -> tuple[bool, bool]:
        """Rows of one kind can share a batch."""
        return bool(len(self.hidden)) and not self.start, self.zeroed


def window(architecture: Architecture) -> float:
    """How many tokens back a query sees: in a longer text, a deletion would pull others in."""
    if not architecture.kind.parts:
        return float("inf")  # nothing is deleted
    config = architecture.backbone.config
    kinds = getattr(config, "layer_types", None) or ("sliding_attention",)
    limit = getattr(config, "sliding_window", None)
    full = limit is None or all(kind == "full_attention" for kind in kinds)
    return float("inf") if full else limit


def split(
    architecture: Architecture, inputs: Mapping[str, Any], output: str = ANSWER_OUTPUTS[0]
) -> list[Text]:
    """Take a padded batch apart into its texts; `output`: what is said of their answers' tokens.

    Raises:
        ValueError: what `Architecture.arguments` refuses.
    """
    inputs = inputs if architecture.kind.vision else to_the_left(inputs)
    arguments, answers = architecture.arguments(inputs), answers_in(architecture, inputs)
    if architecture.kind.vision:
        with torch.no_grad():
            states = architecture.word_embeddings(arguments["pixel_values"])
        return [Text(None, np.arange(len(state)), states=state) for state in states]
    mask = arguments["attention_mask"].bool().cpu()
    positions = arguments.get("position_ids")
    if positions is None:
        positions = architecture.position_ids(arguments["input_ids"], arguments["attention_mask"])
    counting = None if "position_ids" in arguments else architecture.uncounted
    columns = [arguments["input_ids"], positions, arguments.get("token_type_ids")]
    columns = [None if column is None else column.expand(mask.shape).cpu() for column in columns]
    texts = []
    for row, own in enumerate(mask):
        answer, places = None, own.nonzero()[:, 0]
        if answers is not None:
            answer, places = answers.ids[row, answers.mask[row]].cpu().numpy(), places[:-1]
        parts = [None if column is None else column[row, places].numpy() for column in columns]
        texts.append(Text(*parts, uncounted=counting, answer=answer, output=output))
    return texts


def logits_of(
    architecture: Architecture,
    texts: Sequence[Text],
    rows: Sequence[Row],
    device: torch.device,
    attention: AttentionFunction | None = None,
) -> Tensor:
    """Logits (rows, classes) of rows of one kind, in float32 at least.

    Of texts with answers what is said of each token, (rows, tokens of the longest answer), 0 behind
    the end of a shorter one.

    With an `attention`, a decoder's rows lose their starts, and the mask is (rows, 1, queries,
    keys): of the longest start's tokens, which come first, each row sees its own.
    """
    read, answering = [texts[row.text].read for row in rows], texts[0].answer is not None
    if not architecture.kind.parts:
        plain = [_as_it_is(architecture, texts[row.text], row) for row in rows]
        zeroed = [row.swapped for row in rows if row.zeroed]
        logits = run_rows(architecture, plain, zeroed, read if answering else [])
        own = (logits[number, :size] for number, size in enumerate(read))
        return _say(texts, rows, torch.cat([*own])) if answering else logits
    model, cut = architecture.model, attention is not None
    arguments, mask, columns = _collate(architecture, texts, rows, device, cut=cut)
    head = architecture.head_tokens(put(mask, device))
    with ExitStack() as undo:
        if not answering:
            undo.enter_context(head_token_alone(architecture, head))
        if not cut and architecture.kind.causal and len(rows[0].hidden):
            attention = fused  # where a token sees nothing, other kernels let it see hidden ones
        if attention is not None and not is_replaced(architecture.backbone):
            undo.enter_context(routed(architecture, attention))
        if relative := architecture.kind.relative_positions:
            encoder = architecture.backbone.encoder
            undo.enter_context(replaced({encoder: relative(encoder, columns)}))
        if architecture.kind.vision:  # the patches are embedded already
            undo.enter_context(replaced({architecture.word_embeddings: lambda _, x, **how: x}))
        if not architecture.kind.causal:
            logits = model(**arguments).logits
        else:
            # Only the last token's state goes through the head: a vocabulary for each token of
            # each row would be most of the memory.
            states = architecture.backbone(**arguments, use_cache=False)[0]
            words = model.get_output_embeddings() if architecture.language_model else None
            if answering:
                own = [np.arange(end - n, end) for end, n in zip(mask.sum(1), read, strict=True)]
                which = np.repeat(np.arange(len(rows)), read), np.concatenate(own)
                return _say(texts, rows, states[*(put(part, device) for part in which)], words)
            last = states[torch.arange(len(head), device=states.device), head]
            logits = (words or model.score)(last)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _say(
    texts: Sequence[Text], rows: Sequence[Row], states: Tensor, head: nn.Module | None = None
) -> Tensor:
    """What is said of each row's answer, as `logits_of` returns it, from the states that say it.

    `states`: (all rows' answer tokens, size), or their logits, which need no `head`.
    """
    answers = [texts[row.text].answer for row in rows]
    ids = put(np.concatenate(answers).astype(np.int64, copy=False), states.device)
    wide = torch.promote_types(states.dtype, torch.float32)
    size = max(1, _LOGITS // getattr(head, "out_features", states.shape[-1]))
    parts = [
        score_tokens((head(some) if head else some).to(wide), own, texts[0].output)
        for some, own in zip(states.split(size), ids.split(size), strict=True)
    ]
    said = states.new_zeros(len(rows), max(text.read for text in texts), dtype=wide)
    which = np.repeat(np.arange(len(rows)), list(map(len, answers)))
    places = np.concatenate([np.arange(len(answer)) for answer in answers])
    said[put(which, states.device), put(places, states.device)] = torch.cat(parts)
    return said


def _collate(
    architecture: Architecture,
    texts: Sequence[Text],
    rows: Sequence[Row],
    device: torch.device,
    *,
    cut: bool,
) -> tuple[dict[str, Tensor], np.ndarray, Tensor]:
    """Rows of one kind, padded on the right, as the model's arguments.

    And where a row has a token, (rows, tokens), and the column of each token in its text, as if the
    others stood there.
    """
    starts = np.array([row.start if cut else 0 for row in rows])
    lengths = np.array([row.length for row in rows]) - starts
    places = np.arange(lengths.max())
    mask = places < lengths[:, None]
    visible, changed, kept = mask.copy(), np.zeros_like(mask), np.zeros(mask.shape, dtype=np.int64)
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        kept[i, : lengths[i]] = row.kept(texts[row.text])[start:]
        if len(row.hidden):
            visible[i, row.hidden - start] = False
        if len(row.swapped):
            changed[i, row.swapped - start] = True

    arguments = {}
    # Without a mask a decoder reads a gap in the positions as the start of another text.
    if cut:
        before = (np.arange(starts.max()) < starts[:, None])[:, None].repeat(len(places), axis=1)
        seen = np.concatenate([before, np.tri(len(places), dtype=bool) & visible[:, None]], axis=2)
        arguments["attention_mask"] = put(seen[:, None], device)
    elif architecture.kind.causal or not visible.all():
        arguments["attention_mask"] = put(visible.astype(np.int64), device)
    if architecture.kind.vision:
        pairs = zip(rows, put(kept, device), strict=True)
        arguments["pixel_values"] = torch.stack([texts[row.text].states[own] for row, own in pairs])
        return arguments, mask, put(kept, device)
    shifted = np.array([row.shifted for row in rows])
    counted = np.where(shifted[:, None] & mask, starts[:, None] + places, kept)
    # The texts, one behind the other, and where each row's own begins.
    begins = np.cumsum([0, *map(len, texts)])[[row.text for row in rows], None]
    ids = _column("ids", texts)[begins + kept]
    positions = _column("positions", texts)[begins + counted]
    if texts[0].types is not None:
        arguments["token_type_ids"] = put(_column("types", texts)[begins + kept], device)
    if rows[0].zeroed:
        arguments["inputs_embeds"] = embedded = architecture.word_embeddings(put(ids, device))
        embedded[put(changed, device)] = 0
    else:
        swap_ids = np.array([row.swap_id or 0 for row in rows])
        ids = np.where(changed, swap_ids[:, None], ids)
        arguments["input_ids"] = put(ids, device)
        if texts[0].uncounted is not None:
            anew = shifted | changed.any(1)
            positions[anew] = count(ids[anew], texts[0].uncounted)
    arguments["position_ids"] = put(positions, device)
    return arguments, mask, put(counted, device)


def _column(name: str, texts: Sequence[Text]) -> np.ndarray:
    return np.concatenate([getattr(text, name) for text in texts]).astype(np.int64, copy=False)


def count(ids: np.ndarray, uncounted: int) -> np.ndarray:
    """Positions (…, tokens) of ids, from one past the token that takes none; −1: all take one."""
    counted = ids != uncounted
    return counted.cumsum(-1) * counted + uncounted


def put(array: np.ndarray, device: torch.device) -> Tensor:
    """The array on the device. A GPU goes on meanwhile: it waits for no memory that may move."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _as_it_is(architecture: Architecture, text: Text, row: Row) -> ArgumentRow:
    """A row for a model without rules: what is removed is masked, at a decoder's end cut off.

    The token by which an encoder with a decoder finds a text's end stays; without it there is no
    answer.
    """
    kept = row.kept(text)
    fixed = architecture.model.config.is_encoder_decoder & np.isin(text.ids, ends(architecture))
    ids, visible = text.ids.copy(), fixed.astype(np.int64)
    if row.swap_id is not None:
        ids[[token for token in row.swapped if not fixed[token]]] = row.swap_id
    visible[kept] = 1
    left = np.flatnonzero(visible) if row.shifted else np.arange(len(text))
    if architecture.kind.causal:  # its answer is read at the last token
        left = left[: np.flatnonzero(visible[left])[-1] + 1]
    visible[kept[row.hidden]] = 0
    columns = {"input_ids": ids, "attention_mask": visible}
    if text.types is not None:
        columns["token_type_ids"] = text.types
    columns = {name: column[left] for name, column in columns.items()}
    start = prove(architecture, {"input_ids": text.ids}).start
    if start is not None:
        read = columns["input_ids"] if row.shifted else ids
        places = count(read, start - 1)
        columns["position_ids"] = places if row.shifted else places[left]
    end = getattr(architecture.config, "pad_token_id", None)
    reads_last = architecture.kind.causal and not architecture.language_model
    if reads_last and columns["input_ids"][-1] == end:
        raise ValueError(
            f"{type(architecture.model).__name__} takes token {end}, at which a text would end "
            "here, for padding, and would read its answer at the token before: choose another "
            "removal"
        )
    return columns


@torch.inference_mode()
def prepare(
    architecture: Architecture, texts: Sequence[Text], rows: Sequence[Row], budget: int
) -> int:
    """Tokens in one batch: the budget, and 1, a row alone, where rows may not share a batch.

    Raises:
        ValueError: the model has no rules, and its attention mask does not remove.
    """
    if architecture.kind.vision or not rows:
        return budget
    longest = max((texts[row.text].ids for row in rows), key=len)
    proof = prove(architecture, {"input_ids": longest})
    masked = [row for row in rows if len(row.hidden) or (len(row.gone) and not row.shifted)]
    model = type(architecture.model).__name__
    if masked and proof.reads:
        raise ValueError(
            f"{model} {proof.reads}, so masking does not remove. Use "
            + about("removal", "delete")
            + ", or 'mask', 'pad' or 'unk', which replace"
        )
    if not proof.empty and any(row.length == 1 for row in masked if len(row.hidden)):
        raise ValueError(
            f"{model} reads hidden words where nothing else is left of a text: encode texts with a "
            "special token in front, or call model.set_attn_implementation('sdpa')"
        )
    return budget if proof.together else 1
