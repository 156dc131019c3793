"""Rates, associations and a random intercept: what the benchmark reports beside a plain share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from touchstone.errors import InputError

__all__ = ["adjusted_rate", "cramers_v", "power_n"]


def cramers_v(table: ArrayLike) -> tuple[float, float]:
    """Cramér's V of a contingency table, without correction, and the p-value of the χ² test.

    Rows and columns without observations are left out; V is 0 where one row or column is left.
    """
    counts = np.asarray(table, dtype=float)
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    if min(counts.shape) < 2:
        return 0.0, 1.0
    from scipy.stats import chi2_contingency

    found = chi2_contingency(counts, correction=False)
    value = float(np.sqrt(found.statistic / counts.sum() / (min(counts.shape) - 1)))
    return value, float(found.pvalue)


def adjusted_rate(hits: ArrayLike, totals: ArrayLike) -> tuple[float, float]:
    """sigmoid(β₀) and σ of a logit with a random intercept N(0, σ²) for every group, by maximum likelihood.

    Parameters
    ----------
    hits, totals : successes and trials of each group.

    Notes
    -----
    The integral over the intercept is a sum over a fine grid: with many trials a group its integrand is a narrow peak,
    which the few points of a Gauss–Hermite rule miss.
    """
    from scipy.optimize import minimize
    from scipy.special import expit, gammaln, logsumexp

    k, n = np.asarray(hits, dtype=float), np.asarray(totals, dtype=float)
    kept = n > 0
    k, n = k[kept], n[kept]
    if len(n) == 0:
        raise InputError("adjusted rate: no trials")
    nodes = np.linspace(-8, 8, 4001)
    log_weights = -(nodes**2) / 2
    log_weights -= logsumexp(log_weights)
    choose = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)

    def loss(theta: np.ndarray) -> float:
        eta = theta[0] + np.exp(theta[1]) * nodes
        logp = choose[:, None] - k[:, None] * np.logaddexp(0, -eta) - (n - k)[:, None] * np.logaddexp(0, eta)
        return -float(logsumexp(logp + log_weights, axis=1).sum())

    share = np.clip(k.sum() / n.sum(), 0.5 / n.sum(), 1 - 0.5 / n.sum())
    start = float(np.log(share / (1 - share)))
    fits = [
        minimize(loss, [start, spread], method="L-BFGS-B", bounds=[(-12, 12), (-6, 2)]) for spread in (-4.0, -1.0, 0.5)
    ]
    best = min(fits, key=lambda fit: fit.fun)
    return float(expit(best.x[0])), float(np.exp(best.x[1]))


def power_n(p1: float = 0.55, alpha: float = 0.05, power: float = 0.95, p0: float = 0.5) -> int:
    """Smallest n at which an exact two-sided binomial test of ``p0`` has at least ``power`` against ``p1``.

    Power of an exact test is not monotone in n; this is the first n that reaches it.
    """
    if not (0 < p0 < 1 and 0 < p1 < 1) or p0 == p1 or not 0 < alpha < 1 or not 0 < power < 1:
        raise InputError("power_n: expected p0, p1, alpha and power between 0 and 1, and p1 other than p0")
    from scipy.stats import binom, norm

    z = norm.ppf(1 - alpha / 2) + norm.ppf(power)
    n = max(2, int(0.6 * z * z * max(p0 * (1 - p0), p1 * (1 - p1)) / (p1 - p0) ** 2))
    while True:
        low = int(binom.ppf(alpha / 2, n, p0))
        low -= binom.cdf(low, n, p0) > alpha / 2
        high = int(binom.isf(alpha / 2, n, p0)) + 1
        if binom.cdf(low, n, p1) + binom.sf(high - 1, n, p1) >= power:
            return n
        n += 1
