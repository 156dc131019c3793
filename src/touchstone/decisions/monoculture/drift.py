"""Recourse of the same people at two dates, or under two versions of a vendor's models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from touchstone.decisions.monoculture.measures import recourse_levels
from touchstone.decisions.monoculture.table import DecisionTable, Favourable, Focus
from touchstone.errors import InputError
from touchstone.evidence import Measurement

__all__ = ["Drift", "recourse_drift"]


@dataclass(frozen=True)
class Drift:
    """What changed for the people in focus.

    Attributes
    ----------
    none : change of the share without recourse, after minus before, with its interval over people.
    level : change of the mean recourse level.
    lost, gained : share of people who had recourse and have none, and the reverse.
    p_value : exact test that losing and gaining recourse are equally likely (McNemar 1947).
    """

    none: Measurement
    level: Measurement
    lost: Measurement
    gained: Measurement
    p_value: float


def recourse_drift(
    before: DecisionTable, after: DecisionTable, focus: Focus = "positive", favourable: Favourable = "accept"
) -> Drift:
    """Compare two tables of the same cases in the same order.

    Raises
    ------
    InputError
        If the outcomes differ, or the sets of models differ in size: recourse depends on it, see :func:`subsampled`.
    """
    from scipy.stats import binomtest

    if len(before) != len(after) or (before.y != after.y).any():
        raise InputError("after: the outcomes are not those of before; expected the same cases in the same order")
    if len(before.models) != len(after.models):
        raise InputError(
            f"after: {len(after.models)} models where before had {len(before.models)}; recourse depends on how many"
        )
    one, two = recourse_levels(before, focus, favourable), recourse_levels(after, focus, favourable)
    both = ~(np.isnan(one) | np.isnan(two))
    one, two = one[both], two[both]
    lost, gained = (one > 0) & (two == 0), (one == 0) & (two > 0)
    changed = int(lost.sum() + gained.sum())
    return Drift(
        none=Measurement.mean("change of the share without recourse", lost.astype(float) - gained),
        level=Measurement.mean("change of the mean recourse level", two - one),
        lost=Measurement.rate("people who lost recourse", int(lost.sum()), len(one)),
        gained=Measurement.rate("people who gained recourse", int(gained.sum()), len(one)),
        p_value=float(binomtest(int(lost.sum()), changed).pvalue) if changed else 1.0,
    )
