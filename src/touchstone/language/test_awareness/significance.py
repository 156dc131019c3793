"""Statistics of paired outcomes: exact McNemar, Holm, and the place of one shift among those of random directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from touchstone.errors import InputError

__all__ = ["Band", "band", "holm", "mcnemar", "paired_p"]


def mcnemar(b: int, c: int) -> float:
    """Two-sided exact p of b flips one way against c the other (McNemar 1947, by the binomial)."""
    from scipy.stats import binomtest

    if b < 0 or c < 0:
        raise InputError(f"flips {b}, {c}: expected 0 or more")
    return 1.0 if b + c == 0 else float(binomtest(b, b + c, 0.5).pvalue)


def holm(p: Sequence[float]) -> np.ndarray:
    """Adjusted p-values by Holm's step-down rule, in the order given; NaN stays and is not counted."""
    values = np.asarray(p, dtype=float)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values[known], kind="stable")]
    adjusted = values.copy()
    if len(order):
        adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted


def paired_p(difference: np.ndarray) -> float:
    """Two-sided p of a mean difference: exact McNemar where outcomes are yes or no, else Student's t; NaN below two
    pairs."""
    from scipy.stats import ttest_1samp

    if len(difference) and np.isin(difference, (-1, 0, 1)).all():
        return mcnemar(int((difference < 0).sum()), int((difference > 0).sum()))
    if len(difference) < 2 or difference.std() == 0:
        return float("nan")
    return float(ttest_1samp(difference, 0.0).pvalue)


@dataclass(frozen=True)
class Band:
    """Where a shift lies among those that random directions made.

    Attributes
    ----------
    shift : of the direction in question.
    low, high : least and greatest shift of the random directions.
    count : how many there were.
    rank_p : share of all directions, this one among them, whose shift is at least as large; its least value is 1 /
        (count + 1).
    """

    shift: float
    low: float
    high: float
    count: int
    rank_p: float

    @property
    def resolved(self) -> bool:
        """Whether the shift lies outside the band."""
        return not self.low <= self.shift <= self.high


def band(shift: float, others: Sequence[float] | np.ndarray) -> Band:
    """Place ``shift`` among the shifts of random directions."""
    values = np.asarray(others, dtype=float)
    if len(values) == 0:
        raise InputError("random directions: expected at least one to compare with")
    larger = int((np.abs(values) >= abs(shift)).sum())
    return Band(float(shift), float(values.min()), float(values.max()), len(values), (1 + larger) / (1 + len(values)))
