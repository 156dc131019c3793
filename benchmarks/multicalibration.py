"""Race: multicalibration of 50,000 scores in 12 overlapping groups, against `multicalibration` (HKRR) and MCGrad.

All get the same scores, outcomes, groups and features, and the same rows. HKRR knows groups and level sets only, so
that ours runs against it twice: on groups and level sets alone, and with its trees on all features. What counts is the
time at equal held-out error: the violations on fresh rows stand beside each time. HKRR's own `predict` is a loop over
rows with lookups in lists; it is given sets, which are faster, and timed on a part of the rows.

    pip install --no-deps multicalibration==0.0.2 MCGrad==0.1.5 lightgbm==4.7.0
    OMP_NUM_THREADS=1 python benchmarks/multicalibration.py [--rows 50000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import importlib
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from touchstone.decisions.selective_omniprediction import MulticalibratedClassifier, audit

GROUPS, FEATURES = 12, 14
PREDICTED = 2000


def world(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, groups that overlap, scores that are off in half of the groups, and outcomes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES))
    groups = rng.random((rows, GROUPS)) < np.linspace(0.05, 0.5, GROUPS)
    groups[:, 0] |= x[:, 0] > 1.5
    groups[:, 1] |= x[:, 1] > 1.0
    score = 1 / (1 + np.exp(-1.2 * x[:, 0] - 0.8 * x[:, 1]))
    shift = groups[:, :6] @ np.array([0.2, -0.2, 0.15, -0.15, 0.1, -0.1]) * (0.5 + score)
    truth = np.clip(score + shift + 0.1 * (x[:, 2] > 0) * (x[:, 3] > 0), 0.01, 0.99)
    return x, groups, score, (rng.random(rows) < truth).astype(int)


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    times, found = [], None
    for _ in range(repeats):
        began = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - began)
    return statistics.median(times), found


def described(h: np.ndarray, y: np.ndarray, groups: np.ndarray) -> str:
    frame = audit(np.clip(h, 0, 1), y, groups, n_boot=0).frame
    inside = frame[frame["group"] != "everyone"]
    worst, mean = inside["multicalibration"].max(), inside["multicalibration"].mean()
    return (
        f"violation {worst:.4f} (worst group) {mean:.4f} (mean), ECE {inside['ece'].max():.4f} (worst group), "
        f"squared error {np.mean((h - y) ** 2):.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    x, groups, score, y = world(chosen.rows, 0)
    # More fresh rows than rows of the fit: chance would hide what is left of the violations.
    x_new, groups_new, score_new, y_new = world(4 * chosen.rows, 1)
    print(f"scores as they are: {described(score_new, y_new, groups_new)}")
    wide, wide_new = np.column_stack([x, score]), np.column_stack([x_new, score_new])
    alone, alone_new = score[:, None], score_new[:, None]

    def ours(seen: np.ndarray, **options: Any) -> MulticalibratedClassifier:
        return MulticalibratedClassifier(seen.shape[1] - 1, step=0.3, tol=5e-5, patience=6, **options).fit(
            seen, y, groups=groups
        )

    seconds = {}
    for name, seen, new in (
        ("ours, groups and level sets", alone, alone_new),
        ("ours, trees on features", wide, wide_new),
    ):
        seconds[name], model = timed(lambda seen=seen: ours(seen), chosen.repeats)
        predicting, h = timed(lambda m=model, new=new: m.predict_proba(new, groups_new)[:, 1], 1)
        print(f"{name}: fit {seconds[name]:.2f} s, {len(y_new)} predictions {predicting:.2f} s")
        print(f"    {described(h, y_new, groups_new)}")
    slow, _ = timed(lambda: ours(wide, search="full"), 1)
    print(f"    every group's tree in every round instead of the likeliest: {slow:.2f} s")
    hkrr(score, y, groups, score_new, y_new, groups_new, seconds)
    mcgrad(x, score, y, groups, (x_new, score_new, y_new, groups_new), seconds)


def hkrr(
    score: Any, y: Any, groups: Any, score_new: Any, y_new: Any, groups_new: Any, seconds: dict[str, float]
) -> None:
    # This file has the peer's name, and its folder comes first.
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]
    try:
        peer = importlib.import_module("multicalibration")
    except ImportError as error:
        print(f"multicalibration: not installed ({error})")
        return
    members = [np.flatnonzero(g).tolist() for g in [np.ones(len(y), dtype=bool), *groups.T]]
    some = np.arange(PREDICTED)
    members_new = [set(np.flatnonzero(g[some]).tolist()) for g in [np.ones(len(some), dtype=bool), *groups_new[some].T]]
    settings = {"lambda": 0.1, "max_iter": 50, "randomized": True, "use_oracle": False}
    for alpha in (0.1, 0.02):
        np.random.seed(0)  # noqa: NPY002
        model = peer.MulticalibrationPredictor("HKRR")
        began = time.perf_counter()
        model.fit(score, y, members, settings | {"alpha": alpha})
        fitting = time.perf_counter() - began
        began = time.perf_counter()
        h = model.predict(score_new[some], members_new)
        predicting = (time.perf_counter() - began) * len(y_new) / len(some)
        print(f"multicalibration, HKRR, alpha {alpha:g}: fit {fitting:.2f} s, predictions {predicting:.2f} s (scaled)")
        # The whole of the fresh rows by its own steps, vectorised, for the same error without the wait.
        whole = replayed(model.mcbp, score_new, groups_new)
        print(f"    same as its predict: {np.allclose(whole[some], h)}; {described(whole, y_new, groups_new)}")
        print("    " + ", ".join(f"{fitting / s:.1f} times {name}" for name, s in seconds.items()))


def replayed(model: Any, score: np.ndarray, groups: np.ndarray) -> np.ndarray:
    inside = np.column_stack([np.ones(len(score), dtype=bool), groups])
    h, width = score.copy(), model.lmbda

    def level(v: float) -> np.ndarray:
        return ((v < h) | ((v == 0) & (h == 0))) & (h <= v + width)

    for places, values, deltas in zip(
        model.subgroup_updated_iters, model.v_updated_iters, model.delta_iters, strict=True
    ):
        for g, v, delta in zip(places, values, deltas, strict=True):
            rows = inside[:, g] & level(v)
            h[rows] = np.clip(h[rows] + delta, 0, 1)
    final = h.copy()
    done = np.zeros(len(h), dtype=bool)
    for v in np.arange(0, 1, width):
        rows = level(v) & ~done
        done |= rows
        if model.v_hat_saved[-1][v] != -1:
            final[rows] = model.v_hat_saved[-1][v]
    return final


def mcgrad(x: Any, score: Any, y: Any, groups: Any, new: Any, seconds: dict[str, float]) -> None:
    try:
        peer = importlib.import_module("mcgrad.methods")
    except ImportError as error:
        print(f"MCGrad: not installed ({error})")
        return
    x_new, score_new, y_new, groups_new = new
    numbers, kinds = [f"x{k}" for k in range(x.shape[1])], [f"g{k}" for k in range(groups.shape[1])]

    def table(x: Any, groups: Any, score: Any, y: Any) -> pd.DataFrame:
        frame = pd.DataFrame(np.column_stack([x, groups]), columns=[*numbers, *kinds])
        return frame.astype(dict.fromkeys(kinds, int)).assign(score=score, y=y)

    train, test = table(x, groups, score, y), table(x_new, groups_new, score_new, y_new)
    for name, features in (("groups", []), ("groups and features", numbers)):
        began = time.perf_counter()
        model = peer.MCGrad()
        model.fit(train, "score", "y", categorical_feature_column_names=kinds, numerical_feature_column_names=features)
        fitting = time.perf_counter() - began
        began = time.perf_counter()
        h = model.predict(
            test, "score", categorical_feature_column_names=kinds, numerical_feature_column_names=features
        )
        predicting = time.perf_counter() - began
        print(f"MCGrad, {name}: fit {fitting:.2f} s, {len(y_new)} predictions {predicting:.2f} s")
        print(f"    {described(np.asarray(h), y_new, groups_new)}")
        print("    " + ", ".join(f"{fitting / s:.1f} times {name}" for name, s in seconds.items()))


if __name__ == "__main__":
    main()
