"""Correctness and speed on a GPU: `python -m recipes.gpu --out DIR`; `--quick` tries it on a CPU.

Five steps, in the order of what matters; `--step` chooses some. Each row is written to
DIR/bench.json as it is measured, so that a run that is cut off keeps what it has;
`lrputils.runs.bench.load` reads it. Texts are random tokens at the lengths of the recorded SST-2
and IMDB texts. Weights are random, which speed does not depend on, but for the certificates.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.model.architectures import Handle, describe
from lrputils.model.attention import AttentionCall, additive, routed
from lrputils.model.classifier import Classifier, load_classifier
from lrputils.model.forwards import matmul_precision, run
from lrputils.model.inputs import Inputs
from lrputils.propagation.conservation import without_biases
from lrputils.propagation.layerwise import layerwise_bypass
from lrputils.removal import packing
from lrputils.removal.certified import LOW
from lrputils.removal.leave_one_out import certified_loo, leave_one_out
from lrputils.runs import results
from lrputils.runs.bench import FILE, plain
from lrputils.runs.folders import writable, write_json
from lrputils.study import bench, zoo
from lrputils.study.bench import Bench, Contest, Shape, untrained
from lrputils.study.cost import measured, timed
from lrputils.study.variants import layer_sets

Row = dict[str, Any]

SIZES = ((6, 384), (12, 768))
# Kind of texts → the recording that has their lengths, and how many texts.
RECORDED = {"SST-2": ("sst", "minilm-sst2", 872), "IMDB": ("imdb", "minilm-imdb", 200)}
CAPTUM_ROWS = (8, 32, 128, 512, 1024)
BUDGETS = (2**14, 2**15, 2**17, 2**18)  # tokens a batch, beside the package's own choice
SECONDS = 8  # most that all texts may take at a third of the ceiling; else fewer are run
ANY = float("inf")  # a difference that is recorded, and never refused


@dataclass(frozen=True)
class Setting:
    """The device, its precisions, turns of a contest, and whether all is only tried."""

    device: torch.device
    precisions: tuple[str, ...]
    repeats: int
    quick: bool

    def cells(self) -> Iterator[tuple[Row, Classifier, str]]:
        """Each model with each kind of texts, and how rows name the two."""
        for (layers, hidden), kind in product([(2, 96)] if self.quick else SIZES, RECORDED):
            clf = untrained(layers, hidden, device=str(self.device))
            yield {"model": f"{layers}x{hidden}", "kind": kind}, clf, kind

    def texts(self, kind: str, count: int | None = None) -> Inputs:
        """So many random texts, of evenly spaced lengths of the recorded ones; by default all."""
        experiment, name, whole = RECORDED[kind]
        recorded = np.sort(results.load(experiment, name).rows.drop_duplicates("id").tokens)
        count = 2 if self.quick else count or whole
        lengths = recorded[np.linspace(0, len(recorded) - 1, count + 2).astype(int)[1:-1]]
        lengths = np.minimum(lengths, 12) if self.quick else lengths
        torch.manual_seed(0)
        ids = [torch.randint(4, zoo.VOCABULARY, (tokens,)) for tokens in lengths.tolist()]
        ids = pad_sequence(ids, batch_first=True)
        masks = {"attention_mask": (ids > 0).long(), "special_tokens_mask": (ids == 0).long()}
        return Inputs({"input_ids": ids, **masks}).to(self.device)


def tried(work: Callable[[], Iterable[Row]], **name: Any) -> Iterator[Row]:
    """The work's rows under this name; a failure is a row too, and ends no other work."""
    try:
        yield from ({**name, **row} for row in work())
    except Exception as error:  # whatever a device's library raises
        traceback.print_exc()
        yield {**name, "failed": f"{type(error).__name__}: {error}"[:200]}


def loo(model: Handle, texts: Inputs, precision: str = "float32", **how: Any) -> Tensor:
    """Leave-one-out; nothing is run again, for random weights are the worst case of rounding."""
    return leave_one_out(model, texts, precision=precision, tolerance=0.999, progress=False, **how)


