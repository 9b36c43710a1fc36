"""Correctness and speed on a GPU: `python -m recipes.gpu --out DIR`; `--quick` tries it on a CPU.

Steps in the order of what matters; `--step` chooses some. Each row is written to DIR/bench.json as
it is measured, so that a run that is cut off keeps what it has; `lrputils.runs.bench.load` reads
it. Texts are the book's own reviews. Weights are random, which speed does not depend on, but for
the certificates.
"""

from __future__ import annotations

import argparse
import copy
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.model.classifier import load_classifier
from lrputils.model.forwards import matmul_precision
from lrputils.propagation.layerwise import layerwise_bypass
from lrputils.removal.certified import LOW
from lrputils.removal.leave_one_out import certified_loo, leave_one_out
from lrputils.runs import results
from lrputils.runs.bench import FILE, plain
from lrputils.runs.folders import writable, write_json
from lrputils.study import bench, zoo
from lrputils.study.bench import Bench, matrix_rate, untrained
from lrputils.study.cost import measured
from lrputils.study.variants import layer_sets

Row = dict[str, Any]

SIZES, QUICK = ((6, 384), (12, 768)), ((2, 96),)
BUDGETS = (None, 2**14, 2**15, 2**17, 2**18)  # tokens a batch, first the package's own choice
BOUND = 1e-4  # of a difference from the CPU's float64, relative to the largest score


def loo(model: Any, texts: Any, precision: str = "float32", **how: Any) -> Tensor:
    """Leave-one-out; nothing is run again, for random weights are the worst case of rounding."""
    return leave_one_out(model, texts, precision=precision, tolerance=0.999, progress=False, **how)


def gates(device: torch.device, quick: bool) -> Iterator[Row]:
    """What has to hold before speed counts for anything: the CPU's float64, and the bounds."""
    trained, exact = load_classifier(device=device), load_classifier(device="cpu")
    reviews = Bench.of(trained, sentences=20 if quick else 100).texts["sentences"]
    sets, texts = list(layer_sets(2).values()), reviews.rows(range(16))
    encoder, decoder = untrained(2, 96).model, zoo.build("gpt2").float()
    few = {"input_ids": texts["input_ids"] % zoo.VOCABULARY}
    few["attention_mask"] = texts["attention_mask"]
    works: dict[str, tuple[Any, Any, Callable[[Any, Any], Tensor]]] = {
        "LOO": (encoder, texts, loo),
        "LOO of a decoder": (decoder, few, loo),
        "LOO, a row at a time": (encoder, texts, partial(loo, batch_tokens=1)),
        "ablations": (encoder, texts, partial(layerwise_bypass, layer_sets=sets)),
        **{
            name: (encoder, texts, partial(attribute, method=name))
            for name in ("attnlrp", "cp-lrp", "mask-gradient")
        },
    }
    for name, (model, inputs, work) in works.items():
        on_cpu = {key: value.cpu() for key, value in inputs.items()}
        right = work(copy.deepcopy(model).double(), on_cpu)
        found = work(copy.deepcopy(model).to(device), inputs).cpu()
        error = float((found - right).abs().max() / right.abs().max())
        yield {"gate": name, "error": error, "bound": BOUND, "passed": error <= BOUND}
    right = loo(exact.model, reviews.to("cpu"))
    for precision in LOW.get(device.type, ()):  # on CPUs 5 to 7% of the texts are beyond it
        low = certified_loo(trained, reviews, precision=precision, tolerance=0.999, progress=False)
        r = stats.pearson(low.scores.cpu(), right, where=reviews.valid_mask.cpu())
        beyond = float((1 - r > low.bound).mean())
        row = {"gate": f"texts beyond {precision}'s bounds", "error": beyond, "bound": 0.15}
        yield {**row, "passed": beyond <= 0.15}


def exact_loo(device: torch.device, quick: bool) -> Iterator[Row]:
    """Leave-one-out by tokens a batch, its operations as a share of those of matrix products."""
    for layers, hidden in QUICK if quick else SIZES:
        clf = untrained(layers, hidden, device=str(device))
        material = Bench.of(clf, sentences=4 if quick else 200, longest=16 if quick else 512)
        for kind, precision in product(material.texts, ("float32", *LOW.get(device.type, ()))):
            with FlopCounterMode(display=False) as counter:
                loo(clf, material.texts[kind])
            with matmul_precision(precision, device):
                most = matrix_rate(clf)
            for batch in BUDGETS:
                work = partial(loo, clf, material.texts[kind], precision, batch_tokens=batch)
                seconds = min(material.seconds(work) for _ in range(3))
                rate = counter.get_total_flops() / seconds
                row = {"model": clf.name, "texts": material.named(kind), "precision": precision}
                row |= {"tokens a batch": batch, "seconds": seconds}
                yield row | {"tflops": rate / 1e12, "share": rate / most}


def groups(device: torch.device, quick: bool) -> Iterator[Row]:
    """The contests and clocks of `lrputils bench`, and the peak memory of each group."""
    for layers, hidden in QUICK if quick else SIZES:
        material = Bench.of(untrained(layers, hidden, device=str(device)))
        for name in ("loo-sentences", "loo-review", "lrp", "ablations", "curves", "methods"):
            with measured(device) as spent:
                rows = bench.GROUPS[name][0](material)
            told = {"model": f"{layers}x{hidden}", "peak_gib": spent.peak_bytes / 2**30}
            yield from ({**told, **row} for row in rows)


STEPS = (gates, exact_loo, groups)


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for bench.json")
    parser.add_argument("--step", type=int, nargs="+", default=[1, 2, 3], help="only these")
    parser.add_argument("--quick", action="store_true", help="tiny models and few texts")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args(arguments)
    device, done = torch.device(chosen.device), {}
    command = "python -m recipes.gpu" + " --quick" * chosen.quick
    facts = {"command": command, "parameters": {"steps": chosen.step}, "device": device}
    facts = results.provenance(**facts, seconds=0)
    for step in (STEPS[number - 1] for number in chosen.step):
        rows = done.setdefault(step.__name__, {"rows": []})["rows"]
        try:
            for row in step(device, chosen.quick):
                rows.append({name: plain(value) for name, value in row.items()})
                write_json(writable(chosen.out) / FILE, {"provenance": facts, "groups": done})
                print(step.__name__, rows[-1], flush=True)
        except Exception:  # whatever a device's library raises; the other steps go on
            traceback.print_exc()


if __name__ == "__main__":
    main()
