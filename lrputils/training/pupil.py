"""A classifier that learns, from probabilities of classes and from a teacher's hidden states."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput


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
        for guess in self.guesses:  # the mean: worse guesses would drown the classes at first
            nn.init.zeros_(guess.weight)
            nn.init.zeros_(guess.bias)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        positions: Tensor | None = None,
        states: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Return loss and logits.

        Args:
            input_ids: integers (texts, width).
            attention_mask: (texts, width).
            labels: the probability of each class, (texts, classes).
            positions: integers (words,), where in the flattened tokens `states` stand.
            states: (words, depths, dimensions), a teacher's.
        """
        matched = positions is not None and len(positions) > 0
        outputs = self.classifier(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=matched
        )
        loss = cross_entropy(outputs.logits.float(), labels)
        if matched:
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