@torch.no_grad()
def hidden_one_by_one(model: Handle, inputs: Mapping[str, Any]) -> Tensor:
    """LOO by its definition: for each token a forward pass in which no query sees its key.

    Of the class predicted on the whole input, `(batch, tokens)`, 0 at padding.
    """
    architecture = describe(model)
    arguments = architecture.arguments(inputs)
    whole = run(architecture, arguments)
    target, tokens = whole.argmax(1, keepdim=True), 0

    def hiding(call: AttentionCall, token: int | None = None) -> tuple[Tensor, None]:
        nonlocal tokens
        tokens = call.key.shape[2]
        scores = call.scores() + additive(call.mask, call.query.dtype)
        seen = call.seen().clone()
        if token is not None:
            seen[..., token] = False
        # A query that sees nothing gets zeros, as from the fused kernel.
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
        return call.combined(weights), None

    with routed(architecture, hiding):
        run(architecture, arguments)
    scores = []
    for token in range(tokens):
        with routed(architecture, lambda call, token=token: hiding(call, token)):
            scores.append(whole - run(architecture, arguments))
    return torch.stack([score.gather(1, target)[:, 0] for score in scores], 1)


def gates(setting: Setting) -> Iterator[Row]:
    """What has to hold before speed counts for anything: errors and their bounds."""
    device, texts = setting.device, setting.texts("SST-2", 16)
    clf = untrained(*((2, 96) if setting.quick else SIZES[0]), device=str(device))
    encoder, exact, decoder = clf.model, wide(clf.model), zoo.build("gpt2").float().to(device)
    found = partial(loo, encoder, texts)
    gradient = partial(attribute, inputs=texts, method="mask-gradient")

    def beginnings() -> float:
        # Passes that cost nothing: whatever can be shared is.
        with patch.dict(packing._PASS, {device.type: 0}):
            return off(loo(decoder, texts), hidden_one_by_one(wide(decoder), texts))

    def conservation() -> float:
        bare = without_biases(encoder).to(device)
        total = attribute(bare, texts, "cp-lrp", readout="sum").sum(1)
        return off(total, bare(**texts.model_kwargs()).logits.amax(1))

    def beyond_bounds(precision: str) -> float:
        trained = load_classifier(device=device)
        reviews = Bench.of(trained, sentences=20 if setting.quick else 100).texts["sentences"]
        low = certified_loo(trained, reviews, precision=precision, tolerance=0.999, progress=False)
        right = hidden_one_by_one(wide(trained.model), reviews).cpu()
        r = stats.pearson(low.scores.cpu(), right, where=reviews.valid_mask.cpu())
        return float((1 - r > low.bound).mean())

    table: dict[str, tuple[Callable[[], float], float]] = {
        "LOO, by its definition": (lambda: off(found(), hidden_one_by_one(exact, texts)), 1e-4),
        "LOO, a row at a time": (lambda: off(found(), found(batch_tokens=1)), 1e-4),
        "LOO of a decoder by shared beginnings, by its definition": (beginnings, 1e-4),
        "CP-LRP's sum without biases, the logit": (conservation, 1e-5),
        "ablations": (lambda: bench.ablations(Bench(clf, {}, 1))[1]["difference"], 1e-4),
        "mask gradient, in float64": (lambda: off(gradient(encoder), gradient(exact)), 1e-4),
    }
    for precision in setting.precisions[1:]:  # on CPUs it is 5 to 7%
        table[f"texts beyond {precision}'s bounds"] = partial(beyond_bounds, precision), 0.15
    for name, (work, bound) in table.items():
        for row in tried(lambda work=work: [{"error": work()}], gate=name, bound=bound):
            yield {**row, "passed": row.get("error", ANY) <= bound}


def wide(model: nn.Module) -> nn.Module:
    """A float64 copy on the same device."""
    return without_biases(model, zeroed=False).to(next(model.parameters()).device)


def off(found: Tensor, right: Tensor) -> float:
    """Largest difference, relative to the largest score."""
    return float((found - right).abs().max() / right.abs().max())


@cache
def ceiling(setting: Setting, precision: str) -> float:
    """Operations a second of a large matrix product, at best."""
    size = 256 if setting.quick else 8192
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(2, size, size, device=setting.device, dtype=kind)
    with matmul_precision("tf32" if precision == "tf32" else "float32", setting.device):
        return 2 * size**3 / min(timed(setting.device, lambda: left @ right)[0] for _ in range(11))


def ceilings(setting: Setting) -> Iterator[Row]:
    """What the device can do: a large matrix product; a copy, its reads and writes counted."""
    for precision in setting.precisions:
        yield {"what": precision, "tflops": ceiling(setting, precision) / 1e12}
    numbers = torch.randn(2 ** (16 if setting.quick else 30), device=setting.device)
    copied = torch.empty_like(numbers).copy_
    seconds = min(timed(setting.device, partial(copied, numbers))[0] for _ in range(11))
    yield {"what": "copy", "gb_per_s": 2 * numbers.nbytes / seconds / 1e9}


