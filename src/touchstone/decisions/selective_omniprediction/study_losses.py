"""E1 and E4: one predictor for every loss, against recalibration and against trees that are grown for each loss."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.bootstrap import quotient
from touchstone.decisions.selective_omniprediction import figures
from touchstone.decisions.selective_omniprediction.baselines import ChowTree, confidence_threshold, recalibrated
from touchstone.decisions.selective_omniprediction.losses import ChowLoss
from touchstone.decisions.selective_omniprediction.multicalibrated import MulticalibratedClassifier
from touchstone.evidence import Figure, Finding, Limit, Measurement, Table

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["TRIPLES", "LossSize", "losses"]

TRIPLES = {
    f"{kind}, {plus:g}/{minus:g}": ChowLoss(kind, plus, minus)
    for kind in ("l1", "l2")
    for plus, minus in ((0.1, 0.1), (0.2, 0.2), (0.3, 0.1))
}
"""The paper's: loss, and price of abstaining where the outcome is 1 and 0."""
_TIMED_ROWS = 100_000
_OURS, _RAW, _ISOTONIC, _PLATT = "multicalibrated", "raw forest", "isotonic", "Platt"
_TREE, _GINI, _SHARE = "tree for the loss", "Gini tree", "confidence, same share"


@dataclass(frozen=True)
class LossSize:
    """Data sets and rows of the paper's comparison, and random triples."""

    seeds: int
    train: int
    calibrate: int
    test: int
    trees: int
    triples: int


@dataclass(frozen=True)
class _Scores:
    """Probabilities of test rows by each predictor, and what trees of the same data need."""

    h: dict[str, NDArray[np.float64]]
    x: NDArray[np.float64]
    y: NDArray[np.int64]
    x_test: NDArray[np.float64]
    y_test: NDArray[np.int64]
    seconds: float


