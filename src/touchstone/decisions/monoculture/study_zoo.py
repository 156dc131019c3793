"""Real data: a zoo of classifiers on Adult, and one classifier under many encodings, its analogue of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import hypergeom

from touchstone import bootstrap
from touchstone.decisions.monoculture import figures
from touchstone.decisions.monoculture.adult import Task, split
from touchstone.decisions.monoculture.measures import model_scores, tally
from touchstone.decisions.monoculture.report import AuditReport, audit, deficit_sweep
from touchstone.decisions.monoculture.subsets import compare_sets
from touchstone.decisions.monoculture.table import DecisionTable
from touchstone.decisions.monoculture.zoo import Parts, across_encodings, across_models, encodings
from touchstone.evidence import Figure, Finding, Measurement, Table, Verdict

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["ZooSize", "real_data"]

Floats = NDArray[np.float64]
Parts3 = tuple[list[Finding], list[Table], list[Figure]]
_EPS = 0.05


@dataclass(frozen=True)
class ZooSize:
    """Rows, kinds of classifier (all if not named), encodings and bootstrap draws."""

    train: int
    validation: int
    test: int
    names: tuple[str, ...] | None
    encodings: int
    draws: int


def real_data(task: Task, size: ZooSize, run: Run) -> Parts3:
    """Both experiments on the same rows."""
    parts = Parts(*split(task, (size.train, size.validation, size.test), run.seed))
    zoo = across_models(parts, run, size.names)
    every = encodings()
    variants = every[:: len(every) // size.encodings]
    prompts = across_encodings(parts, run, variants)
    report = audit(zoo, _EPS, n_boot=size.draws, seed=run.seed)
    other = audit(prompts, np.inf, groups=[], n_boot=size.draws, seed=run.seed)
    sweep = deficit_sweep(zoo)
    comparison = compare_sets({"models": report.table, "encodings of one model": prompts}, seed=run.seed)
    tables = [
        Table("models", "Models on Adult, and two that know nothing", _context(zoo, report, parts)),
        Table("sweep", "Every measure by accuracy deficit, models on Adult", sweep),
        Table("models_and_encodings", "Models and encodings of one model, at the same size of set", comparison),
        Table("groups", f"Share without recourse by group, deficit {_EPS}", _groups(report)),
    ]
    pictures = [
        figures.curves(report.curves, "models", "Models on Adult, between both extremes"),
        figures.curves(other.curves, "encodings", "One model under twelve encodings, between both extremes"),
        figures.sweep(sweep),
        figures.groups("race", report.estimates.groups["race"]),
    ]
    return [*_extremes(report, sweep, run.seed), *_versus(report, prompts, other, run.seed)], tables, pictures


def _extremes(report: AuditReport, sweep: pd.DataFrame, seed: int) -> list[Finding]:
    found = report.estimates.measured
    agreement, base = found["agreement"], found["baseline_agreement"]
    independent = 10 ** report.estimates.value("baseline_none_log10")
    none, mono = found["none"], found["monoculture_none"]
    gap = _draws(report, lambda d: d["agreement"] - d["baseline_agreement"])
    steps = np.concatenate([sweep[name].diff().dropna().to_numpy() for name in ("ambiguity", "discrepancy")])
    ratio = _ratio(report, seed)
    inside: Verdict = (
        "holds"
        if gap[0] > 0.05 and _high(agreement) < 0.98
        else "fails"
        if gap[1] <= 0.05 or _low(agreement) >= 0.98
        else "undecided"
    )
    return [
        Finding(
            "agreement-between-extremes",
            f"Models within {_EPS} of the best agree over 0.05 more than independent errors, and on fewer than 0.98.",
            inside,
            _titled(agreement, "mean agreement of pairs on positives"),
            _titled(base, "independent errors"),
        ),
        Finding(
            "no-recourse-above-independence",
            "More people are refused by every model than independent errors would leave.",
            "holds" if _low(none) > independent else "fails" if _high(none) < independent else "undecided",
            _titled(none, "positives that every model refuses"),
            Measurement("independent errors", independent),
        ),
        Finding.held_to(
            "no-recourse-below-monoculture",
            "Fewer than 0.6 of those whom a single model refuses are refused by all.",
            _titled(found["none_ratio"], "refused by every model, over refused by one"),
            "< 0.6",
            _titled(mono, "positives that one model refuses"),
        ),
        Finding.held_to(
            "substantial-recourse",
            "More than 0.7 of positives are accepted by more than half of the models.",
            _titled(found["substantial"], "substantial recourse"),
            "> 0.7",
        ),
        Finding.held_to(
            "sweep-only-grows",
            "Ambiguity and discrepancy never fall as less accurate models join.",
            Measurement("smallest step between deficits", float(steps.min()), n=len(steps)),
            ">= 0",
        ),
        Finding(
            "group-exclusion",
            "Black people who earn above the threshold are refused by every model more often than White ones.",
            bootstrap.sign(ratio, above=1.0),
            ratio,
        ),
    ]


def _versus(report: AuditReport, prompts: DecisionTable, other: AuditReport, seed: int) -> list[Finding]:
    """One model's encodings against models, on the same people and at the same size of set."""
    one, two = report.table.in_focus().success, prompts.in_focus().success
    size = min(len(one), len(two))
    agreement = np.stack([_agreement(one), _agreement(two)])
    full = np.stack([_full(one, size), _full(two, size)])
    none = np.stack([_full(1 - one, size), _full(1 - two, size)])
    names = (f"{len(two)} encodings of one model", f"{len(one)} models")

    def more(scores: Floats) -> Measurement:
        return bootstrap.over_items("difference", scores, lambda s: float(s[1].mean() - s[0].mean()), seed=seed)

    def mean(what: str, of: Floats) -> Measurement:
        return Measurement.mean(what, of)

    return [
        Finding(
            "encodings-agree-more",
            "One model under many encodings agrees with itself more than models do with each other.",
            bootstrap.sign(more(agreement)),
            mean(f"mean agreement, {names[0]}", agreement[1]),
            mean(f"mean agreement, {names[1]}", agreement[0]),
        ),
        Finding(
            "encodings-more-full-recourse",
            "More people have full recourse under encodings of one model than under as many models.",
            bootstrap.sign(more(full)),
            mean(f"full recourse, {size} encodings of one model", full[1]),
            mean(f"full recourse, {size} models", full[0]),
        ),
        Finding.held_to(
            "encodings-no-monoculture",
            "Even one model's encodings agree on fewer than 0.98.",
            _titled(other.estimates.measured["agreement"], "mean agreement of encodings"),
            "< 0.98",
        ),
        Finding.held_to(
            "encodings-similar-no-recourse",
            "About as many people have no recourse: the shares differ by at most 0.05 at the same size of set.",
            _absolute(more(none)),
            "<= 0.05",
        ),
    ]


