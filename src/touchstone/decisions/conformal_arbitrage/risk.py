"""The loss of a threshold as a step function of it, summed over the calibration queries: built by one sort, no grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from touchstone.decisions.conformal_arbitrage.tables import Options, gaps

__all__ = ["LossCurve", "candidate_curve", "guardian_order", "monotone_curve", "realised_curve"]

Floats = NDArray[np.float64]

# Gaps that differ by rounding count as equal: relative to the largest absolute score.
RELATIVE_TOLERANCE = 1e-12
# A bound that is met up to rounding is met: share of B, for each query.
_SLACK = 1e-12


@dataclass(frozen=True)
class LossCurve:
    """Σ_i L_i(lam) for lam ≥ 0, right-continuous.

    Attributes
    ----------
    steps : gaps at which it changes, ascending, all positive.
    totals : its value from each step on; ``start`` is its value below the first.
    start : its value at lam = 0.
    n : queries.
    bound : B, the largest loss of one query.
    tolerance : gaps this close count as equal.
    """

    steps: Floats
    totals: Floats
    start: float
    n: int
    bound: float
    tolerance: float

    def total(self, lam: float | Floats) -> Floats:
        """Summed loss at each threshold."""
        before = np.searchsorted(self.steps, np.asarray(lam, dtype=float) + self.tolerance, side="right")
        # Before the first step the place is -1: the last of these.
        return np.append(self.totals, self.start)[before - 1]

    def risk(self, lam: float | Floats) -> Floats:
        """Mean loss at each threshold."""
        return self.total(lam) / self.n

    @property
    def least(self) -> float:
        """The smallest alpha with a finite threshold or, for a loss that ends at 0, a finite-sample bound."""
        end = float(self.totals[-1]) if len(self.totals) else self.start
        return (end + self.bound) / (self.n + 1)

    def threshold(self, alpha: float) -> float:
        """inf{lam ≥ 0 : (Σ L_i(lam) + B) / (n + 1) ≤ alpha}, for a loss that never rises; infinite if there is none."""
        allowed = alpha * (self.n + 1) - self.bound + _SLACK * (self.n + 1) * self.bound
        if allowed < 0:
            return math.inf
        if self.start <= allowed:
            return 0.0
        first = int(np.searchsorted(-self.totals, -allowed, side="left"))
        if first == len(self.totals):
            return math.inf
        # The rule takes options up to a tolerance above lam, so the first gap within it of this one will do.
        return float(self.steps[np.searchsorted(self.steps, self.steps[first] - self.tolerance, side="left")])


def tolerance_of(options: Options) -> float:
    """Gaps closer than this are equal."""
    scores = options.scores if options.mask.all() else np.where(options.mask, options.scores, 0.0)
    return RELATIVE_TOLERANCE * float(max(scores.max(), -scores.min()))


def candidate_curve(options: Options, guard: Floats, bound: float) -> LossCurve:
    """Summed max_a G(a) − max_{a in C_lam} G(a): what the candidates leave out, whoever chooses among them.

    Parameters
    ----------
    options : Primary scores.
    guard : guardrail values G [queries, options] in [0, bound], larger is better.
    bound : B.
    """
    tolerance = tolerance_of(options)
    gap = gaps(options)
    if _one_level(guard):
        return _binary(gap, guard, bound, tolerance)
    order = np.argsort(gap, axis=1, kind="stable")
    gap = np.take_along_axis(gap, order, axis=1)
    value = np.where(options.mask, guard, -np.inf)
    best = np.maximum.accumulate(np.take_along_axis(value, order, axis=1), axis=1)
    at_zero = (gap <= tolerance).sum(axis=1) - 1
    start = best[:, -1] - np.take_along_axis(best, at_zero[:, None], axis=1)[:, 0]
    drop = np.diff(best, axis=1)
    rises = (drop > 0) & (gap[:, 1:] > tolerance)
    return _summed(gap[:, 1:][rises], -drop[rises], float(start.sum()), len(gap), bound, tolerance)


def realised_curve(options: Options, guard: Floats, guardian: Floats, bound: float) -> LossCurve:
    """Summed max_a G(a) − G(the option that is returned); it may rise and fall, for the Guardian may choose badly."""
    gap, loss, tolerance = _returned(options, guard, guardian)
    return _of_losses(gap, loss, bound, tolerance)


def monotone_curve(options: Options, guard: Floats, guardian: Floats, bound: float) -> LossCurve:
    """Summed sup_{lam' ≥ lam} of the realised loss: it never rises, and ends at the loss of the Guardian alone."""
    gap, loss, tolerance = _returned(options, guard, guardian)
    sup = np.maximum.accumulate(loss[:, ::-1], axis=1)[:, ::-1]
    return _of_losses(gap, sup, bound, tolerance)


def guardian_order(options: Options, guardian: Floats) -> NDArray[np.int64]:
    """Rank of each option for the Guardian, 0 its favourite [queries, options].

    Ties go to the higher Primary score, then to the option that stands first.
    """
    width = options.scores.shape[1]
    keys = [-np.where(options.mask, x, -np.inf) for x in (guardian, options.scores)]
    order = np.argsort(keys[1], axis=1, kind="stable")
    then = np.argsort(np.take_along_axis(keys[0], order, axis=1), axis=1, kind="stable")
    order = np.take_along_axis(order, then, axis=1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(width), order.shape), axis=1)
    return rank


