"""Distances between prompts and between the next-token distributions that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import ArrayLike, NDArray

from touchstone.errors import InputError

__all__ = ["aligned_distance", "entropy", "hamming", "kullback_leibler", "largest_gap", "total_variation"]


def hamming(x: Sequence[int], y: Sequence[int]) -> float:
    """Relative Hamming distance: share of positions in which two sequences of equal length differ, 0 to 1.

    Raises
    ------
    InputError
        If the lengths differ, or both are empty.
    """
    if len(x) != len(y):
        raise InputError(f"hamming: expected sequences of equal length, got {len(x)} and {len(y)}")
    if len(x) == 0:
        raise InputError("hamming: expected at least one position, got empty sequences")
    return sum(a != b for a, b in zip(x, y, strict=True)) / len(x)


def aligned_distance(x: Sequence[int], y: Sequence[int]) -> float:
    """Share of tokens that an alignment leaves unmatched, of the longer sequence, 0 to 1.

    For edits of text: encoding edited text anew may change its length, where :func:`hamming` is not defined.
    """
    longest = max(len(x), len(y))
    if longest == 0:
        raise InputError("aligned_distance: expected at least one token, got empty sequences")
    blocks = SequenceMatcher(None, list(x), list(y), autojunk=False).get_matching_blocks()
    return 1.0 - sum(block.size for block in blocks) / longest


def total_variation(p: ArrayLike, q: ArrayLike) -> NDArray[np.float64]:
    """½ Σ |p − q| over the last axis, from log-probabilities; 0 (the same) to 1 (disjoint)."""
    a, b = _logs(p, q)
    return np.clip(0.5 * np.abs(np.exp(a) - np.exp(b)).sum(-1), 0.0, 1.0)


def largest_gap(p: ArrayLike, q: ArrayLike) -> NDArray[np.float64]:
    """max |p − q| over the last axis, from log-probabilities: the norm of the theorem."""
    a, b = _logs(p, q)
    return np.abs(np.exp(a) - np.exp(b)).max(-1)


def kullback_leibler(p: ArrayLike, q: ArrayLike) -> NDArray[np.float64]:
    """Σ p log(p / q) over the last axis in nats, from log-probabilities; at least 2 TV² (Pinsker)."""
    a, b = _logs(p, q)
    weight = np.exp(a)
    return np.maximum((weight * (a - b)).sum(-1), 0.0)


def entropy(p: ArrayLike) -> NDArray[np.float64]:
    """Shannon entropy over the last axis in nats, from log-probabilities."""
    a, _ = _logs(p, p)
    return np.maximum(-(np.exp(a) * a).sum(-1), 0.0)


def _logs(p: ArrayLike, q: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # A probability of exactly 0 would make ∞ − ∞; this floor is below every float32 softmax.
    a, b = (np.maximum(np.asarray(x, dtype=np.float64), -400.0) for x in (p, q))
    if a.shape[-1] != b.shape[-1]:
        raise InputError(f"distributions: expected one vocabulary, got {a.shape[-1]} and {b.shape[-1]} tokens")
    return a, b
