"""Bounds on a risk that hold with high probability: Hoeffding–Bentkus p-values and tests in a fixed order."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["conditional_level", "hoeffding_bentkus", "last_rejected", "least_level"]

Floats = NDArray[np.float64]


def hoeffding_bentkus(mean: ArrayLike, n: int, alpha: float) -> Floats:
    """p-values of "the risk is above alpha" from mean losses of n queries, losses in [0, 1].

    min(exp(−n·kl(min(R, alpha), alpha)), e·P(Binomial(n, alpha) ≤ ⌈nR⌉)), Bates et al. 2021.
    """
    from scipy.special import rel_entr
    from scipy.stats import binom

    found = np.asarray(mean, dtype=float)
    low = np.clip(found, 0.0, alpha)
    distance = rel_entr(low, alpha) + rel_entr(1 - low, 1 - alpha)
    # The mean of losses that are 0 or 1 is a whole number over n, up to rounding.
    tail = math.e * binom.cdf(np.ceil(n * found - 1e-9), n, alpha)
    return np.minimum(np.minimum(np.exp(-n * distance), tail), 1.0)


def last_rejected(p_values: Floats, delta: float) -> int:
    """Place of the last p-value before the first above delta; −1 if the first one is."""
    above = np.flatnonzero(~(p_values <= delta))
    return int(above[0]) - 1 if len(above) else len(p_values) - 1


def least_level(mean: float, n: int, delta: float) -> float:
    """The smallest alpha in (0, 1] at which the p-value of ``mean`` is at most delta, to six digits."""
    low, high = min(max(mean, 0.0), 1.0), 1.0
    for _ in range(30):
        middle = (low + high) / 2
        below = middle < 1 and float(hoeffding_bentkus(mean, n, middle)) > delta
        low, high = (middle, high) if below else (low, middle)
    return high


def conditional_level(alpha: float, n: int, delta: float) -> float:
    """A level that the risk given the calibration set exceeds with probability at most delta, in shares of B.

    For 0/1 losses without ties that risk is Beta(k + 1, n − k) with k = ⌊alpha·(n + 1) − 1⌋ misses left.
    """
    from scipy.stats import beta

    k = math.floor(alpha * (n + 1) - 1 + 1e-9)
    return alpha if k < 0 else 1.0 if k >= n else float(max(alpha, beta.ppf(1 - delta, k + 1, n - k)))
