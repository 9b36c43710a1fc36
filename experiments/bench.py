"""Speed, measured side by side: this package, a plain loop, and captum where it is installed.

    python -m experiments.bench --model 6x384 --out _build/bench

In a contest all sides run in this process, A B C A B C …, after one uncounted run of each, and
their outputs have to agree. A ratio is the other side's time over this package's within a turn, so
that it does not depend on a machine whose speed drifts.
"""

from __future__ import annotations

import copy
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from experiments.command import main
from experiments.recordings.provenance import provenance
from lrputils.attribution import METHODS, attribute
from lrputils.data.texts import load_texts
from lrputils.model.classifier import Classifier, load_classifier
from lrputils.model.inputs import Inputs
from lrputils.model.proof import alone, laid_out
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.packing import BATCH_TOKENS
from lrputils.removal.shortcuts import fast_linear
from lrputils.runs import results
from lrputils.runs.folders import read_json, writable, write_json
from lrputils.runs.options import Names

FILE = "bench.json"
OURS = "lrputils"


def untrained(layers: int, hidden: int, *, device: str = "cpu") -> Classifier:
    """Return a BERT of this depth and width with random weights and the book's own tokenizer.

    How long a pass takes does not depend on the weights. Widths that 12 heads share have 12.
    """
    own = load_classifier(device="cpu")
    config = copy.deepcopy(own.model.config)
    config.num_hidden_layers, config.hidden_size = layers, hidden
    config.intermediate_size = 4 * hidden
    config.num_attention_heads = 12 if hidden % 12 == 0 else hidden // 64
    config.initializer_range = 0.05  # effects of a token well above a logit's rounding
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = type(own.model)(config)
    model = model.eval().requires_grad_(False).to(device)
    return Classifier(model, own.tokenizer, f"untrained {layers}x{hidden}")


def sentences(classifier: Classifier, count: int = 5) -> Inputs:
    """Return some of the book's short reviews, encoded."""
    return classifier.encode(load_texts("reviews", limit=count, seed=0))


def review(classifier: Classifier, tokens: int = 128) -> Inputs:
    """Return the longest of the book's reviews, cut at so many tokens."""
    return classifier.encode([max(load_texts("reviews-long"), key=len)], tokens, truncate=True)


def seconds(work: Callable[[], Any]) -> float:
    """Return the seconds of one run; of one thread of a CPU those that it computed."""
    clock = time.perf_counter if torch.get_num_threads() > 1 else time.process_time
    options: dict[str, Any] = {} if torch.cuda.is_initialized() else {"timer": clock}
    options["num_threads"] = torch.get_num_threads()
    return Timer("work()", globals={"work": work}, **options).timeit(1).median


def contest(
    what: str, ways: Mapping[str, Callable[[], Tensor]], *, repeats: int = 5
) -> list[dict[str, Any]]:
    """Time several ways to do a piece of work in turn, this package's first: a row per side.

    Returns:
        `what`, `side`, `seconds` (median), `ratio` (median over the turns) with its extremes `low`
        and `high`, and the outputs' `difference` from the first side's, over its largest entry.
        Between the extremes of k independent turns lies the true median with probability
        1 − 2^(1−k): 94% for five.

    Raises:
        ArithmeticError: outputs differ by more than a thousandth.
    """
    first, *others = [work() for work in ways.values()]
    apart = [0.0, *(float((other - first).abs().max() / first.abs().max()) for other in others)]
    for side, difference in zip(ways, apart, strict=True):
        if not difference <= 1e-3:
            raise ArithmeticError(f"{what}: {side} differs by {difference:.1e}")
    turns = np.array([[*map(seconds, ways.values())] for _ in range(repeats)])
    ratios = turns / turns[:, :1]
    columns = {
        "what": what,
        "side": list(ways),
        "seconds": np.median(turns, 0),
        "ratio": np.median(ratios, 0),
        "low": ratios.min(0),
        "high": ratios.max(0),
        "difference": apart,
    }
    return pd.DataFrame(columns).to_dict("records")


def scores(classifier: Classifier, inputs: Inputs, method: str = "loo") -> Tensor:
    """Return a method's scores of the texts' tokens, special ones included, text after text."""
    return attribute(classifier.model, inputs, method)[inputs.valid_mask]


def predicted(classifier: Classifier, text: Inputs) -> Callable[[Tensor], Tensor]:
    """Return the logit of the predicted class as a function of attention masks (rows, tokens)."""
    rest = {k: v for k, v in text.model_kwargs().items() if k != "attention_mask"}

    @torch.inference_mode()
    def logits(masks: Tensor) -> Tensor:
        same = {name: value.expand(len(masks), -1) for name, value in rest.items()}
        return classifier.model(**same, attention_mask=masks).logits

    target = int(logits(torch.ones_like(text.input_ids)).argmax())
    return lambda masks: logits(masks)[:, target]


