"""E2: overlapping groups of Adult, with a base that is weak on purpose, against split conformal prediction."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.bootstrap import clustered, quotient
from touchstone.decisions.selective_omniprediction import figures
from touchstone.decisions.selective_omniprediction.adult import WITHHELD, Census, load
from touchstone.decisions.selective_omniprediction.auditing import audit
from touchstone.decisions.selective_omniprediction.baselines import lac_sets, mondrian_sets, recalibrated
from touchstone.decisions.selective_omniprediction.multicalibrated import MulticalibratedClassifier
from touchstone.decisions.selective_omniprediction.selective import as_sets, threshold_decision
from touchstone.evidence import Figure, Finding, Measurement, Table

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["CensusSize", "census"]

EPS = tuple(np.round(np.arange(0.02, 0.49, 0.02), 2).tolist())
"""Thresholds of the selective classifier."""
ALPHAS = (0.05, 0.1, 0.15, 0.2)
_OURS, _RAW, _LAC, _MONDRIAN = "multicalibrated", "raw base", "split conformal", "conformal by group"


@dataclass(frozen=True)
class CensusSize:
    """Random divisions of the data, and rows of each part."""

    splits: int
    rows: int
    rounds: int


def census(size: CensusSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Abstention, coverage and calibration of twelve groups, mean of a few random divisions."""
    seeds = [run.seed * 1000 + k for k in range(size.splits)]
    parts = run.map("groups of Adult", partial(_one, size), seeds)
    sets = pd.DataFrame(chain.from_iterable(part["sets"] for part in parts))
    errors = pd.DataFrame([part["errors"] for part in parts])
    groups = pd.DataFrame(chain.from_iterable(part["groups"] for part in parts))
    matched = pd.DataFrame([_matched(sets[sets["seed"] == seed]) for seed in seeds])
    calibration = groups.groupby(["group", "predictor"], sort=False).mean(numeric_only=True).reset_index()
    findings = [
        *_bounds(sets),
        *_against_lac(matched, run.seed),
        *_calibration(errors, groups, run.seed),
    ]
    tables = [
        Table(
            "matched",
            "Each division at the threshold whose coverage is closest to that of split conformal sets",
            matched,
        ),
        Table("errors", "Mean squared error of probabilities", errors),
        Table(
            "calibration", "Calibration of each group on test rows, mean of divisions", calibration.drop(columns="seed")
        ),
        Table("sets", "Coverage and abstention at each threshold or level", sets),
    ]
    mean = sets.groupby(["method", "level"], sort=False).mean(numeric_only=True).reset_index()
    return findings, tables, [figures.coverage(mean), figures.calibration(calibration)]


def _one(size: CensusSize, seed: int) -> dict[str, Any]:
    data = load()
    order = np.random.default_rng(seed).permutation(len(data))
    train, fit, test = (data.part(part) for part in np.split(order[: 3 * size.rows], 3))
    names = [str(name) for name in data.x]
    weak = [name for name in names if not name.startswith(("education", *WITHHELD))]
    base = _base(train, weak)
    scores = {name: base.predict_proba(part.x[weak])[:, 1] for name, part in (("fit", fit), ("test", test))}
    model = _multicalibrated(fit, scores["fit"], size.rounds, seed)
    h = _predict(model, test, scores["test"])
    full = _base(train, names)
    full_scores = {name: full.predict_proba(part.x[names])[:, 1] for name, part in (("fit", fit), ("test", test))}
    full_model = _multicalibrated(fit, full_scores["fit"], size.rounds, seed)

    def brier(p: NDArray[np.float64]) -> float:
        return float(np.mean((p - test.y) ** 2))

    errors = {
        "seed": seed,
        "base": brier(scores["test"]),
        "isotonic": brier(recalibrated(scores["fit"], fit.y)(scores["test"])),
        "multicalibrated": brier(h),
        "full base": brier(full_scores["test"]),
        "full base, multicalibrated": brier(_predict(full_model, test, full_scores["test"])),
    }
    sets = [
        _described(as_sets(threshold_decision(p, eps)), test) | {"seed": seed, "method": method, "level": eps}
        for method, p in ((_OURS, h), (_RAW, scores["test"]))
        for eps in EPS
    ]
    for alpha in ALPHAS:
        split = lac_sets(scores["fit"], fit.y, scores["test"], alpha)
        by_group = mondrian_sets(
            scores["fit"], fit.y, fit.groups.to_numpy(), scores["test"], test.groups.to_numpy(), alpha
        )
        for method, found in ((_LAC, split), (_MONDRIAN, by_group)):
            sets.append(_described(found, test) | {"seed": seed, "method": method, "level": alpha})
    return {
        "sets": sets,
        "errors": errors,
        "groups": _audited(test, {"raw base": scores["test"], "multicalibrated": h}, seed),
    }


def _base(train: Census, columns: list[str]) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(train.x[columns], train.y)


def _multicalibrated(part: Census, scores: NDArray[np.float64], rounds: int, seed: int) -> MulticalibratedClassifier:
    model = MulticalibratedClassifier("score", step=0.3, max_iter=rounds, random_state=seed)
    with warnings.catch_warnings():
        # The smallest group may fall below fifty rows in the half that fits: it is still audited.
        warnings.filterwarnings("ignore", message="groups with fewer than")
        return model.fit(part.x.assign(score=scores), part.y, groups=part.groups)


