"""The audit of one table: every measure with its interval, both extremes, groups, curves, and what they amount to."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.decisions.monoculture import measures
from touchstone.decisions.monoculture.baselines import expected_agreement, independent_counts, success_rates
from touchstone.decisions.monoculture.difficulty import item_difficulty
from touchstone.decisions.monoculture.measures import Curve, Metric, agreement_curve, recourse_curve, upper
from touchstone.decisions.monoculture.patterns import collapse
from touchstone.decisions.monoculture.statistics import Estimates, estimate
from touchstone.decisions.monoculture.subsets import STATISTICS, subsampled
from touchstone.decisions.monoculture.table import DecisionTable, Favourable, Focus, Group
from touchstone.decisions.monoculture.verdict import describe, flags
from touchstone.errors import InputError
from touchstone.evidence import finite

__all__ = ["AuditReport", "audit", "deficit_sweep", "split_half"]

SWEEP = (0.0, *(round(0.005 * k, 3) for k in range(1, 21)))
"""Accuracy deficits of the sweep, as in the paper."""
LEAST_GROUP = 0.05
"""Share of all cases from which a group is compared with others."""
_SUBSETS = 200


@dataclass(frozen=True)
class AuditReport:
    """What an audit found; :func:`audit` makes it.

    Attributes
    ----------
    content : the report as JSON holds it, see :meth:`to_dict`.
    estimates : measurements with intervals, by name.
    table : the cases and models that were measured.
    curves : ``agreement`` (of pairs, by quantile; missing with one model) and ``recourse``.
    pairs : agreement of each pair, what independence and what the difficulty of cases explain.
    """

    content: dict[str, Any]
    estimates: Estimates
    table: DecisionTable
    curves: dict[str, Curve]
    pairs: pd.DataFrame

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON: numbers that are not finite are ``None``."""
        found: dict[str, Any] = finite(self.content)
        return found

    def save(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as a JSON file."""
        from touchstone.files import write_text

        write_text(path, json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def to_markdown(self) -> str:
        """The numbers as a table, with the verdict, one line each on arbitrariness and exclusion, and flags."""
        lines = [
            f"# {self.content['m']} models on {self.content['n']} cases ({self.content['focus']} outcomes)",
            "",
            *self.content["verdict"]["lines"],
            "",
            "| measure | value | 95 % interval | independent errors | strict monoculture |",
            "|---|---|---|---|---|",
        ]
        beside = self.content["beside"]
        for name, found in self.estimates.measured.items():
            low, high = (_shown(end) for end in (found.low, found.high))
            independent, mono = (_shown(beside[side].get(name)) for side in ("independent", "monoculture"))
            lines.append(f"| {found.name} | {_shown(found.value)} | {low} to {high} | {independent} | {mono} |")
        if self.content["flags"]:
            lines += ["", *(f"- {flag}" for flag in self.content["flags"])]
        return "\n".join(lines) + "\n"

    def plot(self, path: str | Path) -> None:
        """Draw the agreement and recourse curves, with both extremes, into a PNG file."""
        from touchstone.decisions.monoculture.figures import curves
        from touchstone.files import write_bytes

        write_bytes(path, curves(self.curves).png)


def audit(
    table: DecisionTable,
    eps: float = 0.05,
    *,
    groups: Sequence[str] | None = None,
    focus: Focus = "positive",
    favourable: Favourable = "accept",
    metric: Metric = "accuracy",
    split: float = 0.0,
    n_boot: int = 500,
    seed: int = 0,
) -> AuditReport:
    """Measure the models of a table that are within ``eps`` of the best.

    Parameters
    ----------
    table : decisions, outcomes and groups.
    eps : accuracy deficit that is allowed; ``inf`` keeps all models.
    groups : attributes to break shares without recourse down by; all of the table's if not given.
    focus, favourable : which cases, and what counts as success; see :meth:`DecisionTable.in_focus`.
    metric : of the selection.
    split : share of cases on which models are selected and not measured; 0 selects and measures on all, as in the
        paper, which shifts who is at the edge of ``eps``.
    n_boot : bootstrap draws over cases; 0 for no intervals.
    seed : of the split, the draws and the subsets.

    Raises
    ------
    InputError
        If no case is in focus, a group is unknown or an argument is out of range.
    """
    if not 0 <= split < 1 or n_boot < 0:
        raise InputError(f"split {split}, n_boot {n_boot}: expected a share below 1 and 0 draws or more")
    chosen = list(table.groups) if groups is None else list(groups)
    unknown = [name for name in chosen if name not in table.groups]
    if unknown:
        raise InputError(f"group {unknown[0]!r}: the table has {', '.join(table.groups) or 'no groups'}")
    selecting, measuring = _halves(len(table), split, seed)
    kept = measures.rashomon_set(table, eps, metric, selecting)
    h0 = measures.best_model(table.select(kept), metric, selecting)
    left_out = [name for name in table.models if name not in kept]
    part = table.select(kept)
    part = part if measuring is None else part.rows(measuring)
    seen = part.in_focus(focus, favourable)
    attributes = {name: Group(part.groups[name].codes[seen.rows], part.groups[name].names) for name in chosen}
    patterns = collapse(seen, attributes)
    large = {name: _large(part.groups[name]) for name in chosen}
    estimates = estimate(patterns, kept.index(h0), draws=n_boot, seed=seed, large=large)
    level = measures.levels(seen.success)
    dropped = int(np.isnan(level).sum())
    matrix = measures.pairwise_agreement(part, focus)
    pairs = _pairs(part, matrix, seen.success, seen.correct)
    found = {"recourse": recourse_curve(part, focus, favourable)}
    if len(kept) > 1:
        found = {"agreement": agreement_curve(part, focus), **found}
    content = _content(part, estimates, matrix, found, seen.success, seen.correct)
    content |= {
        "n": len(seen.rows),
        "dropped": dropped,
        "focus": focus,
        "favourable": favourable,
        "eps": eps,
        "metric": metric,
        "split": split,
        "seed": seed,
        "draws": n_boot,
        "left_out": left_out,
        "baseline_model": h0,
        "over_models": _over_models(part, focus, favourable, seed),
        "beside": _beside(estimates, independent_counts(seen.success, seen.truth), focus),
    }
    content["flags"] = flags(part, seen.success, content)
    content["verdict"] = describe(estimates, len(kept), content["n"])
    return AuditReport(content, estimates, part, found, pairs)


def deficit_sweep(
    table: DecisionTable,
    epsilons: Sequence[float] = SWEEP,
    *,
    focus: Focus = "positive",
    favourable: Favourable = "accept",
    metric: Metric = "accuracy",
) -> pd.DataFrame:
    """All measures for each accuracy deficit, without intervals; sets only grow with it."""
    rows: list[dict[str, float]] = []
    before: list[str] = []
    score = measures.model_scores(table, metric)
    for eps in epsilons:
        kept = measures.rashomon_set(table, eps, metric)
        if kept == before:
            rows.append(rows[-1] | {"eps": eps})
            continue
        before, part = kept, table.select(kept)
        patterns = collapse(part.in_focus(focus, favourable), {})
        best = kept.index(table.models[int(np.nanargmax(score))])
        found = estimate(patterns, best, draws=0, seed=0)
        rows.append({"eps": eps, "models": len(kept)} | {name: m.value for name, m in found.measured.items()})
    return pd.DataFrame(rows)


def split_half(
    table: DecisionTable, focus: Focus = "positive", favourable: Favourable = "accept", seed: int = 0
) -> pd.DataFrame:
    """Baselines from the rates on one half of the cases, measures on the other: they share no noise then.

    Columns ``measure``, ``observed``, ``independent``, one row each for mean agreement and the shares without and with
    full recourse. Baselines from the same cases differ from these by terms of order 1/N.
    """
    seen = table.in_focus(focus, favourable)
    order = np.random.default_rng(seed).permutation(len(seen.rows))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    if not len(first):
        raise InputError("split half: expected at least two cases in focus")
    pmf = independent_counts(seen.success[:, first], seen.truth[first])
    shares = measures.shares(measures.levels(seen.success[:, second]))
    half = table.rows(seen.rows[second])
    agreement = (
        float(np.nanmean(upper(measures.pairwise_agreement(half, focus)))) if len(table.models) > 1 else math.nan
    )
    expected = upper(expected_agreement(success_rates(seen.correct[:, first])))
    return pd.DataFrame(
        [
            ("agreement", agreement, float(np.nanmean(expected)) if len(expected) else math.nan),
            ("none", shares.none, float(pmf[0])),
            ("full", shares.full, float(pmf[-1])),
        ],
        columns=["measure", "observed", "independent"],
    )


def _halves(cases: int, split: float, seed: int) -> tuple[NDArray[np.intp] | None, NDArray[np.intp] | None]:
    if not split:
        return None, None
    order = np.random.default_rng(seed).permutation(cases)
    size = round(split * cases)
    if not 0 < size < cases:
        raise InputError(f"split {split}: leaves no case on one side of {cases}")
    return np.sort(order[:size]), np.sort(order[size:])


def _large(group: Group) -> set[int]:
    """Groups with at least 5 % of all cases, in focus or not, as in the paper."""
    share = np.bincount(group.codes, minlength=len(group.names)) / len(group.codes)
    return set(np.flatnonzero(share >= LEAST_GROUP).tolist())


def _content(
    table: DecisionTable,
    estimates: Estimates,
    matrix: NDArray[np.float64],
    found: dict[str, Curve],
    success: NDArray[np.int8],
    correct: NDArray[np.int8],
) -> dict[str, Any]:
    value = estimates.value
    pairs = upper(matrix)
    shares = ("none", "limited", "substantial", "full", "some_limited", "some_substantial", "median", "arbitrary")
    return {
        "m": len(table.models),
        "models": list(table.models),
        "tpr": success_rates(success).tolist(),
        "right": success_rates(correct).tolist(),
        "positive_rate": success_rates(table.votes).tolist(),
        "accuracy": measures.model_scores(table).tolist(),
        "agreement": {
            "mean": value("agreement"),
            "min": float(np.nanmin(pairs)) if len(pairs) else math.nan,
            "max": float(np.nanmax(pairs)) if len(pairs) else math.nan,
            "baseline_mean": value("baseline_agreement"),
            "position": value("position"),
        },
        "recourse": {name: value(name) for name in shares}
        | {
            "baseline_none": 10 ** value("baseline_none_log10"),
            "baseline_none_log10": value("baseline_none_log10"),
            "monoculture_none": value("monoculture_none"),
        },
        "ambiguity": value("ambiguity"),
        "discrepancy": value("discrepancy"),
        "discrepancy_of_pairs": 1 - float(np.nanmin(pairs)) if len(pairs) else 0.0,
        "homogenisation_log10": value("homogenisation_log10"),
        "equivalent_correlation": value("correlation") if "correlation" in estimates.measured else None,
        "groups": {
            name: {
                "groups": [
                    {"name": g, "n": n, "none": m.value, "low": m.low, "high": m.high}
                    for g, n, m in zip(rates.names, rates.cases, rates.none, strict=True)
                ],
                "largest_ratio": None
                if rates.ratio is None
                else {
                    "of": rates.ratio.name,
                    "value": rates.ratio.value,
                    "low": rates.ratio.low,
                    "high": rates.ratio.high,
                },
                "too_small": list(rates.left_out),
            }
            for name, rates in estimates.groups.items()
        },
        "ci": {
            name: [m.low, m.high] for name, m in estimates.measured.items() if m.low is not None or m.high is not None
        },
        "curves": {
            name: {
                "x": c.x.tolist(),
                "observed": c.y.tolist(),
                "independent": c.independent.tolist(),
                "monoculture": c.monoculture.tolist(),
            }
            for name, c in found.items()
        },
    }


def _beside(estimates: Estimates, pmf: NDArray[np.float64], focus: str) -> dict[str, dict[str, float]]:
    """What independent errors and strict monoculture would give, for the measures that have such a value."""
    m = len(pmf) - 1
    levels = np.arange(m + 1) / m
    limited = float(pmf[levels <= 0.5].sum())
    mean = 1 - estimates.value("monoculture_none")
    return {
        "independent": {
            "agreement": estimates.value("baseline_agreement"),
            "position": 0.0,
            "none": float(pmf[0]),
            "limited": limited,
            "substantial": 1 - limited,
            "full": float(pmf[-1]),
            "arbitrary": float(pmf[(levels > 0.25) & (levels < 0.75)].sum()),
            "ambiguity": float(1 - pmf[0] - pmf[-1]),
            "median": float(levels[np.searchsorted(np.cumsum(pmf), 0.5)]),
            "homogenisation_log10": 0.0,
            "correlation": 0.0,
        },
        "monoculture": {
            "agreement": 1.0,
            "position": 1.0,
            "none": 1 - mean,
            "limited": 1 - mean,
            "substantial": mean,
            "full": mean,
            "arbitrary": 0.0,
            "ambiguity": 0.0,
            "discrepancy": 0.0,
            "none_ratio": 1.0,
            "correlation": 1.0,
        },
    }


def _over_models(table: DecisionTable, focus: Focus, favourable: Favourable, seed: int) -> dict[str, Any] | None:
    """Mean and deviation over subsets of half of the models: uncertainty that intervals over cases do not hold."""
    m = len(table.models)
    if m < 4:
        return None
    found = subsampled(table, -(-m // 2), draws=_SUBSETS, focus=focus, favourable=favourable, seed=seed)
    return {
        "size": -(-m // 2),
        "subsets": len(found),
        **{key: {"mean": float(found[key].mean()), "sd": float(found[key].std(ddof=0))} for key in STATISTICS},
    }


def _pairs(
    table: DecisionTable, matrix: NDArray[np.float64], success: NDArray[np.int8], correct: NDArray[np.int8]
) -> pd.DataFrame:
    first, second = np.triu_indices(len(table.models), 1)
    names = np.array(table.models, dtype=object)
    frame = pd.DataFrame(
        {
            "first": names[first],
            "second": names[second],
            "agreement": matrix[first, second],
            "independent": expected_agreement(success_rates(correct))[first, second],
        }
    )
    if len(frame) and not (success < 0).any():
        frame["by_difficulty"] = item_difficulty(success, matrix).expected[first, second]
        frame["beyond_difficulty"] = frame["agreement"] - frame["by_difficulty"]
        error = np.sqrt(frame["agreement"] * (1 - frame["agreement"]) / success.shape[1])
        frame["errors_beyond"] = np.divide(
            frame["beyond_difficulty"], error, out=np.zeros(len(frame)), where=error.to_numpy() > 0
        )
    return frame


def _shown(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.2e}" if value and abs(value) < 1e-4 else f"{value:.3f}"
