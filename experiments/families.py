"""Which families of transformers are covered, and how: tried on a tiny random model of each.

`python -m experiments.families` prints the table and writes `results/families.csv`. A family is
covered by rules, with the gap of their proof (rounded up to a power of ten), by removal alone, or
refused; what is refused has its sentence. Every score of Leave-One-Out that is not refused is
compared with
plain forward passes, one text at a time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lrputils as lrp  # before transformers, which it keeps importable
from experiments.command import main
from lrputils.model.proof import laid_out, short_text
from lrputils.propagation.composites import CP_LRP, conserved

import pandas as pd  # isort: skip
import torch  # isort: skip
from torch import Tensor, nn  # isort: skip
from transformers import AutoConfig, AutoModelForSequenceClassification, logging  # isort: skip
from transformers.models.auto import modeling_auto  # isort: skip

OUT = Path(__file__).parents[1] / "results" / "families.csv"
KINDS = tuple(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)
REMOVALS = "attention-mask", "delete", "unk", "pad"
_LARGEST = 3_000_000  # parameters: what is not made smaller by these settings is not tried
_SIZE = 32
# By every name that a configuration may have for it.
_SETTINGS = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size"), _SIZE
    ),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "dff", "d_inner"), _SIZE
    ),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "word_embed_proj_dim"), _SIZE),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_key_value_heads"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_window", "sliding_window"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("initializer_range", "init_std"), 0.3),
    "pad_token_id": 0,
    **dict.fromkeys(("bos_token_id", "cls_token_id"), 2),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 3),
    **dict.fromkeys(("num_experts", "num_local_experts"), 2),
    **dict.fromkeys(("num_experts_per_tok", "experts_per_token"), 1),
    "vocab_size": 60,
    "num_labels": 3,
    "initializer_factor": 8.0,
}


def build(kind: str) -> nn.Module:
    """A random classifier of a family, in evaluation mode, as small as its configuration lets it.

    Raises:
        ValueError: it cannot be made small by these settings.
    """
    known = AutoConfig.for_model(kind)
    settings = {name: value for name, value in _SETTINGS.items() if hasattr(known, name)}
    config = AutoConfig.for_model(kind, **settings, decoder_start_token_id=0)
    with torch.device("meta"):
        size = sum(
            p.numel() for p in AutoModelForSequenceClassification.from_config(config).parameters()
        )
    if size > _LARGEST:
        raise ValueError(f"{size:,} parameters with small settings")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_config(config)
    model.config.use_cache = False  # what generation would keep; not every cache is for one pass
    return model.eval().requires_grad_(False)


def texts() -> lrp.Inputs:
    """Two texts of different length between special tokens."""
    rows = [[2, 11, 12, 13, 14, 15, 16, 3], [2, 21, 22, 23, 3, 0, 0, 0]]
    mask = [[int(token != 0) for token in row] for row in rows]
    special = [[int(token in (0, 2, 3)) for token in row] for row in rows]
    fields = {"input_ids": rows, "attention_mask": mask, "special_tokens_mask": special}
    return lrp.Inputs(fields, replacements={"unk": 5, "pad": 0})


def _try_family(kind: str) -> dict[str, str]:
    """One row of the table: what a model of the family answers, and why it does not."""
    try:
        with torch.no_grad():
            model = build(kind)
    except Exception as error:  # each configuration has checks of its own
        return {"family": kind, "covered": "not tried", "reason": _sentence(error)}
    inputs, answers, reasons = texts(), [], {}
    for removal in REMOVALS:
        said = _asked(lambda: lrp.leave_one_out(model, inputs, removal=removal))  # noqa: B023
        if isinstance(said, str):
            reasons.setdefault(said, []).append(removal)
        else:
            same = _is_plain(model, inputs, removal, said)
            answers.append(removal if same else f"{removal} (differs)")
    gradients = _asked(lambda: lrp.attribute(model, inputs, "grad-x-input"))
    rules = _asked(lambda: _with_rules(model, inputs))
    if isinstance(gradients, str):
        reasons.setdefault(gradients, []).append("gradients")
    if isinstance(rules, str):
        reasons.setdefault(rules, []).append("rules")
    if any("does not run on" in why for why in reasons):  # the settings do not fit together
        return {"family": kind, "covered": "not tried", "reason": next(iter(reasons))}
    ruled = isinstance(rules, float)
    covered = "by rules" if ruled else "by removal" if answers else "refused"
    return {
        "family": kind,
        "covered": covered,
        "removals": ", ".join(answers),
        "gradients": "yes" if isinstance(gradients, Tensor) else "no",
        "gap": f"{10.0 ** math.ceil(math.log10(max(rules, 1e-7))):.0e}" if ruled else "",
        "reason": "; ".join(f"{', '.join(asked)}: {why}" for why, asked in reasons.items()),
    }


def _with_rules(model: nn.Module, inputs: lrp.Inputs) -> float:
    """What CP-LRP loses or makes of the relevance, in the model without constants.

    Raises:
        TypeError: no rules cover the model.
        ValueError: a map of LRP is not finite.
    """
    for method in ("attnlrp", "cp-lrp"):
        if not lrp.attribute(model, inputs, method).isfinite().all():
            raise ValueError(f"{method} is not finite")
    architecture = laid_out(model)
    return conserved(architecture, short_text(architecture), None, CP_LRP)[0][0]


def _asked(verb: Callable[[], Any]) -> Any:
    """What a verb answers, or the sentence in which it refuses."""
    try:
        return verb()
    except (TypeError, ValueError) as error:
        return _sentence(error)


def _sentence(error: Exception) -> str:
    return str(error).strip().splitlines()[0].split(". ")[0].split(": pass a")[0][:160]


def _is_plain(model: nn.Module, inputs: lrp.Inputs, removal: str, scores: Tensor) -> bool:
    """Whether scores are those of plain passes, at fixed positions where the model takes them."""
    ids, own = inputs["input_ids"][0], inputs.content_mask
    off = scores - plain_loo(model, inputs, removal, _start(model, ids), own)
    size = float(logits_of(model, ids).abs().max())
    return float(off[own].abs().max()) <= 1e-4 * max(1, size)


@torch.no_grad()
def plain_loo(
    model: nn.Module, inputs: lrp.Inputs, removal: str, start: int | None, where: Tensor
) -> Tensor:
    """Leave-one-out of the tokens of `where`, by a plain pass of each text alone without each.

    Under the mask positions count from `start`, where the model takes them; else it counts them.
    """
    scores = torch.zeros(inputs["input_ids"].shape)
    for row, length in enumerate(inputs.lengths.tolist()):
        ids, places = inputs["input_ids"][row, :length], torch.arange(length)
        whole = logits_of(model, ids)
        for i in where[row].nonzero().flatten().tolist():
            other, mask = ids.clone(), torch.ones_like(ids)
            given = {}
            if removal == "attention-mask":
                mask[i] = 0
                given = {} if start is None else {"position_ids": start + places}
            elif removal == "delete":
                other, mask = other[places != i], mask[1:]
            else:
                other[i] = inputs.replacements[removal]
            left = logits_of(model, other, attention_mask=mask, **given)
            scores[row, i] = (whole - left)[whole.argmax()]
    return scores


def logits_of(model: nn.Module, ids: Tensor, **given: Tensor) -> Tensor:
    """Of one text alone; a next-token model's at its last token."""
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **given}
    logits = model(**{name: value[None] for name, value in given.items()}).logits[0]
    return logits[-1] if logits.dim() == 2 else logits


