"""Speed: what is measured on, in which turns, and where this package's own time goes.

In a contest all sides run in this process, A B C A B C …, after one uncounted run of each. Ratios
are taken within a turn, so that they do not depend on a machine whose speed drifts. Where two sides
compute the same thing, their outputs have to agree. Who they are is in
`experiments.bench.contests`, what is kept of it in `experiments.bench.groups`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lrputils.attribution import attribute
from lrputils.data.texts import load_texts
from lrputils.model.classifier import Classifier, load_classifier
from lrputils.model.inputs import Inputs
from lrputils.model.proof import alone
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.packing import BATCH_TOKENS
from lrputils.removal.shortcuts import fast_linear
from lrputils.study.cost import timed

Rows = list[dict[str, Any]]
OURS = "lrputils"


def untrained(layers: int, hidden: int, *, device: str = "cpu") -> Classifier:
    """Return a BERT of this depth and width with random weights and the book's own tokenizer.

    How long a pass takes does not depend on the weights. Widths that 12 heads share have 12.
    """
    own = load_classifier()
    config = copy.deepcopy(own.model.config)
    config.update(
        {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "intermediate_size": 4 * hidden,
            "num_attention_heads": 12 if hidden % 12 == 0 else hidden // 64,
            "initializer_range": 0.05,  # effects of a token well above a logit's rounding
        }
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = type(own.model)(config)
    model = model.eval().requires_grad_(False).to(device)
    return Classifier(model, own.tokenizer, f"untrained {layers}x{hidden}")


def reader(layers: int = 3, *, device: str = "cpu") -> Classifier:
    """Return a language model with random weights: a tenth of SmolLM2-135M's layers and words.

    What its layers and its output embedding take stands to each other as in the whole.
    """
    names = {f"w{number:04}": number for number in range(4915)}
    words = Tokenizer(WordLevel(names, unk_token="w0000"))
    words.pre_tokenizer = WhitespaceSplit()
    special = {"unk_token": "w0000", "pad_token": "w0001", "eos_token": "w0002"}
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        initializer_range=0.05,
        tie_word_embeddings=True,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval().requires_grad_(False).to(device)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    return Classifier(model, tokenizer, f"untrained {layers}x576")


@dataclass(frozen=True)
class Bench:
    """What is measured on: a BERT, its texts ("sentences" and a "review"), a contest's turns."""

    classifier: Classifier
    texts: Mapping[str, Inputs]
    repeats: int = 5

    @classmethod
    def of(
        cls, classifier: Classifier, *, sentences: int = 5, longest: int = 128, repeats: int = 5
    ) -> Bench:
        """On the book's own reviews, the long one cut at `longest` tokens."""
        short = classifier.encode(load_texts("reviews", limit=sentences, seed=0))
        long = load_texts("reviews-long", limit=1, seed=0)
        long = classifier.encode(long, longest, truncate=True)
        return cls(classifier, {"sentences": short, "review": long}, repeats)

    def named(self, kind: str) -> str:
        """The kind of texts with their lengths: "sentences of 14 to 29 tokens"."""
        low, high = (int(end) for end in self.texts[kind].lengths.aminmax())
        return f"{kind} of {low} to {high} tokens" if low < high else f"{kind} of {low} tokens"

    def seconds(self, work: Callable[[], Any]) -> float:
        """Seconds that the work takes on the model's device; of one thread those of the CPU."""
        if self.classifier.device.type == "cpu" and torch.get_num_threads() == 1:
            began = time.process_time()
            work()
            return time.process_time() - began
        return timed(self.classifier.device, work)[0]

    def contest(
        self, what: str, ways: Mapping[str, Callable[[], Tensor]], tolerance: float
    ) -> Rows:
        """Time several ways to do a piece of work in turn, this package's first: a row a side.

        `tolerance` is the largest difference of a side's output from the first one's, relative to
        the largest output; infinite where another side computes something else.

        Returns:
            `what`, `side`, `seconds` (median), `ratio` (its time over the first side's, median over
            the turns) with its extremes `low` and `high`, and the outputs' `difference`. Between
            the extremes of k independent turns lies the true median with probability 1 − 2^(1−k):
            94% for five.

        Raises:
            ArithmeticError: the outputs differ by more than the tolerance.
        """
        first, *others = [work() for work in tqdm(ways.values(), leave=False, disable=None)]
        size = first.abs().max()
        differences = [0.0] + [float((other - first).abs().max() / size) for other in others]
        for side, difference in zip(ways, differences, strict=True):
            if not difference <= tolerance:
                raise ArithmeticError(f"{what}: {side} differs by {difference:.1e}")
        turns = np.array([[*map(self.seconds, ways.values())] for _ in range(self.repeats)])
        ratios = turns / turns[:, :1]
        columns = {
            "what": what,
            "side": list(ways),
            "seconds": np.median(turns, 0),
            "ratio": np.median(ratios, 0),
            "low": ratios.min(0),
            "high": ratios.max(0),
            "difference": differences if np.isfinite(tolerance) else np.nan,
        }
        return pd.DataFrame(columns).to_dict("records")