def _predict(model: MulticalibratedClassifier, part: Census, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return model.predict_proba(part.x.assign(score=scores), groups=part.groups)[:, 1]


def _described(sets: NDArray[np.bool_], part: Census) -> dict[str, Any]:
    """Coverage and abstention, overall and in the worst group; an empty set is an error, not an abstention."""
    covered = np.asarray(sets[np.arange(len(sets)), part.y])
    silent = np.asarray(sets.all(axis=1))
    inside = part.groups.to_numpy()
    coverage = np.array([covered[g].mean() for g in inside.T])
    # How far each group is above 1 - eps / Pr[g] depends on eps: kept as error times Pr[g], to be held against eps.
    mass = np.array([(1 - covered[g].mean()) * g.mean() for g in inside.T])
    return {
        "set_coverage": float(covered.mean()),
        "least_group_coverage": float(coverage.min()),
        "abstention": float(silent.mean()),
        "most_group_abstention": float(max(silent[g].mean() for g in inside.T)),
        "most_group_error_mass": float(mass.max()),
        "empty_sets": float((~sets.any(axis=1)).mean()),
    }


def _audited(test: Census, predictors: dict[str, NDArray[np.float64]], seed: int) -> list[dict[str, Any]]:
    keep = ["group", "n", "ece", "ece_debiased", "multicalibration", "multiaccuracy_gap", "ece_if_calibrated"]
    found: list[dict[str, Any]] = []
    for name, h in predictors.items():
        frame = audit(h, test.y, test.groups, n_boot=100, seed=seed).frame[keep]
        rows: Any = frame.to_dict("records")
        found += [row | {"predictor": name, "seed": seed} for row in rows]
    return found


def _matched(sets: pd.DataFrame) -> dict[str, Any]:
    """Ours at the threshold whose coverage is closest to that of split conformal sets of level 0.05."""
    lac = sets[(sets["method"] == _LAC) & (sets["level"] == 0.05)].iloc[0]
    row: dict[str, Any] = {"seed": int(lac["seed"])}
    names = ("set_coverage", "least_group_coverage", "abstention", "most_group_abstention")
    row |= {f"{name}, conformal": float(lac[name]) for name in names}
    for short, method in (("ours", _OURS), ("raw", _RAW)):
        mine = sets[sets["method"] == method]
        nearest = mine.loc[(mine["set_coverage"] - lac["set_coverage"]).abs().idxmin()]
        row[f"eps, {short}"] = float(nearest["level"])
        row |= {f"{name}, {short}": float(nearest[name]) for name in names}
    return row


def _bounds(sets: pd.DataFrame) -> list[Finding]:
    ours = sets[sets["method"] == _OURS]
    error = (1 - ours["set_coverage"]) / ours["level"]
    mass = ours["most_group_error_mass"] / ours["level"]
    return [
        Finding.held_to(
            "error-within-eps",
            "At every threshold eps and in every division, at most a share eps of the cases is decided wrongly.",
            Measurement("largest error over eps", float(error.max()), n=len(ours)),
            "<= 1",
        ),
        Finding.held_to(
            "group-coverage",
            "At every threshold eps, each group's sets hold the truth for at least 1 - eps / Pr[g] of its cases.",
            Measurement(
                "largest share of wrong decisions in a group, times Pr[g] over eps", float(mass.max()), n=len(ours)
            ),
            "<= 1",
        ),
    ]


def _against_lac(matched: pd.DataFrame, seed: int) -> list[Finding]:
    found = []
    for id, name, words in (
        ("abstention-against-conformal", "abstention", "it abstains at most 0.8 times as often"),
        (
            "group-abstention-against-conformal",
            "most_group_abstention",
            "the group with the most abstentions has at most 0.8 times as many",
        ),
    ):
        found.append(
            Finding.held_to(
                id,
                f"At the coverage of split conformal sets on the base, {words}.",
                quotient("ratio", matched[f"{name}, ours"], matched[f"{name}, conformal"], seed=seed),
                "<= 0.8",
                quotient("raw base", matched[f"{name}, raw"], matched[f"{name}, conformal"], seed=seed),
            )
        )
    gap = matched["least_group_coverage, ours"] - matched["least_group_coverage, conformal"]
    found.append(
        Finding.held_to(
            "group-coverage-against-conformal",
            "There, the least coverage of a group is at most 0.015 below that of split conformal sets.",
            clustered("difference", gap, seed=seed),
            ">= -0.015",
        )
    )
    return found


def _calibration(errors: pd.DataFrame, groups: pd.DataFrame, seed: int) -> list[Finding]:
    worst = groups.groupby(["seed", "predictor"])[["ece_debiased", "multicalibration"]].max().unstack()
    weak = errors["base"] - errors["multicalibrated"]
    strong = errors["full base"] - errors["full base, multicalibrated"]
    return [
        Finding.held_to(
            "squared-error",
            "Multicalibration lowers the squared error of the weak base, which isotonic recalibration hardly does.",
            quotient("squared error over the base's", errors["multicalibrated"], errors["base"], seed=seed),
            "< 0.95",
            quotient("isotonic", errors["isotonic"], errors["base"], seed=seed),
        ),
        Finding.held_to(
            "group-calibration",
            "It lowers the largest multicalibration violation of a group to at most half.",
            quotient(
                "largest violation over the base's",
                worst["multicalibration", "multicalibrated"],
                worst["multicalibration", "raw base"],
                seed=seed,
            ),
            "<= 0.5",
        ),
        Finding.held_to(
            "gain-with-a-full-base",
            "With a base that sees all columns, the gain in squared error is smaller.",
            quotient("gain over that with the weak base", strong, weak, seed=seed),
            "< 1",
        ),
    ]
