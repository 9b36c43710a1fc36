"""Train the models of chapters 8 and 11: `python -m experiments.small_models --data DIR --out OUT`.

Those of chapter 11 learn the labels of short texts or of digits, from a cross-entropy in float32.

The models of chapter 8 learn a planted rule. A text is eight neutral words among which S, R, Q, A
and B may stand. f = +1 where it has S, R, Q, or A and B, else −1. They are trained on f itself (not
on a class, whose logit could still grow with more evidence), on texts of which random tokens are
hidden by the attention mask: f without a token is then what the rule says, and removal stays within
what the model has seen. Float64 gives other processors nearly the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lrputils as lrp
from experiments import zoo
from experiments.command import main
from lrputils.model.operations import routed
from lrputils.model.proof import laid_out
from lrputils.runs.options import Names

PAD, CLS, SEP, S, R, Q, A, B = range(8)  # the rule's tokens
_RULE_WORDS = 8  # a text
WORDS = range(5, 17)  # how many words a training text has
BATCH, RULE_BATCH = 32, 64
STEPS, RATE = 400, 5e-3

Batches = Callable[[torch.Generator], tuple[dict[str, Tensor], Tensor]]


def _text_batches(file: Path) -> Batches:
    """Random batches of labelled texts of `WORDS` words, encoded once."""
    texts = lrp.load_texts(file)
    kept = [i for i, text in enumerate(texts) if len(text.split()) in WORDS]
    labels = torch.tensor([texts.labels[i] for i in kept])
    tokenizer = lrp.load_classifier(device="cpu").tokenizer
    ids = tokenizer([texts[i] for i in kept], truncation=True, max_length=zoo.POSITIONS)
    rows = [torch.tensor(row) for row in ids["input_ids"]]

    def drawn(generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        chosen = torch.randint(len(rows), (BATCH,), generator=generator)
        padded = nn.utils.rnn.pad_sequence([rows[i] for i in chosen], batch_first=True)
        return {"input_ids": padded, "attention_mask": (padded != 0).long()}, labels[chosen]

    return drawn


def _image_batches() -> Batches:
    """Random batches of scikit-learn's digits."""
    data = zoo.images()[1]
    pixels = zoo.pixels(data.train_images).float()
    labels = torch.from_numpy(data.train_labels)

    def drawn(generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        chosen = torch.randint(len(labels), (BATCH,), generator=generator)
        return {"pixel_values": pixels[chosen]}, labels[chosen]

    return drawn


def rule(ids: Tensor, mask: Tensor) -> Tensor:
    """f of the tokens that are not hidden: +1 or −1, (batch,)."""
    has = {token: ((ids == token) & mask.bool()).any(1) for token in (S, R, Q, A, B)}
    holds = has[S] | has[R] | has[Q] | (has[A] & has[B])
    return holds.double() * 2 - 1


def draw(count: int, chances: Tensor, generator: torch.Generator) -> Tensor:
    """The rule's texts, S, R, Q, A and B in each by these chances: ids, (count, 10)."""
    ids = torch.randint(B + 1, zoo.RULE_VOCABULARY, (count, _RULE_WORDS + 2), generator=generator)
    there = torch.rand(count, 5, generator=generator) < chances
    places = torch.rand(count, _RULE_WORDS, generator=generator).argsort(1)[:, :5] + 1
    planted = torch.where(there, torch.arange(S, B + 1), ids.gather(1, places))
    ids = ids.scatter(1, places, planted)
    ids[:, 0], ids[:, -1] = CLS, SEP
    return ids


def _rule_batches(
    generator: torch.Generator, count: int = RULE_BATCH
) -> tuple[dict[str, Tensor], Tensor]:
    """Texts of which about half hold the rule, three tenths hidden, and where f is 1."""
    ids = draw(count, torch.tensor([0.15, 0.25, 0.25, 0.55, 0.55]), generator)
    mask = (torch.rand(ids.shape, generator=generator) > 0.3).long()
    mask[:, 0] = mask[:, -1] = 1
    return {"input_ids": ids, "attention_mask": mask}, (rule(ids, mask) > 0).long()


def train(name: str, seed: int, batches: Batches, steps: int = STEPS) -> nn.Module:
    """Train one model; one that ends in `LINEAR` has the same start and texts as its twin."""
    family, _ = zoo.SHIPPED[name]
    model = zoo.build(family, seed).float().requires_grad_(True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family != "vit":
            model.set_input_embeddings(zoo.projected())
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        inputs, labels = batches(generator)
        return cross_entropy(model(**inputs).logits, labels)

    laid = laid_out(model.eval())
    with routed(laid, zoo.linear) if name.endswith(zoo.LINEAR) else nullcontext():
        return _fit(model, loss, steps)


def _train_planted(seed: int, steps: int = STEPS) -> nn.Module:
    """Train one of chapter 8's models on f, in float64, by its squared error."""
    model = zoo.build("bert", seed, **zoo.PLANTED).requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        inputs, holds = _rule_batches(generator)
        f = holds.double() * 2 - 1
        return (model(**inputs).logits - torch.stack([-f, f], 1)).square().mean()

    return _fit(model, loss, steps, longest=math.inf, weight_decay=0.0)


def _fit(
    model: nn.Module, loss: Callable[[], Tensor], steps: int, *, longest: float = 1.0, **adam: float
) -> nn.Module:
    """Minimise the loss of one batch after another by AdamW, on gradients at most so long."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(learned, lr=RATE, **adam)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), longest)
        optimiser.step()
        schedule.step()
    return model.requires_grad_(False)


def make(*, data: Path, out: Path, only: Names = tuple(zoo.SHIPPED)) -> str:
    """Train the small models of chapters 8 and 11 again.

    Training in float32 gives models of the same kind, not the same bits, on another processor.

    Args:
        data: folder with sst2/train.parquet
        out: folder for the weights
        only: names of models (default: all)
    """
    texts, images = _text_batches(data / "sst2/train.parquet"), _image_batches()
    paths = []
    for name in only:
        family, seeds = zoo.SHIPPED[name]
        models = {}
        for seed in range(seeds):
            if name == "planted":
                models[seed] = _train_planted(seed)
            else:
                models[seed] = train(name, seed, images if family == "vit" else texts)
        paths.append(zoo.save(models, name, out))
    return "\n".join(map(str, paths))


if __name__ == "__main__":
    main(make, "python -m experiments.small_models")