def _agreement(success: NDArray[np.int8]) -> Floats:
    """Share of pairs that decide each case alike."""
    won, decided = (x.astype(float) for x in tally(success))
    lost = decided - won
    found: Floats = (won * (won - 1) + lost * (lost - 1)) / (decided * (decided - 1))
    return found


def _full(success: NDArray[np.int8], size: int) -> Floats:
    """Chance that all of ``size`` random models succeed on each case."""
    won, decided = tally(success)
    found: Floats = hypergeom.pmf(size, decided, won, size)
    return found


def _context(zoo: DecisionTable, report: AuditReport, parts: Parts) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "model": zoo.models,
            "accuracy": model_scores(zoo),
            "balanced_accuracy": model_scores(zoo, "balanced_accuracy"),
            "positive_rate": zoo.votes.mean(axis=1),
            "in_set": [name in report.table.models for name in zoo.models],
        }
    )
    rate = float(parts.test.y.mean())
    nothing = pd.DataFrame(
        {
            "model": ["always the majority", "a coin"],
            "accuracy": [max(rate, 1 - rate), 0.5],
            "balanced_accuracy": [0.5, 0.5],
            "positive_rate": [float(rate > 0.5), 0.5],
            "in_set": [False, False],
        }
    )
    return pd.concat([frame, nothing], ignore_index=True)


def _groups(report: AuditReport) -> pd.DataFrame:
    rows = [
        (name, g, n, m.value, m.low, m.high)
        for name, rates in report.estimates.groups.items()
        for g, n, m in zip(rates.names, rates.cases, rates.none, strict=True)
    ]
    return pd.DataFrame(rows, columns=["attribute", "group", "cases", "none", "low", "high"])


def _ratio(report: AuditReport, seed: int) -> Measurement:
    """Share of Black positives without recourse over that of White ones, drawn again together."""
    seen = report.table.in_focus()
    race = report.table.groups["race"]
    codes = race.codes[seen.rows]
    black, white = (codes == race.names.index(name) for name in ("Black", "White"))
    none = (seen.success > 0).sum(axis=0) == 0

    def ratio(rows: Floats) -> float:
        out, one, other = rows
        with np.errstate(divide="ignore", invalid="ignore"):
            return float((out * one).sum() / one.sum() / ((out * other).sum() / other.sum()))

    scores = np.stack([none, black, white]).astype(float)
    return bootstrap.over_items("share without recourse, Black over White", scores, ratio, seed=seed)


def _draws(report: AuditReport, of: object) -> tuple[float, float]:
    low, high = np.quantile(of(report.estimates.draws), [0.025, 0.975])  # type: ignore[operator]
    return float(low), float(high)


def _absolute(found: Measurement) -> Measurement:
    low, high = abs(_low(found)), abs(_high(found))
    inside = _low(found) <= 0 <= _high(found)
    return Measurement(
        "difference of the shares without recourse",
        abs(found.value),
        "",
        0.0 if inside else min(low, high),
        max(low, high),
        found.n,
    )


def _titled(measured: Measurement, name: str) -> Measurement:
    return Measurement(name, measured.value, measured.unit, measured.low, measured.high, measured.n)


def _low(measured: Measurement) -> float:
    return measured.value if measured.low is None else measured.low


def _high(measured: Measurement) -> float:
    return measured.value if measured.high is None else measured.high