def plain_loo(classifier: Classifier, inputs: Inputs) -> Tensor:
    """Return leave-one-out by one masked forward pass per token."""
    found = []
    for text, _ in alone(inputs):
        f, mask = predicted(classifier, text), torch.ones_like(text.input_ids)
        whole = f(mask)
        for token in range(mask.shape[1]):
            found.append(whole - f(mask.index_fill(1, mask.new_tensor([token]), 0)))
    return torch.cat(found)


def captum_loo(classifier: Classifier, inputs: Inputs, rows: int = 1) -> Tensor:
    """Return captum's FeatureAblation of the attention mask, `rows` per forward pass."""
    from captum.attr import FeatureAblation

    found = []
    for text, _ in alone(inputs):
        ablation = FeatureAblation(predicted(classifier, text))
        mask = torch.ones_like(text.input_ids)
        maps = ablation.attribute(mask, baselines=0, perturbations_per_eval=rows)
        found.append(maps[0].float())
    return torch.cat(found)


def loo(classifier: Classifier, inputs: Inputs, repeats: int) -> list[dict[str, Any]]:
    """Leave-one-out beside a plain loop, and captum as it comes and in batches."""
    ways = {
        OURS: partial(scores, classifier, inputs),
        "plain loop": partial(plain_loo, classifier, inputs),
    }
    if find_spec("captum"):
        ways["captum, default"] = partial(captum_loo, classifier, inputs)
        ways["captum, 32 rows a pass"] = partial(captum_loo, classifier, inputs, 32)
    kind = "sentences" if len(inputs.lengths) > 1 else "review"
    low, high = inputs.lengths.aminmax()
    return contest(f"LOO, {kind} of {low} to {high} tokens", ways, repeats=repeats)


def matrix_rate(classifier: Classifier) -> float:
    """Return the operations per second of the linear layers of the model's first block, at best.

    Weights are packed, and a batch has as many tokens, as in leave-one-out; the fastest of twelve
    counts.
    """
    device = classifier.device
    tokens = BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])
    linear = [m for m in laid_out(classifier).blocks[0].modules() if isinstance(m, nn.Linear)]
    like = {"device": device, "dtype": linear[0].weight.dtype}
    states = {m.in_features: torch.randn(tokens, m.in_features, **like) for m in linear}

    def work() -> None:
        for module in linear:
            module(states[module.in_features])

    count = 2 * tokens * sum(module.weight.numel() for module in linear)
    with torch.inference_mode(), fast_linear(laid_out(classifier), 4 * tokens):
        return count / min(seconds(work) for _ in range(12))


# What varies → its values; where another thing varies, the model is as given, and of a text there
# are 64 tokens.
VARIED = {
    "tokens": (16, 32, 64, 128, 192),
    "layers": (2, 4, 6, 8, 12),
    "width": (192, 384, 768),
    "tokens a batch": (64, 256, 1024, 4096, 16384),
}


def model(classifier: Classifier, middle: int = 64) -> list[dict[str, Any]]:
    """Time leave-one-out of one text while one thing varies.

    Depths and widths are those of untrained BERTs. A row per measurement: `varied`, `value`,
    `tokens`, `seconds` (the fastest of three rounds), and `rate`, the machine's operations per
    second on matrices of that width.
    """
    config, device = classifier.model.config, str(classifier.device)
    rows, works, rates = [], [], {}
    for varied, value in [(name, value) for name in VARIED for value in VARIED[name]]:
        size = {"layers": config.num_hidden_layers, "width": config.hidden_size, varied: value}
        clf = untrained(size["layers"], size["width"], device=device)
        tokens = value if varied == "tokens" else middle
        batch = value if varied == "tokens a batch" else None
        options = {"batch_tokens": batch, "progress": False}
        works.append(partial(leave_one_out, clf.model, review(clf, tokens), **options))
        rates[size["width"]] = rates.get(size["width"]) or matrix_rate(clf)
        rows.append({"varied": varied, "value": value, "tokens": tokens})
        rows[-1]["rate"] = rates[size["width"]]
    # In rounds, so that a slow minute of the machine meets every row alike.
    fastest = np.min([[*map(seconds, works)] for _ in range(3)], axis=0)
    return [row | {"seconds": best} for row, best in zip(rows, fastest, strict=True)]


def methods(classifier: Classifier, **texts: Inputs) -> list[dict[str, Any]]:
    """Time each method, text after text: `seconds` a text, the faster of two, a row a `method`."""
    rows = []
    for kind, inputs in texts.items():
        for method in ("loo", "attnlrp", "cp-lrp", "mask-gradient", "ig"):
            runs = [partial(scores, classifier, text, method) for text, _ in alone(inputs)]
            taken = min(sum(map(seconds, runs)) for _ in range(2)) / len(runs)
            rows.append({"texts": kind, "method": method, "seconds": taken})
    return rows


# Kind of work → what its operators' names hold; the first kind that fits counts.
KINDS = {
    "matrix products": ("addmm", "::mm", "bmm", "linear"),
    "attention": ("scaled_dot_product", "softmax"),
    "LayerNorm": ("layer_norm",),
    "activation": ("gelu", "tanh"),
    "sums and copies": ("",),
}


