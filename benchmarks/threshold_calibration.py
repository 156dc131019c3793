"""Race: the exact threshold by one sort, against MAPIE's conformal risk control and against a grid that is vectorised.

A row has 4 options, one of them right; the loss is 1 where the right one is no candidate. MAPIE controls the recall of
{options with probability > t}, which is the same with probability 1 − gap and lam = 1 − t. It evaluates its loss row by
row and threshold by threshold in Python, so it runs on fewer rows and its time is scaled to all of them; its memory for
one million rows and a grid of 1,000 would be tens of gigabytes. The vectorised grid is the formula of conformal risk
control written plainly in numpy, over chunks of rows.

    pip install mapie==1.6.0
    python benchmarks/threshold_calibration.py [--rows 1000000] [--grid 1000] [--mapie-rows 500]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from touchstone.decisions.conformal_arbitrage import ConformalArbitrage

ALPHA = 0.1
OPTIONS = 4


def table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities by a Primary that leans to the right option, and which one is right."""
    rng = np.random.default_rng(0)
    right = np.eye(OPTIONS)[rng.integers(OPTIONS, size=rows)]
    logits = rng.normal(size=(rows, OPTIONS)) + 1.2 * right
    odds = np.exp(logits)
    return odds / odds.sum(axis=1, keepdims=True), right


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - began)
    return statistics.median(times), found


def by_grid(scores: np.ndarray, right: np.ndarray, grid: np.ndarray) -> float:
    """The smallest threshold of the grid whose corrected mean loss is at most alpha."""
    totals = np.zeros(len(grid))
    for begin in range(0, len(scores), 20_000):
        some, own = scores[begin : begin + 20_000], right[begin : begin + 20_000]
        gap = some.max(axis=1) - (some * own).sum(axis=1)
        totals += (gap[:, None] > grid).sum(axis=0)
    return float(grid[np.flatnonzero((totals + 1) / (len(scores) + 1) <= ALPHA)[0]])


def by_mapie(scores: np.ndarray, right: np.ndarray, grid: np.ndarray) -> float:
    from mapie.risk_control import MultiLabelClassificationController

    likeness = 1 - (scores.max(axis=1, keepdims=True) - scores)
    control = MultiLabelClassificationController(
        lambda x: x, risk="recall", method="crc", target_level=1 - ALPHA, predict_params=np.sort(1 - grid)
    )
    return 1 - float(control.calibrate(likeness, right.astype(int)).best_predict_param[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--grid", type=int, default=1000)
    parser.add_argument("--mapie-rows", type=int, default=500)
    chosen = parser.parse_args()
    scores, right = table(chosen.rows)
    grid = np.linspace(0, 1, chosen.grid)
    print(f"{chosen.rows:,} rows, {OPTIONS} options, grid of {chosen.grid:,}")
    ours, router = timed(lambda: ConformalArbitrage(ALPHA).calibrate(scores, right), 3)
    print(f"exact, one sort   {ours:8.2f} s   lam {router.lam_:.6f}")
    plain, lam = timed(lambda: by_grid(scores, right, grid), 1)
    print(f"vectorised grid   {plain:8.2f} s   lam {lam:.6f}   {plain / ours:,.0f} times as long")
    assert router.lam_ <= lam <= router.lam_ + grid[1] + 1e-9, "the grid's threshold is not the next one above"
    try:
        import mapie
    except ImportError:
        print("MAPIE is not installed: pip install mapie==1.6.0")
        return
    few = min(chosen.mapie_rows, chosen.rows)
    seconds, found = timed(lambda: by_mapie(scores[:few], right[:few], grid), 1)
    same = ConformalArbitrage(ALPHA).calibrate(scores[:few], right[:few]).lam_
    scaled = seconds * chosen.rows / few
    print(
        f"MAPIE {mapie.__version__:<11} {scaled:8.0f} s   scaled from {seconds:.1f} s for {few:,} rows, "
        f"{scaled / ours:,.0f} times as long"
    )
    print(f"on those {few:,} rows: lam {found:.6f} by MAPIE, {same:.6f} exact, step of the grid {grid[1]:.6f}")
    assert same <= found + 1e-9 <= same + 2 * grid[1], "MAPIE's threshold is not the next one above"


if __name__ == "__main__":
    main()
