"""Which backward pass predicts a patch? Activation patching beside its linear estimates.

A patch replaces what one component of the network holds at one token, and lets the rest run on.
With a what the component held, b what it holds then, and g what flows back to it,

    effect = f − f(b in place of a)   ≈   (a − b)·g.

The plain gradient for g is attribution patching (Nanda, 2023; AtP*, arXiv 2403.00745); g by LRP's
rules is relevance patching (RelP, arXiv 2508.21258). RelP's five rules are those of CP-LRP, and its
recipe for GPT-2 leaves out the one for attention: `attention-gradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from lrputils.data.texts import Texts
from lrputils.model.architectures import Architecture
from lrputils.model.attention import AttentionCall, fused
from lrputils.model.classifier import Classifier
from lrputils.model.forwards import replaced, run
from lrputils.model.inputs import Inputs
from lrputils.model.operations import Rulebook
from lrputils.model.proof import laid_out
from lrputils.model.readout import read
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, GRADIENT, installed

# Component → what it is: the state that enters a layer, what its attention mixes (before W_O), what
# its feed-forward part adds.
SITES = ("state", "attention", "feed-forward")
# What a component holds after the patch: nothing, or what it holds where all words are [MASK].
SOURCES = ("zero", "masked words")
PASSES = {
    "gradient": GRADIENT,
    "attnlrp": ATTN_LRP,
    "cp-lrp": CP_LRP,
    "attention-gradient": ATTN_LRP.but(attention="gradient"),
}


class _Patch(NamedTuple):
    """Where one is made: a site of a layer, counted from 0, at a token."""

    site: str
    layer: int
    token: int


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    patches: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return the effect of patches and what each backward pass says that it is.

    Of each text, cut at `max_length`, the predicted class is explained, and for each site so many
    `patches`, layers and tokens, are drawn; each gets every one of `SOURCES`.

    Returns:
        one row a text, `site`, `layer`, `token` and `source`: `id`, `effect`, and an estimate of it
        by each of `PASSES`, in logits.

    Raises:
        ValueError: the tokenizer has no mask token.
    """
    parts = []
    for number, text in enumerate(texts):
        draw = np.random.default_rng([0, *map(ord, texts.ids[number])])
        inputs = classifier.encode([text], max_length, truncate=True)
        size = (patches, 2)
        most = (classifier.architecture.layers, inputs["input_ids"].shape[1])
        plan = [
            _Patch(site, *map(int, at)) for site in SITES for at in draw.integers(most, size=size)
        ]
        parts.append(_text(laid_out(classifier), inputs, plan).assign(id=texts.ids[number]))
    return pd.concat(parts, ignore_index=True)


class _Sites:
    """Every layer's components, in a forward pass; `change` may replace what they hold."""

    def __init__(
        self, architecture: Architecture, change: Callable[[str, int, Tensor], Tensor] | None = None
    ):
        self.change, self.values = change, {site: [] for site in SITES}
        self.forwards = dict.fromkeys(architecture.blocks, self._block)
        for block in architecture.blocks:  # whose last linear map ends the feed-forward part
            maps = [m for m in block.modules() if isinstance(m, (nn.Linear, Conv1D))]
            self.forwards[maps[-1]] = self._fed

    def _seen(self, site: str, value: Tensor) -> Tensor:
        kept = self.values[site]
        kept.append(value if self.change is None else self.change(site, len(kept), value))
        return kept[-1]

    def _block(self, inner: Callable, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        return inner(self._seen("state", hidden), *args, **kwargs)

    def _fed(self, inner: Callable, x: Tensor) -> Tensor:
        return self._seen("feed-forward", inner(x))

    def attention(self, call: AttentionCall) -> tuple[Tensor, None]:
        return self._seen("attention", fused(call)[0]), None


def _text(architecture: Architecture, inputs: Inputs, plan: Sequence[_Patch]) -> pd.DataFrame:
    """One text's rows."""
    if "mask" not in inputs.replacements:
        raise ValueError("the tokenizer has no mask token, which patches put in place of words")
    target = int(read(architecture, inputs).target)
    held, logit, flowing = None, None, {}
    for name, composite in PASSES.items():
        sites, output = _passed(architecture, composite.rule, inputs, target)
        every = [value for site in SITES for value in sites.values[site]]
        back = iter(torch.autograd.grad(output, every, allow_unused=True, materialize_grads=True))
        flowing[name] = {site: [next(back) for _ in sites.values[site]] for site in SITES}
        held, logit = sites.values, float(output.detach())
    ids = torch.where(inputs.content_mask, inputs.replacements["mask"], inputs["input_ids"])
    masked = _passed(architecture, GRADIENT.rule, {**inputs, "input_ids": ids}, target)[0].values
    parts = []
    for source in SOURCES:
        given = [
            torch.zeros_like(held[site][layer][0, token])
            if source == "zero"
            else masked[site][layer][0, token].detach()
            for site, layer, token in plan
        ]
        part = pd.DataFrame(plan).assign(source=source)
        part["effect"] = logit - _patched(architecture, inputs, plan, given)[:, target].numpy()
        for name, gradients in flowing.items():
            part[name] = [
                float(
                    ((held[site][layer][0, t] - new) * gradients[site][layer][0, t]).detach().sum()
                )
                for (site, layer, t), new in zip(plan, given, strict=True)
            ]
        parts.append(part)
    return pd.concat(parts)


def _passed(
    architecture: Architecture, rulebook: Rulebook, inputs: Any, target: int
) -> tuple[_Sites, Tensor]:
    """A forward pass whose gradients follow the rules: its components, and the logit."""
    sites = _Sites(architecture)
    with installed(architecture, rulebook, sites.attention), replaced(sites.forwards):
        return sites, read(architecture, inputs, target=target).output.sum()


def _patched(
    architecture: Architecture, inputs: Inputs, plan: Sequence[_Patch], given: Sequence[Tensor]
) -> Tensor:
    """Logits `(patches, classes)` with each patch alone, all in one batch."""

    def change(site: str, layer: int, value: Tensor) -> Tensor:
        for row, (patch, new) in enumerate(zip(plan, given, strict=True)):
            if patch[:2] == (site, layer):
                value = value.clone()
                value[row, patch.token] = new
        return value

    sites = _Sites(architecture, change)
    many = {name: x.repeat(len(plan), 1) for name, x in inputs.items()}
    with (
        torch.no_grad(),
        installed(architecture, GRADIENT.rule, sites.attention),
        replaced(sites.forwards),
    ):
        return run(architecture, architecture.arguments(many)).cpu()
