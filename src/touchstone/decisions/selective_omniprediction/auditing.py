"""An audit of probabilities: calibration, multiaccuracy, abstention and errors of each group, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from touchstone.decisions.selective_omniprediction.groups import Membership, membership
from touchstone.decisions.selective_omniprediction.losses import labels, probabilities
from touchstone.decisions.selective_omniprediction.selective import ABSTAIN, threshold_decision
from touchstone.errors import InputError
from touchstone.evidence import Measurement

__all__ = ["EVERYONE", "Audit", "audit"]

Floats = NDArray[np.float64]
EVERYONE = "everyone"
"""First row of an audit: all cases."""
# Draws that are computed together: enough to be fast, few enough to be small.
_TOGETHER = 50
_NULL_DRAWS = 200


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes
    ----------
    frame : one row a group, the first of everyone: rows ``n``, ``base_rate``, ``bias`` (mean of outcome less
        probability), ``multiaccuracy_gap``, ``ece``, ``multicalibration``, ``set_coverage``, ``error`` (decided
        wrongly), ``abstention``, ``predicted_share`` and ``selective_error`` (wrong among the decided), each estimate
        with ``_low`` and ``_high``; ``ece_if_calibrated``, what the same number of rows would show by chance if the
        probabilities were right, and ``p_calibrated``, the chance of at least the error that was found.
    concepts : one row a group and concept: multiaccuracy gap with its interval.
    """

    frame: pd.DataFrame
    concepts: pd.DataFrame

    def measurement(self, what: str, group: str = EVERYONE, name: str = "") -> Measurement:
        """One estimate as a measurement.

        The calibration error and the multicalibration violation are sums of absolute values, which noise makes larger;
        their value here is what is left after the bootstrap's estimate of that, as in their intervals.
        """
        rows = self.frame[self.frame["group"] == group]
        if rows.empty or f"{what}_low" not in self.frame:
            raise InputError(f"audit: has no estimate {what!r} of group {group!r}")
        row = rows.iloc[0]
        value = row.get(f"{what}_debiased", row[what])
        low, high = float(row[f"{what}_low"]), float(row[f"{what}_high"])
        known = bool(np.isfinite([low, high]).all())
        return Measurement(
            name or f"{what} ({group})",
            float(value),
            low=low if known else None,
            high=high if known else None,
            n=int(row["n"]),
        )

    def worst(self, what: str, name: str = "", *, smallest: int = 1) -> Measurement:
        """The largest estimate among the groups of at least ``smallest`` rows; everyone's, if there is no group."""
        column = f"{what}_debiased" if f"{what}_debiased" in self.frame else what
        groups = self.frame[(self.frame["group"] != EVERYONE) & (self.frame["n"] >= smallest)]
        groups = groups[groups[column].notna()]
        group = EVERYONE if groups.empty else str(groups["group"].iloc[int(groups[column].to_numpy().argmax())])
        return self.measurement(what, group, f"{name or what}, {group}")


def audit(
    h: ArrayLike,
    y: ArrayLike,
    groups: ArrayLike | pd.DataFrame | None = None,
    concepts: Mapping[str, ArrayLike] | None = None,
    *,
    eps: float = 0.1,
    decision: ArrayLike | None = None,
    n_boot: int = 500,
    bins: int = 10,
    seed: int = 0,
) -> Audit:
    """Audit probabilities on rows that no fit has seen.

    With r the outcome less the probability, g a group's indicator and c a concept: the multiaccuracy gap is
    ``|mean(g c r)|``, the multicalibration violation ``sum over level sets b of |mean(1[h in b] g r)|``, both over all
    rows, so that a group weighs by its size; the calibration error (ECE) is the latter within the group.

    Parameters
    ----------
    h : probabilities of the outcome 1, [rows].
    y : outcomes of 0 and 1, [rows].
    groups : indicators, [rows, groups]; they may overlap.
    concepts : functions of the case with which the residual should not correlate: name to values, [rows].
    eps : the selective classifier that is audited says 0 up to ``eps``, 1 from ``1 - eps`` on, and nothing between.
    decision : decisions 0, 1 and -1 (nothing) to audit in its place, [rows].
    n_boot : bootstrap draws of rows; 0 gives no intervals.
    bins : level sets of equal width.
    seed : of the draws.

    Raises
    ------
    InputError
        If lengths differ, a probability is not one, or ``eps`` is not between 0 and 0.5.
    """
    h, truth = probabilities(h), labels(y)
    if len(h) != len(truth):
        raise InputError(f"y: has {len(truth)} rows, scores have {len(h)}")
    if len(h) == 0:
        raise InputError("scores: expected at least one row")
    if not 0 < eps < 0.5:
        raise InputError(f"eps {eps}: expected a number between 0 and 0.5")
    if bins < 1:
        raise InputError(f"bins {bins}: expected at least 1")
    said = threshold_decision(h, eps) if decision is None else _decisions(decision, len(h))
    names, inside = membership(groups, len(h))
    # A group of no or of all rows says nothing that everyone's row does not say.
    kept = [g for g in range(len(names)) if 0 < inside[:, g].sum() < len(h)]
    inside = np.column_stack([np.ones(len(h), dtype=bool), inside[:, kept]])
    group_names = [EVERYONE, *(names[g] for g in kept)]
    values = {name: _concept(name, c, len(h)) for name, c in (concepts or {}).items()}
    measure = _Measure(h, truth.astype(float), inside, said, list(values.values()), bins)
    point = measure.of(np.ones((1, len(h))))
    drawn = _bootstrap(measure, len(h), n_boot, seed)
    frame = pd.DataFrame({"group": group_names, "n": inside.sum(axis=0)})
    for what, debias in (
        ("base_rate", False),
        ("bias", False),
        ("multiaccuracy_gap", True),
        ("ece", True),
        ("multicalibration", True),
        ("set_coverage", False),
        ("error", False),
        ("abstention", False),
        ("predicted_share", False),
        ("selective_error", False),
    ):
        _estimate(frame, what, point[what][0], drawn.get(what), debias=debias)
    chance = measure.chance(seed)
    frame["ece_if_calibrated"] = chance.mean(axis=0)
    frame["p_calibrated"] = (1 + (chance >= point["ece"][0] - 1e-12).sum(axis=0)) / (1 + len(chance))
    return Audit(frame, _concept_frame(group_names, list(values), point, drawn))


