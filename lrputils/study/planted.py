"""Small models in which the tokens that decide are known by construction.

A text is eight neutral words among which some of these may stand:

    S            alone decides
    R and Q      each decides, so that together they are redundant
    A and B      decide only together

f = +1 where the text has S, R, Q, or A and B, else −1. A two-layer BERT is trained on f itself (not
on a class, whose logit could still grow with more evidence), on texts of which random tokens are
hidden by the attention mask: f without a token is then what the rule says, and removal stays
within what the model has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.model.inputs import Inputs
from lrputils.removal.leave_two_out import leave_two_out

SHIPPED = Path(__file__).parents[1] / "assets/small_models/planted.safetensors"
SEEDS = 3  # that are shipped
PAD, CLS, SEP, S, R, Q, A, B = range(8)
NEUTRAL = range(8, 24)
WORDS = 8
RATE = 5e-3
# What decides each kind of text, and what stands there without deciding.
EVIDENCE = {"single": (S,), "redundant": (R, Q), "and": (A, B)}
DISTRACTORS = {"single": (A,), "redundant": (B,), "and": ()}
# What the rule gives each deciding token: f(all) − f(without it), and its Shapley value.
TRUTH = {
    "single": {"loo": 2.0, "shapley": 2.0},
    "redundant": {"loo": 0.0, "shapley": 1.0},
    "and": {"loo": 2.0, "shapley": 1.0},
}
# I_ij of the two deciding tokens.
INTERACTION = {"redundant": 2.0, "and": -2.0}
METHODS = ("loo", "shapley", "mask-gradient", "attnlrp", "cp-lrp", "ig", "grad-x-input", "rollout")


def rule(ids: Tensor, mask: Tensor) -> Tensor:
    """f of the tokens that are not hidden: +1 or −1, (batch,)."""
    has = {token: ((ids == token) & mask.bool()).any(1) for token in (S, R, Q, A, B)}
    holds = has[S] | has[R] | has[Q] | (has[A] & has[B])
    return holds.double() * 2 - 1


def texts(kind: str, count: int, seed: int) -> Inputs:
    """Texts of one kind of `EVIDENCE`, its distractors among them, nothing hidden."""
    generator = torch.Generator().manual_seed(seed)
    ids = _neutral(count, generator)
    planted = torch.tensor((*EVIDENCE[kind], *DISTRACTORS[kind]))
    places = torch.rand(count, WORDS, generator=generator).argsort(1)[:, : len(planted)] + 1
    return _inputs(ids.scatter(1, places, planted.expand(count, -1)))


def _neutral(count: int, generator: torch.Generator) -> Tensor:
    ids = torch.randint(NEUTRAL[0], NEUTRAL[-1] + 1, (count, WORDS + 2), generator=generator)
    ids[:, 0], ids[:, -1] = CLS, SEP
    return ids


def _inputs(ids: Tensor) -> Inputs:
    special = (ids < S).long()
    return Inputs({"input_ids": ids, "special_tokens_mask": special}, replacements={"pad": PAD})


def drawn(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts to learn from and their masks: planted tokens by chance, three tenths hidden."""
    ids = _neutral(count, generator)
    chances = torch.tensor([0.15, 0.25, 0.25, 0.55, 0.55])  # S, R, Q, A, B: half the texts hold
    there = torch.rand(count, 5, generator=generator) < chances
    places = torch.rand(count, WORDS, generator=generator).argsort(1)[:, :5] + 1
    planted = torch.where(there, torch.arange(S, B + 1), ids.gather(1, places))
    ids = ids.scatter(1, places, planted)
    mask = (torch.rand(ids.shape, generator=generator) > 0.3).long()
    mask[:, 0] = mask[:, -1] = 1
    return ids, mask


def _untrained() -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=NEUTRAL[-1] + 1,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=WORDS + 2,
        num_labels=2,
        initializer_range=0.2,  # of this width; BERT's 0.02 is for 768
        pad_token_id=PAD,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config).double().eval()


def load(seed: int) -> BertForSequenceClassification:
    """Return the shipped model of a seed below `SEEDS`: `train(seed)`, rounded to half precision.

    Raises:
        ValueError: there is no such seed.
    """
    if not 0 <= seed < SEEDS:
        raise ValueError(f"seed={seed}: {SEEDS} models are shipped, seeds 0 to {SEEDS - 1}")
    start, model = f"{seed}.", _untrained()
    stored = load_file(SHIPPED).items()
    model.load_state_dict(
        {n.removeprefix(start): t.double() for n, t in stored if n.startswith(start)}
    )
    return model.requires_grad_(False)


