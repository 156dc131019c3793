"""The baseline that no continuity binds: predict what followed the longest suffix seen before (infini-gram style)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError

__all__ = ["suffix_match"]


def suffix_match(sequence: Sequence[int], symbols: Sequence[int]) -> NDArray[np.float64]:
    """P(symbol) before each position, from the longest suffix of what came before that occurred earlier.

    It learns every period once it has seen it twice. O(n²) time, O(n) memory.

    Parameters
    ----------
    sequence : n tokens.
    symbols : the alphabet; each token of ``sequence`` must be one of it.

    Returns
    -------
    float64 [n, len(symbols)]: row t is the prediction of token t from those before it. Where none of them occurred
    before, the counts of all tokens so far, and at first the uniform distribution.
    """
    place = {s: i for i, s in enumerate(symbols)}
    if any(token not in place for token in sequence):
        raise InputError("sequence: expected only tokens of symbols")
    codes = np.array([place[token] for token in sequence], dtype=np.int64)
    n, size = len(codes), len(symbols)
    found = np.full((n, size), 1.0 / size)
    # common[j]: length of the common suffix of codes[:t] and codes[:j], for j < t.
    common = np.zeros(n + 1, dtype=np.int64)
    for t in range(1, n):
        common[1:t] = np.where(codes[: t - 1] == codes[t - 1], common[: t - 1] + 1, 0)
        ends = common[1:t]
        followers = codes[1:t][ends == ends.max()] if ends.size and ends.max() > 0 else codes[:t]
        found[t] = np.bincount(followers, minlength=size) / len(followers)
        # The comparison of codes[:t] with itself: the next step extends it into codes[:t + 1] against codes[:t].
        common[t] = t
    return found
