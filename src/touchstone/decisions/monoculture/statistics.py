"""All measures of a set of models from sums over patterns: the observed ones, and those of every bootstrap draw."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from touchstone.decisions.monoculture import baselines
from touchstone.decisions.monoculture.correlation import OneFactor, equivalent_correlation
from touchstone.decisions.monoculture.patterns import Patterns, Summer, Sums, unit_weights
from touchstone.decisions.monoculture.table import Group
from touchstone.evidence import Measurement

__all__ = ["PROPORTIONS", "Estimates", "GroupRates", "estimate"]

Floats = NDArray[np.float64]
PROPORTIONS = ("none", "limited", "substantial", "full", "some_limited", "some_substantial", "arbitrary", "ambiguity")
"""Plain shares of cases have Wilson's interval: a bootstrap of a rare one is too narrow (91 % at nine cases)."""
_REFLECTED = ("discrepancy",)
"""The largest of several shares is larger still in every draw: its interval is reflected at the observed value."""


@dataclass(frozen=True)
class GroupRates:
    """Shares without recourse in the groups of one attribute.

    Attributes
    ----------
    names, cases, none : of the groups with enough cases, largest share first.
    ratio : share of the first over that of the last; ``None`` with fewer than two groups.
    left_out : groups with too few cases.
    """

    names: tuple[str, ...]
    cases: tuple[int, ...]
    none: tuple[Measurement, ...]
    ratio: Measurement | None
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Estimates:
    """Measurements by name, groups by attribute, and the correlation that was fitted."""

    measured: Mapping[str, Measurement]
    groups: Mapping[str, GroupRates]
    factor: OneFactor | None
    draws: Mapping[str, Floats]

    def value(self, name: str) -> float:
        """The observed value."""
        return self.measured[name].value


def estimate(
    patterns: Patterns,
    baseline: int,
    *,
    draws: int,
    seed: int,
    large: Mapping[str, Collection[int]] | None = None,
) -> Estimates:
    """Measure a set of models, with 95 % intervals over cases for these models.

    Parameters
    ----------
    patterns : distinct rows of the set.
    baseline : place of the model ``h0`` of ambiguity and discrepancy; it stays the same in all draws.
    draws : bootstrap draws; 0 for no intervals.
    large : for each attribute the groups that are large enough to be compared; all if not given.
    """
    summer = Summer(patterns, baseline)
    mixed = not (patterns.truth.all() or not patterns.truth.any())
    first = summer(unit_weights(patterns))
    factor = _factor(summer, first, mixed)
    # Over both outcomes the product is a mixture; it is then held at its observed value.
    fixed = _mixture_none_log10(patterns) if mixed else None
    observed = _statistics(summer, first, factor, fixed)
    blocks = [
        (_statistics(summer, sums, factor, fixed), sums.by_group)
        for sums in map(summer, patterns.draws(draws, seed) if draws else ())
    ]
    drawn = {name: np.concatenate([block[name] for block, _ in blocks]) for name in observed} if blocks else {}
    cases = round(float(first.by_level.sum()))
    measured = {
        name: _measurement(
            name,
            float(value[0]),
            None if mixed and name == "baseline_none_log10" else drawn.get(name),
            cases,
            name in PROPORTIONS,
        )
        for name, value in observed.items()
    }
    groups = {
        name: _groups(
            patterns.groups[name],
            first.by_group[name][0],
            [by[name] for _, by in blocks],
            summer.levels == 0,
            None if large is None else large[name],
        )
        for name in patterns.groups
    }
    return Estimates(measured, groups, factor, drawn)


def _statistics(summer: Summer, sums: Sums, factor: OneFactor | None, fixed: float | None) -> dict[str, Floats]:
    levels, total = summer.levels, sums.by_level.sum(axis=1)
    total = np.where(total > 0, total, np.nan)
    share = sums.by_level / total[:, None]

    def at(where: NDArray[np.bool_]) -> Floats:
        return share[:, where].sum(axis=1)

    none, full, limited = at(levels == 0), at(levels == 1), at(levels <= 0.5)
    success, right = summer.rates(sums)
    baseline = _mean_expected(right)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.log10(1 - success).sum(axis=1) if fixed is None else np.full(len(none), fixed)
        homogenisation = np.where(none > 0, np.log10(none) - below, -np.inf)
        position = (sums.agreement - baseline) / (1 - baseline)
        differ = sums.differ / np.where(sums.shared > 0, sums.shared, np.nan)
    found = {
        "agreement": sums.agreement,
        "baseline_agreement": baseline,
        "position": position,
        "none": none,
        "limited": limited,
        "substantial": at(levels > 0.5),
        "full": full,
        "some_limited": at((levels > 0) & (levels <= 0.5)),
        "some_substantial": at((levels > 0.5) & (levels < 1)),
        "arbitrary": at((levels > 0.25) & (levels < 0.75)),
        "median": _median(levels, share),
        "monoculture_none": 1 - success.mean(axis=1),
        "baseline_none_log10": below,
        "homogenisation_log10": homogenisation,
        "ambiguity": sums.ambiguous / sums.shared.max(axis=1),
        "discrepancy": np.nanmax(differ, axis=1),
    }
    found["none_ratio"] = np.divide(
        none, found["monoculture_none"], out=np.full(len(none), np.nan), where=found["monoculture_none"] > 0
    )
    if factor is not None:
        found["correlation"] = factor.of(_histogram(summer, sums))
    return found


