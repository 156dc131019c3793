"""The routers to beat: alone, at random, by margin, confidence, entropy, a learned one, and one that sees the answer.

Each is measured on the same queries as the router itself, and calls the Guardian as often, or for as much money.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage
from touchstone.decisions.conformal_arbitrage.costs import Costs
from touchstone.decisions.conformal_arbitrage.risk import guardian_order
from touchstone.decisions.conformal_arbitrage.tables import Options, Rows, matched, normalised, table
from touchstone.errors import InputError

__all__ = ["Outcome", "chord_gain", "compare_routers", "measure"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """Means over queries of one way to choose.

    Attributes
    ----------
    objective : Primary score of what is returned.
    guard : guardrail value of it.
    loss : best guardrail value less that: the realised risk.
    calls : share of queries for which the Guardian is called.
    cost : a query.
    """

    objective: float
    guard: float
    loss: float
    calls: float
    cost: float


@dataclass(frozen=True)
class _Scene:
    """The queries with both choosers' favourites."""

    options: Options
    guard: Floats
    guardian: Floats
    costs: Costs
    primary_choice: NDArray[np.int64]
    guardian_choice: NDArray[np.int64]

    def of(self, choice: NDArray[np.int64], deferred: Bools, shown: Bools) -> Outcome:
        rows = np.arange(len(choice))
        guard = self.guard[rows, choice]
        best = np.where(self.options.mask, self.guard, -np.inf).max(axis=1)
        cost = self.costs.first(len(choice)) + deferred * self.costs.second(shown)
        return Outcome(
            float(self.options.scores[rows, choice].mean()),
            float(guard.mean()),
            float((best - guard).mean()),
            float(deferred.mean()),
            float(cost.mean()),
        )

    def routed(self, deferred: Bools) -> Outcome:
        """The Guardian picks from all options where it is called."""
        return self.of(np.where(deferred, self.guardian_choice, self.primary_choice), deferred, self.options.mask)


def measure(
    router: ConformalArbitrage,
    primary_scores: Rows,
    guardian_scores: Rows,
    guard_values: Rows,
    mask: Bools | None = None,
) -> dict[str, float]:
    """Candidate and realised risk, calls, cost and what both objectives come to, on queries with known values.

    Keys ``candidate_risk``, ``realised_risk``, ``objective``, ``guard``, ``calls``, ``cost`` and ``candidates``, the
    mean number of them when the Guardian is called.
    """
    scene = _scene(router, primary_scores, guardian_scores, guard_values, mask)
    return _measured(router, scene)[0]


def _measured(router: ConformalArbitrage, scene: _Scene) -> tuple[dict[str, float], Bools, Outcome]:
    candidates = router.inside(scene.options)
    deferred = candidates.sum(axis=1) > 1
    rank = guardian_order(Options(scene.options.scores, candidates), scene.guardian)
    choice = np.where(deferred, rank.argmin(axis=1), scene.primary_choice)
    own = scene.of(choice, deferred, candidates)
    best, kept = (np.where(where, scene.guard, -np.inf).max(axis=1) for where in (scene.options.mask, candidates))
    sizes = candidates.sum(axis=1)[deferred]
    return (
        {
            "candidate_risk": float((best - kept).mean()),
            "realised_risk": own.loss,
            "objective": own.objective,
            "guard": own.guard,
            "calls": own.calls,
            "candidates": float(sizes.mean()) if len(sizes) else math.nan,
            "cost": own.cost,
        },
        deferred,
        own,
    )


def compare_routers(
    router: ConformalArbitrage,
    primary_scores: Rows,
    guardian_scores: Rows,
    guard_values: Rows,
    *,
    mask: Bools | None = None,
    train: tuple[Rows, Rows] | None = None,
    weight: float = 1.0,
    seed: int = 0,
) -> pd.DataFrame:
    """The router and its baselines on queries with known values, one row a way to choose.

    Columns ``router``, ``objective``, ``guard``, ``loss``, ``calls``, ``cost``. Rows ``arbitrage``; ``primary`` and
    ``guardian`` alone; ``random`` (the Guardian picks from all options with the probability that costs as much as the
    router, as a closed form) and ``random, sampled``; ``margin`` (called where the router calls, free to pick any
    option); ``confidence``, ``entropy``, ``learned`` and ``oracle`` at as many calls; ``weighted sum`` p + w·g.

    Parameters
    ----------
    router : calibrated.
    train : Primary scores and guardrail values to learn ``learned`` from, such as the calibration queries; it is left
        out without them, and where options vary in number.
    weight : w of the weighted sum.
    seed : of the sampled run.

    Raises
    ------
    InputError
        If scores are not as expected.
    """
    scene = _scene(router, primary_scores, guardian_scores, guard_values, mask)
    _, deferred, own = _measured(router, scene)
    n, mask = len(deferred), scene.options.mask
    none, all_of = np.zeros(n, dtype=bool), np.ones(n, dtype=bool)
    primary, guardian = scene.routed(none), scene.routed(all_of)
    share = _matched_share(own, primary, guardian)
    drawn = np.random.default_rng(seed).random(n) < share
    calls = int(deferred.sum())
    scores = scene.options.scores
    top = np.where(mask, scores, -np.inf).max(axis=1)
    both = np.where(mask, scores + weight * scene.guardian, -np.inf).argmax(axis=1)
    gain = scene.guard[np.arange(n), scene.guardian_choice] - scene.guard[np.arange(n), scene.primary_choice]
    found = {
        "arbitrage": own,
        "primary": primary,
        "guardian": guardian,
        "random": mixed(primary, guardian, share),
        "random, sampled": scene.routed(drawn),
        "margin": scene.routed(deferred),
        "confidence": scene.routed(_lowest(top, calls)),
        "entropy": scene.routed(_lowest(-_entropy(scene.options), calls)),
    }
    if train is not None and mask.all():
        found["learned"] = scene.routed(_lowest(-_learned(router, train, scene.options), calls))
    found["oracle"] = scene.routed(_lowest(-gain, calls) & (gain > 0))
    found["weighted sum"] = scene.of(both, all_of, mask)
    rows = [(name, o.objective, o.guard, o.loss, o.calls, o.cost) for name, o in found.items()]
    return pd.DataFrame(rows, columns=["router", "objective", "guard", "loss", "calls", "cost"])


