"""Texts with tokens taken out, as rows of a batch, and the model's logits on such a batch.

A `Row` says which tokens of which text are left. A removed token is deleted while the others keep
their positions: for every remaining query this is the same as masking its key, needs no mask, and
shortens the row. Where it was not measured to be the same, a row names the key to mask instead.
`lrputils.removal.packing` measures that, and decides which rows share a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lrputils.mistakes import about
from lrputils.model.architectures import Architecture
from lrputils.model.attention import AttentionFunction, fused
from lrputils.model.forwards import Forward, replaced, run
from lrputils.model.functions import FunctionForSequenceClassification
from lrputils.model.inputs import to_the_left
from lrputils.model.operations import routed
from lrputils.model.proof import count, ends, prove, prove_batch
from lrputils.model.readout import ANSWER_OUTPUTS, answers_in, score_tokens
from lrputils.removal.shortcuts import PLAIN, Shortcuts, at_columns, head_token_alone

# Logits held at once where many tokens are read.
_LOGITS = 2**25
_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Text:
    """One text without padding: integer arrays (tokens,); for an image, one vector per patch.

    Of an answer the last token is no part of the text: nothing behind it is read. `answer` is all
    of its tokens, each predicted by the one before it, and `output` what is said of them.
    `positions` are None where the model counts them; `start` is the first, where the token of the
    number before takes none; `fixed`: which tokens are never removed.
    """

    ids: np.ndarray
    positions: np.ndarray | None
    types: np.ndarray | None = None
    states: Tensor | None = None
    start: int | None = None
    fixed: np.ndarray | None = None
    answer: np.ndarray | None = None
    output: str = ANSWER_OUTPUTS[0]

    def __len__(self) -> int:
        return len(self.ids)

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


def split(
    architecture: Architecture, inputs: Mapping[str, Any], output: str = ANSWER_OUTPUTS[0]
) -> list[Text]:
    """Take a padded batch apart into its texts; `output`: what is said of their answers' tokens.

    Raises:
        ValueError: what `Architecture.arguments` refuses.
    """
    if architecture.vision:
        with torch.no_grad():
            states = architecture.word_embeddings(architecture.arguments(inputs)["pixel_values"])
        return [Text(np.arange(len(state)), None, states=state) for state in states]
    inputs = to_the_left(inputs)
    arguments, answers = architecture.arguments(inputs), answers_in(architecture, inputs)
    mask = arguments["attention_mask"].bool().cpu()
    own_positions = arguments.get("position_ids")
    start = prove_batch(architecture, arguments).start if own_positions is None else None
    columns = [arguments["input_ids"], own_positions, arguments.get("token_type_ids")]
    columns = [None if column is None else column.expand(mask.shape).cpu() for column in columns]
    texts = []
    for row, own in enumerate(mask):
        answer, places = None, own.nonzero()[:, 0]
        if answers is not None:
            answer, places = answers.ids[row, answers.mask[row]].cpu().numpy(), places[:-1]
        ids, positions, types = (
            None if column is None else column[row, places].numpy() for column in columns
        )
        if start is not None:
            positions = count(ids, start)
        # By these an encoder with a decoder finds a text's end: without it there is no answer.
        fixed = np.isin(ids, ends(architecture)) & architecture.model.config.is_encoder_decoder
        texts.append(
            Text(ids, positions, types, None, start or None, fixed, answer=answer, output=output)
        )
    return texts


def logits_of(
    architecture: Architecture,
    texts: Sequence[Text],
    rows: Sequence[Row],
    device: torch.device,
    using: Shortcuts = PLAIN,
    attention: AttentionFunction | None = None,
) -> Tensor:
    """Logits (rows, classes) of rows of one kind, in float32 at least, by these shortcuts.

    Of texts with answers what is said of each token, (rows, tokens of the longest answer), 0 behind
    the end of a shorter one.

    With an `attention`, a decoder's rows lose their starts, and the mask is (rows, 1, queries,
    keys): of the longest start's tokens, which come first, each row sees its own.
    """
    read, answering = [texts[row.text].read for row in rows], texts[0].answer is not None
    cut = attention is not None
    arguments, mask, changed, columns = _collate(architecture, texts, rows, device, using, cut=cut)
    sizes = mask.sum(1)
    head = architecture.head_tokens(put(mask, device))
    with ExitStack() as undo:
        if using.last is not None and not answering:
            undo.enter_context(head_token_alone(architecture, using.last, head))
        if using.routed and not cut and architecture.causal and len(rows[0].hidden):
            attention = fused  # where a token sees nothing, other kernels let it see hidden ones
        if attention is not None:
            undo.enter_context(routed(architecture, attention))
        if using.columns:
            undo.enter_context(at_columns(architecture, columns))
        if architecture.vision:  # the patches are embedded already
            undo.enter_context(replaced({architecture.word_embeddings: lambda _, x, **how: x}))
        if rows[0].zeroed:
            undo.enter_context(_zeroed(architecture, put(changed, device)))
        if using.states:
            # Only the last token's state goes through the head: a vocabulary for each token of
            # each row would be most of the memory.
            states = architecture.backbone(**arguments)[0]
            if answering:
                own = [np.arange(end - n, end) for end, n in zip(sizes, read, strict=True)]
                which = np.repeat(np.arange(len(rows)), read), np.concatenate(own)
                states = states[*(put(part, device) for part in which)]
                return _say(texts, rows, states, architecture.head)
            logits = architecture.head(states[torch.arange(len(head), device=device), head])
        elif answering:
            back = np.array(read)[:, None] - np.arange(max(read))
            last = (sizes[:, None] - back).clip(max=sizes[:, None] - 1)
            logits = run(architecture, arguments, put(last, device))
            own = [logits[number, :size] for number, size in enumerate(read)]
            return _say(texts, rows, torch.cat(own))
        elif architecture.language_model:
            logits = run(architecture, arguments, head)
        else:
            logits = architecture.model(**arguments).logits
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _zeroed(architecture: Architecture, which: Tensor) -> AbstractContextManager:
    """A block in which the word embeddings of these tokens, (rows, tokens), are zero.

    Raises:
        ValueError: the model reads its words twice, so that one zero does not remove them, has no
            embeddings of them, or has them in another layout.
    """
    name = type(architecture.model).__name__
    if isinstance(architecture.model, FunctionForSequenceClassification):
        raise ValueError(
            "a function of texts has no word embeddings for removal='zero'. Use removal='delete'"
        )
    if architecture.config.is_encoder_decoder:
        raise ValueError(
            f"{name} reads its words twice: removal='zero' would leave them in one place. Use "
            "removal='delete'"
        )

    def _without(inner: Forward, *args: Any, **kwargs: Any) -> Tensor:
        words = inner(*args, **kwargs)
        if words.shape[:2] != which.shape:
            raise ValueError(
                f"{name} embeds words as {tuple(words.shape[:2])} and not as (batch, tokens), so "
                "that removal='zero' finds none. Use removal='delete'"
            )
        return words.masked_fill(which[..., None], 0)

    return replaced({architecture.word_embeddings: _without})


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
    using: Shortcuts,
    *,
    cut: bool,
) -> tuple[dict[str, Any], np.ndarray, np.ndarray, Tensor]:
    """Rows of one kind, padded on the right, as the model's arguments.

    And where a row has a token, and where another one, (rows, tokens), and the column of each token
    in its text, as if the others stood there.
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

    shifted = np.array([row.shifted for row in rows])
    counted = np.where(shifted[:, None] & mask, starts[:, None] + places, kept)
    # The texts, one behind the other, and where each row's own begins.
    begins = np.cumsum([0, *map(len, texts)])[[row.text for row in rows], None]
    swap_ids = np.array([row.swap_id or 0 for row in rows])
    ids = _column("ids", texts)[begins + kept]
    if not rows[0].zeroed:
        ids = np.where(changed, swap_ids[:, None], ids)
    padding = getattr(architecture.config, "pad_token_id", None)
    arguments: dict[str, Any] = {"use_cache": False} if architecture.causal else {}
    # Without a mask a decoder reads a gap in the positions as the start of another text, and some
    # encoders take padding in a text for its end.
    if cut:
        before = (np.arange(starts.max()) < starts[:, None])[:, None].repeat(len(places), axis=1)
        seen = np.concatenate([before, np.tri(len(places), dtype=bool) & visible[:, None]], axis=2)
        arguments["attention_mask"] = put(seen[:, None], device)
    elif architecture.causal or not using.deletes or not visible.all() or padding in ids:
        arguments["attention_mask"] = put(visible.astype(np.int64), device)
    if architecture.vision:
        pairs = zip(rows, put(kept, device), strict=True)
        arguments["pixel_values"] = torch.stack([texts[row.text].states[own] for row, own in pairs])
        return arguments, mask, changed, put(kept, device)
    if not using.states and padding is not None:
        ids = np.where(mask, ids, padding)
        if architecture.reads_end and padding in ids[np.arange(len(rows)), lengths - 1]:
            raise ValueError(
                f"{type(architecture.model).__name__} takes token {padding}, at which a text would "
                "end here, for padding, and would read its answer at the token before: choose "
                "another removal"
            )
    arguments["input_ids"] = put(ids, device)
    if texts[0].types is not None:
        arguments["token_type_ids"] = put(_column("types", texts)[begins + kept], device)
    if texts[0].positions is not None:
        positions = _column("positions", texts)[begins + counted]
        if texts[0].start is not None:
            anew = shifted | changed.any(1) & (not rows[0].zeroed)
            positions[anew] = count(ids[anew], texts[0].start)
        arguments["position_ids"] = put(positions, device)
    return arguments, mask, changed, put(counted, device)


