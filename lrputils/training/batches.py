"""Batches of texts of like length, each a function of the seed and its number alone.

So a training that goes on from step 1,000 gets the batches, and the masks, that it would have got
had it never stopped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from lrputils.training.corpus import Encoded
from lrputils.training.recipe import Stage
from lrputils.training.words import continuations, word_starts

# Devlin et al. 2019, section 3.1: of 15% of the tokens, 80% are masked, 10% swapped, 10% kept.
CHOSEN, MASKED, SWAPPED = 0.15, 0.8, 0.1
_STEP = 8  # widths are multiples of this: matrix units like them, and there are fewer shapes


class Special(NamedTuple):
    """The tokenizer's special tokens, how many tokens there are, and which go on with a word."""

    begin: int
    end: int
    pad: int
    mask: int
    size: int
    inside: np.ndarray  # booleans (size,)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Special:
        """Read them off a tokenizer."""
        return cls(
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            tokenizer.pad_token_id,
            tokenizer.mask_token_id,
            len(tokenizer),
            continuations(tokenizer),
        )


def plan_epoch(
    lengths: np.ndarray, *, tokens: int, rows: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Divide texts into batches, in random order.

    Texts of like length share a batch; which ones of them, chance decides. A batch has at most
    `rows` texts and `tokens` tokens, padding included.

    Args:
        lengths: tokens of each text, integers (texts,).
        tokens: tokens a batch; no less than the longest text.
        rows: texts a batch.
        generator: decides the order.
    """
    widths = -(-lengths // _STEP) * _STEP
    order = generator.permutation(len(lengths))
    order = order[np.argsort(widths[order], kind="stable")]
    batches, start = [], 0
    while start < len(order):
        # Widths rise, so the last text of a batch is its widest.
        end = min(start + rows, len(order))
        taken = np.arange(1, end - start + 1) * widths[order[start:end]]
        fitting = max(1, int(np.searchsorted(taken, tokens, side="right")))
        batches.append(order[start : start + fitting])
        start += fitting
    return [batches[i] for i in generator.permutation(len(batches))]


class Batches(Dataset):
    """All batches of a stage in order, over all its epochs: `batches[step]`.

    A batch has `input_ids` and `attention_mask`, integers (texts, width), and `labels`, the
    probability of each class, (texts, classes). Where texts have a teacher's states, it also has
    `states`, (words, depths, dimensions), and `positions`, where in the flattened (texts · width)
    tokens these words begin.

    Attributes:
        epoch_ends: the number of steps after each epoch, ascending.
        tokens: integers (steps,): tokens of each batch, without padding.
    """

    def __init__(self, encoded: Encoded, stage: Stage, special: Special, seed: int):
        self.encoded, self.special, self.seed = encoded, special, seed
        self.plan: list[np.ndarray] = []
        ends = []
        for epoch in range(stage.epochs):
            self.plan += plan_epoch(
                encoded.lengths,
                tokens=stage.batch_tokens,
                rows=stage.batch_rows,
                generator=np.random.default_rng((seed, epoch)),
            )
            ends.append(len(self.plan))
        self.epoch_ends = tuple(ends)
        lengths = encoded.lengths
        self.tokens = np.array([lengths[rows].sum() for rows in self.plan])

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        ids, mask = self._padded(step)
        rows, encoded = self.plan[step], self.encoded
        batch = {"input_ids": ids, "attention_mask": mask, "labels": encoded.targets[rows]}
        if encoded.states is not None:
            begins = word_starts(ids, mask.astype(bool), self.special.inside)
            positions, chosen = [], []
            for i, row in enumerate(rows):
                start, end = encoded.state_starts[row : row + 2]
                # Where either of the two cut the text, the words that both have seen.
                words = np.flatnonzero(begins[i])[: end - start]
                positions.append(i * ids.shape[1] + words)
                chosen.append(np.arange(start, start + len(words)))
            batch["positions"] = np.concatenate(positions)
            batch["states"] = encoded.states[np.concatenate(chosen)]
        return _tensors(**batch)

    def _padded(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        rows = [self.encoded[row] for row in self.plan[step]]
        width = -(-(max(map(len, rows)) + 2) // _STEP) * _STEP
        ids = np.full((len(rows), width), self.special.pad, dtype=np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row) + 2] = [self.special.begin, *row, self.special.end]
            mask[i, : len(row) + 2] = 1
        return ids, mask


class MaskedBatches(Batches):
    """Batches for masked language modelling.

    Beside `input_ids` (with masks) and `attention_mask` they have `positions`, where in the
    flattened (texts · width) tokens one is to be guessed, and `labels`, which one: (chosen,).
    """

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        ids, mask = self._padded(step)
        generator = np.random.default_rng((self.seed, len(self.epoch_ends), step))
        content = mask.astype(bool)  # less the first and the last token of each row
        content[:, :-1] &= content[:, 1:]
        content[:, [0, -1]] = False
        chosen = content & (generator.random(ids.shape) < CHOSEN)
        if not chosen.any():  # a loss over nothing is not a number
            chosen.flat[np.flatnonzero(content)[0]] = True
        (positions,) = np.nonzero(chosen.ravel())
        labels = ids.ravel()[positions]
        fate = generator.random(len(positions))
        swapped = generator.integers(0, self.special.size, len(positions))
        shown = np.where(fate < MASKED, self.special.mask, labels)
        shown = np.where((fate >= MASKED) & (fate < MASKED + SWAPPED), swapped, shown)
        ids.ravel()[positions] = shown
        return _tensors(input_ids=ids, attention_mask=mask, positions=positions, labels=labels)


def _tensors(**arrays: np.ndarray) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
