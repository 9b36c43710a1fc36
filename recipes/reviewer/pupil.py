"""A classifier that learns from probabilities of classes and from a teacher's hidden states.

It begins shallow, which trains several times as fast, and layers are then added.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import SequenceClassifierOutput

_LAYER = re.compile(r"(?<=encoder\.layer\.)\d+")


class Pupil(nn.Module):
    """A classifier with its loss: cross-entropy, and what it gets wrong of a teacher's states.

    At equal parts of its depth a linear map, of which nothing is kept later, guesses the states of
    the teacher at these parts of its own depth: the loss on hidden states of Jiao et al. 2020,
    "TinyBERT" (arXiv 1909.10351), the teacher's being reduced to principal components.

    Attributes:
        classifier: what is trained.
        guesses: a linear map for each depth that is matched.
    """

    def __init__(self, classifier: BertForSequenceClassification, depths: int, dimensions: int):
        super().__init__()
        self.classifier = classifier
        hidden = classifier.config.hidden_size
        self.guesses = nn.ModuleList(nn.Linear(hidden, dimensions) for _ in range(depths))
        for parameter in self.guesses.parameters():
            nn.init.zeros_(parameter)  # the mean: worse guesses would drown the classes at first

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        positions: Tensor,
        states: Tensor,
    ) -> SequenceClassifierOutput:
        """Return loss and logits.

        Args:
            input_ids: integers (texts, width).
            attention_mask: (texts, width).
            labels: the probability of each class, (texts, classes).
            positions: integers (words,), where in the flattened tokens `states` stand; or none.
            states: (words, depths, dimensions), a teacher's.
        """
        outputs = self.classifier(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True
        )
        loss = cross_entropy(outputs.logits.float(), labels)
        if len(positions):
            loss = loss + self._unlike(outputs.hidden_states, positions, states.float())
        return SequenceClassifierOutput(loss=loss, logits=outputs.logits)

    def _unlike(self, hidden: tuple[Tensor, ...], positions: Tensor, states: Tensor) -> Tensor:
        """Return the squared distance of the guesses, the mean over words and depths."""
        depths, layers = len(self.guesses), len(hidden) - 1
        distances = [
            (guess(hidden[layers * (i + 1) // depths].flatten(0, 1)[positions]) - states[:, i])
            .square()
            .sum(-1)
            .mean()
            for i, guess in enumerate(self.guesses)
        ]
        return torch.stack(distances).mean()


class Collator:
    """Makes a batch of rows; where both sides cut a text, of the words that both have seen.

    A row has `input_ids`; `label`, the probability of each class; `starts`, where its words begin;
    and `states`, the teacher's of these words, with no words where there is no teacher.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.pad = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Return the arguments of `Pupil.forward`."""
        batch = self.pad([{"input_ids": row["input_ids"]} for row in rows])
        width = batch["input_ids"].shape[1]
        seen = [min(len(row["starts"]), len(row["states"])) for row in rows]
        positions = [
            i * width + np.asarray(row["starts"][:count], dtype=np.int64)
            for i, (row, count) in enumerate(zip(rows, seen, strict=True))
        ]
        states = [row["states"][:count] for row, count in zip(rows, seen, strict=True)]
        return {
            **batch,
            "labels": torch.from_numpy(np.stack([row["label"] for row in rows])),
            "positions": torch.from_numpy(np.concatenate(positions)),
            "states": torch.from_numpy(np.concatenate(states)),
        }


def deepened(shallow: BertForSequenceClassification, layers: int) -> BertForSequenceClassification:
    """Return a classifier with layers added until there are `layers`.

    Each layer is followed by copies of it that at first pass on what they get, nearly: what they
    would add to it is multiplied by zero. So nothing learned is lost, and the copies, whose
    attention is a trained one, learn what to add: block expansion, Wu et al. 2024, "LLaMA Pro"
    (arXiv 2401.02415), here for layers that normalise last.
    """
    few, state = shallow.config.num_hidden_layers, shallow.state_dict()
    config = copy.deepcopy(shallow.config)
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
