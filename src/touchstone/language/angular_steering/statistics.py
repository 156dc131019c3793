"""Quantities over a sweep's scores [settings, items]."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["matrix", "spread", "worst_ratio"]


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
