"""E3: fully reliable learning by two forests against split conformal prediction, at the same share of predictions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.bootstrap import clustered
from touchstone.decisions.selective_omniprediction import figures
from touchstone.decisions.selective_omniprediction.baselines import lac_sets
from touchstone.decisions.selective_omniprediction.reliable import WEIGHTS, FullyReliableClassifier
from touchstone.evidence import Figure, Finding, Measurement, Table

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["BlobSize", "blobs"]

LEVELS = np.linspace(0.01, 0.25, 25)
# Below this share a curve of conformal sets is made of a handful of rows.
_LEAST_SHARE = 0.1
# Leaves of a forest whose probabilities are better than those of fully grown trees.
_PRUNED = 20


@dataclass(frozen=True)
class BlobSize:
    """Data sets, rows of each part, and trees of a forest."""

    seeds: int
    train: int
    calibrate: int
    test: int
    trees: int


def blobs(size: BlobSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Two overlapping clouds of points."""
    seeds = [run.seed * 1000 + k for k in range(size.seeds)]
    rows = pd.DataFrame(chain.from_iterable(run.map("forests on two clouds", partial(_one, size), seeds)))
    ours = rows[rows["method"] == "forests"]
    difference = {
        method: _difference(ours, method, name, run.seed)
        for method, name in (
            ("conformal", "error of the forests less that of conformal sets"),
            ("conformal, pruned", "less that of conformal sets on a pruned forest"),
        )
    }
    shares = ours.pivot(index="seed", columns="level", values="predicted_share").to_numpy()
    findings = [
        Finding.held_to(
            "reliable-forests-competitive",
            "Where both predict on the same share of cases, the forests' error is at most 0.005 above that of split "
            "conformal sets.",
            difference["conformal"],
            "<= 0.005",
            difference["conformal, pruned"],
        ),
        Finding.held_to(
            "reliable-forests-monotone",
            "The share that is predicted falls with the class weight.",
            Measurement("largest step between two weights", float(np.diff(shares, axis=1).max()), n=shares.size),
            "<= 0",
        ),
    ]
    table = Table("blobs", "Share that is predicted and its error, by class weight or confidence level", rows)
    return findings, [table], [figures.blobs(rows)]


def _difference(ours: pd.DataFrame, method: str, name: str, seed: int) -> Measurement:
    other = ours[f"error_of_{method}"].astype(float)
    by_seed = (ours["error"].astype(float) - other)[other.notna()].groupby(ours["seed"]).mean()
    return clustered(name, by_seed, seed=seed) if len(by_seed) else Measurement(name, float("nan"), n=0)


def _one(size: BlobSize, seed: int) -> list[dict[str, Any]]:
    from sklearn.datasets import make_blobs
    from sklearn.ensemble import RandomForestClassifier

    n = size.train + size.calibrate
    x, y = make_blobs(n + size.test, centers=[(0, 0), (2, 0)], cluster_std=1.6, random_state=seed)
    fit, test = slice(size.train, n), slice(n, None)
    rows: list[dict[str, Any]] = []
    for method, leaf in (("conformal", 1), ("conformal, pruned", _PRUNED)):
        forest = RandomForestClassifier(size.trees, min_samples_leaf=leaf, random_state=seed)
        forest.fit(x[: size.train], y[: size.train])
        p_fit, p_test = forest.predict_proba(x[fit])[:, 1], forest.predict_proba(x[test])[:, 1]
        for alpha in LEVELS:
            found = _errors(lac_sets(p_fit, y[fit], p_test, float(alpha)), y[test])
            rows.append({"seed": seed, "method": method, "level": float(alpha), **found})
    curves = {
        str(method): part.groupby("predicted_share")["error"].mean()
        for method, part in pd.DataFrame(rows).groupby("method")
    }
    for weight in WEIGHTS:
        model = FullyReliableClassifier(weight, n_estimators=size.trees, random_state=seed)
        model.fit(x[: size.train], y[: size.train])
        with warnings.catch_warnings():
            # From a weight of 50 on hardly any row is decided, which the table shows.
            warnings.filterwarnings("ignore", message="weight")
            found = _errors(model.predict_set(x[test]), y[test])
        others = {f"error_of_{method}": _at(curve, found["predicted_share"]) for method, curve in curves.items()}
        rows.append({"seed": seed, "method": "forests", "level": float(weight), **found, **others})
    return rows


def _at(curve: pd.Series[float], share: float) -> float | None:
    """A curve's error at a share, where it and the share are large enough to be read."""
    if not max(_LEAST_SHARE, curve.index.min()) <= share <= curve.index.max():
        return None
    return float(np.interp(share, curve.index, curve.to_numpy()))


def _errors(sets: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Share of cases whose set is not both labels, and of those the share without the truth; an empty set is wrong."""
    spoken = ~sets.all(axis=1)
    wrong = spoken & ~sets[np.arange(len(y)), y]
    return {
        "predicted_share": float(spoken.mean()),
        "error": float(wrong.sum() / spoken.sum()) if spoken.any() else None,
        "empty_sets": float((~sets.any(axis=1)).mean()),
    }
