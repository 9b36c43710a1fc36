"""Correctness and speed on a GPU: `python -m recipes.gpu --out DIR`; `--quick` tries it on a CPU.

Steps in the order of what matters; `--step` chooses some. Each row is written to DIR/bench.json as
it is measured, so that a run that is cut off keeps what it has; `lrputils.runs.bench.load` reads
it. Texts are random tokens at the lengths of the recorded SST-2 and IMDB texts. Weights are random,
which speed does not depend on, but for the certificates.
"""

from __future__ import annotations

import argparse
import copy
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.flop_counter import FlopCounterMode

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.model.architectures import Handle
from lrputils.model.classifier import load_classifier
from lrputils.model.forwards import matmul_precision
from lrputils.model.inputs import Inputs
from lrputils.propagation.layerwise import layerwise_bypass
from lrputils.removal.certified import LOW
from lrputils.removal.leave_one_out import certified_loo, leave_one_out
from lrputils.runs import results
from lrputils.runs.bench import FILE, plain
from lrputils.runs.folders import writable, write_json
from lrputils.study import bench, zoo
from lrputils.study.bench import Bench, untrained
from lrputils.study.cost import measured, timed
from lrputils.study.variants import layer_sets

Row = dict[str, Any]

SIZES = ((6, 384), (12, 768))
# Kind of texts → the recording that has their lengths, and how many texts are run.
RECORDED = {"SST-2": ("sst", "minilm-sst2", 872), "IMDB": ("imdb", "minilm-imdb", 48)}
BUDGETS = (None, 2**14, 2**15, 2**17, 2**18)  # tokens a batch, first the package's own choice
BOUND = 1e-4  # of a difference from the CPU's float64, relative to the largest score


@dataclass(frozen=True)
class Setting:
    """The device, its precisions, turns of a contest, and whether all is only tried."""

    device: torch.device
    precisions: tuple[str, ...]
    repeats: int
    quick: bool

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        """Layers and width of the models."""
        return [(2, 96)] if self.quick else SIZES

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


def loo(model: Handle, texts: Inputs, precision: str = "float32", **how: Any) -> Tensor:
    """Leave-one-out; nothing is run again, for random weights are the worst case of rounding."""
    return leave_one_out(model, texts, precision=precision, tolerance=0.999, progress=False, **how)


def gates(setting: Setting) -> Iterator[Row]:
    """What has to hold before speed counts for anything: the CPU's float64, and the bounds."""
    texts, sets = setting.texts("SST-2", 16), list(layer_sets(2).values())
    encoder, decoder = untrained(2, 96).model, zoo.build("gpt2").float()
    works: dict[str, tuple[Any, Callable[[Any, Inputs], Tensor]]] = {
        "LOO": (encoder, loo),
        "LOO of a decoder": (decoder, loo),
        "LOO, a row at a time": (encoder, partial(loo, batch_tokens=1)),
        "ablations": (encoder, partial(layerwise_bypass, layer_sets=sets)),
        **{
            name: (encoder, partial(attribute, method=name))
            for name in ("attnlrp", "cp-lrp", "mask-gradient")
        },
    }
    for name, (model, work) in works.items():
        right = work(copy.deepcopy(model).double(), texts.to("cpu"))
        found = work(copy.deepcopy(model).to(setting.device), texts).cpu()
        error = float((found - right).abs().max() / right.abs().max())
        yield {"gate": name, "error": error, "bound": BOUND, "passed": error <= BOUND}
    trained, exact = load_classifier(device=setting.device), load_classifier(device="cpu")
    reviews = Bench.of(trained, sentences=20 if setting.quick else 100).texts["sentences"]
    right = loo(exact.model, reviews.to("cpu"))
    for precision in setting.precisions[1:]:  # on CPUs 5 to 7% of the texts are beyond it
        low = certified_loo(trained, reviews, precision=precision, tolerance=0.999, progress=False)
        r = stats.pearson(low.scores.cpu(), right, where=reviews.valid_mask.cpu())
        beyond = float((1 - r > low.bound).mean())
        row = {"gate": f"texts beyond {precision}'s bounds", "error": beyond, "bound": 0.15}
        yield {**row, "passed": beyond <= 0.15}


@cache
def ceiling(setting: Setting, precision: str) -> float:
    """Operations a second of a large matrix product, at best."""
    size = 256 if setting.quick else 8192
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(2, size, size, device=setting.device, dtype=kind)
    with matmul_precision("tf32" if precision == "tf32" else "float32", setting.device):
        return 2 * size**3 / min(timed(setting.device, lambda: left @ right)[0] for _ in range(11))


def exact_loo(setting: Setting) -> Iterator[Row]:
    """Leave-one-out of all texts by tokens a batch, its operations as a share of the ceiling."""
    for (layers, hidden), kind in product(setting.sizes, RECORDED):
        clf, texts = untrained(layers, hidden, device=str(setting.device)), setting.texts(kind)
        with FlopCounterMode(display=False) as counter:
            loo(clf, texts)
        for precision, batch in product(setting.precisions, BUDGETS):
            work = partial(loo, clf, texts, precision, batch_tokens=batch)
            seconds = min(timed(setting.device, work)[0] for _ in range(setting.repeats))
            reached, most = counter.get_total_flops() / seconds, ceiling(setting, precision)
            row = {"model": clf.name, "kind": kind, "precision": precision, "tokens a batch": batch}
            yield row | {"seconds": seconds, "tflops": reached / 1e12, "share": reached / most}


def groups(setting: Setting) -> Iterator[Row]:
    """The contests and clocks of `lrputils bench`, and the peak memory of each group."""
    for layers, hidden in setting.sizes:
        material = Bench.of(untrained(layers, hidden, device=str(setting.device)))
        for name in ("loo-sentences", "loo-review", "lrp", "ablations", "curves", "methods"):
            with measured(setting.device) as spent:
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
    device, repeats = torch.device(chosen.device), 1 if chosen.quick else 3
    precisions = "float32", *LOW.get(device.type, ())
    setting = Setting(device, precisions, repeats, chosen.quick)
    command = "python -m recipes.gpu" + " --quick" * chosen.quick
    facts = {"command": command, "parameters": {"steps": chosen.step}, "device": device}
    facts, done = results.provenance(**facts, seconds=0), {}
    for step in (STEPS[number - 1] for number in chosen.step):
        rows = done.setdefault(step.__name__, {"rows": []})["rows"]
        try:
            for row in step(setting):
                rows.append({name: plain(value) for name, value in row.items()})
                write_json(writable(chosen.out) / FILE, {"provenance": facts, "groups": done})
                print(step.__name__, rows[-1], flush=True)
        except Exception:  # whatever a device's library raises; the other steps go on
            traceback.print_exc()


if __name__ == "__main__":
    main()
