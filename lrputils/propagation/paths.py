"""Relevance by the path through which it arrives in each layer: value, query, key or residual.

Relevance reaches a layer's input x in four ways: from the attention's values, its queries and its
keys, all three maps of x, and along the residual connection around the attention. Propagation is
linear in the relevance, so the four add up to the whole, and each can be followed separately down
to the words:

    R(x) = R_value(x) + R_query(x) + R_key(x) + R_residual(x),   R_p(x_i) = x_i · J_pᵀ g(p),

with J_p the derivative, by the composite's rules, of the path's tensor p with respect to x. Every
way from the logit to a word crosses each layer by exactly one of them. Under CP-LRP the queries and
the keys carry nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lrputils import stats
from lrputils.model.architectures import describe
from lrputils.model.attention import stepwise
from lrputils.model.classifier import Classifier
from lrputils.model.forwards import replaced
from lrputils.model.handles import Handle
from lrputils.model.readout import (
    FIRST_BLOCK,
    GRADIENT_TOKENS,
    READOUTS,
    Blocks,
    Reading,
    Target,
    pulled_back,
    read,
)
from lrputils.propagation.composites import ATTN_LRP, Composite, check_composite, installed
from lrputils.removal.packing import by_length

PATHS = ("value", "query", "key", "residual")
# The softmax is reached through queries and keys together.
ROUTES = {"value": ("value",), "query + key": ("query", "key"), "residual": ("residual",)}
LAYER = "layer"


@torch.inference_mode(False)
def relevance_paths(
    model: Handle,
    inputs: Mapping[str, Any],
    composite: Composite = ATTN_LRP,
    *,
    target: Target = None,
    readout: str = "word",
    batch_tokens: int = GRADIENT_TOKENS,
) -> Tensor:
    """Return relevance by the layer and the path through which it came, for every token.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `model_of`).
        inputs: what the tokenizer or image processor gives, `(batch, tokens)`.
        composite: the rules; `ATTN_LRP` and `CP_LRP` are those of the paper.
        target: the class to explain; None is the class predicted on the whole input.
        readout: where the relevance is read. "layer": at the layer's own input, where the path
            ends. "word", "sum", "post-norm": carried on from there, through all layers below,
            down to that read-out of the embeddings.
        batch_tokens: how many tokens' gradients go back at once; bounds the memory.

    Returns:
        `(layers, paths, batch, tokens)`, paths in the order of `PATHS`, 0 at padding; float32, for
        a float64 model float64. For "layer" the paths of a layer sum to the relevance at its input.
        For the others they sum, in every layer, to the same whole: the map of
        `attribute(model, inputs, composite, readout=readout)`.

    Raises:
        TypeError: the model is not covered, or `composite` is no composite.
        ValueError: an unknown read-out, a layer that the model does not have, or what `read`
            refuses.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens={batch_tokens} is not a positive number")
    if readout not in (LAYER, *READOUTS):
        raise ValueError(f"unknown read-out {readout!r}; there are {[LAYER, *READOUTS]}")
    architecture = describe(model)
    check_composite(composite, architecture)
    blocks, tap = Blocks(architecture), _Tap(composite)
    place = FIRST_BLOCK if readout == LAYER else readout
    with installed(architecture, tap, stepwise), replaced(blocks.forwards):
        reading = read(architecture, inputs, target=target, readout=place)
    whole, by_path = _at_inputs(reading, blocks.inputs, tap.factors)
    if readout == LAYER:
        scores = [_at(reading, *pair) for pair in zip(blocks.inputs, by_path, strict=True)]
        totals = [_at(reading, *pair) for pair in zip(blocks.inputs, whole, strict=True)]
    else:
        rows = max(1, batch_tokens // reading.valid.numel())
        scores, total = _carried(reading, blocks.inputs, by_path, whole[0], rows)
        totals = [total] * len(scores)
    attention, total = torch.stack(scores), torch.stack(totals)
    return torch.cat([attention, (total - attention.sum(1))[:, None]], dim=1)


class _Tap:
    """A composite that keeps the attention's V, Q and K of each layer in the graph."""

    def __init__(self, composite: Composite):
        self.composite = composite
        self.factors: list[tuple[Tensor, Tensor, Tensor]] = []

    def rule(self, operation: str, layer: int | None) -> Callable:
        """The rule of an operation in a layer, as in `Composite.rule`."""
        rule = self.composite.rule(operation, layer)
        if operation != "attention":
            return rule

        def tapped(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            self.factors.append((value, query, key))
            return rule(query, key, value)

        return tapped


def _at_inputs(
    reading: Reading, inputs: Sequence[Tensor], factors: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """What flows back to each layer's input: in all, and `(3, …)` by value, query and key alone."""
    tensors = [*inputs, *(factor for layer in factors for factor in layer)]
    whole = torch.autograd.grad(
        reading.output.sum(), tensors, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    arriving = iter(whole[len(inputs) :])
    by_path = [
        torch.stack(
            [
                torch.autograd.grad(factor, hidden, next(arriving), retain_graph=True)[0]
                for factor in layer
            ]
        )
        for hidden, layer in zip(inputs, factors, strict=True)
    ]
    return list(whole[: len(inputs)]), by_path


def _carried(
    reading: Reading,
    inputs: Sequence[Tensor],
    by_path: Sequence[Tensor],
    first: Tensor,
    rows: int,
) -> tuple[list[Tensor], Tensor]:
    """Relevance at the read-out by layer, `(3, batch, tokens)` each, and the whole of it."""
    down = by_path[-1]
    for layer in reversed(range(len(inputs) - 1)):
        down = pulled_back(inputs[layer + 1], inputs[layer], down, rows)
        down = torch.cat([by_path[layer], down])
    down = torch.cat([down, first[None]])
    if inputs[0] is not reading.site:
        down = pulled_back(inputs[0], reading.site, down, rows)
    scores = torch.stack([reading.relevance(gradient) for gradient in down])
    return list(scores[:-1].unflatten(0, (-1, 3))), scores[-1]


def _at(reading: Reading, hidden: Tensor, gradient: Tensor) -> Tensor:
    """R = Σ hidden ⊙ gradient over the state's size, `(…, batch, tokens)`, 0 at padding."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return reading.per_token((hidden.to(wide) * gradient.to(wide)).sum(-1))


def routes_by_layer(
    classifier: Classifier,
    texts: Sequence[str],
    reference: Sequence[np.ndarray],
    composite: Composite = ATTN_LRP,
    *,
    readout: str = "word",
    batch_size: int = 16,
) -> pd.DataFrame:
    """Return each route's share and its correlation with a reference, by text, layer and route.

    The class explained is the one predicted on the whole text.

    Args:
        classifier: `load_classifier`'s answer.
        texts: the texts.
        reference: a map `(tokens,)` a text to compare the routes with: the exact LOO scores.
        composite: the rules.
        readout: where the maps are read that are compared with `reference`.
        batch_size: texts a batch.

    Returns:
        A row a text, layer and route, columns `position` (of the text), `layer` (from 1), `route`;
        `share`: Σ |relevance| of the route at the layer's input, over the tokens, as a share of
        that of the layer's three routes; `r`: Pearson's correlation with the reference of what the
        route delivers to the read-out; `r_without`: that of the whole map without it;
        `r_whole`: that of the whole map. NaN where a map is constant or a share 0 / 0.

    Raises:
        ValueError: not one reference a text, or one of another length than its text.
    """
    if len(reference) != len(texts):
        raise ValueError(f"{len(reference)} reference maps, but {len(texts)} texts")
    frames = []
    for rows in by_length(texts, batch_size):
        inputs = classifier.encode([texts[row] for row in rows])
        known = _padded([reference[row] for row in rows], inputs.lengths.tolist())
        at_layer = relevance_paths(classifier.model, inputs, composite, readout=LAYER)
        carried = relevance_paths(classifier.model, inputs, composite, readout=readout)
        frames.append(_compared(rows, at_layer, carried, known, inputs.valid_mask))
    return pd.concat(frames).sort_values(["position", "layer"], kind="stable", ignore_index=True)


def summary_by_layer(rows: pd.DataFrame, column: str, **options: Any) -> pd.DataFrame:
    """Return a column's mean over texts with its interval, for each layer and route.

    Args:
        rows: what `routes_by_layer` gives.
        column: one of its measures, or another numeric column.
        options: those of `lrputils.stats.bootstrap_interval`.

    Returns:
        By (layer, route), columns as `lrputils.stats.estimates`; a route is left out where no
        text has a value, as queries and keys are under CP-LRP.
    """
    wide = rows.pivot(index="position", columns=["layer", "route"], values=column)
    wide = wide.loc[:, wide.notna().any()]
    summary = stats.estimates(wide, **options)
    summary.index = pd.MultiIndex.from_tuples(summary.index, names=["layer", "route"])
    return summary


def _padded(maps: Sequence[np.ndarray], lengths: Sequence[int]) -> np.ndarray:
    found = [len(scores) for scores in maps]
    if found != list(lengths):
        raise ValueError(f"reference maps of {found} tokens, but texts of {list(lengths)}")
    padded = np.zeros((len(maps), max(lengths)))
    for row, scores in enumerate(maps):
        padded[row, : len(scores)] = scores
    return padded


def _by_route(scores: Tensor) -> dict[str, np.ndarray]:
    """Scores `(layers, paths, batch, tokens)` as `(layers, batch, tokens)` a route."""
    by_path = dict(zip(PATHS, scores.to("cpu", torch.float64).unbind(1), strict=True))
    return {
        route: torch.stack([by_path[path] for path in paths]).sum(0).numpy()
        for route, paths in ROUTES.items()
    }


def _compared(
    rows: Sequence[int], at_layer: Tensor, carried: Tensor, reference: np.ndarray, valid: Tensor
) -> pd.DataFrame:
    flow = {route: np.abs(scores).sum(2) for route, scores in _by_route(at_layer).items()}
    total = sum(flow.values())
    total = np.where(total == 0, np.nan, total)
    delivered = _by_route(carried)
    whole = sum(delivered.values())
    parts = [
        pd.DataFrame(
            {
                "position": rows,
                "layer": layer + 1,
                "route": route,
                "share": flow[route][layer] / total[layer],
                "r": stats.pearson(scores[layer], reference, valid),
                "r_without": stats.pearson(whole[layer] - scores[layer], reference, valid),
                "r_whole": stats.pearson(whole[layer], reference, valid),
            }
        )
        for layer in range(len(carried))
        for route, scores in delivered.items()
    ]
    return pd.concat(parts)
