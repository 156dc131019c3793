"""The study where the truth is known: noisy digits, a trade-off that is generated, and a test of the bound itself."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage
from touchstone.decisions.conformal_arbitrage.baselines import chord_gain, compare_routers, measure
from touchstone.decisions.conformal_arbitrage.costs import Costs

__all__ = ["ALPHAS_DIGITS", "ALPHAS_TRADE", "STRESS", "digits", "stress", "trade_off"]

Floats = NDArray[np.float64]
ALPHAS_DIGITS = (0.02, 0.05, 0.1, 0.2, 0.3)
ALPHAS_TRADE = (0.05, 0.1, 0.2, 0.3, 0.4)
STRESS = tuple((n, alpha) for n in (20, 50, 200, 1000) for alpha in (0.01, 0.05, 0.2))
_COSTS = Costs(primary=1.0, guardian=20.0)


def digits(seed: int, repetition: int) -> list[dict[str, Any]]:
    """Digits under noise: a regression that sees every third pixel, and a kernel machine that sees all of them.

    One row a way to choose and alpha, from 500 images to learn on, 400 to calibrate on and the other 897 to test on.
    """
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    pixels, labels = load_digits(return_X_y=True)
    noisy = pixels / 16 + np.random.default_rng(5 + seed).normal(0, 0.35, pixels.shape)
    order = np.random.default_rng([seed, repetition, 1]).permutation(len(labels))
    train, known, test = order[:500], order[500:900], order[900:]
    small = LogisticRegression(max_iter=2000).fit(noisy[train][:, ::3], labels[train])
    large = SVC(C=5).fit(noisy[train], labels[train])
    primary = small.predict_proba(noisy[:, ::3])
    guardian = np.asarray(large.decision_function(noisy))
    right = np.eye(10)[labels]
    rows: list[dict[str, Any]] = []
    for alpha in ALPHAS_DIGITS:
        router = ConformalArbitrage(alpha, costs=_COSTS).calibrate(primary[known], right[known])
        at = {"alpha": alpha, "repetition": repetition, "lam": router.lam_}
        numbers = measure(router, primary[test], guardian[test], right[test])
        found = compare_routers(
            router, primary[test], guardian[test], right[test], train=(primary[known], right[known]), seed=repetition
        )
        for row in found.to_dict("records"):
            own = row["router"] == "arbitrage"
            risk = numbers["candidate_risk"] if own else None
            size = numbers["candidates"] if own and math.isfinite(numbers["candidates"]) else None
            kept = {"router": row["router"], "accuracy": row["guard"], "calls": row["calls"], "cost": row["cost"]}
            rows.append(at | kept | {"candidate_risk": risk, "candidates": size})
    return rows


def trade_off(seed: int, repetition: int) -> list[dict[str, Any]]:
    """Helpfulness against harm, both known: 8 options, 500 queries to calibrate on and 2,000 to test on."""
    rng = np.random.default_rng([seed, repetition, 2])
    help_, safe, primary, guardian = _answers(2500, rng)
    known, test = slice(0, 500), slice(500, None)
    rows = np.arange(2000)

    def reached(choice: NDArray[np.int64]) -> tuple[float, float]:
        return float(help_[test][rows, choice].mean()), float(safe[test][rows, choice].mean())

    ends = [reached(scores[test].argmax(axis=1)) for scores in (primary, guardian)]
    found = []
    for alpha in ALPHAS_TRADE:
        router = ConformalArbitrage(alpha).calibrate(primary[known], safe[known])
        numbers = measure(router, primary[test], guardian[test], safe[test])
        made = router.decide(primary[test], guardian[test])
        point = reached(made.choice)
        found.append(
            {
                "alpha": alpha,
                "repetition": repetition,
                "help": point[0],
                "safe": point[1],
                "gain": chord_gain(ends[0], ends[1], point),
                "candidate_risk": numbers["candidate_risk"],
                "realised_risk": numbers["realised_risk"],
                "calls": numbers["calls"],
                "primary_help": ends[0][0],
                "primary_safe": ends[0][1],
                "guardian_help": ends[1][0],
                "guardian_safe": ends[1][1],
            }
        )
    return found


def realised(seed: int, repetition: int) -> dict[str, Any]:
    """At alpha 0.2, with each of the three promises: the risk of what is returned, and the help that is kept."""
    rng = np.random.default_rng([seed, repetition, 4])
    help_, safe, primary, guardian = _answers(2500, rng)
    known, test = slice(0, 500), slice(500, None)
    found: dict[str, Any] = {"repetition": repetition}
    for risk in ("candidate", "realised_monotone", "realised_ltt"):
        router = ConformalArbitrage(0.2, risk).calibrate(primary[known], safe[known], guardian[known])
        numbers = measure(router, primary[test], guardian[test], safe[test])
        choice = router.decide(primary[test], guardian[test]).choice
        found |= {risk: numbers["realised_risk"], f"{risk}_help": float(help_[test][np.arange(2000), choice].mean())}
    return found


def _answers(n: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats, Floats]:
    """Help, safety (1 − harm), Primary and Guardian scores of 8 answers to n queries; helpful answers harm more."""
    drive = rng.normal(size=(n, 8))
    danger = 0.6 * drive + 0.8 * rng.normal(size=(n, 8))
    help_, harm = _sigmoid(drive), _sigmoid(2 * (danger - 0.3))
    primary = np.clip(help_ + rng.normal(0, 0.05, (n, 8)), 0, 1)
    guardian = np.clip(1 - harm + rng.normal(0, 0.1, (n, 8)), 0, 1)
    return help_, 1 - harm, primary, guardian


def stress(seed: int, cell: tuple[int, float, int]) -> dict[str, Any]:
    """The exact risk of thresholds calibrated on n uniform gaps, and after a shift; mean and standard error.

    With uniform gaps the risk of lam is 1 − lam. Shifted: calibrated on gaps from Beta(1, 3), used on uniform ones.
    """
    n, alpha, repetitions = cell
    rng = np.random.default_rng([seed, n, round(1000 * alpha), 3])
    right = np.tile([0.0, 1.0], (n, 1))
    risks: list[float] = []
    shifted: list[float] = []
    infinite = 0
    with warnings.catch_warnings():
        # Cells too small for their alpha are there on purpose.
        warnings.simplefilter("ignore")
        for _ in range(repetitions):
            for draw, kept in ((rng.random(n), risks), (rng.beta(1, 3, n), shifted)):
                router = ConformalArbitrage(alpha).calibrate(np.stack([np.ones(n), 1 - draw], axis=1), right)
                kept.append(max(0.0, 1 - router.lam_))
            infinite += math.isinf(router.lam_)
    return {
        "n": n,
        "alpha": alpha,
        "risk": float(np.mean(risks)),
        "error": float(np.std(risks, ddof=1) / math.sqrt(repetitions)),
        "predicted": max(0.0, math.floor(alpha * (n + 1) - 1 + 1e-9) + 1) / (n + 1),
        "shifted_risk": float(np.mean(shifted)),
        "infinite": infinite / repetitions,
        "repetitions": repetitions,
    }


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))