def _column(name: str, texts: Sequence[Text]) -> np.ndarray:
    return np.concatenate([getattr(text, name) for text in texts]).astype(np.int64, copy=False)


def put(array: np.ndarray, device: torch.device) -> Tensor:
    """The array on the device. A GPU goes on meanwhile: it waits for no memory that may move."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


@torch.inference_mode()
def prepare(
    architecture: Architecture,
    texts: Sequence[Text],
    rows: Sequence[Row],
    budget: int,
    using: Shortcuts,
) -> int:
    """Tokens in one batch: the budget, and 1, a row alone, where rows may not share a batch.

    Raises:
        ValueError: the model's attention mask does not remove.
    """
    if not rows:
        return budget
    proof = prove(architecture, max((text.ids for text in texts), key=len))
    masked = [row for row in rows if len(row.hidden) or (len(row.gone) and not row.shifted)]
    model = type(architecture.model).__name__
    if masked and proof.reads:
        raise ValueError(
            f"{model} {proof.reads}, so masking does not remove. Use "
            + about("removal", "delete")
            + ", or 'mask', 'pad' or 'unk', which replace"
        )
    if (
        not proof.empty
        and not using.routed
        and any(len(row.hidden) == row.length for row in masked)
    ):
        raise ValueError(
            f"{model} reads hidden words where nothing else is left of a text: encode texts with a "
            "special token in front, or call model.set_attn_implementation('sdpa')"
        )
    return budget if proof.together else 1
