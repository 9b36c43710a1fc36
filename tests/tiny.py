"""Every tiny model of the tests, a function per kind, and inputs for them.

`build` makes one of a covered architecture, `made` one of any class of transformers,
`classifier` one with the words of the book's reviews, `language_model` one with a chat template.
"""

import copy
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from experiments import zoo
from lrputils.data.texts import OWN, load_texts
from lrputils.model.classifier import Classifier

# isort: split
import transformers  # after lrputils, which keeps torchvision importable
from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import SequenceClassifierOutput

PAD, FIRST, LAST, MASK = 1, 2, 3, 4
VOCABULARY = 40
LABELS = 3

_SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "num_labels": LABELS,
    "initializer_range": 0.4,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "bos_token_id": FIRST,
    "eos_token_id": LAST,
}

# A family, or a family and "-lm" for its language model.
NAMES = tuple(
    f"{name}{end}" for name, heads in zoo.FAMILIES.items() for end in ("", "-lm")[: len(heads)]
)
TEXT_NAMES = tuple(name for name in NAMES if name != "vit")
WHOLLY = ("bert", "mpnet", "gpt2", "llama")


def cases(every: Iterable, few: Iterable, names: Iterable[str] = NAMES) -> list[tuple]:
    """The cases of a test: `every` one for four families, `few` for the others."""
    every, few = list(every), list(few)
    return [(name, case) for name in names for case in (every if name in WHOLLY else few)]


def build(
    name: str, *, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: object
) -> PreTrainedModel:
    """A random model in evaluation mode; biases and norm weights are random, not 0 and 1.

    `changes` are of its configuration, by the names that BERT's has for them. A copy of one that is
    built once, with the random numbers where building leaves them.
    """
    model, numbers = _built(name, dtype, seed, tuple(sorted(changes.items())))
    torch.set_rng_state(numbers)
    return copy.deepcopy(model)


@cache
def _built(
    name: str, dtype: torch.dtype, seed: int, changes: tuple[tuple[str, object], ...]
) -> tuple[PreTrainedModel, torch.Tensor]:
    torch.manual_seed(seed)
    family = name.removesuffix("-lm")
    shape = _SHAPE | ({"patch_size": 4} if family == "vit" else {}) | dict(changes)
    model = zoo.configured(family, head=int(name != family), **shape)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.dim() == 1:
                center = float("norm" in path.lower() and path.endswith("weight"))
                parameter.normal_(center, 0.3)
    return model.to(dtype).eval().requires_grad_(False), torch.get_rng_state()


def made(name: str, head: str = "ForSequenceClassification", **settings: object) -> PreTrainedModel:
    """A random model of transformers' class of this name and head, in evaluation mode."""
    torch.manual_seed(0)
    kind = getattr(transformers, name + head)
    return kind(kind.config_class(**settings)).eval().requires_grad_(False)


class Reader(nn.Module):
    """A module of torch alone, whose encoder's states are (tokens, batch, size)."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64)
        self.words, self.places = nn.Embedding(tokens, 32), nn.Embedding(64, 32)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        states = self.encoder(states.transpose(0, 1), src_key_padding_mask=mask == 0)
        return self.head(states[0])


class BagForSequenceClassification(PreTrainedModel):
    """A class of one's own without positions: attention of torch's, and a mean."""

    config_class = BertConfig
    causal = False

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(60, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, 3)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: object
    ) -> SequenceClassifierOutput:
        later = torch.ones(2 * input_ids.shape[1:], dtype=torch.bool).triu(1) & self.causal
        hidden = (attention_mask[:, None] == 0) & ~torch.eye(len(later), dtype=torch.bool)
        unseen = (later | hidden).repeat_interleave(4, 0)  # a head each
        states = self.encoder(self.words(input_ids), mask=unseen)
        seen = attention_mask[..., None]
        mean = (states * seen).sum(1) / seen.sum(1)
        return SequenceClassifierOutput(logits=self.out(mean))


def of_own_class(*, causal: bool = False, **settings: object) -> PreTrainedModel:
    """One of it, in evaluation mode."""
    torch.manual_seed(0)
    model = BagForSequenceClassification(BertConfig(**settings)).eval().requires_grad_(False)
    model.causal = causal
    return model


_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789!\"#$%&'()*+,-./:;<=>?@[]_’‘“”–—…£€é"


def classifier(
    *,
    layers: int = 2,
    hidden: int = 16,
    heads: int = 2,
    positions: int = 512,
    seed: int = 0,
    name: str = "untrained",
) -> Classifier:
    """A BERT with random weights, the same bits on every machine, for negative and positive."""
    words = _vocabulary()
    tokenizer = transformers.BertTokenizer(
        vocab={word: number for number, word in enumerate(words)}, model_max_length=positions
    )
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=positions,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    with torch.random.fork_rng(devices=[]):
        model = transformers.BertForSequenceClassification(config).eval().requires_grad_(False)
    _fill(model, seed)
    return Classifier(model, tokenizer, name)


def without_rules() -> Classifier:
    """One in which nothing conserves: behind its pooler's sigmoid f(0) is not zero."""
    found = classifier()
    found.model.bert.pooler.activation = nn.Sigmoid().eval()
    return found


