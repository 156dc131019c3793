"""Costs that people can choose by what they cause: how many cases are deferred, overall and in each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from touchstone.decisions.selective_omniprediction.groups import membership
from touchstone.decisions.selective_omniprediction.losses import ChowLoss, probabilities
from touchstone.errors import InputError

__all__ = ["budget_cost", "workload"]

_STEPS = 48


def workload(
    loss: ChowLoss, h: ArrayLike, costs: Sequence[float], groups: ArrayLike | pd.DataFrame | None = None
) -> pd.DataFrame:
    """What each uniform price of abstaining leads to: the interval of probabilities and the share that is deferred.

    Parameters
    ----------
    loss : its own prices are replaced by each of ``costs``.
    h : probabilities of the cases that are expected, [rows].
    costs : prices of abstaining.
    groups : indicators, [rows, groups].

    Returns
    -------
    DataFrame
        One row a cost: ``cost``, ``low``, ``high`` (NaN where it never abstains), ``deferred``, and ``deferred: NAME``
        for each group.
    """
    h = probabilities(h)
    names, inside = membership(groups, len(h))
    rows = []
    for cost in costs:
        one = replace(loss, a_plus=float(cost), a_minus=float(cost))
        low, high = one.abstention_interval() or (np.nan, np.nan)
        silent = np.isnan(one.decide(h))
        shares = {f"deferred: {name}": float(silent[inside[:, g]].mean()) for g, name in enumerate(names)}
        rows.append({"cost": float(cost), "low": low, "high": high, "deferred": float(silent.mean())} | shares)
    return pd.DataFrame(rows)


def budget_cost(
    loss: ChowLoss,
    h: ArrayLike,
    most: float,
    groups: ArrayLike | pd.DataFrame | None = None,
    group_most: float | None = None,
) -> float:
    """The smallest uniform price of abstaining at which at most a share ``most`` is deferred.

    A higher price makes every abstention interval smaller, so that bisection finds it. With ``group_most``, no group
    may have a larger share than that.

    Raises
    ------
    InputError
        If a share is not between 0 and 1.
    """
    for name, value in (("most", most), ("group_most", group_most)):
        if value is not None and not 0 <= value <= 1:
            raise InputError(f"{name} {value}: expected a share between 0 and 1")
    h = probabilities(h)
    _, inside = membership(groups, len(h))

    def fits(cost: float) -> bool:
        silent = np.isnan(replace(loss, a_plus=cost, a_minus=cost).decide(h))
        if silent.mean() > most:
            return False
        return group_most is None or all(silent[g].mean() <= group_most for g in inside.T if g.any())

    low, high = 0.0, 1.0
    if fits(low):
        return low
    while not fits(high):
        low, high = high, 2 * high
        if high > 1e9:
            raise InputError("weights: abstaining is free, so that no price leads to fewer deferrals")
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
