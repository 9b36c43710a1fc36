"""Train chapter 11's small models again: `python -m recipes.small_models --data DIR --out OUT`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lrputils as lrp
from lrputils.model.attention import routed
from lrputils.runs.options import run_alone
from lrputils.study import zoo
from recipes import planted

STEPS, RULE_STEPS, BATCH = 400, 800, 32
WORDS = range(5, 17)  # how many words a training text has

Batches = Callable[[torch.Generator], tuple[dict[str, Tensor], Tensor]]


def text_batches(file: Path) -> Batches:
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


def image_batches() -> Batches:
    """Random batches of scikit-learn's digits."""
    data = zoo.images()[1]
    pixels = zoo.pixels(data.train_images).float()
    labels = torch.from_numpy(data.train_labels)

    def drawn(generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        chosen = torch.randint(len(labels), (BATCH,), generator=generator)
        return {"pixel_values": pixels[chosen]}, labels[chosen]

    return drawn


def rule_batches(generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """A random batch of the planted rule's texts, of which some tokens are hidden."""
    ids, mask = planted.drawn(BATCH, generator)
    return {"input_ids": ids, "attention_mask": mask}, (planted.rule(ids, mask) > 0).long()


def train(name: str, seed: int, batches: Batches, steps: int = STEPS) -> nn.Module:
    """Train one model; one that ends in `LINEAR` has the same start and texts as its twin."""
    family, _ = zoo.SHIPPED[name]
    ruled = name.endswith(zoo.RULE)
    words = zoo.RULE_VOCABULARY if ruled else zoo.VOCABULARY
    model = zoo.build(family, seed, vocab_size=words).float().requires_grad_(True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family != "vit" and not ruled:
            model.set_input_embeddings(zoo.projected())
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        inputs, labels = batches(generator)
        return cross_entropy(model(**inputs).logits, labels)

    with routed(model, zoo.linear) if name.endswith(zoo.LINEAR) else nullcontext():
        return planted.fit(model, loss, steps)


def make(
    *,
    data: str,
    out: Path,
    only: Sequence[str] = tuple(name for name in zoo.SHIPPED if name != "planted"),
    seeds: int | None = None,
    steps: int | None = None,
) -> str:
    """Train chapter 11's small models again.

    Training in float32 gives models of the same kind, not the same bits, on another processor.

    Args:
        data (DIR): folder with sst2/train.parquet
        out: folder for the weights
        only: names of models (default: all but planted, which has a recipe of its own)
        seeds: so many of each (default: as many as come with the package)
        steps: batches (default: 400; 800 of the rule)
    """
    texts, images = text_batches(Path(data) / "sst2/train.parquet"), image_batches()
    paths = []
    for name in only:
        family, shipped = zoo.SHIPPED[name]
        ruled = name.endswith(zoo.RULE)
        batches = rule_batches if ruled else images if family == "vit" else texts
        length = steps or (RULE_STEPS if ruled else STEPS)
        models = {n: train(name, n, batches, length) for n in range(seeds or shipped)}
        paths.append(zoo.save(models, name, out))
    return "\n".join(map(str, paths))


if __name__ == "__main__":
    print(run_alone(make, prog="python -m recipes.small_models"))
