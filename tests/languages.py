"""Tiny random language models with a tokenizer and a chat template. Tests only."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lrputils.model.classifier import Classifier
from tests import tiny

TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('no such role') }}{% endif %}"
    "<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
MARKS = ("<pad>", "<s>", "</s>")


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes, with a few merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("Ġ", "the"), ("i", "s")]
    names = [*MARKS, *letters, *("".join(pair) for pair in merges)]
    plain = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens([AddedToken(name, special=True) for name in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="</s>", chat_template=template
    )


def load(name: str = "llama-lm", template: str | None = TEMPLATE, **changes: object) -> Classifier:
    """A tiny language model in float64."""
    own = tokenizer(template)
    shape = {"vocab_size": len(own), "max_position_embeddings": 128, "pad_token_id": 0}
    return Classifier(tiny.build(name, **(shape | changes)), own, name)


def speaking(name: str = "llama-lm") -> Classifier:
    """One that says letters alone: single bytes at random are no text."""
    found = load(name, seed=3)
    letters = set(found.tokenizer.convert_tokens_to_ids(list("abcdefgh")))
    rest = sorted({*range(len(found.tokenizer))} - letters)
    found.model.generation_config.suppress_tokens = rest
    return found
