"""The beginning of a decoder's text, computed once for all rows that share it.

A decoder's token sees those before it, so what is taken out of a text changes nothing in front of
the place. A row then runs from there on; the keys and values in front of it are those of the whole
text. This is what generation keeps its cache for, and as exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from lrputils.model.architectures import Architecture
from lrputils.model.attention import AttentionCall, AttentionFunction, fused, routed
from lrputils.removal.last_layer import head_token_alone
from lrputils.removal.rows import Row, Text, collate, logits_of, window


def shareable(architecture: Architecture, longest: int) -> bool:
    """Whether rows of texts of up to so many tokens can share beginnings.

    Not where a token sees later ones or a window of the text alone, and not in a model with a rule
    installed, whose attention may be another one.
    """
    return (
        architecture.causal
        and architecture.kind.rules
        and longest <= window(architecture)
        and all("forward" not in vars(module) for module in architecture.backbone.modules())
    )


class Beginnings:
    """Keys and values of whole texts, computed when they are first asked for.

    Attributes:
        numbers: of the texts.
        size: tokens of the texts' batch, with its padding.
    """

    def __init__(self, architecture: Architecture, texts: Sequence[Text], numbers: Sequence[int]):
        self.architecture, self.texts, self.numbers = architecture, texts, numbers
        self.size = len(numbers) * max(len(texts[number]) for number in numbers)
        # Of each layer, (texts, groups of heads, tokens, size).
        self._layers: list[tuple[Tensor, Tensor]] = []

    def logits_of(self, rows: Sequence[Row], device: torch.device) -> Tensor:
        """Logits (rows, classes) of rows of these texts, of which only what is changed runs."""
        if not self._layers:
            layers: list[tuple[Tensor, Tensor]] = []
            whole = [Row(number, len(self.texts[number])) for number in self.numbers]
            self._run(whole, device, partial(_keep, layers))
            self._layers = layers
        return self._run(rows, device, self._behind(rows), cut=True)

    def _run(
        self, rows: Sequence[Row], device: torch.device, attention: AttentionFunction, **how: bool
    ) -> Tensor:
        batch = collate(self.architecture, self.texts, rows, device, **how)
        # Outside `routed`, where the block has no other forward pass yet.
        with head_token_alone(self.architecture, batch.head), routed(self.architecture, attention):
            return logits_of(self.architecture, batch)

    def _behind(self, rows: Sequence[Row]) -> AttentionFunction:
        """Attention to a text's own keys and values in front of a row's."""
        longest = max(row.start for row in rows)
        places = [self.numbers.index(row.text) for row in rows]

        def behind(kept: Tensor, own: Tensor) -> Tensor:
            kept = kept[:, :, :longest]
            alone = len(self.numbers) == 1
            kept = kept.expand(len(rows), -1, -1, -1) if alone else kept[places]
            return torch.cat([kept, own], dim=2)

        def attention(call: AttentionCall) -> tuple[Tensor, None]:
            keys, values = self._layers[call.layer]
            key, value = behind(keys, call.key), behind(values, call.value)
            return fused(call.with_factors(call.query, key, value))

        return attention


def _keep(layers: list[tuple[Tensor, Tensor]], call: AttentionCall) -> tuple[Tensor, None]:
    layers.append((call.key, call.value))
    return fused(call)
