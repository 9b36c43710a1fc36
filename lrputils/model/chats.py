"""Chats and answers: a prompt that a language model reads, and what it says to it.

Messages are laid out by the tokenizer's own chat template. The template's tokens and the answer's
are special. What a message says is found again by rendering the template a second time, around
marks in the place of the messages: a template that changes what stands in them is refused.
"""

from __future__ import annotations

import re
import sys
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from textwrap import shorten
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from lrputils.data import given
from lrputils.data.given import Exchange, is_chat
from lrputils.model.inputs import Inputs, padded, padding_id, replacements
from lrputils.model.units import Source, Span

Chat = Sequence[Mapping[str, Any]]
PLAIN = "{text}"  # the template of a text around which nothing stands
# What a generation_config sets that no greedy answer depends on, or where it ends.
_NEUTRAL = re.compile(
    "transformers_version|_from_model_config|(bos|eos|pad|decoder_start)_token_id|do_sample|"
    "temperature|top_[kp]|min_p|"
    "typical_p|.*_cutoff|num_beams|early_stopping|length_penalty|max_.*|use_cache|cache_.*|"
    "num_return_sequences|return_.*|output_.*"
)
# In the place of a message: a character that no text has, on either side of its number.
_MARK = "\ue0b7"
_SECONDS, _MEGABYTES = 10, 20  # of this processor, and of memory, that laying out a chat may take


class Prompt(NamedTuple):
    """How a language model is asked for the class of a text.

    Attributes:
        template: what stands around each text, with {text} in its place.
        verbalizers: what the model says of a class, a token each.
        thresholds: subtracted from the classes' logits; none if not calibrated.
    """

    template: str
    verbalizers: tuple[str, ...]
    thresholds: tuple[float, ...] = ()


def are_prompts(texts: Any) -> bool:
    """Whether a language model alone reads these: a chat, or a list of chats or of exchanges."""
    rows = [texts] if is_chat(texts) else texts if isinstance(texts, Sequence) else ()
    return len(rows) > 0 and all(isinstance(row, Exchange) or is_chat(row) for row in rows)


def _rows(texts: Any) -> list[str | Chat | Exchange]:
    """Return the rows of chats, exchanges or texts at hand; a single chat, or string, is one row.

    Raises:
        TypeError: they are neither all prompts nor all texts.
        ValueError: pairs, which have no place for an answer.
    """
    if are_prompts(texts):
        return [texts] if is_chat(texts) else list(texts)
    rows = [text for _, text, _ in given.read([given.frame(texts)], blank=True)]
    if not all(isinstance(row, str) for row in rows):
        raise ValueError("an answer is to one text or chat; these are pairs: join the two first")
    return rows


def encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: Any,
    answer: str | Sequence[str] | None = None,
    *,
    max_length: int | None = None,
    template: str = PLAIN,
    truncate: bool = False,
) -> Inputs:
    """Tokenize prompts, and the answers behind them, into one padded batch.

    `Inputs` then have `answer_mask`, (batch, tokens), 1 at the tokens of an answer. A prompt is
    tokenized together with its answer. What the tokenizer adds behind a text, as [SEP], is left out
    where an answer follows.

    Args:
        tokenizer: a fast one, with a chat template for messages.
        texts: chats, or texts as `lrputils.model.inputs.encode` takes them.
        answer: of all rows, or one a row; without it the next token is what can be explained.
        max_length: the longest row allowed, answer included.
        template: what stands around a text that is no chat, special too.
        truncate: cut the end of a longer text inside of its template. Nothing else is ever cut.

    Raises:
        TypeError: `texts` are no texts and no chats.
        ValueError: an empty answer, or not as many as rows; a row that is too long or has no token
            of its own; what the template refuses, rewrites or leaves out; an answer whose first
            token would be another one behind this prompt.
    """
    rows = _rows(texts)
    if isinstance(rows[0], Exchange):
        said = [each.answer for each in rows]
        answer = None if said == [None] * len(rows) else said
        rows = [each.prompt for each in rows]
    answers = [answer] * len(rows) if answer is None or isinstance(answer, str) else list(answer)
    if len(answers) != len(rows):
        raise ValueError(f"{len(answers)} answers to {len(rows)} texts: pass one a text")
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} does not say which characters a token has, which answers "
            "and messages need: load the model with a fast tokenizer"
        )
    encoded, cut = [], []
    for number, (row, said) in enumerate(zip(rows, answers, strict=True)):
        found = _encode_row(tokenizer, number, template, row, said)
        while truncate and max_length and (over := len(found[2]) - max_length) > 0:
            begins = [span[0] for span in found[1].spans if span]
            if over >= len(begins):
                break
            row = row[: begins[-over]]
            found = _encode_row(tokenizer, number, template, row, said)
            cut.append(number)
        if max_length is not None and len(found[2]) > max_length:
            raise ValueError(
                f"Text {number} has {len(found[2])} tokens with its template or answer, and "
                f"{max_length} is the most: shorten it"
            )
        encoded.append(found)
    fields = {name: [row[name] for row, *_ in encoded] for name in encoded[0][0]}
    _, sources, names = zip(*encoded, strict=True)
    if answer is None:
        del fields["answer_mask"]
    return Inputs(
        padded(fields, padding_id(tokenizer)),
        tokens=names,
        replacements=replacements(tokenizer),
        sources=sources,
        truncated=dict.fromkeys(cut),
    )