@cache
def _vocabulary() -> list[str]:
    """Special tokens, characters (so that any word can be spelled), the words of the reviews."""
    texts = " ".join(text for name in OWN for text in load_texts(name).texts).lower()
    letters = [f"##{letter}" for letter in _CHARACTERS if letter.isalnum()]
    words = sorted({*re.findall(r"[a-z]{2,}|[0-9]{2,}", texts)})
    return [*_SPECIAL, *_CHARACTERS, *letters, *words]


def _fill(model: nn.Module, seed: int) -> None:
    """Fill in uniform random numbers of NumPy's generator: torch's differ with the processor.

    The scale keeps each layer's output at its input's size, so that tokens attend unevenly.
    """
    generator = np.random.default_rng(seed)
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.Linear):
            rows, columns = module.weight.shape
            width = np.sqrt(3.0 if isinstance(module, nn.Embedding) else 3.0 / columns)
            drawn = (2 * generator.random((rows, columns)) - 1) * width
            module.weight.copy_(torch.from_numpy(drawn.astype(np.float32)))
        if isinstance(module, nn.Linear):
            module.bias.zero_()


TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('no such role') }}{% endif %}"
    "<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
_MARKS = ("<pad>", "<s>", "</s>")


def byte_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes, with a few merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("Ġ", "the"), ("i", "s")]
    names = [*_MARKS, *letters, *("".join(pair) for pair in merges)]
    plain = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens([AddedToken(name, special=True) for name in _MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="</s>", chat_template=template
    )


def language_model(
    name: str = "llama-lm", template: str | None = TEMPLATE, **changes: object
) -> Classifier:
    """A random language model in float64 with a tokenizer of bytes and a chat template."""
    own = byte_tokenizer(template)
    shape = {"vocab_size": len(own), "max_position_embeddings": 128, "pad_token_id": 0}
    return Classifier(build(name, **(shape | changes)), own, name)


def speaking() -> Classifier:
    """One that says letters alone: single bytes at random are no text."""
    found = language_model(seed=3)
    letters = {*found.tokenizer.convert_tokens_to_ids([*"abcdefgh"])}
    rest = sorted({*range(len(found.tokenizer))} - letters)
    found.model.generation_config.suppress_tokens = rest
    return found


def save(clf: Classifier, folder: Path) -> Path:
    """Write the model and its tokenizer as transformers keeps them."""
    clf.model.save_pretrained(folder)
    clf.tokenizer.save_pretrained(folder)
    return folder


def texts(lengths: tuple[int, ...] = (7, 4, 5), seed: int = 1) -> dict[str, torch.Tensor]:
    """Random texts `[first] … [last]`, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.full((len(lengths), width), PAD)
    mask = torch.zeros(len(lengths), width, dtype=torch.long)
    special = torch.ones(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(MASK + 1, VOCABULARY, (length,), generator=generator)
        mask[row, :length] = 1
        special[row, :length] = 0
        if length > 2:
            ids[row, 0], ids[row, length - 1] = FIRST, LAST
            special[row, 0] = special[row, length - 1] = 1
    return {"input_ids": ids, "attention_mask": mask, "special_tokens_mask": special}


def images(batch: int = 3, *, dtype: torch.dtype = torch.float64, seed: int = 1) -> dict:
    """Random images for the tiny ViT: 4 patches and [CLS]."""
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(batch, 1, 8, 8, generator=generator, dtype=dtype)}


def inputs_for(name: str, **options: object) -> dict[str, torch.Tensor]:
    """Inputs that the model of this name takes."""
    return images(**options) if name == "vit" else texts(**options)


def row(inputs: dict[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
    """One row alone, without its padding."""
    if "pixel_values" in inputs:
        return {"pixel_values": inputs["pixel_values"][index : index + 1]}
    kept = inputs["attention_mask"][index].bool()
    return {key: value[index : index + 1, kept] for key, value in inputs.items()}


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Whether no entry is further off than a share of the largest expected one."""
    largest = max(float(expected.abs().max()), 1e-9)
    return float((found - expected).abs().max()) <= tolerance * largest
