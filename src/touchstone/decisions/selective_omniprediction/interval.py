"""Where a concave function of a probability lies above an affine one: closed forms, else a search."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Envelope", "chow_interval", "concave_interval", "quadratic_interval"]

Bounds = tuple[float, float] | None
_GOLDEN = (math.sqrt(5) - 1) / 2
# An advantage of abstaining below rounding is none.
_NOTHING = 1e-14


def chow_interval(zero: float, one: float, silent: tuple[float, float]) -> Bounds:
    """Where ``min(one p, zero (1 - p))`` exceeds the line from ``silent[0]`` at 0 to ``silent[1]`` at 1."""
    at_zero, at_one = silent
    slope = at_one - at_zero
    if zero + one == 0:
        return None
    peak = zero / (zero + one)
    if one * peak <= at_zero + slope * peak + _NOTHING:
        return None
    # At the peak both lines are above, at 0 and at 1 they are not: neither denominator can vanish.
    return at_zero / (one - slope), (zero - at_zero) / (zero + slope)


def quadratic_interval(zero: float, one: float, silent: tuple[float, float]) -> Bounds:
    """The same for the squared loss, ``one p zero (1 - p) / (one p + zero (1 - p))``."""
    at_zero, at_one = silent
    slope, tilt = at_one - at_zero, one - zero
    # Multiplied by the denominator, which is positive: a p^2 + b p + c > 0, with a value of at most 0 at both ends.
    a = -one * zero - slope * tilt
    b = one * zero - at_zero * tilt - slope * zero
    c = -at_zero * zero
    inside = b * b - 4 * a * c
    # It is at most 0 at both ends, so that its top must lie between them; elsewhere it may be positive.
    if a >= 0 or inside <= _NOTHING * _NOTHING or not 0 < b < -2 * a:
        return None
    # The root without cancellation first, the other from their product.
    far = (b + math.sqrt(inside)) / (-2 * a)
    near = c / (a * far)
    return near, far


def concave_interval(difference: Callable[[float], float], tolerance: float = 1e-13) -> Bounds:
    """Where a concave ``difference`` on [0, 1] is positive; an end is infinite where it is so at 0 or at 1."""
    from scipy.optimize import brentq

    top = _maximiser(difference)
    if difference(top) <= _NOTHING:
        return None
    low = -math.inf if difference(0.0) > _NOTHING else float(brentq(difference, 0.0, top, xtol=tolerance))
    high = math.inf if difference(1.0) > _NOTHING else float(brentq(difference, top, 1.0, xtol=tolerance))
    return low, high


def _maximiser(difference: Callable[[float], float]) -> float:
    """Golden section search; the ends are looked at too, for the maximum may be there."""
    low, high = 0.0, 1.0
    left, right = high - _GOLDEN, low + _GOLDEN
    at_left, at_right = difference(left), difference(right)
    for _ in range(48):
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = difference(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = difference(right)
    return max((0.0, (low + high) / 2, 1.0), key=difference)


class Envelope:
    """The least of many lines over [0, 1]: which action is best at each probability.

    Parameters
    ----------
    actions : [actions].
    at_zero, at_one : expected loss of each action where the probability is 0, and where it is 1.
    """

    def __init__(self, actions: NDArray[np.float64], at_zero: NDArray[np.float64], at_one: NDArray[np.float64]) -> None:
        # From p = 0 on: lines in the order in which they become the lowest, steepest descent last.
        order = np.lexsort((at_zero, -(at_one - at_zero)))
        kept: list[int] = []
        breaks: list[float] = []
        for i in order:
            begins = 0.0
            while kept:
                k = kept[-1]
                gain = (at_one[k] - at_zero[k]) - (at_one[i] - at_zero[i])
                behind = at_zero[i] - at_zero[k]
                begins = math.inf if gain <= 0 and behind >= 0 else (behind / gain if gain > 0 else -math.inf)
                if begins > breaks[-1]:
                    break
                kept.pop()
                breaks.pop()
            if not kept:
                begins = -math.inf
            if begins < 1:
                kept.append(int(i))
                breaks.append(begins)
        self._actions = actions[kept]
        self._breaks = np.array(breaks[1:])

    def best(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """The action with the least expected loss at each probability, [rows]."""
        return self._actions[np.searchsorted(self._breaks, p, side="right")]
