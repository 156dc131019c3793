"""Agreement, recourse, ambiguity and discrepancy of a table of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from touchstone.decisions.monoculture import baselines
from touchstone.decisions.monoculture.bits import pack
from touchstone.decisions.monoculture.table import DecisionTable, Favourable, Focus
from touchstone.errors import InputError

__all__ = [
    "LEAST_DECIDED",
    "Curve",
    "Metric",
    "Shares",
    "agreement_curve",
    "ambiguity",
    "best_model",
    "discrepancy",
    "homogenisation_log10",
    "model_scores",
    "pairwise_agreement",
    "pairwise_baseline",
    "rashomon_set",
    "recourse_curve",
    "recourse_levels",
    "shares",
    "upper",
]

Floats = NDArray[np.float64]
Metric = Literal["accuracy", "balanced_accuracy"]
LEAST_DECIDED = 0.8
"""Recourse is over the models that decided a case; with fewer than this share of them the case is left out."""


@dataclass(frozen=True)
class Shares:
    """Shares of cases by how many of the models succeed on them.

    Attributes
    ----------
    none, limited, substantial, full : no model; at most half; more than half; all. Nested, as in the paper: ``none``
        is part of ``limited`` and ``full`` of ``substantial``. With an even number of models a tie is ``limited``.
    some_limited, some_substantial : ``limited`` without ``none`` and ``substantial`` without ``full``: with these two,
        ``none`` and ``full`` the shares add up to 1.
    median : median recourse level.
    arbitrary : share with a level between 0.25 and 0.75: whom one is judged by decides.
    """

    none: float
    limited: float
    substantial: float
    full: float
    some_limited: float
    some_substantial: float
    median: float
    arbitrary: float


@dataclass(frozen=True)
class Curve:
    """``y`` over ``x``, beside what independent errors and strict monoculture would give."""

    x: Floats
    y: Floats
    independent: Floats
    monoculture: Floats


def model_scores(table: DecisionTable, metric: Metric = "accuracy", rows: NDArray[np.intp] | None = None) -> Floats:
    """Accuracy of each model over the cases it decided, or the mean of its true-positive and true-negative rates."""
    if metric not in get_args(Metric):
        raise InputError(f"metric {metric!r}: expected one of {', '.join(get_args(Metric))}")
    votes = table.votes if rows is None else table.votes[:, rows]
    y = table.y if rows is None else table.y[rows]
    found = np.empty(len(votes))
    for m, column in enumerate(votes):
        seen = column >= 0
        right = (column > 0) == y
        if metric == "accuracy":
            found[m] = right[seen].mean() if seen.any() else np.nan
        else:
            found[m] = np.mean([right[seen & (y == k)].mean() for k in (True, False) if (seen & (y == k)).any()])
    return found


def rashomon_set(
    table: DecisionTable, eps: float = 0.05, metric: Metric = "accuracy", split: ArrayLike | None = None
) -> list[str]:
    """Models whose score is within ``eps`` of the best, ``score >= max score - eps``, in the table's order.

    Parameters
    ----------
    eps : largest deficit; the paper's is 0.05.
    metric : ``accuracy`` as in the paper, or ``balanced_accuracy``.
    split : places of the cases on which models are selected; all if not given, as in the paper. Selecting and
        measuring on the same cases shifts who is at the edge: measure on the others (:func:`audit` does so).
    """
    if not eps >= 0:
        raise InputError(f"eps {eps}: expected 0 or more")
    score = model_scores(table, metric, None if split is None else np.asarray(split))
    # 0.8 - 0.05 is not quite 0.75 in binary.
    return [name for name, value in zip(table.models, score, strict=True) if value >= np.nanmax(score) - eps - 1e-12]


def best_model(table: DecisionTable, metric: Metric = "accuracy", rows: NDArray[np.intp] | None = None) -> str:
    """The model of the best score, the first of equals: the baseline ``h0`` of ambiguity and discrepancy."""
    return table.models[int(np.nanargmax(model_scores(table, metric, rows)))]


def pairwise_agreement(table: DecisionTable, focus: Focus = "positive") -> Floats:
    """Share of cases in focus that two models decide alike, among those that both decide, [models, models].

    A missing decision is no disagreement: it takes the case out of that pair.
    """
    agree, both = pack(table.in_focus(focus).success).pairs()
    return np.divide(agree, both, out=np.full(agree.shape, np.nan), where=both > 0)


def pairwise_baseline(table: DecisionTable, focus: Focus = "positive") -> Floats:
    """What :func:`pairwise_agreement` would be if errors were independent."""
    return baselines.expected_agreement(baselines.success_rates(table.in_focus(focus).correct))


def upper(matrix: Floats) -> Floats:
    """Values of the pairs of different models."""
    return matrix[np.triu_indices(len(matrix), 1)]


def agreement_curve(table: DecisionTable, focus: Focus = "positive") -> Curve:
    """Sorted agreement of pairs against the quantile of pairs, beside both extremes.

    Raises
    ------
    InputError
        If there is one model only.
    """
    if len(table.models) < 2:
        raise InputError("agreement: is of two models or more, and there is one")
    rates = baselines.success_rates(table.in_focus(focus).correct)
    y = np.sort(upper(pairwise_agreement(table, focus)))
    return Curve(
        (np.arange(len(y)) + 0.5) / len(y),
        y,
        np.sort(upper(baselines.expected_agreement(rates))),
        np.sort(upper(baselines.largest_agreement(rates))),
    )


def recourse_levels(table: DecisionTable, focus: Focus = "positive", favourable: Favourable = "accept") -> Floats:
    """Share of the models that give each case in focus its favourable outcome, [cases in focus].

    NaN for a case that fewer than 80 % of the models decided.
    """
    return levels(table.in_focus(focus, favourable).success)


def levels(success: NDArray[np.int8]) -> Floats:
    """Recourse level of each case of ``success`` [models, cases]."""
    won, decided = tally(success)
    enough = decided >= LEAST_DECIDED * len(success) - 1e-9
    return np.divide(won, decided, out=np.full(len(won), np.nan), where=enough & (decided > 0))


def tally(success: NDArray[np.int8]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Models that succeed on each case, and models that decided it."""
    won = np.zeros(success.shape[1], dtype=np.int32)
    decided = np.zeros(success.shape[1], dtype=np.int32)
    for column in success:
        won += column > 0
        decided += column >= 0
    return won, decided