def scores(classifier: Classifier, inputs: Inputs, method: str = "loo") -> Tensor:
    """A method's scores of the texts' tokens, special ones included, text after text."""
    return attribute(classifier.model, inputs, method)[inputs.valid_mask]


def one_by_one(classifier: Classifier, inputs: Inputs, method: str) -> Tensor:
    """The same, a text at a time."""
    return torch.cat([scores(classifier, text, method) for text, _ in alone(inputs)])


# Kind of work → what its operators' names hold; the first kind that fits counts.
KINDS = {
    "matrix products": ("addmm", "::mm", "bmm", "linear"),
    "attention": ("scaled_dot_product", "softmax"),
    "LayerNorm": ("layer_norm",),
    "activation": ("gelu", "tanh"),
    "sums and copies": ("",),
}


def time_goes(bench: Bench) -> Rows:
    """Where leave-one-out's time goes, by torch's profiler: a row a kind of texts and `part`.

    "Python" is what the run takes, unobserved, beyond its operators.
    """
    rows = []
    cuda = bench.classifier.device.type == "cuda"
    for kind, inputs in bench.texts.items():
        work = partial(leave_one_out, bench.classifier.model, inputs, progress=False)
        work()
        whole = np.median([bench.seconds(work) for _ in range(3)])
        found = dict.fromkeys(KINDS, 0.0)
        watched = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
        with profile(activities=watched) as seen:
            work()
        for event in seen.key_averages():
            spent = event.self_device_time_total if cuda else event.self_cpu_time_total
            part = next(k for k, names in KINDS.items() if any(name in event.key for name in names))
            found[part] += spent / 1e6
        found["Python"] = max(0.0, whole - sum(found.values()))
        rows += [{"texts": bench.named(kind), "part": p, "seconds": s} for p, s in found.items()]
    return rows


def matrix_rate(bench: Bench, classifier: Classifier) -> float:
    """Return the operations a second of the linear layers of the model's first block, at best.

    Weights are packed, and a batch has as many tokens, as in leave-one-out; the fastest of twelve
    counts.
    """
    device = classifier.device
    tokens = BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])
    linear = [m for m in classifier.architecture.blocks[0].modules() if isinstance(m, nn.Linear)]
    like = {"device": device, "dtype": linear[0].weight.dtype}
    states = {m.in_features: torch.randn(tokens, m.in_features, **like) for m in linear}

    def work() -> None:
        for module in linear:
            module(states[module.in_features])

    count = 2 * tokens * sum(module.weight.numel() for module in linear)
    with torch.inference_mode(), fast_linear(classifier.architecture, 4 * tokens):
        return count / min(bench.seconds(work) for _ in range(12))


# What varies → its values; where another thing varies, the model is as given, and of a text there
# are `middle` tokens.
_VARIED = {
    "tokens": (16, 32, 64, 128, 192),
    "layers": (2, 4, 6, 8, 12),
    "width": (192, 384, 768),
    "tokens a batch": (64, 256, 1024, 4096, 16384),
}


def model(bench: Bench, varied: Mapping[str, Sequence[int]] = _VARIED, middle: int = 64) -> Rows:
    """Time leave-one-out of one text while one thing varies.

    Depths and widths are those of untrained BERTs; the text is the longest of the book's reviews,
    and lengths that it does not reach are left out. A row a measurement: `varied`, `value`,
    `tokens`, `seconds` (the fastest of three rounds), and `rate`, the machine's operations a second
    on matrices of that width.
    """
    text, given = max(load_texts("reviews-long"), key=len), bench.classifier
    config = given.model.config
    shape = {"layers": config.num_hidden_layers, "width": config.hidden_size}
    rates, rows = {}, []
    for name, value in ((name, value) for name, values in varied.items() for value in values):
        clf, tokens = given, value if name == "tokens" else middle
        if name in ("layers", "width"):
            size = shape | {name: value}
            clf = untrained(size["layers"], size["width"], device=str(given.device))
        inputs = clf.encode([text], tokens, truncate=True)
        if int(inputs.lengths) < tokens:
            continue
        width = clf.model.config.hidden_size
        rates[width] = rates.get(width) or matrix_rate(bench, clf)
        batch = value if name == "tokens a batch" else None
        work = partial(leave_one_out, clf.model, inputs, batch_tokens=batch, progress=False)
        row = {"varied": name, "value": value, "tokens": tokens, "rate": rates[width]}
        rows.append(row | {"work": work})
    # In rounds, so that a slow minute of the machine meets every row alike.
    rounds = [[bench.seconds(row["work"]) for row in rows] for _ in range(3)]
    fastest = pd.DataFrame(rows).drop(columns="work").assign(seconds=np.min(rounds, axis=0))
    return fastest.to_dict("records")


def methods(bench: Bench) -> Rows:
    """Time each method a text at a time: a row a kind of texts and method, `seconds` a text.

    The faster of two runs counts.
    """
    rows = []
    for kind, inputs in bench.texts.items():
        for method in ("loo", "attnlrp", "cp-lrp", "mask-gradient", "ig"):
            work = partial(one_by_one, bench.classifier, inputs, method)
            taken = min(bench.seconds(work) for _ in range(2)) / len(inputs.lengths)
            rows.append({"texts": bench.named(kind), "method": method, "seconds": taken})
    return rows
