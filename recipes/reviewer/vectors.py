"""Vectors of word pieces from their neighbours: what an embedding layer can know before training.

From the number #(w, c) of times that context c stands near piece w, nearer ones counting more,
comes M(w, c) = max(0, log p(w, c) / (p(w) q(c))), where q(c) is the share of #(c)^0.75: positive
pointwise mutual information with smoothed contexts. With M ≈ U Σ Vᵀ the vectors are the rows of
U Σ^½. See Levy, Goldberg and Dagan 2015 (TACL 3), "Improving distributional similarity with lessons
learned from word embeddings".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

WINDOW = 5  # pieces to either side; the nearest counts 1, the farthest 1/5
SMOOTHING = 0.75
CONTEXTS = 8192  # the most frequent pieces; a matrix of all pairs of a large vocabulary is too big
_MORE, _ROUNDS = 32, 4  # of the randomised decomposition: dimensions to spare, power iterations


def neighbour_vectors(texts: Sequence[np.ndarray], pieces: int, size: int, seed: int) -> Tensor:
    """Return a vector for each piece: float32 (pieces, size), mean 0 and variance 1.

    Directions are turned at random, so that no coordinate holds more than another. A piece without
    neighbours gets random numbers.

    Args:
        texts: each an array of word pieces, without special tokens.
        pieces: of the vocabulary.
        size: of a vector; where the texts give fewer directions, the others are zeros.
        seed: of what is random.
    """
    generator = torch.Generator().manual_seed(seed)
    information = torch.from_numpy(_information(_counts(texts, pieces)))
    near = information.any(1)
    turn, _ = torch.linalg.qr(torch.randn(size, size, generator=generator))
    vectors = torch.empty(pieces, size)
    vectors[~near] = torch.randn(int((~near).sum()), size, generator=generator)
    if near.any():
        most = min(size, *information.shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            spare = min(most + _MORE, *information.shape)
            left, values, _ = torch.svd_lowrank(information, q=spare, niter=_ROUNDS)
        found = torch.zeros(int(near.sum()), size)
        found[:, :most] = left[near, :most] * values[:most].sqrt()
        found -= found.mean(0)
        vectors[near] = found @ turn / found.std()
    return vectors


def _counts(texts: Sequence[np.ndarray], pieces: int) -> np.ndarray:
    """Return how often a piece (row) has a context (column) near: float32 (pieces, contexts)."""
    text = np.repeat(np.arange(len(texts)), [len(row) for row in texts])
    ids = np.concatenate(texts).astype(np.int64)
    often = np.argsort(-np.bincount(ids, minlength=pieces), kind="stable")[:CONTEXTS]
    column = np.full(pieces, -1)
    column[often] = np.arange(len(often))
    counts = np.zeros(pieces * len(often), dtype=np.float32)
    for distance in range(1, WINDOW + 1):
        first, second = ids[:-distance], ids[distance:]
        near = text[:-distance] == text[distance:]
        for piece, context in ((first, second), (second, first)):
            pairs = piece * len(often) + column[context]
            found = np.bincount(pairs[near & (column[context] >= 0)], minlength=len(counts))
            counts += found.astype(np.float32) * ((WINDOW + 1 - distance) / WINDOW)
    return counts.reshape(pieces, len(often))


def _information(counts: np.ndarray) -> np.ndarray:
    """Return positive pointwise mutual information, M(w, c) above: as `counts`."""
    contexts = counts.sum(0) ** SMOOTHING
    with np.errstate(divide="ignore", invalid="ignore"):  # what never stood near gets 0 below
        expected = counts.sum(1, keepdims=True) * (contexts / contexts.sum())
        information = np.log(counts / expected)
    information[~np.isfinite(information)] = 0
    return np.maximum(information, 0, out=information)
