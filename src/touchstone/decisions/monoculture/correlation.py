"""One number between independence and monoculture: the correlation that a shared difficulty of cases would need.

A model succeeds on a case if ``Φ⁻¹(rate) > sqrt(rho) z + sqrt(1 - rho) e``, with ``z`` common to all models on the
case and ``e`` its own, both standard normal. At rho = 0 errors are independent; at rho = 1 models of equal rate decide
alike. The same model makes tables with a known answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from touchstone.decisions.monoculture.baselines import poisson_binomial_pmf
from touchstone.decisions.monoculture.table import DecisionTable
from touchstone.errors import InputError

__all__ = ["OneFactor", "equivalent_correlation", "one_factor_pmf", "one_factor_table"]

Floats = NDArray[np.float64]
_GRID = np.concatenate([np.linspace(0, 0.96, 97), np.linspace(0.965, 0.995, 7), [0.998, 0.999, 1.0]])
# Rates are not estimated better than this, and a rate of 0 or 1 has no quantile.
_MARGIN = 1e-6


@dataclass(frozen=True)
class OneFactor:
    """The fitted correlation.

    Attributes
    ----------
    rho : the value of the highest likelihood, 0 to 1.
    log_likelihood : of each value of :attr:`grid`, per case, for the observed histogram.
    grid : values that were tried.
    terms : log of the predicted shares, [grid, counts].
    """

    rho: float
    log_likelihood: Floats
    grid: Floats
    terms: Floats

    def of(self, histograms: ArrayLike) -> Floats:
        """The best rho of each row of ``histograms`` [draws, counts], such as bootstrap draws."""
        score = np.asarray(histograms, dtype=float) @ self.terms.T
        return np.array([_peak(self.grid, row) for row in score])


def one_factor_pmf(rates: ArrayLike, rho: float, nodes: int = 400) -> Floats:
    """Distribution of the number of models that succeed on a case, [models + 1].

    Parameters
    ----------
    rates : success rate of each model.
    rho : correlation of the latent scores, 0 to 1.
    nodes : of the midpoint rule over quantiles of the shared difficulty.
    """
    q = np.clip(np.asarray(rates, dtype=float), _MARGIN, 1 - _MARGIN)
    if not 0 <= rho <= 1:
        raise InputError(f"rho {rho}: expected 0 to 1")
    if rho == 0:
        return poisson_binomial_pmf(q)
    p = _given_difficulty(q, rho, _difficulties(nodes))
    pmf = np.zeros((len(q) + 1, nodes))
    pmf[0] = 1.0
    for k, chance in enumerate(p):
        pmf[1 : k + 2] = pmf[1 : k + 2] * (1 - chance) + pmf[: k + 1] * chance
        pmf[0] *= 1 - chance
    mean: Floats = pmf.mean(axis=1)
    return mean


def equivalent_correlation(rates: ArrayLike, histogram: ArrayLike) -> OneFactor:
    """The rho whose recourse histogram is likeliest, given the models' rates.

    Parameters
    ----------
    rates : success rate of each model on the cases in focus.
    histogram : cases on which 0, 1, … of the models succeed, [models + 1].
    """
    q, counts = np.asarray(rates, dtype=float), np.asarray(histogram, dtype=float)
    if len(counts) != len(q) + 1:
        raise InputError(f"histogram: {len(counts)} counts for {len(q)} models; expected one more than models")
    terms = np.stack([np.log(np.maximum(one_factor_pmf(q, float(rho)), 1e-300)) for rho in _GRID])
    score = terms @ counts / counts.sum()
    return OneFactor(_peak(_GRID, score), score, _GRID, terms)


def one_factor_table(
    rho: float, *, models: int = 20, cases: int = 10_000, rate: float = 0.8, spread: float = 0.01, seed: int = 0
) -> DecisionTable:
    """A table with a known correlation, all of whose outcomes are 1.

    Parameters
    ----------
    rho : 0 for independent errors, 1 for strict monoculture.
    models, cases : size.
    rate, spread : mean and standard deviation of the models' success rates.
    """
    if not 0 <= rho <= 1:
        raise InputError(f"rho {rho}: expected 0 to 1")
    rng = np.random.default_rng(seed)
    cuts = ndtri(np.clip(rng.normal(rate, spread, models), _MARGIN, 1 - _MARGIN))
    z = rng.normal(size=cases)
    own = rng.normal(size=(models, cases))
    votes = cuts[:, None] > np.sqrt(rho) * z + np.sqrt(1 - rho) * own
    return DecisionTable(votes.T.astype(np.int8), np.ones(cases))


def _given_difficulty(q: Floats, rho: float, z: Floats) -> Floats:
    if rho == 1:
        return (ndtri(q)[:, None] > z).astype(float)
    found: Floats = ndtr((ndtri(q)[:, None] - np.sqrt(rho) * z) / np.sqrt(1 - rho))
    return found


@lru_cache(maxsize=4)
def _difficulties(nodes: int) -> Floats:
    # Quantiles and not Gauss-Hermite nodes: near rho = 1 the integrand is a step.
    found: Floats = ndtri((np.arange(nodes) + 0.5) / nodes)
    return found


def _peak(grid: Floats, score: Floats) -> float:
    """Place of the maximum of a parabola through the best point and its neighbours."""
    k = int(np.argmax(score))
    if k in (0, len(grid) - 1):
        return float(grid[k])
    x, y = grid[k - 1 : k + 2], score[k - 1 : k + 2]
    a, b, _ = np.polyfit(x - x[1], y, 2)
    return float(np.clip(x[1] - b / (2 * a), x[0], x[2])) if a < 0 else float(x[1])
