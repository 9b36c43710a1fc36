"""The network in its two roles: guessing masked tokens, and telling classes apart.

And how a network begins: new, from a folder, or as a shallow one with layers added.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import MaskedLMOutput

from lrputils.data import hub
from lrputils.training.recipe import Recipe, Shape

# Of embeddings made from vectors. From smaller ones, steps of the usual size would soon lead away.
VECTOR_SCALE = 0.3
_LAYER = re.compile(r"(?<=encoder\.layer\.)\d+")


class MaskedLanguageModel(BertForMaskedLM):
    """BERT's masked language model, its vocabulary-wide output computed where it is asked for.

    The output over all words costs as much as several layers; 15% of the tokens need it.
    """

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, positions: Tensor, labels: Tensor
    ) -> MaskedLMOutput:
        """Return the mean cross-entropy of `labels` (chosen,) at the flattened `positions`."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.cls(hidden.flatten(0, 1)[positions])
        return MaskedLMOutput(loss=cross_entropy(logits.float(), labels), logits=logits)


class Base(NamedTuple):
    """A model to start from: its files, and which one it is."""

    folder: Path
    identity: str


def new_config(shape: Shape, vocabulary: int) -> BertConfig:
    """Describe a BERT of this shape; its feed-forward blocks are four times as wide as it is."""
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // shape.head_size,
        intermediate_size=4 * shape.hidden,
        max_position_embeddings=shape.positions,
        # Dropped attention would rule out the fused kernels; hidden states are dropped by stage.
        attention_probs_dropout_prob=0.0,
    )


def find_base(name: str) -> Base:
    """Find a BERT by name on the hub or folder.

    Raises:
        FileNotFoundError, ConnectionError: there is no such model, or it cannot be reached.
        ValueError: it is not a BERT.
    """
    if hub.is_path(name):
        folder, commit = Path(name).expanduser(), None
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"base={name!r} is no folder with a config.json")
    else:
        folder, commit = hub.fetch(name, kind="model", wanted=_wanted, parameter="base")
    kind = BertConfig.get_config_dict(folder)[0].get("model_type")
    if kind != "bert":
        raise ValueError(f"base={name!r} is a {kind!r} model; this trains BERT only")
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    if not weights:
        raise FileNotFoundError(f"base={name!r} holds no weights (*.safetensors, *.bin)")
    return Base(folder, f"commit {commit}" if commit else f"sha256 {_digest(weights)}")


def _wanted(names: Iterable[str]) -> list[str]:
    top = [name for name in names if "/" not in name]
    weights = [name for name in top if name.endswith(".safetensors")]
    weights = weights or [name for name in top if name.endswith(".bin")]
    return weights + [name for name in top if name.endswith((".json", ".txt"))]


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check_positions(base: Base, recipe: Recipe) -> None:
    """Refuse a recipe with texts longer than the network takes that it starts from.

    Raises:
        ValueError: a stage of the recipe has longer ones.
    """
    positions = BertConfig.from_pretrained(base.folder).max_position_embeddings
    for name, stage in recipe.stages().items():
        if stage.max_length > positions:
            raise ValueError(
                f"max_length={stage.max_length} of {name} is more than the {positions} positions "
                f"of base={recipe.base!r}"
            )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder."""
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def masked_language_model(
    start: Path | BertConfig, seed: int, dropout: float, vectors: Tensor | None = None
) -> MaskedLanguageModel:
    """Return a masked language model: from a folder, or new; the seed decides what is new.

    `vectors` (pieces, hidden), mean 0 and variance 1, become a new one's embeddings.
    """
    torch.manual_seed(seed)
    config = _config(start, dropout)
    if not isinstance(start, BertConfig):
        return MaskedLanguageModel.from_pretrained(start, config=config, dtype=torch.float32)
    model = MaskedLanguageModel(config)
    if vectors is not None:
        with torch.no_grad():
            model.bert.embeddings.word_embeddings.weight.copy_(VECTOR_SCALE * vectors)
    return model


def _config(start: Path | BertConfig, dropout: float) -> BertConfig:
    config = start if isinstance(start, BertConfig) else BertConfig.from_pretrained(start)
    config.hidden_dropout_prob = dropout
    return config


def classifier(
    start: Path | BertConfig, names: Sequence[str], seed: int, dropout: float
) -> BertForSequenceClassification:
    """Return a classifier of the named classes: from a folder, or new.

    The output layer is new in either case, and so is the pooler where the folder has none.
    """
    torch.manual_seed(seed)
    config = _config(start, dropout)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    if isinstance(start, BertConfig):
        return BertForSequenceClassification(config)
    model = BertForSequenceClassification.from_pretrained(
        start, config=config, dtype=torch.float32, ignore_mismatched_sizes=True
    )
    nn.init.normal_(model.classifier.weight, std=config.initializer_range)
    nn.init.zeros_(model.classifier.bias)
    return model


def deepened(start: Path, layers: int, dropout: float) -> BertForSequenceClassification:
    """Return the classifier of a folder with layers added until there are `layers`.

    Each layer is followed by copies of it that at first pass on what they get, nearly: what they
    would add to it is multiplied by zero. So nothing learned is lost, and the copies, whose
    attention is a trained one, learn what to add: block expansion, Wu et al. 2024, "LLaMA Pro"
    (arXiv 2401.02415), here for layers that normalise last.
    """
    shallow = BertForSequenceClassification.from_pretrained(start, dtype=torch.float32)
    few, state = shallow.config.num_hidden_layers, shallow.state_dict()
    config = _config(start, dropout)
    config.num_hidden_layers = layers
    deep = BertForSequenceClassification(config)
    origins = [layer * few // layers for layer in range(layers)]
    names = {
        name: _LAYER.sub(lambda i: str(origins[int(i[0])]), name) for name in deep.state_dict()
    }
    deep.load_state_dict({name: state[source] for name, source in names.items()})
    for layer in range(1, layers):
        if origins[layer] == origins[layer - 1]:
            _pass_on(deep.bert.encoder.layer[layer])
    return deep


@torch.no_grad()
def _pass_on(layer: nn.Module) -> None:
    """Make a layer pass on what it gets, which the same normalisation gave before.

    Over a token's features x = γn + β has mean(β) for mean and mean(γ²) + var(β) for variance, as
    far as n and γ, β are independent; a normalisation back to these changes little.
    """
    final = layer.output.LayerNorm
    scale = (final.weight.square().mean() + final.bias.var(correction=0)).sqrt()
    shift = final.bias.mean()
    for part in (layer.attention.output, layer.output):
        nn.init.zeros_(part.dense.weight)
        nn.init.zeros_(part.dense.bias)
        nn.init.constant_(part.LayerNorm.weight, scale.item())
        nn.init.constant_(part.LayerNorm.bias, shift.item())