def time_goes(classifier: Classifier, **texts: Inputs) -> list[dict[str, Any]]:
    """Where leave-one-out's time goes, by torch's profiler: a row per kind of texts and `part`.

    "Python" is what the run takes, unobserved, beyond its operators.
    """
    rows = []
    cuda = classifier.device.type == "cuda"
    for kind, inputs in texts.items():
        work = partial(leave_one_out, classifier.model, inputs, progress=False)
        whole = np.median([seconds(work) for _ in range(4)][1:])
        parts = dict.fromkeys(KINDS, 0.0)
        watched = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
        with profile(activities=watched) as seen:
            work()
        for event in seen.key_averages():
            spent = event.self_device_time_total if cuda else event.self_cpu_time_total
            part = next(k for k, names in KINDS.items() if any(name in event.key for name in names))
            parts[part] += spent / 1e6
        parts["Python"] = max(0.0, whole - sum(parts.values()))
        rows += [{"texts": kind, "part": part, "seconds": s} for part, s in parts.items()]
    return rows


def groups(classifier: Classifier, repeats: int) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Return what is measured, by name."""
    short, long = sentences(classifier), review(classifier)
    return {
        "time": partial(time_goes, classifier, sentences=short, review=long),
        "model": partial(model, classifier),
        "methods": partial(methods, classifier, sentences=short, review=long),
        "loo-sentences": partial(loo, classifier, short, repeats),
        "loo-review": partial(loo, classifier, long, repeats),
    }


def bench(
    *,
    model: str = "6x384",
    only: Names = (),
    repeats: int = 5,
    out: Path = Path("_build/bench"),
    device: str = "cpu",
) -> str:
    """Measure speed, side by side.

    Time this package against plain loops and captum, in turn, with the outputs compared, and write
    each group of measurements into DIR/bench.json when it is done. A ratio is the other side's time
    over ours; its interval holds the median of all turns. All take some minutes on two cores.

    Args:
        model: LAYERSxWIDTH, or a BERT's folder or name
        only: groups
        repeats: turns
        out: where bench.json goes
        device: cpu, cuda:1
    """
    size = re.fullmatch(r"(\d+)x(\d+)", model)
    if size and int(size[2]) % 12 and int(size[2]) % 64:
        raise ValueError(f"--model {model}: a width is a multiple of 12 or of 64")
    path = writable(out) / FILE
    if path.exists():
        raise ValueError(f"{path} is there: name another folder by --out, or remove that file")
    clf = untrained(*map(int, size.groups())) if size else load_classifier(model)
    clf.model.to(device)
    known = groups(clf, repeats)
    if unknown := [name for name in only if name not in known]:
        raise ValueError(f"no group(s) {unknown}; there are {[*known]}")
    facts = provenance(
        command=f"python -m experiments.bench --model {Path(model).name} --repeats {repeats}",
        parameters={"repeats": repeats},
        seconds=0,
        device=clf.device,
        model={"name": clf.name, "identity": clf.identity},
        processor=processor(),
    )
    kept, shown = {}, []
    for name in only or known:
        began = time.perf_counter()
        rows = known[name]()
        print(f"{name}: {time.perf_counter() - began:.0f} seconds", file=sys.stderr)
        kept[name] = {"rows": rows}
        write_json(path, {"provenance": facts, "groups": kept})
        shown.append(pd.DataFrame(rows).to_string(index=False, float_format="{:.3g}".format))
    return "\n\n".join(shown)


def processor() -> dict[str, Any]:
    """Return the kind of CPU: its name, the cores of the machine, its vector instructions."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.is_file() else None
    name = named[1].strip() if named else platform.processor() or platform.machine()
    vectors = torch.backends.cpu.get_cpu_capability()
    return {"name": name, "cores": os.cpu_count(), "vectors": vectors}


def load(run: str) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Return a recorded bench by its name under `results/bench/`: its groups, and provenance."""
    there = read_json(results.find("bench", run, None, FILE))
    tables = {name: pd.DataFrame(group["rows"]) for name, group in there["groups"].items()}
    return tables, there["provenance"]


def milliseconds(run: str) -> pd.Series:
    """Return what a method takes, texts one after the other, by kind of text and method's label."""
    methods = load(run)[0]["methods"]
    kind = methods.texts.str.extract("(sentence|review)")[0]
    label = methods.method.map({name: method.label for name, method in METHODS.items()})
    times = (1e3 * methods.seconds).set_axis([kind, label])
    return times.rename_axis([None, None])


def other_loops(run: str) -> pd.DataFrame:
    """Return the time of others' leave-one-out over this package's, by kind of text and side.

    Columns `value`, `low` and `high`; captum's largest batch is called its best.
    """
    rows, _ = load(run)
    rows = pd.concat([rows["loo-sentences"], rows["loo-review"]])
    rows = rows[rows.side != OURS].rename(columns={"ratio": "value"})
    texts = rows.what.str.extract(r"LOO, (\w+)")[0]
    side = rows.side.str.replace(r"\d+ rows.*", "best batch", regex=True)
    return rows.set_index([texts, side])[["value", "low", "high"]].rename_axis([None, None])


if __name__ == "__main__":
    main(bench, "python -m experiments.bench")