def exact_loo(setting: Setting) -> Iterator[Row]:
    """Leave-one-out of all texts, and of a few against a plain loop and captum's best batch."""
    for (named, clf, kind), precision in product(setting.cells(), setting.precisions):
        for work in (of_all,) if precision == "bf16" else (of_all, of_few):
            given = setting, clf, kind, precision
            yield from tried(partial(work, *given), **named, precision=precision)


def of_all(setting: Setting, clf: Classifier, kind: str, precision: str) -> Iterator[Row]:
    """This package, also as a share of the ceiling."""
    shape, texts, rate = Shape.of(clf), setting.texts(kind), ceiling(setting, precision)
    expected = 3 * int(shape.loo(texts.lengths).sum()) / rate
    if expected > SECONDS:
        texts = setting.texts(kind, int(texts.batch_size * SECONDS / expected) + 1)
    contest = Contest("LOO", {bench.OURS: partial(loo, clf, texts, precision)})
    (row,) = bench.measure(contest, setting.repeats, setting.device)
    reached = int(shape.loo(texts.lengths).sum()) / row["seconds"]
    yield {**row, "texts": texts.batch_size, "tflops": reached / 1e12, "share": reached / rate}


def of_few(setting: Setting, clf: Classifier, kind: str, precision: str) -> Iterator[Row]:
    """`lrputils bench`'s contest, in float32 or with all sides' products rounded by torch."""
    texts = setting.texts(kind, 8 if kind == "SST-2" else 1)
    material = Bench(clf, {kind: texts}, setting.repeats)
    with matmul_precision(precision, setting.device):
        rows = bench.loo(material, kind, CAPTUM_ROWS, 1e-3 if precision == "float32" else ANY)
    yield from ({"texts": texts.batch_size, **row} for row in rows)


def budgets(setting: Setting) -> Iterator[Row]:
    """Tokens a batch, ratios to the package's own choice; texts enough to fill the largest."""
    own = packing.BATCH_TOKENS[setting.device.type]
    for (named, clf, kind), precision in product(setting.cells(), setting.precisions):
        loo_of = partial(loo, clf, setting.texts(kind, 872 if kind == "SST-2" else 12), precision)
        ways = {str(tokens): partial(loo_of, batch_tokens=tokens) for tokens in (own, *BUDGETS)}
        contest = Contest("tokens a batch", ways, ANY), setting.repeats, setting.device
        yield from tried(partial(bench.measure, *contest), **named, precision=precision)


def attribution(setting: Setting) -> Iterator[Row]:
    """LRP, the sweep of ablations and half-removal: time, and peak memory."""
    for named, clf, kind in setting.cells():
        texts = setting.texts(kind, 64 if kind == "SST-2" else 16)
        given, sets = (clf.model, texts), list(layer_sets(Shape.of(clf).layers).values())
        ways = {
            "forward + backward": partial(attribute, *given, "grad-x-input"),
            "AttnLRP": partial(attribute, *given, "attnlrp"),
            "mask gradient": partial(attribute, *given, "mask-gradient"),
            "half-removal, 4 groups": partial(attribute, *given, "mask-gradient", groups=4),
            f"{len(sets)} ablations in a sweep": partial(layerwise_bypass, *given, sets),
            "LOO": partial(loo, *given),
        }
        contest = Contest(f"maps of {texts.batch_size} texts", ways)
        for row in tried(partial(bench.measure, contest, setting.repeats, setting.device), **named):
            if "side" in row:
                with measured(setting.device) as spent:
                    ways[row["side"]]()
                row["peak_gib"] = spent.peak_bytes / 2**30
            yield row


STEPS = (gates, ceilings, exact_loo, budgets, attribution)


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for bench.json")
    parser.add_argument("--step", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="only these")
    parser.add_argument("--quick", action="store_true", help="tiny models and few texts")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args(arguments)
    device, repeats = torch.device(chosen.device), 1 if chosen.quick else 3
    precisions = "float32", *LOW.get(device.type, ())
    setting = Setting(device, precisions, repeats, chosen.quick)
    command = "python -m recipes.gpu" + " --quick" * chosen.quick
    facts = {"command": command, "parameters": {"steps": chosen.step}, "device": device}
    facts, groups = results.provenance(**facts, seconds=0), {}
    for step in (STEPS[number - 1] for number in chosen.step):
        rows = groups.setdefault(step.__name__, {"rows": []})["rows"]
        for row in tried(partial(step, setting)):
            rows.append({name: plain(value) for name, value in row.items()})
            write_json(writable(chosen.out) / FILE, {"provenance": facts, "groups": groups})
            print(step.__name__, rows[-1], flush=True)


if __name__ == "__main__":
    main()