def _encode_row(
    tokenizer: PreTrainedTokenizerBase,
    number: int,
    template: str,
    prompt: str | Chat,
    answer: str | None,
) -> tuple[dict[str, list[int]], Source, list[str]]:
    """A row's tensors, as lists, what it was encoded from, and the names of its tokens.

    What stands in no message, as the answer, is named as it is written.
    """
    if answer is not None and (not isinstance(answer, str) or not answer.strip()):
        raise ValueError(f"the answer to text {number} is {answer!r}: write one, or leave it out")
    if isinstance(prompt, str):
        before, _, behind = template.partition("{text}")
        text = before + prompt + behind
        own = [(len(before), len(before) + len(prompt))]
    else:
        text, own = _lay_out(tokenizer, prompt, answer)
    if not any(text[slice(*span)].strip() for span in own):
        raise ValueError(f"Text {number} says nothing: {prompt!r}. Leave empty prompts out")
    tokenize = partial(
        tokenizer,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        add_special_tokens=isinstance(prompt, str),
        verbose=False,
    )
    fields = tokenize(text)
    size = len(fields["input_ids"])
    if answer is not None:
        size = _without_end(fields)
        first, fields = fields["input_ids"][:size], tokenize(text + answer)
        if fields["input_ids"][:size] != first or _without_end(fields) <= size:
            raise ValueError(
                f"the answer to text {number}, {answer[:40]!r}, does not begin with a token of its "
                f"own behind {text[-20:]!r}: the blank or line break between the two, if there is "
                "one, belongs to the answer's beginning"
            )
    whole = _without_end(fields) if answer is not None or template != PLAIN else size
    # The messages stand one behind the other, a character between two.
    lengths = [0, *(end - begin + 1 for begin, end in own)]
    parts = tuple(
        (start, start + end - begin)
        for start, (begin, end) in zip(accumulate(lengths), own, strict=False)
    )
    spans = [
        None if special or at >= size else _within(own, parts, span)
        for at, (span, special) in enumerate(
            zip(fields["offset_mapping"], fields["special_tokens_mask"], strict=True)
        )
    ][:whole]
    row = {
        "input_ids": fields["input_ids"][:whole],
        "attention_mask": [1] * whole,
        "special_tokens_mask": [int(span is None) for span in spans],
        "answer_mask": [int(at >= size) for at in range(whole)],
    }
    names = tokenizer.convert_ids_to_tokens(row["input_ids"])
    for at, (span, place) in enumerate(zip(spans, fields["offset_mapping"], strict=False)):
        written = (text + (answer or ""))[slice(*place)].replace("\n", "⏎")
        names[at] = written if written and span is None else names[at]
    says = "\n".join(text[slice(*span)] for span in own)
    return row, Source(says, tuple(spans), parts), names


def _without_end(fields: Mapping[str, Any]) -> int:
    """How many tokens there are without those that the tokenizer adds behind a text."""
    special = fields["special_tokens_mask"]
    return max((at + 1 for at, added in enumerate(special) if not added), default=0)


def _within(own: Sequence[Span], parts: Sequence[Span], span: Span) -> Span | None:
    """A token's characters in the messages, one behind the other; None outside of all."""
    for (begin, end), (start, _) in zip(own, parts, strict=True):
        first, last = max(begin, span[0]), min(end, span[1])
        blank = span[0] == span[1] and begin <= span[0] < end  # its offsets may be trimmed
        if blank or first < last:
            return first - begin + start, last - begin + start
    return None


