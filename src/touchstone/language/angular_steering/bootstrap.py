"""Intervals for quantities over a sweep: items are drawn again, all settings of an item together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.evidence import Measurement

__all__ = ["estimate", "matrix", "spread", "worst_ratio"]

_DRAWS = 2000


def matrix(frame: pd.DataFrame, arm: str, measure: str, column: str = "score") -> NDArray[np.float64]:
    """Scores [settings, items] of an arm, in the order of its settings."""
    here = frame[(frame["arm"] == arm) & (frame["measure"] == measure)]
    table = here.pivot_table(index="value", columns="item", values=column, sort=False)
    return table.sort_index().to_numpy(dtype=float)


def spread(scores: NDArray[np.float64]) -> float:
    """Largest minus smallest mean over the settings."""
    means = scores.mean(axis=1)
    return float(means.max() - means.min())


def worst_ratio(nll: NDArray[np.float64]) -> float:
    """Perplexity at the worst setting divided by that of the first row, the unsteered one; equal weight to each
    text.
    """
    means = nll.mean(axis=1)
    return float(np.exp(means[1:].max() - means[0]))


def estimate(
    name: str,
    scores: NDArray[np.float64],
    statistic: Callable[[NDArray[np.float64]], float],
    *,
    seed: int,
    unit: str = "",
) -> Measurement:
    """``statistic`` of scores [settings, items] with its percentile bootstrap interval over items; none for one
    item.
    """
    items = scores.shape[1]
    value = float(statistic(scores))
    if items < 2:
        return Measurement(name, value, unit, n=items)
    rng = np.random.default_rng(seed)
    drawn = [statistic(scores[:, rng.integers(items, size=items)]) for _ in range(_DRAWS)]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Measurement(name, value, unit, float(low), float(high), items)
