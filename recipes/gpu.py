"""Correctness and speed on a GPU: `python -m recipes.gpu --out DIR`; on a CPU with `--quick`.

Five steps, each in a time of its own, under ten minutes together on one data-centre GPU. Rows are
written to DIR/bench.json as each is measured, so that a run that is cut off keeps what it has; read
them by `lrputils.runs.bench.load`. Models have random weights, which speed does not depend on, and
texts random tokens at the lengths of the recorded SST-2 and IMDB texts.
"""

from __future__ import annotations

import argparse
import itertools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.data.texts import load_texts
from lrputils.model.architectures import describe
from lrputils.model.attention import routed
from lrputils.model.classifier import Classifier, load_classifier
from lrputils.model.families import FAMILIES
from lrputils.model.handles import Handle
from lrputils.model.inputs import Inputs
from lrputils.model.precision import matmul_precision
from lrputils.model.readout import run
from lrputils.propagation.conservation import without_biases
from lrputils.propagation.layerwise import layerwise_bypass
from lrputils.removal import packing
from lrputils.removal.certified import LOW
from lrputils.removal.leave_one_out import certified_loo, leave_one_out, start, token_rows
from lrputils.removal.mask_gradient import Gates, mask_gradient
from lrputils.runs import bench, results
from lrputils.runs.folders import writable, write_json
from lrputils.study import gates, zoo
from lrputils.study.cost import sides
from lrputils.study.cost.clock import measured, timed
from lrputils.study.cost.operations import Shape, untrained
from lrputils.study.variants import layer_sets

MODELS = {"6x384": (6, 384), "12x768": (12, 768)}
RECORDED = {"SST-2": ("sst", "minilm-sst2", 872), "IMDB": ("imdb", "minilm-imdb", 200)}
CAPTUM_ROWS = (8, 32, 128, 512, 1024)
BUDGETS = tuple(2**power for power in range(11, 19))
PASSES = (128, 1024, 4096, 16384)


@dataclass
class Record:
    """Where rows go, and what all steps need: the device, and how much to measure."""

    path: Path
    device: torch.device
    quick: bool
    provenance: dict[str, Any]
    groups: dict[str, Any] = field(default_factory=dict)
    step: str = ""
    ends: float = float("inf")

    def add(self, **row: Any) -> None:
        """Write a row of the running step, and print it."""
        row = {name: bench._plain(value) for name, value in row.items()}
        self.groups.setdefault(self.step, {"rows": []})["rows"].append(row)
        write_json(self.path, {"provenance": self.provenance, "groups": self.groups})
        print(self.step, *(f"{name}={value}" for name, value in row.items()), flush=True)

    def late(self) -> bool:
        """Whether the step's time is over."""
        return time.perf_counter() > self.ends

    @contextmanager
    def kept_going(self, **row: Any) -> Iterator[None]:
        """A failure inside the block is a row, and ends no more than the block."""
        try:
            yield
        except Exception as error:  # whatever a device's library raises
            traceback.print_exc()
            self.add(**row, failed=f"{type(error).__name__}: {error}".splitlines()[0][:200])

    @property
    def precisions(self) -> tuple[str, ...]:
        """Of leave-one-out on this device."""
        return "float32", *LOW.get(self.device.type, ())

    def seconds(self, work: Callable[[], Any], turns: int = 3) -> float:
        """Median of the work's time, after one uncounted run; the fewer turns the less is left."""
        taken = [timed(self.device, work)[0]]
        turns = 1 if self.quick else turns
        while len(taken) <= turns and not (self.late() and len(taken) > 1):
            taken.append(timed(self.device, work)[0])
        return float(np.median(taken[1:]))

    def rate(self, precision: str) -> float:
        """Operations a second of a large matrix product: the device's ceiling."""
        known = self.__dict__.setdefault("rates", {})
        if precision not in known:
            size = 256 if self.quick else 8192
            left, right = torch.randn(2, size, size, device=self.device)
            if precision == "bf16":
                left, right = left.bfloat16(), right.bfloat16()
            with _others(precision, self.device, cast=False):
                seconds = self.seconds(lambda: left @ right, turns=10)
            known[precision] = 2 * size**3 / seconds
        return known[precision]


