"""Removal by a model's own forward pass, for models without rules.

Of such a model it is known that it takes ids and an attention mask, and no more. A removed token is
masked, tokens removed at the end are cut off. That this removes, and that rows can share a batch,
is measured before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lrputils.model.architectures import Architecture
from lrputils.model.forwards import Forward, replaced
from lrputils.model.readout import run

# One text by the names of the model's arguments, (tokens,) each.
Row = Mapping[str, np.ndarray]
_SPECIAL = ("pad", "bos", "eos", "sep", "cls", "mask", "unk")


def logits_of(
    architecture: Architecture, rows: Sequence[Row], zeroed: Sequence[Sequence[int]] = ()
) -> Tensor:
    """Logits (rows, classes), in float32 at least, of the model as it is.

    Args:
        architecture: of the model.
        rows: `input_ids`, `attention_mask` and, where the model takes them, `token_type_ids`.
        zeroed: of each row the tokens whose word embedding is zero; none if not given.

    Raises:
        ValueError: the model reads its words twice, so that one zero does not remove them.
    """
    device = next(architecture.model.parameters()).device
    fill = {"input_ids": architecture.config.pad_token_id or 0}
    arguments: dict[str, Any] = {
        name: pad_sequence(
            [torch.from_numpy(row[name]) for row in rows],
            batch_first=True,
            padding_value=fill.get(name, 0),
        ).to(device)
        for name in rows[0]
    }
    if architecture.causal:
        arguments["use_cache"] = False
    last = torch.tensor([len(row["input_ids"]) - 1 for row in rows], device=device)

    def without(inner: Forward, *args: Any, **kwargs: Any) -> Tensor:
        words = inner(*args, **kwargs).clone()
        for row, tokens in enumerate(zeroed):
            words[row, list(tokens)] = 0
        return words

    with ExitStack() as undo:
        if len(zeroed) and architecture.config.is_encoder_decoder:
            raise ValueError(
                f"{type(architecture.model).__name__} reads its words twice: removal='zero' would "
                "leave them in one place. Use removal='delete'"
            )
        if len(zeroed):
            undo.enter_context(replaced({architecture.word_embeddings: without}))
        logits = run(architecture, arguments, last)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def prove(architecture: Architecture, row: Row, *, masked: bool) -> bool:
    """Whether rows may share a batch: a shortened text beside its whole gives what it gives alone.

    With `masked`, also whether the mask removes: other words under it must not move a logit. Both
    up to the root of the model's precision.

    Raises:
        ValueError: the mask does not remove; the message says which removals do.
    """
    tokens, dtype = len(row["input_ids"]), architecture.word_embeddings.weight.dtype
    if tokens < 3:
        return False
    short = {name: np.delete(value, 1) for name, value in row.items()}
    alone, together = logits_of(architecture, [short]), logits_of(architecture, [row, short])[1:]
    allowed = torch.finfo(dtype).eps ** 0.5 * max(1.0, float(alone.abs().max()))
    if masked:
        others = [dict(row), dict(row)]
        for other, word in zip(others, _words(architecture), strict=True):
            other["input_ids"], other["attention_mask"] = (
                row[name].copy() for name in ("input_ids", "attention_mask")
            )
            other["input_ids"][1:-1:2], other["attention_mask"][1:-1:2] = word, 0
        first, second = (logits_of(architecture, [other]) for other in others)
        seen = bool((first - second).abs().max() > allowed)
        if seen or architecture.config.is_encoder_decoder:  # a decoder has no part of the mask
            raise ValueError(
                f"{type(architecture.model).__name__} reads what its attention mask hides: other "
                "words there move its logits, so masking does not remove. Use leave_one_out with "
                "removal='delete', or 'mask', 'pad' or 'unk', which replace"
            )
    return float((alone - together).abs().max()) <= allowed


def _words(architecture: Architecture) -> list[int]:
    """Two tokens that are not special, as far as the model's settings say."""
    known = {getattr(architecture.config, f"{name}_token_id", None) for name in _SPECIAL}
    middle = architecture.config.vocab_size // 2
    return [token for token in range(middle, middle + 9) if token not in known][:2]