class _Measure:
    """Every statistic is a function of sums over rows, so that all draws are one product of sparse matrices."""

    def __init__(
        self, h: Floats, y: Floats, inside: Membership, said: NDArray[np.int8], concepts: list[Floats], bins: int
    ) -> None:
        self.h, self.y, self.inside, self.bins = h, y, inside, bins
        residual = y - h
        decided = said != ABSTAIN
        wrong = decided & (said != y)
        level = np.minimum((h * bins).astype(int), bins - 1)
        rows, group = np.nonzero(inside)
        size = (len(h), inside.shape[1] * bins)
        cell = group * bins + level[rows]
        self.cells = sparse.csr_array((np.ones(len(rows)), (rows, cell)), shape=size)
        self.cell_residual = (self.cells.T @ sparse.diags_array(residual)).tocsr()
        plain = inside.astype(float)
        self.plain = [plain * column[:, None] for column in (np.ones_like(h), y, residual, decided, wrong)]
        self.concept = [plain * (c * residual)[:, None] for c in concepts]

    def of(self, weights: Floats) -> dict[str, Floats]:
        """Statistics [draws, groups] under weights of rows [draws, rows]."""
        rows, positive, residual, decided, wrong = (weights @ part for part in self.plain)
        n = weights.sum(axis=1, keepdims=True)
        moved = np.abs((self.cell_residual @ weights.T).T).reshape(len(weights), -1, self.bins).sum(axis=2)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = {
                "base_rate": positive / rows,
                "bias": residual / rows,
                "multiaccuracy_gap": np.abs(residual) / n,
                "ece": moved / rows,
                "multicalibration": moved / n,
                "set_coverage": 1 - wrong / rows,
                "error": wrong / rows,
                "abstention": 1 - decided / rows,
                "predicted_share": decided / rows,
                "selective_error": wrong / decided,
            }
        return found | {f"concept {k}": np.abs(weights @ part) / n for k, part in enumerate(self.concept)}

    def chance(self, seed: int) -> Floats:
        """ECE of each group [draws, groups] if every outcome were a coin flip with its probability."""
        rng = np.random.default_rng([seed, 1])
        rows = self.inside.sum(axis=0)
        found = []
        for first in range(0, _NULL_DRAWS, _TOGETHER):
            count = min(_TOGETHER, _NULL_DRAWS - first)
            residual = (rng.random((count, len(self.h))) < self.h) - self.h
            moved = np.abs((self.cells.T @ residual.T).T).reshape(count, -1, self.bins).sum(axis=2)
            found.append(moved / rows)
        return np.concatenate(found)


def _bootstrap(measure: _Measure, n: int, draws: int, seed: int) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    found: dict[str, list[Floats]] = {}
    for first in range(0, draws, _TOGETHER):
        count = min(_TOGETHER, draws - first)
        weights = np.stack([np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(count)]).astype(float)
        for name, values in measure.of(weights).items():
            found.setdefault(name, []).append(values)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _estimate(frame: pd.DataFrame, what: str, point: Floats, drawn: Floats | None, *, debias: bool) -> None:
    """Add an estimate and its interval; with ``debias`` both are mirrored, which takes off what noise adds."""
    frame[what] = point
    if drawn is None:
        frame[f"{what}_low"] = frame[f"{what}_high"] = np.nan
        return
    # A group, or its decided rows, may be missing from some draws; if from all, there is no interval.
    empty = np.isnan(drawn).all(axis=0)
    filled = np.where(empty, 0.0, drawn)
    low, middle, high = np.nanquantile(filled, 0.025, axis=0), np.nanmean(filled, axis=0), None
    high = np.nanquantile(filled, 0.975, axis=0)
    if debias:
        frame[f"{what}_debiased"] = np.clip(2 * point - middle, 0.0, None)
        low, high = np.clip(2 * point - high, 0.0, None), np.clip(2 * point - low, 0.0, None)
    frame[f"{what}_low"], frame[f"{what}_high"] = np.where(empty, np.nan, low), np.where(empty, np.nan, high)


def _concept_frame(
    groups: list[str], concepts: list[str], point: dict[str, Floats], drawn: dict[str, Floats]
) -> pd.DataFrame:
    rows: list[pd.DataFrame] = []
    for k, concept in enumerate(concepts):
        frame = pd.DataFrame({"group": groups, "concept": concept})
        key = f"concept {k}"
        _estimate(frame, "multiaccuracy_gap", point[key][0], drawn.get(key), debias=True)
        rows.append(frame)
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=["group", "concept"])


def _decisions(decision: ArrayLike, rows: int) -> NDArray[np.int8]:
    found: Any = np.asarray(decision)
    if found.shape != (rows,) or not np.isin(found, (-1, 0, 1)).all():
        raise InputError(f"decision: expected {rows} decisions of 0, 1 and -1 (nothing)")
    return found.astype(np.int8)


def _concept(name: str, values: ArrayLike, rows: int) -> Floats:
    found = np.asarray(values, dtype=float)
    if found.shape != (rows,) or not np.isfinite(found).all():
        raise InputError(f"concepts: {name!r} is not {rows} finite numbers")
    return found