@contextmanager
def _others(precision: str, device: torch.device, cast: bool = True) -> Iterator[None]:
    """The precision of other libraries' passes; in bfloat16 by automatic casts."""
    if precision != "bf16":
        way = matmul_precision(precision, device)
    else:
        way = torch.autocast(device.type, torch.bfloat16) if cast else nullcontext()
    with way:
        yield


def texts_of(
    lengths: Sequence[int], vocabulary: int, device: torch.device, seed: int = 0
) -> Inputs:
    """Random texts of these lengths, the first and the last token special."""
    lengths = torch.tensor(lengths)
    generator = torch.Generator().manual_seed(seed)
    shape = len(lengths), int(lengths.max())
    places = torch.arange(shape[1])
    mask = (places < lengths[:, None]).long()
    special = (places == 0) | (places >= lengths[:, None] - 1)
    ids = torch.randint(1000, vocabulary, shape, generator=generator) * mask
    tensors = {"input_ids": ids, "attention_mask": mask, "special_tokens_mask": special.long()}
    return Inputs(tensors).to(device)


def recorded_lengths(kind: str, quick: bool) -> list[int]:
    """Lengths of the recorded texts, as often as it takes; sorted, so that every k-th are alike."""
    experiment, name, count = RECORDED[kind]
    rows = results.load(experiment, name).rows.drop_duplicates("id")
    lengths = sorted(itertools.islice(itertools.cycle(rows.tokens.tolist()), count))
    return [min(n, 24) for n in lengths[:: len(lengths) // 4][:3]] if quick else lengths


def gpt2(layers: int, hidden: int, device: torch.device) -> nn.Module:
    """A random decoder that classifies."""
    # Here: transformers is imported behind the package, which may have to mend its torchvision.
    from transformers import GPT2Config, GPT2ForSequenceClassification

    heads = hidden // 64
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, n_embd=hidden, n_head=heads, vocab_size=8192)
    config.pad_token_id, config.initializer_range = 0, 0.05
    return GPT2ForSequenceClassification(config).eval().requires_grad_(False).to(device)


def _off(scores: Tensor, right: Tensor) -> float:
    """Largest difference, relative to the largest score."""
    return float((scores.double() - right.double()).abs().max() / right.double().abs().max())


def step_gates(record: Record) -> None:
    """What has to hold before speed counts for anything."""
    given = Material(record)
    for name, (check, bound) in CHECKS.items():
        with record.kept_going(gate=name):
            found = check(given)
            error, more = found if isinstance(found, tuple) else (found, {})
            record.add(gate=name, error=float(error), bound=bound, passed=error <= bound, **more)
    for precision in record.precisions[1:]:
        with record.kept_going(gate=precision):
            error, more = given.certificates(precision)
            name = f"LOO, certified {precision}: largest 1 − r"
            record.add(gate=name, error=error, bound=0.002, passed=error <= 0.002, **more)
    pictures = {name: value.to(record.device) for name, value in zoo.images(2)[0].items()}
    ids = {"input_ids": torch.arange(4, 18, device=record.device).view(2, 7)}
    for name, family in FAMILIES.items():
        with record.kept_going(gate=f"family {name}"):
            both = zoo.build(name).to(record.device), pictures if family.vision else ids
            row = gates.gates({name: both}).iloc[0]
            passed = bool(row["passed"])
            record.add(gate=f"family {name}", error=row["LOO"], bound=1e-5, passed=passed)


class Material:
    """Models and texts of the checks, and the checks: each returns its largest error."""

    def __init__(self, record: Record):
        self.device, self.quick = record.device, record.quick
        quick = self.quick
        self.clf = untrained(*((2, 384) if quick else MODELS["6x384"]), device=str(self.device))
        self.model, lengths = self.clf.model, recorded_lengths("SST-2", quick)
        self.texts = texts_of(lengths if quick else lengths[::28], _words(self.clf), self.device)
        self.some = self.texts.rows(range(3))
        self.decoder = gpt2(*((2, 64) if quick else MODELS["6x384"]), self.device)
        lengths = [100, 120] if quick else [200, 220, 256] * 4
        self.reviews = texts_of(lengths, _words(self.decoder), self.device)

    @cached_property
    def wide(self) -> nn.Module:
        """The model in float64."""
        return without_biases(self.model, zeroed=False).to(self.device)

    @cached_property
    def exact(self) -> Tensor:
        """Leave-one-out in float64, by one masked pass a token."""
        return gates.hidden_one_by_one(self.wide, self.texts)

    @cached_property
    def own(self) -> Tensor:
        """Leave-one-out as the package has it."""
        return _loo(self.model, self.texts)

    def plain_masking(self) -> float:
        """Float32 against the definition."""
        return _off(self.own, self.exact)

    def certificates(self, precision: str) -> tuple[float, dict[str, Any]]:
        """How far maps in low precision are from float64's, and how often their bounds hold.

        Of the package's own model, which is trained: random weights have small effects of tokens,
        and rounding errors as large as any.
        """
        trained = load_classifier(device=self.device)
        texts = trained.encode(load_texts("reviews", limit=6 if self.quick else 60))
        wide = without_biases(trained.model, zeroed=False).to(self.device)
        exact, how = gates.hidden_one_by_one(wide, texts).cpu(), {"precision": precision}
        found, raw = (
            certified_loo(trained, texts, tolerance=most, progress=False, **how)
            for most in (0.002, 0.999)
        )
        loss, before = (
            1 - stats.pearson(each.scores.cpu(), exact, where=texts.valid_mask.cpu())
            for each in (found, raw)
        )
        more = {"bounds_hold": float((before <= raw.bound).mean()), "redone": found.redone.sum()}
        return float(loss.max()), more | {"mean_loss": float(before.mean()), "texts": len(loss)}

    def batch(self) -> float:
        """A batch against its rows."""
        alone = [_loo(self.model, text)[0] for text in sides.alone(self.texts)]
        return _off(self.own[self.texts.valid_mask], torch.cat(alone))

    def packed(self) -> float:
        """Rows that share batches against a pass each."""
        single = _loo(self.model, self.some, batch_tokens=1)
        return _off(self.own[:3, : single.shape[1]], single)

    def beginnings(self) -> tuple[float, dict[str, Any]]:
        """A decoder's rows behind what they share against whole rows."""
        kind = packing.Beginnings
        with patch.object(kind, "logits_of", autospec=True, side_effect=kind.logits_of) as seen:
            shared = _loo(self.decoder, self.reviews)
        with patch.object(packing, "shareable", return_value=False):
            plain = _loo(self.decoder, self.reviews)
        return _off(shared, plain), {"shared batches": seen.call_count}

    def conservation(self) -> float:
        """CP-LRP's sum over the tokens against the logit."""
        bare = without_biases(self.model).to(self.device)
        logit = run(describe(bare), describe(bare).arguments(self.texts)).amax(1)
        total = attribute(bare, self.texts, "cp-lrp", readout="sum").double().sum(1)
        return float((total / logit - 1).abs().max())

    def sweep(self) -> float:
        """All layer ablations in one sweep against a run each."""
        sets = list(layer_sets(describe(self.model).layers).values())
        separate = _separately(self.model, self.some, sets)
        return _off(layerwise_bypass(self.model, self.some, sets), separate)

    def gradient(self, width: float = 1e-4) -> float:
        """∂f/∂m_i of the gate m_i on key i against central differences, in float64."""
        architecture = describe(self.wide)
        arguments = architecture.arguments(self.some)
        target = run(architecture, arguments).argmax(1, keepdim=True)

        def gated(token: int, closed: float) -> Tensor:
            share = torch.zeros_like(self.some.input_ids, dtype=torch.float64)
            share[:, token] = closed
            with routed(architecture, Gates("first-order", own_row=True, closed=share)):
                return run(architecture, arguments).gather(1, target)[:, 0]

        with torch.no_grad():
            tokens = range(self.some.input_ids.shape[1])
            slopes = [(gated(i, -width) - gated(i, width)) / (2 * width) for i in tokens]
        found = mask_gradient(self.wide, self.some, form="first-order", own_row=True)
        return _off(found, torch.stack(slopes, 1) * self.some.valid_mask)


# Name → the check, and how large its error may be.
CHECKS: dict[str, tuple[Callable[[Material], Any], float]] = {
    "LOO, float32, against plain masking in float64": (Material.plain_masking, 1e-4),
    "a batch against its rows": (Material.batch, 1e-4),
    "packed rows against a pass each": (Material.packed, 1e-4),
    "a decoder's shared beginnings against whole rows": (Material.beginnings, 1e-4),
    "CP-LRP conserves without biases, float64": (Material.conservation, 1e-5),
    "the sweep against separate runs": (Material.sweep, 1e-4),
    "mask gradient against differences, float64": (Material.gradient, 1e-5),
}


def _loo(model: Handle, texts: Inputs, **how: Any) -> Tensor:
    return leave_one_out(model, texts, progress=False, **how)


def _words(model: Handle) -> int:
    return describe(model).model.config.vocab_size


def step_ceiling(record: Record) -> None:
    """What the device can do: a large matrix product; a copy, its reads and writes counted."""
    for precision in ("float32", "tf32", "bf16"):
        if precision in record.precisions:
            record.add(
                what="matrix product", precision=precision, tflops=record.rate(precision) / 1e12
            )
    numbers = torch.randn(2 ** (16 if record.quick else 30), device=record.device)
    copy = torch.empty_like(numbers)
    seconds = record.seconds(lambda: copy.copy_(numbers), turns=10)
    record.add(what="copy", gb_per_s=2 * numbers.nbytes / seconds / 1e9)


def step_loo(record: Record) -> None:
    """Exact leave-one-out: ours, captum's best batch and a plain loop, in turn."""
    models = {"2x96": (2, 96)} if record.quick else MODELS
    cells = list(itertools.product(models, RECORDED, record.precisions))
    begun, whole = time.perf_counter(), record.ends
    for number, (name, kind, precision) in enumerate(cells, 1):
        # Time that a cell leaves over goes to those behind it.
        record.ends = min(begun + (whole - begun) * number / len(cells), whole)
        with record.kept_going(model=name, kind=kind, precision=precision):
            clf = untrained(*models[name], device=str(record.device))
            _contest(record, clf, kind, precision)
    record.ends = whole


def _contest(record: Record, clf: Classifier, kind: str, precision: str) -> None:
    shape, lengths = Shape.of(clf), np.array(recorded_lengths(kind, record.quick))
    # A run of all texts at a third of the ceiling may take half of what time is left.
    expected = 3 * shape.loo(lengths).sum() / record.rate(precision)
    left = max(1.0, record.ends - time.perf_counter())
    mine = lengths[:: max(1, int(np.ceil(expected / (left / 2))))]
    others = lengths[len(lengths) // 16 :: max(1, len(lengths) // (24 if kind == "SST-2" else 6))]
    few = others[:: max(1, len(others) // 3)]
    texts, known, loop = (texts_of(n, _words(clf), record.device) for n in (mine, others, few))
    if len(mine) > 200:  # what the first pass of a kind of device pays for
        leave_one_out(
            clf.model, texts.rows(slice(None, None, 20)), precision=precision, progress=False
        )
    ways = {"lrputils": (mine, partial(_certified, clf, texts, precision))}
    plain = partial(sides.masked_loo, clf, loop)
    ways["plain loop"] = (few, plain)
    if sides.installed("captum"):
        taken = {}
        for rows in CAPTUM_ROWS[:1] if record.quick else CAPTUM_ROWS:
            with _others(precision, record.device):
                taken[rows] = timed(record.device, partial(sides.captum_loo, clf, known, rows))[0]
        best = min(taken, key=taken.__getitem__)
        ways[f"captum, {best} rows a pass"] = (others, partial(sides.captum_loo, clf, known, best))
    clocks, outputs = {side: [] for side in ways}, {}
    turns = 1 if record.quick else 3
    while min(map(len, clocks.values())) < turns and not (record.late() and all(clocks.values())):
        for side, (_, work) in ways.items():
            ours = side == "lrputils"
            with nullcontext() if ours else _others(precision, record.device):
                seconds, outputs[side] = timed(record.device, work)
            clocks[side].append(seconds)
    found = outputs.pop("lrputils")
    seconds = {side: float(np.median(taken)) for side, taken in clocks.items()}
    full = {side: float(shape.naive_loo(own).sum()) for side, (own, _) in ways.items()}
    base = seconds["lrputils"] / full["lrputils"]
    for side, (own, _) in ways.items():
        row = {"model": f"{shape.layers}x{shape.hidden}", "kind": kind, "precision": precision}
        row |= {"side": side, "texts": len(own), "turns": len(clocks[side])}
        row |= {"seconds": seconds[side], "texts_per_s": len(own) / seconds[side]}
        row["low"], row["high"] = min(clocks[side]), max(clocks[side])
        # Time an operation of the plain way, so that texts of other lengths weigh alike.
        row["slower"] = seconds[side] / full[side] / base
        if side == "lrputils":
            rate = float(shape.loo(own).sum()) / seconds[side]
            row |= {"tflops": rate / 1e12, "share": rate / record.rate(precision)}
            row["bound"] = float(np.median(found.bound))
            row["bulk_seconds"] = timed(record.device, partial(_bulk, clf, texts, precision))[0]
        else:
            tokens = known if side.startswith("captum") else loop
            row["difference"] = _off(outputs[side], _loo(clf, tokens)[tokens.valid_mask])
        record.add(**row)


def _certified(clf: Classifier, texts: Inputs, precision: str) -> Any:
    """With its certificate; no fall-back, since random weights are rounding's worst case."""
    return certified_loo(clf, texts, precision=precision, tolerance=0.999, progress=False)


def _bulk(model: Handle, texts: Inputs, precision: str, batch_tokens: int | None = None) -> Tensor:
    """All tokens' rows in one precision, with nothing certified."""
    architecture = describe(model)
    split, _, read = start(architecture, texts, None, "logit", batch_tokens)
    rows = list(token_rows(architecture, split, "attention-mask", texts))
    return packing.evaluate(
        architecture, split, rows, read, batch_tokens=batch_tokens, precision=precision
    )


def step_budget(record: Record) -> None:
    """Tokens a batch, the price of a pass, and the attention's kernel: which is fastest."""
    models = {"2x96": (2, 96)} if record.quick else MODELS
    for (name, size), kind in itertools.product(models.items(), RECORDED):
        clf, lengths = (
            untrained(*size, device=str(record.device)),
            recorded_lengths(kind, record.quick),
        )
        every = 1 if record.quick else 4 if kind == "SST-2" else 2 * size[0]
        texts = texts_of(lengths[::every], _words(clf), record.device)
        given = {"model": name, "kind": kind, "texts": len(texts.tokens)}
        for precision in record.precisions:
            work = {
                b: partial(_bulk, clf, texts, precision, b)
                for b in BUDGETS[: 2 if record.quick else None]
            }
            _fastest(record, work, "batch_tokens", **given, precision=precision)
            kernels = {k.name: partial(_by_kernel, k, clf, texts, precision) for k in _KERNELS}
            _fastest(record, kernels, "attention", **given, precision=precision)
    decoder = gpt2(*((2, 64) if record.quick else (6, 384)), record.device)
    for kind in RECORDED:
        lengths = recorded_lengths(kind, record.quick)
        texts = texts_of(lengths[:: max(1, len(lengths) // 48)], _words(decoder), record.device)
        passes = {cost: partial(_by_cost, cost, decoder, texts) for cost in PASSES}
        _fastest(record, passes, "_PASS", model="decoder", kind=kind, texts=len(texts.tokens))


_KERNELS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)


def _by_kernel(kernel: SDPBackend, *given: Any) -> Tensor:
    with sdpa_kernel(kernel):
        return _bulk(*given)


def _by_cost(cost: int, *given: Any) -> Tensor:
    with patch.dict(packing._PASS, dict.fromkeys(packing._PASS, cost)):
        return _bulk(*given, "float32")


def _fastest(record: Record, works: Mapping[Any, Callable], what: str, **given: Any) -> None:
    """Rows of one choice's values, and which is the fastest; in rounds, so that drift meets all."""
    taken: dict[Any, list[float]] = {}
    for turn, (value, work) in itertools.product(range(1 if record.quick else 3), works.items()):
        if value in taken or turn == 0:
            try:
                seconds = timed(record.device, work)[0]
            except RuntimeError as error:  # a kernel that does not take this dtype or mask
                record.add(what=what, value=value, **given, failed=str(error).splitlines()[0][:80])
                continue
            taken.setdefault(value, []).append(seconds)
        if record.late():
            break
    best = {value: min(seconds[1:] or seconds) for value, seconds in taken.items()}
    for value, seconds in best.items():
        row = {"what": what, "value": value, **given, "seconds": seconds}
        record.add(**row, fastest=seconds == min(best.values()))


def step_attribution(record: Record) -> None:
    """LRP, the sweep and half-removal, in time and peak memory."""
    models = {"2x96": (2, 96)} if record.quick else MODELS
    for (name, size), kind in itertools.product(models.items(), RECORDED):
        clf, lengths = (
            untrained(*size, device=str(record.device)),
            recorded_lengths(kind, record.quick),
        )
        every = max(1, len(lengths) // (64 if kind == "SST-2" else 16))
        texts = texts_of(lengths[::every], _words(clf), record.device)
        sets, model = list(layer_sets(size[0]).values()), clf.model
        ways = {
            "forward": partial(_forward, clf, texts),
            "forward + backward": partial(attribute, model, texts, "grad-x-input"),
            "AttnLRP": partial(attribute, model, texts, "attnlrp"),
            "CP-LRP": partial(attribute, model, texts, "cp-lrp"),
            "mask gradient": partial(mask_gradient, model, texts),
            "half-removal, 4 groups": partial(mask_gradient, model, texts, groups=4),
            "half-removal, 8 groups": partial(mask_gradient, model, texts, groups=8),
            f"{len(sets)} ablations, sweep": partial(layerwise_bypass, model, texts, sets),
            f"{len(sets)} ablations, separate": partial(_separately, model, texts, sets),
            "LOO": partial(leave_one_out, model, texts, progress=False),
        }
        for way, work in ways.items():
            row = {"model": name, "kind": kind, "texts": len(texts.tokens), "way": way}
            with record.kept_going(**row):
                seconds = record.seconds(work, turns=5)
                with measured(record.device) as spent:
                    work()
                record.add(**row, seconds=seconds, peak_gib=spent.peak_bytes / 2**30)


def _forward(clf: Classifier, texts: Inputs) -> Tensor:
    with torch.inference_mode():
        return clf.model(**texts.model_kwargs()).logits


def _separately(model: Handle, texts: Inputs, sets: Sequence[frozenset[int]]) -> Tensor:
    maps = [attribute(model, texts, "attnlrp", bypass_layers=chosen) for chosen in sets]
    return torch.stack(maps)


# Each step and its seconds.
STEPS = {
    "gates": (step_gates, 90),
    "ceiling": (step_ceiling, 20),
    "loo": (step_loo, 200),
    "budget": (step_budget, 130),
    "attribution": (step_attribution, 90),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for bench.json")
    parser.add_argument("--step", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="only these")
    parser.add_argument("--quick", action="store_true", help="tiny models and few texts")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args(arguments)
    device = torch.device(chosen.device)
    facts = results.provenance(
        command="python -m recipes.gpu" + " --quick" * chosen.quick,
        parameters={"steps": chosen.step},
        seconds=0,
        device=device,
        processor=bench.processor(),
    )
    path = writable(chosen.out) / bench.FILE
    record = Record(path, device, chosen.quick, facts)
    for number in chosen.step:
        record.step, (work, seconds) = list(STEPS.items())[number - 1]
        began = time.perf_counter()
        record.ends = began + seconds
        with record.kept_going(step=number):
            work(record)
        record.groups[record.step]["seconds"] = round(time.perf_counter() - began, 1)
        print(f"{record.step}: {record.groups[record.step]['seconds']} seconds", flush=True)
    write_json(path, {"provenance": facts, "groups": record.groups})


if __name__ == "__main__":
    main()