@torch.no_grad()
def _start(model: nn.Module, ids: Tensor) -> int | None:
    """The first position that leaves the text as it is, where the model takes positions."""
    whole = logits_of(model, ids)
    for start in (0, 1):
        with suppress(TypeError, RuntimeError, IndexError):
            given = logits_of(model, ids, position_ids=start + torch.arange(len(ids)))
            if torch.allclose(whole, given, atol=1e-4):
                return start
    return None


def table(kinds: Iterable[str] = KINDS) -> pd.DataFrame:
    """The rows of all families, the covered ones first."""
    logging.set_verbosity_error()
    rows = []
    for kind in kinds:
        rows.append(_try_family(kind))
        print(f"{len(rows)}: {kind}, {rows[-1]['covered']}", file=sys.stderr, flush=True)
    columns = ["family", "covered", "removals", "gradients", "gap", "reason"]
    return pd.DataFrame(rows, columns=columns).fillna("").sort_values(["covered", "family"])


def write(*, out: Path = OUT) -> str:
    """Try every family of transformers that classifies texts, and write how each is covered.

    Args:
        out: where the table goes
    """
    found = table()
    found.to_csv(out, index=False)
    counts = found.covered.value_counts().to_string()
    return f"{found.to_string(index=False, max_colwidth=90)}\n{counts}"


if __name__ == "__main__":
    main(write, "python -m experiments.families")