def mixed(primary: Outcome, guardian: Outcome, share: float) -> Outcome:
    """The Guardian with probability ``share``, else the Primary: every mean is the straight line between theirs."""
    names = ("objective", "guard", "loss", "calls", "cost")
    return Outcome(*((1 - share) * getattr(primary, x) + share * getattr(guardian, x) for x in names))


def chord_gain(primary: tuple[float, float], guardian: tuple[float, float], point: tuple[float, float]) -> float:
    """How much more objective a point has than the mixture of Primary and Guardian with the same guardrail value.

    Each argument is a pair (objective, guard). NaN if both alone have one guardrail value.
    """
    if guardian[1] == primary[1]:
        return math.nan
    share = (point[1] - primary[1]) / (guardian[1] - primary[1])
    return point[0] - ((1 - share) * primary[0] + share * guardian[0])


def _scene(router: ConformalArbitrage, primary: Rows, guardian: Rows, guard: Rows, mask: Bools | None) -> _Scene:
    raw = table(primary, "primary_scores", mask)
    options = normalised(raw, router.normalise)
    values = matched(guard, "guard_values", options, low=0.0, high=router.B)
    judged = matched(guardian, "guardian_scores", options)
    first = guardian_order(options, options.scores).argmin(axis=1)
    return _Scene(options, values, judged, router.costs, first, guardian_order(options, judged).argmin(axis=1))


def _matched_share(own: Outcome, primary: Outcome, guardian: Outcome) -> float:
    """The probability of a call at which random routing costs what the router does; its call rate if calls are free."""
    if guardian.cost <= primary.cost:
        return own.calls
    return min(1.0, (own.cost - primary.cost) / (guardian.cost - primary.cost))


def _lowest(values: Floats, count: int) -> Bools:
    found = np.zeros(len(values), dtype=bool)
    found[np.argsort(values, kind="stable")[:count]] = True
    return found


def _entropy(options: Options) -> Floats:
    """Of scores as probabilities; of their softmax where they are not all at least 0."""
    scores = np.where(options.mask, options.scores, 0.0)
    if (scores < 0).any():
        scores = normalised(options, "softmax").scores
    total = scores.sum(axis=1, keepdims=True)
    share = np.where(total > 0, scores / np.where(total > 0, total, 1.0), 0.0)
    return -(share * np.log(np.where(share > 0, share, 1.0))).sum(axis=1)


def _learned(router: ConformalArbitrage, train: tuple[Rows, Rows], options: Options) -> Floats:
    """Probability that the Primary's choice loses, by a logistic regression on its sorted scores."""
    from sklearn.linear_model import LogisticRegression

    known = normalised(table(train[0], "train scores"), router.normalise)
    guard = matched(train[1], "train values", known, low=0.0, high=router.B)
    if known.scores.shape[1] != options.scores.shape[1]:
        raise InputError("train: expected as many options as the queries have")
    picked = guard[np.arange(len(guard)), known.scores.argmax(axis=1)]
    wrong = picked < guard.max(axis=1)
    if wrong.all() or not wrong.any():
        return np.full(len(options.scores), float(wrong[0]))
    model = LogisticRegression(max_iter=1000).fit(_features(known), wrong)
    return np.asarray(model.predict_proba(_features(options))[:, 1])


def _features(options: Options) -> Floats:
    """Scores from the best down, and how far each is below the one before."""
    ordered = -np.sort(-options.scores, axis=1)
    return np.hstack([ordered, -np.diff(ordered, axis=1)])
