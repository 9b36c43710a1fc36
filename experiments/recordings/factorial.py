"""Which rule carries LRP's agreement with leave-one-out: each of four by itself, in all 16 ways.

| factor | its rule | without it |
|---|---|---|
| norm | the deviation is a constant | the plain gradient |
| activation, of the head too | the identity rule | the plain gradient |
| halving | each factor of a product gets half | all of the gradient |
| softmax | closed, as in CP-LRP: queries and keys, and a gate, get nothing | its Jacobian |

AttnLRP is the first three without the last; CP-LRP is norm, activation and the closed softmax; none
is gradient × input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from experiments.by_text import in_order
from experiments.conventions import lrp_everywhere
from experiments.frame import recorded_loo
from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.propagation.composites import Composite
from lrputils.study.by_text import predicted

FACTORS = ("norm", "activation", "halving", "softmax")
# (halving, softmax closed) → rules of attention and of the gated product
_PRODUCTS = {
    (True, False): ("attnlrp", "halved"),
    (True, True): ("half-value", "gate-held"),
    (False, False): ("gradient", "gradient"),
    (False, True): ("cp", "gate-held"),
}


def composites() -> dict[tuple[bool, ...], Composite]:
    """Return the 16 composites, by whether each of `FACTORS` follows its rule."""
    found = {}
    for norm, activation, *rest in product((True, False), repeat=len(FACTORS)):
        attention, gated = _PRODUCTS[rest[0], rest[1]]
        unit = "identity" if activation else "gradient"
        found[norm, activation, *rest] = Composite(
            attention=attention,
            product=gated,
            activation=unit,
            head=unit,
            norm="held-std" if norm else "gradient",
        )
    return found


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    run: str,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, composite and read-out; leave-one-out is that of a recorded run.

    Args:
        classifier: the run's own; of a language model the classifier that a template makes of it,
            and f is then the difference of its two labels' logits.
        texts: the run's own; longer ones are cut.
        run: of `results/maps`, of a language model `results/prompted`, whose maps "loo" under the
            attention mask are compared with.
        batch_size: texts a batch.
        max_length: in tokens.

    Returns:
        `id`, `target`, `label`, `logit`; `norm`, `activation`, `halving`, `softmax`, whether each
        follows its rule; `readout`; `r`, Pearson's with leave-one-out over all tokens, and
        `r_content`, without special ones.
    """
    exact = recorded_loo(run, "prompted" if classifier.prompt else "maps")
    rows = []
    for inputs, target, facts in predicted(classifier, texts, batch_size, max_length):
        loo = [torch.tensor(exact[fact["id"]]) for fact in facts]
        explained = torch.stack([target, target - 2], 1) if classifier.prompt else target
        compared = _compare(classifier, inputs, explained, pad_sequence(loo, batch_first=True))
        told = ("position", "id", "target", "label", "logit")
        rows += [
            {name: facts[number][name] for name in told}
            | {name: column[number] for name, column in columns.items()}
            for columns in compared
            for number in range(len(facts))
        ]
    return in_order(rows)


def _compare(
    classifier: Classifier, inputs: Inputs, target: Tensor, loo: Tensor
) -> Iterator[dict[str, Sequence[Any]]]:
    """Yield each composite's and read-out's columns of a batch."""
    texts = len(loo)
    valid, content = inputs.valid_mask.cpu(), inputs.content_mask.cpu()
    for rules, composite in composites().items():
        maps = lrp_everywhere(classifier.model, inputs, composite, target)
        for place, scores in maps.items():
            scores = scores.detach().float().cpu()
            followed = {name: [rule] * texts for name, rule in zip(FACTORS, rules, strict=True)}
            yield {
                **followed,
                "readout": [place] * texts,
                "r": stats.pearson(scores, loo, where=valid),
                "r_content": stats.pearson(scores, loo, where=content),
            }