def _one_level(guard: Floats) -> bool:
    """Whether every value is 0 or one and the same number: an option is right or it is not."""
    top = float(guard.max())
    return top > 0 and bool(((guard == 0) | (guard == top)).all())


def _binary(gap: Floats, guard: Floats, bound: float, tolerance: float) -> LossCurve:
    """The same by one sort of numbers: the loss drops once a query, at its first option that is right."""
    top = float(guard.max())
    first = reduce(np.minimum, np.where(guard == top, gap, np.inf).T)
    steps = np.sort(first[(first > tolerance) & np.isfinite(first)])
    totals = top * np.arange(len(steps) - 1, -1, -1, dtype=np.float64)
    return LossCurve(steps, totals, top * len(steps), len(gap), bound, tolerance)


def _returned(options: Options, guard: Floats, guardian: Floats) -> tuple[Floats, Floats, float]:
    """Sorted gaps, and the loss of what is returned once options up to each of them are candidates.

    Options that are tied with the next in line are no state of their own: their loss is that of the whole tie.
    """
    tolerance = tolerance_of(options)
    gap = gaps(options)
    order = np.argsort(gap, axis=1, kind="stable")
    gap = np.take_along_axis(gap, order, axis=1)
    mask = np.take_along_axis(options.mask, order, axis=1)
    rank = np.take_along_axis(guardian_order(options, guardian), order, axis=1)
    favourite = np.minimum.accumulate(np.where(mask, rank, rank.shape[1]), axis=1)
    place = np.empty_like(rank)
    np.put_along_axis(place, rank, np.broadcast_to(np.arange(rank.shape[1]), rank.shape), axis=1)
    value = np.where(mask, np.take_along_axis(guard, order, axis=1), -np.inf)
    chosen = np.take_along_axis(value, np.take_along_axis(place, favourite, axis=1), axis=1)
    loss = value.max(axis=1, keepdims=True) - chosen
    with np.errstate(invalid="ignore"):
        tied = gap[:, 1:] - gap[:, :-1] <= tolerance
    # From the last option backwards, each member of a tie takes the loss of the tie's end.
    for j in range(gap.shape[1] - 2, -1, -1):
        loss[:, j] = np.where(tied[:, j] & mask[:, j + 1], loss[:, j + 1], loss[:, j])
    return gap, loss, tolerance


def _of_losses(gap: Floats, loss: Floats, bound: float, tolerance: float) -> LossCurve:
    change = np.diff(loss, axis=1)
    moves = (change != 0) & np.isfinite(gap[:, 1:])
    return _summed(gap[:, 1:][moves], change[moves], float(loss[:, 0].sum()), len(gap), bound, tolerance)


def _summed(steps: Floats, changes: Floats, start: float, n: int, bound: float, tolerance: float) -> LossCurve:
    order = np.argsort(steps, kind="stable")
    totals = start + np.cumsum(changes[order])
    return LossCurve(steps[order], totals, start, n, bound, tolerance)