def shares(level: Floats, weights: Floats | None = None) -> Shares:
    """Shares of recourse of levels; ``weights`` counts how often each stands. Levels that are NaN are left out."""
    seen = ~np.isnan(level)
    level = level[seen]
    w = np.ones(len(level)) if weights is None else np.asarray(weights, dtype=float)[seen]
    total = w.sum()
    if not total > 0:
        raise InputError(f"recourse: no case was decided by {LEAST_DECIDED:.0%} of the models")
    # Half of the models is exact in binary; the other bounds are compared with counts, not with sums.
    none, full = w[level == 0].sum() / total, w[level == 1].sum() / total
    limited = w[level <= 0.5].sum() / total
    order = np.argsort(level, kind="stable")
    heap = np.cumsum(w[order])
    first, last = np.searchsorted(heap, [total / 2 - 1e-9, total / 2 + 1e-9])
    last = min(int(last), len(order) - 1)
    return Shares(
        none=float(none),
        limited=float(limited),
        substantial=float(w[level > 0.5].sum() / total),
        full=float(full),
        some_limited=float(w[(level > 0) & (level <= 0.5)].sum() / total),
        some_substantial=float(w[(level > 0.5) & (level < 1)].sum() / total),
        median=float((level[order[first]] + level[order[last]]) / 2),
        arbitrary=float(w[(level > 0.25) & (level < 0.75)].sum() / total),
    )


def recourse_curve(table: DecisionTable, focus: Focus = "positive", favourable: Favourable = "accept") -> Curve:
    """Share of cases whose recourse level is at most ``x``: this many people are accepted by at most ``x`` of models.

    Beside it the distribution of a Poisson-binomial (independent errors), and a step at one minus the mean rate of
    success (strict monoculture).
    """
    seen = table.in_focus(focus, favourable)
    level = levels(seen.success)
    level = level[~np.isnan(level)]
    m = len(table.models)
    x = np.arange(m + 1) / m
    mean = float(np.nanmean(baselines.success_rates(seen.success)))
    return Curve(
        x,
        np.searchsorted(np.sort(level), x + 1e-9, side="right") / len(level),
        np.minimum(1.0, np.cumsum(baselines.independent_counts(seen.success, seen.truth))),
        np.where(x < 1, 1 - mean, 1.0),
    )


def homogenisation_log10(table: DecisionTable, focus: Focus = "positive", favourable: Favourable = "accept") -> float:
    """log10 of the observed share without recourse over that of independent errors (Bommasani et al. 2022).

    A logarithm because the denominator is a product of as many miss rates as there are models. Minus infinity if
    nobody is without recourse.
    """
    seen = table.in_focus(focus, favourable)
    none = shares(levels(seen.success)).none
    below = baselines.independent_none_log10(seen.success, seen.truth)
    return float("-inf") if none == 0 else float(np.log10(none) - below)


def ambiguity(table: DecisionTable, baseline: str | None = None, focus: Focus = "positive") -> float:
    """Share of the cases in focus on which some model differs from ``baseline`` (Marx et al. 2020).

    Parameters
    ----------
    baseline : a model; the most accurate if not given. ``"none"`` asks for the version without one: the share of
        cases that at least one model accepts and at least one refuses.
    """
    votes = table.in_focus(focus).success
    if baseline == "none":
        won, decided = tally(votes)
        return float(((won > 0) & (won < decided)).sum() / (decided > 0).sum())
    own = votes[table.models.index(_named(table, baseline))]
    differs = np.zeros(votes.shape[1], dtype=bool)
    for column in votes:
        differs |= (column >= 0) & (column != own)
    return float(differs[own >= 0].mean())


def discrepancy(table: DecisionTable, baseline: str | None = None, focus: Focus = "positive") -> float:
    """Largest share of cases in focus on which a model differs from ``baseline`` (Marx et al. 2020).

    Parameters
    ----------
    baseline : as for :func:`ambiguity`; ``"none"`` asks for the largest share over all pairs.
    """
    agreement = pairwise_agreement(table, focus)
    if baseline == "none":
        return float(1 - np.nanmin(agreement))
    return float(1 - np.nanmin(agreement[table.models.index(_named(table, baseline))]))


def curves_frame(curves: Sequence[tuple[str, Curve]]) -> pd.DataFrame:
    """Curves as one long table with the columns ``curve``, ``x``, ``observed``, ``independent``, ``monoculture``."""
    parts = [
        pd.DataFrame(
            {"curve": name, "x": c.x, "observed": c.y, "independent": c.independent, "monoculture": c.monoculture}
        )
        for name, c in curves
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _named(table: DecisionTable, baseline: str | None) -> str:
    if baseline is None:
        return best_model(table)
    if baseline not in table.models:
        raise InputError(f"baseline {baseline!r}: the table has {', '.join(table.models[:12])}")
    return baseline
