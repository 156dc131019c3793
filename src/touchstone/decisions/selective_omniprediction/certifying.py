"""A threshold whose error bounds hold with a confidence: learn then test (Angelopoulos et al. 2021)."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from touchstone.decisions.selective_omniprediction.groups import membership
from touchstone.decisions.selective_omniprediction.losses import labels, probabilities
from touchstone.errors import InputError

__all__ = ["certified_threshold"]

# From rules that say almost nothing to such as always speak; fixed before any row is seen, as the test asks.
_GRID = np.linspace(0.005, 0.5, 100)


def certified_threshold(
    p: ArrayLike,
    y: ArrayLike,
    eps: float,
    groups: ArrayLike | pd.DataFrame | None = None,
    *,
    group_eps: float | None = None,
    delta: float = 0.05,
) -> float:
    """The largest threshold t (predict 0 up to t, 1 from 1 - t on) that is certified on fresh rows; 0 if none is.

    A wrong decision is a coin flip a row, so that "the rule errs more often than ``eps``" is tested by an exact
    binomial tail, and for each group likewise. A threshold counts as certified when every one of these hypotheses is
    rejected at ``delta``, and thresholds are tested in order until one is not: no correction for many tests is due.

    Parameters
    ----------
    p, y : probabilities and outcomes of 0 and 1, [rows], that no fit has seen.
    eps : share of all rows that may be decided wrongly.
    groups : indicators, [rows, groups].
    group_eps : share of a group's rows that may be decided wrongly; groups are not bounded if ``None``.
    delta : probability with which the bounds may fail together.

    Raises
    ------
    InputError
        If even a rule without any error could not be certified with so few rows.
    """
    from scipy.stats import binom

    p, truth = probabilities(p), labels(y)
    if len(p) != len(truth):
        raise InputError(f"y: has {len(truth)} rows, scores have {len(p)}")
    for name, value in (("eps", eps), ("group_eps", group_eps), ("delta", delta)):
        if value is not None and not 0 < value < 1:
            raise InputError(f"{name} {value}: expected a number between 0 and 1")
    names, inside = membership(groups, len(p))
    tested = [("all rows", np.ones(len(p), dtype=bool), eps)]
    if group_eps is not None:
        tested += [(name, inside[:, g], group_eps) for g, name in enumerate(names)]
    for name, rows, bound in tested:
        needed = math.ceil(math.log(delta) / math.log(1 - bound))
        if rows.sum() < needed:
            raise InputError(f"{name}: {rows.sum()} rows certify no error of {bound:g}; at least {needed} are needed")
    # The threshold from which on a row is decided wrongly.
    wrong_from = np.where(truth == 1, p, 1 - p)
    certified = 0.0
    for threshold in _GRID:
        wrong = wrong_from <= threshold
        if any(binom.cdf(wrong[rows].sum(), rows.sum(), bound) > delta for _, rows, bound in tested):
            break
        certified = float(threshold)
    return certified