@torch.no_grad()
def reply(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, inputs: Inputs, most: int
) -> tuple[str, bool]:
    """Return what a language model says to a prompt, each time its most probable token.

    That is of its logits as its `generation_config` changes them: see `generation_settings`. And
    whether it was cut, after `most` tokens. Blanks at its ends are left out.

    Raises:
        ValueError: it says nothing.
    """
    pad, size = padding_id(tokenizer), inputs["input_ids"].shape[1]
    how = {"do_sample": False, "num_beams": 1, "max_new_tokens": most, "pad_token_id": pad}
    unused = dict.fromkeys(("temperature", "top_p", "top_k"))
    found = model.generate(**inputs.model_kwargs(), **how, **unused)[0, size:]
    said = tokenizer.decode(found, skip_special_tokens=True).strip()
    if not said:
        raise ValueError("the model says nothing to this: pass the answer to explain")
    return said, len(found) == most and int(found[-1]) not in tokenizer.all_special_ids


def generation_settings(model: nn.Module) -> str:
    """Return what a model's `generation_config` sets that changes its most probable token.

    As "repetition_penalty=1.3"; "" where it sets nothing of that kind.
    """
    told = model.generation_config.to_diff_dict()
    return ", ".join(
        f"{name}={shorten(str(value), 40, placeholder='…')}"
        for name, value in sorted(told.items())
        if not _NEUTRAL.fullmatch(name)
    )


def _lay_out(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, answer: str | None = None
) -> tuple[str, list[Span]]:
    """Return a chat as the model reads it, up to where its answer begins, and each message's place.

    Raises:
        ValueError: a tokenizer without a template; content that is no string; or a template that
            refuses, rewrites or leaves out a message, or the answer.
    """
    if not tokenizer.chat_template:
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template to lay messages out: "
            "pass the prompt as one text"
        )
    for number, message in enumerate(chat):
        if not isinstance(message["content"], str):
            raise ValueError(
                f"message {number} holds {type(message['content']).__name__}, not a string: "
                "images, and content in parts, are not explained; pass what it says as one string"
            )
    said = [message["content"] for message in chat]
    numbers = [str(number) for number in range(len(chat))]
    text = _rendered(tokenizer, chat, said)
    around = _rendered(tokenizer, chat, [f"{_MARK}{number}{_MARK}" for number in numbers])
    # What stands before each message, the numbers, and what stands behind all.
    *pieces, rest = re.split(f"{_MARK}(\\d+){_MARK}", around)
    pieces, marked = pieces[::2], pieces[1::2]
    if marked != numbers:
        number = next((n for n in numbers if marked.count(n) != 1), marked[0])
        raise ValueError(
            f"the chat template leaves out, repeats or moves message {number}, of the role "
            f"{chat[int(number)]['role']!r}: it has no such role there"
        )
    # A message stands there as it is, or without the blanks around it.
    pattern = ""
    for piece, content in zip(pieces, said, strict=True):
        forms = map(re.escape, dict.fromkeys((content, content.strip())))
        pattern += f"{re.escape(piece)}({'|'.join(forms)})"
    found = re.fullmatch(pattern + re.escape(rest), text)
    if found is None:
        raise ValueError(
            "the chat template rewrites what the messages say, so that their tokens cannot be "
            "found again: pass the prompt as one text, laid out by apply_chat_template"
        )
    if answer is not None:
        chat = [*chat, {"role": "assistant", "content": answer}]
        full = _rendered(tokenizer, chat, [*said, answer], prompting=False)
        if full.count(answer) <= text.count(answer):
            raise ValueError(
                f"the chat template cuts the answer {answer[:40]!r}: write it without blanks at "
                "its ends, and without what the template takes out"
            )
    return text, [found.span(1 + number) for number in range(len(said))]


def _rendered(
    tokenizer: PreTrainedTokenizerBase,
    chat: Chat,
    contents: Sequence[str],
    *,
    prompting: bool = True,
) -> str:
    """The chat with these contents, as the template writes it."""
    filled = [{**message, "content": says} for message, says in zip(chat, contents, strict=True)]
    try:
        with _bounded():
            return tokenizer.apply_chat_template(
                filled, tokenize=False, add_generation_prompt=prompting
            )
    except Exception as error:  # a template raises what it likes
        roles = ", ".join(str(message["role"]) for message in chat)
        raise ValueError(
            f"the chat template refuses messages of the roles {roles}: {str(error)[:200]}"
        ) from error


@contextmanager
def _bounded() -> Iterator[None]:
    """Stop Python code that takes too long or too much memory, at the line where it does.

    Raises:
        ValueError: it took too much.
    """
    before, counted = sys.gettrace(), tracemalloc.is_tracing()
    tracemalloc.start()
    held, end = tracemalloc.get_traced_memory()[0], time.thread_time() + _SECONDS

    def look(*_: Any) -> Any:
        taken = tracemalloc.get_traced_memory()[0] - held
        if time.thread_time() > end or taken > _MEGABYTES * 1e6:
            raise ValueError(f"it takes more than {_SECONDS} seconds or {_MEGABYTES} MB")
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)
        if not counted:
            tracemalloc.stop()