def losses(size: LossSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Both comparisons on data of scikit-learn's generator."""
    first = run.seed * 1000
    seeds = list(range(first, first + size.seeds))
    rows = pd.DataFrame(chain.from_iterable(run.map("six losses on one predictor", partial(_six, size), seeds)))
    chunks = [(seed, size.triples // size.seeds) for seed in seeds]
    random = pd.DataFrame(chain.from_iterable(run.map("random losses", partial(_random, size), chunks)))
    seconds = run.map("time of post-processing", partial(_timed, size.triples), [first])[0]
    table = rows.groupby(["loss", "method"], sort=False)[["total", "predicted_share", "selective_loss"]].mean()
    brier = rows[rows["loss"] == next(iter(TRIPLES))].pivot(index="seed", columns="method", values="brier")
    findings = [
        _all_below(rows, _OURS, _ISOTONIC, 1.0, "multicalibrated-below-isotonic", run.seed),
        _all_below(rows, _ISOTONIC, _RAW, 1.0, "isotonic-below-raw", run.seed),
        _all_below(rows, _OURS, _TREE, 0.75, "one-predictor-against-trees", run.seed),
        Finding.held_to(
            "random-losses",
            "For at least 95 % of random losses and prices, one predictor loses less than a tree grown for the loss.",
            Measurement.rate("losses", int((random[_OURS] < random[_TREE]).sum()), len(random)),
            ">= 0.95",
            Measurement.rate("the same for isotonic", int((random[_ISOTONIC] < random[_TREE]).sum()), len(random)),
        ),
        Finding.held_to(
            "post-processing-time",
            f"Rules for {size.triples} losses and their decisions on 100,000 rows take less than two seconds.",
            Measurement("time", seconds, "s", n=size.triples),
            "< 2",
        ),
    ]
    tables = [
        Table(
            "losses", "Mean over data sets: total loss, share that is predicted, loss where it is", table.reset_index()
        ),
        Table("losses-by-seed", "The same for each data set", rows),
        Table("random-losses", "Total loss of random losses and prices", random),
        Table("brier", "Mean squared error of each predictor on test rows", brier.reset_index()),
    ]
    pictures = [figures.losses(table["total"].unstack(), rows), figures.random_losses(random, _OURS, _TREE)]
    return findings, tables, pictures


def _all_below(rows: pd.DataFrame, ours: str, other: str, factor: float, id: str, seed: int) -> Finding:
    """The largest ratio of mean losses over the six triples; it is the claim about all of them that is judged."""
    wide = rows.pivot(index=["loss", "seed"], columns="method", values="total")
    found = {
        loss: quotient(f"largest ratio of losses, {loss}", part[ours], part[other], seed=seed)
        for loss, part in wide.groupby(level="loss")
    }
    worst = max(found.values(), key=lambda m: m.value)
    # All six must hold: the interval that counts ends where the highest of them ends.
    ends = [m.high for m in found.values() if m.high is not None]
    measured = Measurement(worst.name, worst.value, worst.unit, worst.low, max(ends) if ends else None, worst.n)
    limit = f"< {factor:g}" if factor == 1 else f"<= {factor:g}"
    statement = {
        "multicalibrated-below-isotonic": "For all six losses, k* loses less on one multicalibrated predictor than on "
        "an isotonic recalibration.",
        "isotonic-below-raw": "For all six losses, k* loses less on an isotonic recalibration than on the raw forest.",
        "one-predictor-against-trees": "For all six losses, one predictor loses at most 0.75 times what a tree grown "
        "for the loss does.",
    }[id]
    return Finding(id, statement, Limit.parse(limit).judge(measured), measured, None, limit)


@lru_cache(maxsize=8)
def _scores(size: LossSize, seed: int) -> _Scores:
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    n = size.train + size.calibrate
    x, y = make_classification(
        n + size.test, 20, n_informative=8, n_redundant=4, flip_y=0.05, class_sep=0.7, random_state=seed
    )
    forest = RandomForestClassifier(size.trees, max_depth=6, random_state=seed).fit(x[: size.train], y[: size.train])
    raw = forest.predict_proba(x)[:, 1]
    fit, test = slice(size.train, n), slice(n, None)
    seen = np.column_stack([x, raw])
    began = time.perf_counter()
    model = MulticalibratedClassifier(20, random_state=seed).fit(seen[fit], y[fit])
    seconds = time.perf_counter() - began
    h = {
        _OURS: model.predict_proba(seen[test])[:, 1],
        _ISOTONIC: recalibrated(raw[fit], y[fit])(raw[test]),
        _PLATT: recalibrated(raw[fit], y[fit], "platt")(raw[test]),
        _RAW: raw[test],
        _GINI: ChowTree(None).fit(x[:n], y[:n]).predict_proba(x[test])[:, 1],
    }
    return _Scores(h, x[:n], y[:n], x[test], y[test], seconds)


def _tree(data: _Scores, loss: ChowLoss) -> NDArray[np.float64]:
    # It has all rows that base and calibration have together.
    return ChowTree(loss).fit(data.x, data.y).predict_proba(data.x_test)[:, 1]


def _six(size: LossSize, seed: int) -> list[dict[str, Any]]:
    data = _scores(size, seed)
    rows = []
    for name, loss in TRIPLES.items():
        scores = data.h | {_TREE: _tree(data, loss)}
        decisions = {method: loss.decide(h) for method, h in scores.items()}
        # The usual rule, allowed to speak as often as ours: it predicts the likelier label, or t* for the squared loss.
        share = float((~np.isnan(decisions[_OURS])).mean())
        spoken = confidence_threshold(data.h[_RAW], share) >= 0
        decisions[_SHARE] = np.where(spoken, loss.predict(data.h[_RAW]), np.nan)
        for method, decided in decisions.items():
            found = loss.evaluate(decided, data.y_test)
            h = scores.get(method, data.h[_RAW])
            rows.append(
                {
                    "seed": seed,
                    "loss": name,
                    "method": method,
                    "total": found.total,
                    "predicted_share": found.predicted_share,
                    "selective_loss": found.selective_loss if found.predicted_share else None,
                    "brier": float(np.mean((h - data.y_test) ** 2)),
                    "fit_seconds": data.seconds,
                }
            )
    return rows


def _random(size: LossSize, chunk: tuple[int, int]) -> list[dict[str, Any]]:
    seed, count = chunk
    data = _scores(size, seed)
    rows = []
    for loss in _random_losses(seed, count):
        scores = {_OURS: data.h[_OURS], _ISOTONIC: data.h[_ISOTONIC], _TREE: _tree(data, loss)}
        totals = {method: loss.evaluate(loss.decide(h), data.y_test).total for method, h in scores.items()}
        named = {"a_plus": loss.a_plus, "a_minus": loss.a_minus, "lam": loss.weights[0], "mu": loss.weights[1]}
        rows.append({"seed": seed, "loss": str(loss.kind), **named, "nu": loss.weights[2], "c1": loss.c1, **totals})
    return rows


def _random_losses(seed: int, count: int) -> list[ChowLoss]:
    rng = np.random.default_rng([seed, 7])
    found = []
    for k in range(count):
        kind = ("l1", "l2", "cost01")[k % 3]
        plus, minus = rng.uniform(0, 0.4, 2)
        lam, mu, nu = rng.uniform(0.2, 1, 3)
        found.append(ChowLoss(kind, plus, minus, (lam, mu, nu), c1=float(rng.uniform(0.5, 2))))  # type: ignore[arg-type]
    return found


def _timed(count: int, seed: int) -> float:
    h = np.random.default_rng(seed).random(_TIMED_ROWS)
    found = []
    for _ in range(3):
        # Fresh each time: their intervals are not remembered.
        triples = _random_losses(seed, count)
        began = time.perf_counter()
        for loss in triples:
            loss.decide(h)
        found.append(time.perf_counter() - began)
    return sorted(found)[1]