def save(models: Mapping[int, BertForSequenceClassification], path: str | Path = SHIPPED) -> None:
    """Write models by training seed, as `load` reads them."""
    states = {seed: model.state_dict() for seed, model in models.items()}
    save_file({f"{s}.{n}": t.half() for s, state in states.items() for n, t in state.items()}, path)


def train(seed: int, steps: int = 400, batch: int = 64) -> BertForSequenceClassification:
    """Train one model on the rule, in float64 so that other processors get nearly the same one."""
    torch.manual_seed(seed)
    model = _untrained()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids, mask = drawn(batch, generator)
        f = rule(ids, mask)
        logits = model(input_ids=ids, attention_mask=mask).logits
        loss = (logits - torch.stack([-f, f], 1)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.requires_grad_(False)


def fit(model: BertForSequenceClassification, count: int = 2000, seed: int = 10**6) -> pd.Series:
    """Return how well a model keeps the rule on new texts of which tokens are hidden.

    `accuracy` is the share of texts on the right side of 0, `error` the root mean square of f less
    the rule's.
    """
    ids, mask = drawn(count, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        f = model(input_ids=ids, attention_mask=mask).logits[:, 1]
    known = rule(ids, mask)
    error = (f - known).square().mean().sqrt()
    return pd.Series({"accuracy": float((f * known > 0).double().mean()), "error": float(error)})


def found(
    models: Mapping[int, BertForSequenceClassification],
    count: int = 24,
    *,
    options: Mapping[str, Mapping[str, object]] | None = None,
) -> pd.DataFrame:
    """Return what each method finds of the evidence in texts of each kind.

    `models`: training seed → model; `count`: texts a kind and model; `options`: of methods, by
    name.

    Returns:
        one row a model, kind, text and method: `hit`, the share of the k deciding tokens among the
        k of highest score; `mass`, their share of the text's absolute scores; `value`, their mean
        score. `by chance` is the hit rate of a random order.
    """
    rows = []
    for seed, model in models.items():
        for number, (kind, evidence) in enumerate(EVIDENCE.items()):
            inputs = texts(kind, count, seed=1000 * (seed + 1) + number)
            where = torch.isin(inputs["input_ids"], torch.tensor(evidence))[:, 1:-1]
            for method in METHODS:
                own = (options or {}).get(method, {})
                scores = attribute(model, inputs, method, target=1, **own)[:, 1:-1].double()
                best = scores.topk(len(evidence), dim=1).indices
                part = {
                    "hit": where.gather(1, best).double().mean(1),
                    "mass": (scores.abs() * where).sum(1) / scores.abs().sum(1),
                    "value": (scores * where).sum(1) / len(evidence),
                }
                facts = {"seed": seed, "kind": kind, "text": range(count), "method": method}
                chance = len(evidence) / WORDS
                rows.append(pd.DataFrame({**facts, **part, "by chance": chance}))
    return pd.concat(rows, ignore_index=True)


def interactions(models: Mapping[int, BertForSequenceClassification], count: int = 24) -> pd.Series:
    """Return the mean I_ij of the two deciding tokens of `found`'s texts, by kind.

    `INTERACTION` is what the rule gives.
    """
    measured: dict[str, list[float]] = {kind: [] for kind in INTERACTION}
    for seed, model in models.items():
        for kind, values in measured.items():
            number = list(EVIDENCE).index(kind)
            inputs = texts(kind, count, seed=1000 * (seed + 1) + number)
            pairs = [
                torch.isin(row, torch.tensor(EVIDENCE[kind])).nonzero().flatten().tolist()
                for row in inputs["input_ids"]
            ]
            both = leave_two_out(model, inputs, pairs=[[pair] for pair in pairs], target=1)
            values += [float(both.interactions[row, i, j]) for row, (i, j) in enumerate(pairs)]
    return pd.Series({kind: sum(values) / len(values) for kind, values in measured.items()})


def summary(rows: pd.DataFrame, column: str = "hit") -> pd.DataFrame:
    """Return the mean of a column of `found` by (kind, method); intervals are over texts."""
    groups = rows.groupby(["kind", "method"], sort=False)[column]
    # Where one token decides, a hit rate is a share of the texts.
    shares = {name: part.isin((0, 1)).all() for name, part in groups}
    return stats.table(
        {n: stats.estimate(part.astype(bool) if shares[n] else part) for n, part in groups}
    )
