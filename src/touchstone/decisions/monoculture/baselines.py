"""The two extremes that every measure is read against: independent errors, and strict monoculture."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from touchstone.errors import InputError

__all__ = [
    "expected_agreement",
    "independent_counts",
    "independent_none_log10",
    "largest_agreement",
    "poisson_binomial_pmf",
    "success_rates",
]

Floats = NDArray[np.float64]
# One pass over the probabilities is quadratic; beyond this many, halves are joined by FFT instead.
_ONE_PASS = 500


def poisson_binomial_pmf(p: ArrayLike) -> Floats:
    """Distribution of the number of successes of independent trials of different probabilities, [len(p) + 1].

    One convolution a trial, O(M**2); beyond 500 trials halves are convolved by FFT, O(M log(M)**2).

    Raises
    ------
    InputError
        If a probability is not between 0 and 1.
    """
    chances = np.asarray(p, dtype=float).ravel()
    if not ((chances >= 0) & (chances <= 1)).all():
        raise InputError("p: expected probabilities between 0 and 1")
    if len(chances) > _ONE_PASS:
        from scipy.signal import fftconvolve

        half = len(chances) // 2
        joined = fftconvolve(poisson_binomial_pmf(chances[:half]), poisson_binomial_pmf(chances[half:]))
        # FFT leaves errors of rounding on either side of zero.
        pmf: Floats = np.clip(joined, 0.0, None)
        return pmf / pmf.sum()
    pmf = np.zeros(len(chances) + 1)
    pmf[0] = 1.0
    for k, chance in enumerate(chances):
        pmf[1 : k + 2] = pmf[1 : k + 2] * (1 - chance) + pmf[: k + 1] * chance
        pmf[0] *= 1 - chance
    return pmf


def success_rates(votes: NDArray[np.int8], rows: NDArray[np.bool_] | None = None) -> Floats:
    """Share of successes of each model among the cases on which it decided, [models]; NaN without any.

    Parameters
    ----------
    votes : 1, 0, or -1 for no decision, [models, cases].
    rows : cases to look at; all if not given.
    """
    if rows is not None:
        votes = votes[:, rows]
    won = np.array([np.count_nonzero(column > 0) for column in votes], dtype=float)
    decided = np.array([np.count_nonzero(column >= 0) for column in votes], dtype=float)
    return np.divide(won, decided, out=np.full(len(votes), np.nan), where=decided > 0)


def expected_agreement(rates: ArrayLike) -> Floats:
    """Agreement of each pair if errors were independent: ``q q' + (1 - q)(1 - q')``, [models, models].

    ``rates`` are rates of *right* decisions on the cases in focus: the true-positive rates on positives, the
    true-negative rates on negatives, accuracy on all. Accuracy on positives would be wrong.
    """
    q = np.asarray(rates, dtype=float)
    return np.outer(q, q) + np.outer(1 - q, 1 - q)


def largest_agreement(rates: ArrayLike) -> Floats:
    """The most that a pair with these rates can agree, ``1 - |q - q'|``, [models, models]; 1 for equal rates."""
    q = np.asarray(rates, dtype=float)
    return 1 - np.abs(q[:, None] - q[None, :])


def independent_counts(success: NDArray[np.int8], truth: NDArray[np.bool_]) -> Floats:
    """Distribution of the number of models that succeed on a case if errors were independent, [models + 1].

    Errors are independent given what came true: with cases of both outcomes it is a mixture of two Poisson-binomials.
    """
    pmf = np.zeros(len(success) + 1)
    for outcome in (True, False):
        rows = truth == outcome
        if rows.any():
            rates = success_rates(success, None if rows.all() else rows)
            pmf += rows.mean() * poisson_binomial_pmf(np.nan_to_num(rates))
    return pmf


def independent_none_log10(success: NDArray[np.int8], truth: NDArray[np.bool_]) -> float:
    """log10 of the share of cases that no model would accept if errors were independent.

    Summed in logarithms: the product of the miss rates of some hundred models is below the smallest number.
    """
    parts = []
    for outcome in (True, False):
        rows = truth == outcome
        if rows.any():
            misses = 1 - np.nan_to_num(success_rates(success, None if rows.all() else rows))
            with np.errstate(divide="ignore"):
                parts.append(np.log10(rows.mean()) + np.log10(misses).sum())
    top = max(parts)
    return float(top + np.log10(sum(10 ** (part - top) for part in parts))) if np.isfinite(top) else float("-inf")
