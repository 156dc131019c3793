"""Percentile bootstrap intervals: what was measured together is drawn again together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from touchstone.evidence import Measurement, Verdict

__all__ = ["clustered", "over_items", "quotient", "sign"]

_DRAWS = 4000
# Statistics of any form are computed one draw after the other.
_DRAWS_ONE_BY_ONE = 2000


def over_items(
    name: str,
    scores: NDArray[np.float64],
    statistic: Callable[[NDArray[np.float64]], float],
    *,
    seed: int,
    unit: str = "",
) -> Measurement:
    """``statistic`` of scores [settings, items] with its 95 % interval over items; none for one item.

    An item is drawn again with all of its settings, so that paired comparisons stay paired.
    """
    items = scores.shape[1]
    value = float(statistic(scores))
    if items < 2:
        return Measurement(name, value, unit, n=items)
    rng = np.random.default_rng(seed)
    drawn = [statistic(scores[:, rng.integers(items, size=items)]) for _ in range(_DRAWS_ONE_BY_ONE)]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Measurement(name, value, unit, float(low), float(high), items)


def clustered(name: str, values: ArrayLike, *, seed: int, unit: str = "") -> Measurement:
    """Mean of ``values`` [clusters, items] or [clusters] with its 95 % interval over clusters; none for one."""
    means = np.asarray(values, dtype=float)
    means = means.mean(axis=1) if means.ndim == 2 else means
    if len(means) < 2:
        return Measurement(name, float(means.mean()), unit, n=len(means))
    rng = np.random.default_rng(seed)
    drawn = means[rng.integers(len(means), size=(_DRAWS, len(means)))].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Measurement(name, float(means.mean()), unit, float(low), float(high), len(means))


def quotient(name: str, above: ArrayLike, below: ArrayLike, *, seed: int) -> Measurement:
    """Mean of ``above`` over mean of ``below`` [clusters], with its 95 % interval over clusters.

    NaN where the mean below is not positive; draws in which it is not count as infinite.
    """
    a, b = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    value = float(a.mean() / b.mean()) if b.mean() > 0 else float("nan")
    if len(a) < 2:
        return Measurement(name, value, n=len(a))
    picked = np.random.default_rng(seed).integers(len(a), size=(_DRAWS, len(a)))
    tops, bottoms = a[picked].mean(axis=1), b[picked].mean(axis=1)
    drawn = np.where(bottoms > 0, tops / np.where(bottoms > 0, bottoms, 1.0), np.inf)
    low, high = np.quantile(drawn, [0.025, 0.975], method="nearest")
    return Measurement(name, value, "times", float(low), float(high) if np.isfinite(high) else None, len(a))


def sign(measured: Measurement, *, above: float = 0.0) -> Verdict:
    """``holds`` if the whole interval is above, ``fails`` if it is below, else ``undecided``."""
    if measured.low is not None and measured.low > above:
        return "holds"
    return "fails" if measured.high is not None and measured.high < above else "undecided"
