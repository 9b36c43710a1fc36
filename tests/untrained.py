"""A small BERT with random weights, the same on every machine: some model for the tests at once.

Its vocabulary are the words of this book's own reviews. What it predicts means nothing.
"""

from __future__ import annotations

import re

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from lrputils.data.texts import OWN, load_texts

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789!\"#$%&'()*+,-./:;<=>?@[]_’‘“”–—…£€é"


def build(
    *, layers: int = 4, hidden: int = 64, heads: int = 4, positions: int = 512, seed: int = 0
) -> tuple[BertForSequenceClassification, BertTokenizer]:
    """Build the model and its tokenizer; the same arguments give the same bits on any machine."""
    vocabulary = _vocabulary()
    tokenizer = BertTokenizer(
        vocab={token: number for number, token in enumerate(vocabulary)}, model_max_length=positions
    )
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=positions,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    with torch.random.fork_rng(devices=[]):
        model = BertForSequenceClassification(config)
    _fill(model, seed)
    return model, tokenizer


def _vocabulary() -> list[str]:
    """Special tokens, single characters (so that any word can be spelled), and whole words."""
    words = {
        word
        for name, path in OWN.items()
        if path.is_file()
        for text in load_texts(name).texts
        for word in re.findall(r"[a-z]{2,}|[0-9]{2,}", text.lower())
    }
    letters = [character for character in _CHARACTERS if character.isalnum()]
    return [*_SPECIAL, *_CHARACTERS, *(f"##{letter}" for letter in letters), *sorted(words)]


def _fill(model: nn.Module, seed: int) -> None:
    """Fill in uniform random numbers of NumPy's generator.

    Torch draws normal numbers by code that differs with the processor, in the last bits. The
    scale keeps each layer's output at its input's size, so that tokens attend unevenly.
    """
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                rows, columns = module.weight.shape
                width = np.sqrt(3.0 if isinstance(module, nn.Embedding) else 3.0 / columns)
                drawn = (2 * generator.random((rows, columns)) - 1) * width
                module.weight.copy_(torch.from_numpy(drawn.astype(np.float32)))
            if isinstance(module, nn.Linear):
                module.bias.zero_()
