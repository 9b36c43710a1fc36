"""Maps of three tiny models, as the net keeps them in `maps.npz`.

`python -m tests.net.maps` computes them anew and writes that file: an explicit step, and a commit
that does nothing else and says why. Weights are drawn by numpy's frozen generator, a stream a
parameter's name, so that neither torch nor the order of a model's parts decides them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

import lrputils as lrp

import torch  # isort: skip
from transformers import (  # isort: skip
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

FILE = Path(__file__).with_name("maps.npz")
REMOVALS = ("attention-mask", "mask", "pad", "unk", "zero", "delete")
READOUTS = ("word", "sum", "post-norm")
RULES = {
    "attention": (
        *("gradient", "thirds", "path", "half-value", "whole-value"),
        *("query-closed", "key-closed", "identity"),
    ),
    "product": ("gate-held", "gradient"),
    "activation": ("gradient",),
    "head": ("gradient",),
    "norm": ("held", "gradient"),
}
_SIZES = {"vocab_size": 30, "num_labels": 3, "pad_token_id": 1}
_WIDTHS = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2}
_WIDTHS |= {"intermediate_size": 16, "max_position_embeddings": 32}
_ENDS = {"bos_token_id": 2, "eos_token_id": 3}


def models() -> dict[str, torch.nn.Module]:
    gpt2 = {"n_embd": 12, "n_layer": 3, "n_head": 2, "n_inner": 16, "n_positions": 32}
    built = {
        "bert": BertForSequenceClassification(BertConfig(**_SIZES, **_WIDTHS)),
        "gpt2": GPT2ForSequenceClassification(GPT2Config(**_SIZES, **_ENDS, **gpt2)),
        "llama": LlamaForSequenceClassification(
            LlamaConfig(**_SIZES, **_ENDS, **_WIDTHS, num_key_value_heads=1)
        ),
    }
    for model in built.values():
        model.double().eval().requires_grad_(False)
        for name, parameter in model.named_parameters():
            drawn = np.random.RandomState(zlib.crc32(name.encode())).normal(size=parameter.shape)
            norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(torch.from_numpy(0.4 * drawn + norm))
    return built


def texts() -> lrp.Inputs:
    """Two texts, `[2] … [3]`, the second one padded."""
    return _inputs([[2, 11, 7, 19, 23, 8, 3], [2, 14, 29, 9, 3, 1, 1]])


def long_text() -> lrp.Inputs:
    """A text of 30 tokens: a budget deals it into groups."""
    return _inputs([[2, *(6 + 11 * i % 24 for i in range(28)), 3]])


def _inputs(rows: list[list[int]]) -> lrp.Inputs:
    ids = torch.tensor(rows)
    special = torch.isin(ids, torch.tensor([1, 2, 3])).long()
    data = {"input_ids": ids, "attention_mask": (ids != 1).long(), "special_tokens_mask": special}
    return lrp.Inputs(data, replacements={"mask": 4, "pad": 1, "unk": 5})


def computed() -> Iterator[tuple[str, np.ndarray]]:
    """Yield every name and its map, (texts, tokens) for most; float64 where the package has it."""
    inputs = texts()
    for name, model in models().items():
        for what, found in _of_model(model, inputs):
            yield f"{name} {what}", np.asarray(found)


def _of_model(model: torch.nn.Module, inputs: lrp.Inputs) -> Iterator[tuple[str, torch.Tensor]]:
    architecture = lrp.describe(model)
    places = [at for at in READOUTS if at != "post-norm" or model.config.model_type == "bert"]
    quiet = {"progress": False}

    def run(method: str, given: lrp.Inputs = inputs, **options: object) -> torch.Tensor:
        chosen = lrp.METHODS[method]  # in float64: `attribute` rounds to float32
        return chosen.function(architecture, given, target=None, **chosen.with_defaults(options))

    for method, known in sorted(lrp.METHODS.items()):
        yield f"attribute {method}", lrp.attribute(model, inputs, method)
        for readout in places if "readout" in known.options else [None]:
            chosen = {"readout": readout} if readout else {}
            yield f"method {method} {readout or ''}".strip(), run(method, **chosen)
    yield "method canonised-lrp path", run("canonised-lrp", unit="path")
    yield "method canonised-lrp blocks", run("canonised-lrp", readout="blocks")
    yield "method rollout abnar", run("rollout", variant="abnar")
    for operation, rules in RULES.items():
        for rule, readout in product(rules, ("word", "sum")):
            composite = lrp.ATTN_LRP.but(**{operation: rule})
            found = lrp.attribute(model, inputs, composite, readout=readout)
            yield f"rule {operation}={rule} {readout}", found
    sets = [[], [0], [0, 1], [1, 2], [2], [0, 1, 2]]
    for readout in places:
        yield f"sweep {readout}", lrp.layerwise_bypass(model, inputs, sets, readout=readout)
    yield "paths", lrp.relevance_paths(model, inputs, readout="sum")
    for removal in REMOVALS:
        yield f"removal {removal}", lrp.leave_one_out(model, inputs, removal=removal, **quiet)
    for output in ("difference", "probability"):
        yield f"output {output}", lrp.leave_one_out(model, inputs, output=output, **quiet)
    for groups, gate in product((1, 2, 4), (0.5, 0.7)):
        yield f"groups {groups} {gate}", run("mask-gradient", groups=groups, gate=gate)
    for groups in (2, 4):
        yield f"with open {groups}", run("mask-gradient", groups=groups, with_open=True)
    yield "mask-gradient first-order", run("mask-gradient", form="first-order")
    for budget in (0.5, 0.9, 1.0):
        yield f"budget {budget}", run("budgeted-loo", budget=budget)
    yield "budget of a long text", run("budgeted-loo", long_text(), budget=0.9)
    loo = lrp.leave_one_out(model, inputs, **quiet)
    for chunk in (1, 2):
        curves = lrp.perturbation_curves(model, inputs, loo, chunk)
        yield f"curve morf {chunk}", curves.morf
        yield f"curve lerf {chunk}", curves.lerf
    shapley = lrp.shapley_values(model, inputs, permutations=8, seed=3, **quiet)
    yield "shapley scores", shapley.scores
    yield "shapley errors", shapley.errors
    yield "shapley change", shapley.change
    pairs = lrp.leave_two_out(model, inputs, **quiet)
    every = lrp.shapley_values(model, inputs, permutations="all", **quiet)
    yield "shapley of all orders", every.scores
    yield "pairs loo", pairs.loo
    yield "pairs interactions", pairs.interactions


def main() -> None:
    """Write the maps of this version of the package."""
    np.savez_compressed(FILE, **dict(computed()))


if __name__ == "__main__":
    main()
