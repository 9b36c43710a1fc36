"""Train chapter 8's models of a planted rule again: `python -m recipes.planted --out FOLDER`.

A text is eight neutral words among which S, R, Q, A and B may stand. f = +1 where it has S, R, Q,
or A and B, else −1. A model is trained on f itself (not on a class, whose logit could still grow
with more evidence), on texts of which random tokens are hidden by the attention mask: f without a
token is then what the rule says, and removal stays within what the model has seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from lrputils.runs.options import run_alone
from lrputils.study import zoo

PAD, CLS, SEP, S, R, Q, A, B = range(8)
WORDS = 8
RATE = 5e-3


def rule(ids: Tensor, mask: Tensor) -> Tensor:
    """f of the tokens that are not hidden: +1 or −1, (batch,)."""
    has = {token: ((ids == token) & mask.bool()).any(1) for token in (S, R, Q, A, B)}
    holds = has[S] | has[R] | has[Q] | (has[A] & has[B])
    return holds.double() * 2 - 1


def drawn(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts to learn from and their masks: planted tokens by chance, three tenths hidden."""
    ids = torch.randint(B + 1, zoo.RULE_VOCABULARY, (count, WORDS + 2), generator=generator)
    ids[:, 0], ids[:, -1] = CLS, SEP
    chances = torch.tensor([0.15, 0.25, 0.25, 0.55, 0.55])  # S, R, Q, A, B: half the texts hold
    there = torch.rand(count, 5, generator=generator) < chances
    places = torch.rand(count, WORDS, generator=generator).argsort(1)[:, :5] + 1
    planted = torch.where(there, torch.arange(S, B + 1), ids.gather(1, places))
    ids = ids.scatter(1, places, planted)
    mask = (torch.rand(ids.shape, generator=generator) > 0.3).long()
    mask[:, 0] = mask[:, -1] = 1
    return ids, mask


def fit(
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


def train(seed: int, steps: int = 400, batch: int = 64) -> nn.Module:
    """Train one model on the rule, in float64 so that other processors get nearly the same one."""
    model = zoo.build("bert", seed, **zoo.PLANTED).requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        ids, mask = drawn(batch, generator)
        f = rule(ids, mask)
        logits = model(input_ids=ids, attention_mask=mask).logits
        return (logits - torch.stack([-f, f], 1)).square().mean()

    return fit(model, loss, steps, longest=math.inf, weight_decay=0.0)


def make(*, out: Path, steps: int = 400) -> Path:
    """Train chapter 8's models of a planted rule again.

    Args:
        out: folder for the weights
        steps: batches
    """
    seeds = range(zoo.SHIPPED["planted"][1])
    return zoo.save({seed: train(seed, steps) for seed in seeds}, "planted", out)


if __name__ == "__main__":
    print(run_alone(make, prog="python -m recipes.planted"))