def _mean_expected(right: Floats) -> Floats:
    """Mean over pairs of ``q q' + (1 - q)(1 - q')``, from sums of powers instead of all pairs."""
    m = right.shape[1]
    if m < 2:
        return np.full(len(right), np.nan)
    wrong = 1 - right
    pairs = right.sum(axis=1) ** 2 - (right**2).sum(axis=1) + wrong.sum(axis=1) ** 2 - (wrong**2).sum(axis=1)
    mean: Floats = pairs / (m * (m - 1))
    return mean


def _median(levels: Floats, share: Floats) -> Floats:
    heap = np.cumsum(share, axis=1)
    last = len(levels) - 1
    low = np.minimum((heap < 0.5 - 1e-9).sum(axis=1), last)
    high = np.minimum((heap <= 0.5 + 1e-9).sum(axis=1), last)
    found: Floats = (levels[low] + levels[high]) / 2
    return found


def _histogram(summer: Summer, sums: Sums) -> Floats:
    """Cases by number of successes; a level over fewer models is taken as the nearest number of all."""
    models = len(summer.patterns.success)
    counts = np.zeros((len(sums.by_level), models + 1))
    np.add.at(counts.T, np.rint(summer.levels * models).astype(int), sums.by_level.T)
    return counts


def _factor(summer: Summer, sums: Sums, mixed: bool) -> OneFactor | None:
    """Fitted where all cases in focus have one outcome and there is more than one model."""
    success, _ = summer.rates(sums)
    if mixed or success.shape[1] < 2:
        return None
    return equivalent_correlation(success[0], _histogram(summer, sums)[0])


def _mixture_none_log10(patterns: Patterns) -> float:
    cases = patterns.of_case
    return baselines.independent_none_log10(patterns.success[:, cases], patterns.truth[cases])


def _measurement(name: str, value: float, drawn: Floats | None, cases: int, proportion: bool) -> Measurement:
    title = name.replace("_", " ")
    if drawn is None:
        return Measurement(title, value, n=cases)
    if proportion and cases and math.isfinite(value):
        wilson = Measurement.rate(title, round(value * cases), cases)
        return Measurement(title, value, "", wilson.low, wilson.high, cases)
    known = drawn[~np.isnan(drawn)]
    if not len(known):
        return Measurement(title, value, n=cases)
    # Order statistics and not means of two, one of which may be infinite.
    low, high = np.quantile(known, [0.025, 0.975], method="nearest")
    if name in _REFLECTED:
        low, high = max(0.0, 2 * value - high), max(0.0, 2 * value - low)
    return Measurement(title, value, "", _finite(low), _finite(high), cases)


def _finite(end: float) -> float | None:
    return float(end) if math.isfinite(end) else None


def _groups(
    group: Group,
    observed: Floats,
    blocks: list[Floats],
    zero: NDArray[np.bool_],
    allowed: Collection[int] | None,
) -> GroupRates:
    cases = observed.sum(axis=1)
    large = [g for g in range(len(group.names)) if cases[g] > 0 and (allowed is None or g in allowed)]
    share = {g: float(observed[g, zero].sum() / cases[g]) for g in large}
    large.sort(key=lambda g: -share[g])
    drawn = {}
    if blocks:
        every = np.concatenate(blocks)
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = {g: every[:, g][:, zero].sum(axis=1) / every[:, g].sum(axis=1) for g in large}
    none = tuple(_measurement(f"none, {group.names[g]}", share[g], drawn.get(g), int(cases[g]), True) for g in large)
    ratio = None
    if len(large) > 1:
        most, fewest = large[0], large[-1]
        value = share[most] / share[fewest] if share[fewest] > 0 else math.inf if share[most] > 0 else math.nan
        with np.errstate(divide="ignore", invalid="ignore"):
            each = drawn[most] / drawn[fewest] if drawn else None
        ratio = _measurement(
            f"none, {group.names[most]} over {group.names[fewest]}",
            value if math.isfinite(value) else math.nan,
            each,
            int(cases[most] + cases[fewest]),
            False,
        )
    kept = set(large)
    return GroupRates(
        tuple(group.names[g] for g in large),
        tuple(int(cases[g]) for g in large),
        none,
        ratio,
        tuple(n for g, n in enumerate(group.names) if g not in kept and cases[g] > 0),
    )
