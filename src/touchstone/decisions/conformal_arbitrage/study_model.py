"""The study on a real language model: it answers which city is a capital, and an expert is asked where it is unsure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage
from touchstone.decisions.conformal_arbitrage.baselines import compare_routers, measure
from touchstone.decisions.conformal_arbitrage.capitals import Question, questions

if TYPE_CHECKING:
    from touchstone.decisions.conformal_arbitrage.option_scorer import OptionScorer
    from touchstone.run import Run

__all__ = ["ALPHAS_MODEL", "expert", "scored", "split_runs"]

Floats = NDArray[np.float64]
ALPHAS_MODEL = (0.02, 0.05, 0.1, 0.15, 0.2)
_SKILL = 0.97
_CHUNK = 16
_SPLITS_A_UNIT = 25


def scored(scorer: OptionScorer, run: Run, most: int | None = None) -> tuple[list[Question], Floats]:
    """Questions and the model's probability of each option, [questions, 4]: softmax over the options' scores."""
    asked = questions(seed=run.seed)
    if most is not None and most < len(asked):
        picked = np.random.default_rng([run.seed, 12]).permutation(len(asked))[:most]
        asked = [asked[i] for i in sorted(picked)]
    units = [asked[i : i + _CHUNK] for i in range(0, len(asked), _CHUNK)]
    label = f"{scorer.source} answers {len(asked)} questions"
    rows = [row for part in run.map(label, partial(_score, scorer), units) for row in part]
    logits = np.array(rows)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return asked, odds / odds.sum(axis=1, keepdims=True)


def _score(scorer: OptionScorer, unit: Sequence[Question]) -> list[list[float]]:
    return scorer.score([question.prompt for question in unit], [question.options for question in unit])


def expert(asked: Sequence[Question], seed: int) -> Floats:
    """Scores of an expert who picks the right option 97 % of the time and any other one else, [questions, options]."""
    rng = np.random.default_rng([seed, 13])
    picks = []
    for question in asked:
        wrong = [k for k in range(len(question.options)) if k != question.label]
        picks.append(question.label if rng.random() < _SKILL else int(rng.choice(wrong)))
    return np.eye(len(asked[0].options))[picks]


def split_runs(asked: Sequence[Question], primary: Floats, seed: int, splits: int, run: Run) -> pd.DataFrame:
    """Random halves to calibrate and to test on: one row a split and alpha."""
    labels = [question.label for question in asked]
    guardian = expert(asked, seed)
    units = [list(range(i, min(i + _SPLITS_A_UNIT, splits))) for i in range(0, splits, _SPLITS_A_UNIT)]
    work = partial(_splits, primary, guardian, labels, seed)
    return pd.DataFrame([row for part in run.map("random halves of the questions", work, units) for row in part])


def _splits(
    primary: Floats, guardian: Floats, labels: Sequence[int], seed: int, unit: Sequence[int]
) -> list[dict[str, Any]]:
    right = np.eye(primary.shape[1])[list(labels)]
    rows: list[dict[str, Any]] = []
    for split in unit:
        order = np.random.default_rng([seed, split, 14]).permutation(len(labels))
        known, test = order[: len(order) // 2], order[len(order) // 2 :]
        for alpha in ALPHAS_MODEL:
            if (len(known) + 1) * alpha < 1:
                continue
            router = ConformalArbitrage(alpha).calibrate(primary[known], right[known])
            numbers = measure(router, primary[test], guardian[test], right[test])
            found = compare_routers(router, primary[test], guardian[test], right[test]).set_index("router")["guard"]
            size = numbers["candidates"]
            rows.append(
                {
                    "alpha": alpha,
                    "split": split,
                    "candidate_risk": numbers["candidate_risk"],
                    "realised_risk": numbers["realised_risk"],
                    "calls": numbers["calls"],
                    "candidates": size if math.isfinite(size) else None,
                    "accuracy": numbers["guard"],
                    "random": float(found["random"]),
                    "margin": float(found["margin"]),
                    "primary": float(found["primary"]),
                    "guardian": float(found["guardian"]),
                }
            )
    return rows
