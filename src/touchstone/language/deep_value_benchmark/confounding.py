"""Partial confounding: how many counter-examples it takes until the value wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.language.deep_value_benchmark.benchmark import DeepValueBenchmark
from touchstone.language.deep_value_benchmark.choosers import Chooser
from touchstone.run import Run

__all__ = ["confounding_curve", "crossing"]


def confounding_curve(
    chooser: Chooser,
    correlations: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    *,
    run: Run | None = None,
    **options: Any,
) -> pd.DataFrame:
    """The rate at several correlations ρ of value and trait in the examples.

    Parameters
    ----------
    chooser : who answers.
    correlations : ρ; the trait follows the value in a share (1 + ρ) / 2 of the examples.
    run : seed, progress and journal.
    options : see :meth:`DeepValueBenchmark.generate`.

    Returns
    -------
    Columns ``correlation``, ``rate``, ``low``, ``high``, ``n``.
    """
    run = run or Run()
    rows = []
    for rho in correlations:
        bench = DeepValueBenchmark.generate(correlation=rho, seed=run.seed, **options)
        found = bench.run(chooser, run=run, name=f"{type(chooser).__name__}, correlation {rho:g}").rate()
        rows.append((float(rho), found.value, found.low, found.high, found.n))
    return pd.DataFrame(rows, columns=["correlation", "rate", "low", "high", "n"])


def crossing(curve: pd.DataFrame, level: float = 0.5) -> float:
    """The largest ρ at which the rate, made monotone and joined by straight lines, reaches ``level``; NaN if none."""
    if len(curve) < 2:
        raise InputError("crossing: expected two or more correlations")
    from sklearn.isotonic import IsotonicRegression

    curve = curve.sort_values("correlation")
    x = curve["correlation"].to_numpy(dtype=float)
    y = IsotonicRegression(increasing=False).fit_transform(x, curve["rate"].to_numpy(dtype=float))
    if y[-1] >= level:
        return float(x[-1])
    above = np.flatnonzero(y >= level)
    if len(above) == 0:
        return float("nan")
    i = int(above[-1])
    return float(x[i] + (y[i] - level) / (y[i] - y[i + 1]) * (x[i + 1] - x[i]))
