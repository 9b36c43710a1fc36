"""Encoded texts, and which of their tokens count.

`Inputs` is what every method takes: the tokenizer's tensors, which positions hold a token
(`valid_mask`), which of those are not special tokens (`content_mask`), and each token's string
(`tokens`). Rows are padded on the right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from warnings import warn

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import BatchEncoding, PreTrainedTokenizerBase

from lrputils.data import given
from lrputils.mistakes import about
from lrputils.model.units import Source, Spans, Units, check_units, divide

DEFAULT_MAX_LENGTH = 512
_MODEL_TENSORS = ("input_ids", "attention_mask", "token_type_ids")


class Inputs(BatchEncoding):
    """A padded batch of encoded texts.

    Holds `input_ids`, `attention_mask`, `special_tokens_mask` (1 at special tokens and at padding)
    and, where the model has them, `token_type_ids`; all are (batch, tokens) integer tensors. Texts
    with an answer also have `answer_mask`, 1 at its tokens (see `lrputils.model.chats`).

    Attributes:
        tokens: the strings of each row's tokens, padding left out: `tokens[row][i]`.
        truncated: the rows that were cut to the maximal length, in ascending order.
        replacements: ids of the tokens that can replace another: those of "mask", "pad" and "unk"
            that the tokenizer has.
        sources: each row's text and the characters of its tokens, as `units` needs them; none where
            the tokenizer does not tell.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        tokens: Iterable[Iterable[str]] | None = None,
        truncated: Iterable[int] = (),
        replacements: Mapping[str, int] | None = None,
        sources: Iterable[Source] = (),
    ):
        super().__init__({name: torch.as_tensor(value) for name, value in data.items()})
        ids, mask = checked_tensors(self.data)
        self.data["attention_mask"] = mask
        if not bool(mask[:, 0].all()):
            raise ValueError("padding stands on the left: set tokenizer.padding_side = 'right'")
        if tokens is None:
            tokens = (
                [f"#{i}" for i in row[own].tolist()]
                for row, own in zip(ids, mask.bool(), strict=True)
            )
        self.tokens = tuple(map(tuple, tokens))
        self.truncated = tuple(truncated)
        self.replacements = dict(replacements or {})
        self.sources = tuple(sources)

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> Inputs:
        """Return `batch` itself where it is `Inputs`, else the same tensors as `Inputs`."""
        return batch if isinstance(batch, cls) else cls(batch)

    @property
    def valid_mask(self) -> torch.Tensor:
        """Boolean (batch, tokens): true at every token, false at padding."""
        return self.data["attention_mask"].bool()

    @property
    def content_mask(self) -> torch.Tensor:
        """Boolean (batch, tokens): true at every token that is not a special one."""
        return self.valid_mask & ~special_tokens(self)

    @property
    def lengths(self) -> torch.Tensor:
        """Integer (batch,): the number of tokens of each row, special ones included."""
        return self.data["attention_mask"].long().sum(dim=1)

    @property
    def device(self) -> torch.device:
        """Where the tensors are; `inputs.to(device)` moves them in place and returns the inputs."""
        return self.data["input_ids"].device

    def units(self, units: str | Spans) -> Units:
        """Return which tokens make up each unit: "token", "word", "sentence" or "message".

        Special tokens belong to none. A word is what a heat map shows as one: letters and digits
        without a space between them, with inner apostrophes; a mark, or a character of a script
        that writes no spaces, stands alone. A sentence ends behind . ! ? or … before a space, or
        with its line. A message is one of a chat, a side of a pair, or the whole text. Or give
        spans of one's own: for each text a list of `(begin, end)`, characters counted from 0, such
        as `[[(0, 6), (12, 20)]]`; the messages of a chat stand one behind the other, a character
        between two.

        Raises:
            ValueError: another name; spans that overlap, leave their text or hold no token; or
                inputs that do not know their characters.
        """
        units = check_units(units)
        if units == "token":
            content = self.content_mask
            columns = torch.arange(content.shape[1], device=self.device).expand_as(content)
            texts = zip(self.tokens, content.tolist(), strict=True)
            return Units(
                (content.cumsum(1) - 1).masked_fill(~content, -1),
                columns,
                tuple(tuple(t for t, own in zip(*row, strict=False) if own) for row in texts),
            )
        if not self.sources:
            raise ValueError(
                f"units={units!r} needs the characters of each token: encode texts by "
                "`clf.encode(texts)`, with a fast tokenizer"
            )
        return divide(self.sources, units, tuple(self.data["input_ids"].shape), self.device)

    def model_kwargs(self) -> dict[str, torch.Tensor]:
        """Return exactly the keyword arguments of the model's forward pass."""
        return {name: self.data[name] for name in _MODEL_TENSORS if name in self.data}

    def rows(self, which: int | slice | Sequence[int] | torch.Tensor) -> Inputs:
        """Return the chosen rows as new inputs, columns that then hold only padding dropped.

        `which` is a row number, a slice, a sequence of row numbers or a tensor of row numbers; a
        boolean tensor (batch,) chooses the rows where it is true.
        """
        index = which if isinstance(which, int | slice) else torch.as_tensor(which).cpu()
        chosen = torch.arange(len(self.tokens))[index].reshape(-1).tolist()
        if not chosen:
            raise ValueError(f"{which!r} chooses none of the {len(self.tokens)} rows")
        width = max(len(self.tokens[row]) for row in chosen)
        return Inputs(
            {name: value[chosen, :width] for name, value in self.data.items()},
            tokens=(self.tokens[row] for row in chosen),
            truncated=(new for new, row in enumerate(chosen) if row in self.truncated),
            replacements=self.replacements,
            sources=(self.sources[row] for row in chosen if self.sources),
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def special_tokens(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Boolean (batch, tokens): true at special tokens and at padding.

    Raises:
        ValueError: the inputs do not say which tokens are special.
    """
    special = inputs.get("special_tokens_mask")
    if special is None:
        raise ValueError(
            "These inputs do not say which tokens are special, in `special_tokens_mask`: encode "
            "the texts with `clf.encode(texts)`, or pass `return_special_tokens_mask=True` to the "
            "tokenizer"
        )
    return special.bool()


def has_answers(inputs: Any) -> bool:
    """Whether encoded texts have answers."""
    return isinstance(inputs, Mapping) and inputs.get("answer_mask") is not None


def tensor_rows(inputs: Mapping[str, Any], which: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the chosen rows of all tensors of a batch, wherever they are; as `which` indexes."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    return {name: value[which.to(value.device)] for name, value in tensors.items()}


def to_the_left(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a batch padded on the right: rows with padding on the left are moved, in order."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or bool(mask[:, 0].all()):
        return batch
    order = mask.argsort(dim=1, descending=True, stable=True)
    alike = [name for name, value in batch.items() if value.shape == mask.shape]
    return {**batch, **{name: batch[name].gather(1, order) for name in alike}}


def encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: Any,
    *,
    max_length: int | None = None,
    truncate: bool = False,
    positions: int | None = None,
) -> Inputs:
    """Tokenize texts into one padded batch.

    Args:
        tokenizer: any Hugging Face tokenizer.
        texts: one a row, as `lrputils.data.given.frame` takes them; a string is one row, and a
            tuple `(first, second)` in a list a pair.
        max_length: the longest row allowed, in tokens with special ones; 512 where it is None, and
            the model's number of positions where that is less.
        truncate: cut longer texts, of a pair the longer side, and list their rows in
            `Inputs.truncated`. Otherwise a longer text is an error: a cut text is another text.
        positions: how many positions the model has, if that is bounded.

    Raises:
        TypeError: texts of no such type, or one is not a string (a missing value, for example).
        ValueError: no texts; single texts among pairs; a text, or one of a pair, without a single
            token of its own; a longer text while `truncate` is false.
    """
    rows = [text for _, text, _ in given.read([given.frame(texts)], blank=True)]
    pairs = not isinstance(rows[0], str)
    for row, text in enumerate(rows):
        if isinstance(text, str) is pairs:
            raise ValueError(
                f"Text {row} is {'one text' if pairs else 'a pair'}, and text 0 is not: encode "
                "single texts and pairs apart"
            )
    _warn_of_separators(tokenizer, rows)
    limit = min(DEFAULT_MAX_LENGTH if max_length is None else max_length, positions or torch.inf)
    special, own = tokenizer.num_special_tokens_to_add(pair=pairs), 1 + pairs
    if limit < special + own:
        raise ValueError(
            about("max_length", limit) + f" leaves no room for a text: this tokenizer adds "
            f"{special} special tokens. Ask for at least {special + own}"
        )
    columns = [[given.sides(text)[side] for text in rows] for side in range(1 + pairs)]
    told = {"return_special_tokens_mask": True, "return_offsets_mapping": tokenizer.is_fast}
    tokenize = partial(_tokenize, tokenizer, *columns, **told, verbose=False)
    fields = tokenize()
    lengths = list(map(len, fields["input_ids"]))
    overlong = tuple(row for row, length in enumerate(lengths) if length > limit)
    if overlong and not truncate:
        row = overlong[0]
        room = f" (the model has {positions} positions)" if positions else ""
        raise ValueError(
            f"Text {row} ({given.sides(rows[row])[0][:40]!r}…) has {lengths[row]} tokens, more "
            f"than max_length={limit}{room}; {len(overlong)} of {len(rows)} texts are too long. "
            f"Pass truncate=True to cut them, or leave them out"
        )
    if overlong:
        fields = tokenize(truncation="longest_first", max_length=limit)
    for row, special in enumerate(fields["special_tokens_mask"]):
        if all(special) or not all(map(str.strip, given.sides(rows[row]))):
            raise ValueError(
                f"Text {row} has no token of its own after tokenization: {rows[row]!r}. Leave "
                f"empty texts out before encoding"
            )
    tensors = (*_MODEL_TENSORS, "special_tokens_mask")
    kept = {name: fields[name] for name in tensors if name in fields}
    kept["attention_mask"] = [[1] * len(row) for row in fields["input_ids"]]
    return Inputs(
        padded(kept, padding_id(tokenizer)),
        tokens=map(tokenizer.convert_ids_to_tokens, fields["input_ids"]),
        truncated=overlong,
        replacements=replacements(tokenizer),
        sources=map(partial(_source, fields), range(len(rows)), rows) if tokenizer.is_fast else (),
    )


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, *columns: list[str], **told: Any
) -> BatchEncoding:
    """What the tokenizer makes of texts, every token said to be special or not.

    A tokenizer in Python that says how texts become inputs, and not which tokens it added, says
    nothing of these; then what it calls special is.
    """
    fields = tokenizer(*columns, **told)
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    fields["special_tokens_mask"] = [
        said if len(said) == len(ids) else [int(token in special) for token in ids]
        for said, ids in zip(fields["special_tokens_mask"], fields["input_ids"], strict=True)
    ]
    return fields


def _source(fields: BatchEncoding, row: int, text: given.Text) -> Source:
    """The row's characters; those of a pair's second text stand on a line of their own."""
    sides, side_of = given.sides(text), fields.sequence_ids(row)
    behind = (0, len(sides[0]) + 1)
    spans = [
        None if own else (begin + behind[side or 0], end + behind[side or 0])
        for (begin, end), own, side in zip(
            fields["offset_mapping"][row], fields["special_tokens_mask"][row], side_of, strict=True
        )
    ]
    ends = [at + len(side) for at, side in zip(behind, sides, strict=False)]
    return Source("\n".join(sides), tuple(spans), tuple(zip(behind, ends, strict=False)))


def _warn_of_separators(tokenizer: PreTrainedTokenizerBase, rows: Sequence[given.Text]) -> None:
    """Warn of a text that spells out what stands between the two of a pair, and of pairs without.

    A decoder's tokenizer joins the two as they are.
    """
    single, both = (tokenizer.num_special_tokens_to_add(pair=pair) for pair in (False, True))
    if single == both and not isinstance(rows[0], str):
        warn(
            "this tokenizer puts no token between the two texts of a pair: the model reads them as "
            "one text. Write what its training had between them, and encode single texts",
            stacklevel=2,
        )
    separator = tokenizer.sep_token
    strays = [
        row
        for row, text in enumerate(rows)
        if separator and separator in "".join(given.sides(text))
    ]
    if strays:
        warn(
            f"Text {strays[0]} holds {separator!r}, which separates the two texts of a pair: here "
            "it is read as a word of one text. A pair is a tuple: encode([(first, second)])",
            stacklevel=2,
        )


def replacements(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the tokens that can replace another, as far as the tokenizer has them."""
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("mask", "pad", "unk")}
    return {name: token for name, token in ids.items() if token is not None}


def check_token(embedding: torch.nn.Module, token: int, asked: str) -> None:
    """Refuse a token that cannot stand in the place of others, as what was `asked` for needs it.

    Raises:
        ValueError: the model has no word embedding of it, or one that is not finite.
    """
    words = embedding.weight
    if not 0 <= token < len(words):
        raise ValueError(
            f"{asked} needs the token {token}, and the model has embeddings of the tokens 0 to "
            f"{len(words) - 1}: the tokenizer has tokens that the model does not know"
        )
    if not bool(torch.isfinite(words[token]).all()):
        raise ValueError(
            f"{asked} needs the token {token}, whose word embedding in the model is not finite: "
            "it was never trained. Choose another one"
        )


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token to pad with; a decoder without one pads with its end-of-text token."""
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(token for token in known if token is not None)


def padded(
    fields: Mapping[str, Sequence[Sequence[int]]], padding_id: int
) -> dict[str, torch.Tensor]:
    """Pad rows of integers on the right, each field as its tensor (batch, tokens)."""
    fill = {"input_ids": padding_id, "special_tokens_mask": 1}
    return {
        name: pad_sequence(
            [*map(torch.as_tensor, rows)], batch_first=True, padding_value=fill.get(name, 0)
        )
        for name, rows in fields.items()
    }


def checked_tensors(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and the attention mask of a batch, (batch, tokens); without a mask, all ones.

    Raises:
        ValueError: no such tensors, or a text without tokens.
    """
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
        found = tuple(ids.shape) if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise ValueError(
            f"inputs have `input_ids`, a tensor (batch, tokens), as a tokenizer gives it with "
            f"return_tensors='pt', padding=True; got {found}"
        )
    mask = torch.ones_like(ids) if mask is None else mask
    if mask.shape != ids.shape:
        shapes = f"{tuple(mask.shape)} and input_ids {tuple(ids.shape)}"
        raise ValueError(f"attention_mask has shape {shapes}: both are (batch, tokens)")
    edges = mask.bool().int().diff(dim=1, prepend=torch.zeros_like(mask[:, :1]).int())
    if holes := ((edges > 0).sum(1) > 1).nonzero().flatten().tolist():
        raise ValueError(
            f"the attention mask of rows {holes} has a hole: a text's tokens stand side by side. "
            "Leave the hidden tokens out of input_ids"
        )
    empty = (mask.sum(1) == 0).nonzero().flatten().tolist()
    if empty or not ids.numel():
        raise ValueError(f"the texts in rows {empty} have no tokens: leave them out")
    return ids, mask
