"""Race: agreement of all pairs of 50 models on a million rows, and a whole audit with intervals, against pandas loops.

The loops are the formulas as they are usually written: a pandas comparison a pair; of the reference implementation
also the mask of rows a pair, one call of scipy's probability mass function a count, and resampled rows of the table.
Memory is the peak of arrays made during the race, beside the table of one byte a decision that both are given.

    python benchmarks/pairwise_agreement.py [--models 50] [--rows 1000000] [--pairs 60] [--draws 500] [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import poisson_binom

from touchstone.decisions.monoculture import DecisionTable, audit, one_factor_table, pairwise_agreement, recourse_levels
from touchstone.decisions.monoculture.baselines import poisson_binomial_pmf, success_rates
from touchstone.decisions.monoculture.measures import upper


def timed(work: Callable[[], Any], repeats: int = 1) -> tuple[float, float, Any]:
    """Median seconds, peak megabytes and result; memory is looked at in a run of its own, which slows it."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - began)
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return statistics.median(seconds), peak / 1e6, found


def looped(frame: pd.DataFrame, pairs: list[tuple[str, str]]) -> list[float]:
    return [float((frame[a] == frame[b]).mean()) for a, b in pairs]


def looped_with_mask(frame: pd.DataFrame, pairs: list[tuple[str, str]]) -> list[float]:
    found = []
    for a, b in pairs:
        two = frame[[a, b]]
        seen = two.notna().any(axis=1)
        found.append(float((two[seen].iloc[:, 0] == two[seen].iloc[:, 1]).sum() / seen.sum()))
    return found


def plain_audit(votes: np.ndarray, draws: int) -> tuple[float, np.ndarray]:
    """Agreement of pairs, independent counts and bootstrapped recourse, [cases, models] of floats."""
    frame = pd.DataFrame(votes)
    pairs = looped_with_mask(frame, list(combinations(frame.columns, 2)))
    rates = votes.mean(axis=0)
    np.array([poisson_binom.pmf(k, rates) for k in range(votes.shape[1] + 1)])
    rng = np.random.default_rng(0)
    none = np.empty(draws)
    for k in range(draws):
        resampled = votes[rng.integers(len(votes), size=len(votes))]
        levels, counts = np.unique(np.nansum(resampled, axis=1), return_counts=True)
        none[k] = counts[levels == 0].sum() / len(votes)
    return float(np.mean(pairs)), none


def same_outputs(table: DecisionTable, draws: int) -> tuple[float, np.ndarray]:
    """What ``plain_audit`` gives: draws of cases by number of successes are multinomial."""
    agreement = upper(pairwise_agreement(table)).mean()
    poisson_binomial_pmf(success_rates(table.votes))
    levels = np.bincount(np.rint(recourse_levels(table) * len(table.models)).astype(int))
    drawn = np.random.default_rng(0).multinomial(len(table), levels / levels.sum(), size=draws)
    return float(agreement), drawn[:, 0] / len(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=60, help="pairs that the loops are timed on; all are counted")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()

    table = one_factor_table(0.5, models=chosen.models, cases=chosen.rows)
    frame = pd.DataFrame(dict(zip(table.models, table.votes, strict=True)))
    every = list(combinations(table.models, 2))
    some = every[:: max(1, len(every) // chosen.pairs)]
    print(f"{chosen.models} models, {chosen.rows} rows, {len(every)} pairs; loops timed on {len(some)} of them")
    ours, room, matrix = timed(lambda: pairwise_agreement(table), chosen.repeats)
    whole, _, _ = timed(lambda: pairwise_agreement(DecisionTable(frame, table.y)))
    print(f"ours: {ours:.3f} s, {room:.0f} MB; from a DataFrame, with its checks, {whole:.2f} s")
    places = {name: k for k, name in enumerate(table.models)}
    for label, work in (("pandas loop", looped), ("reference loop", looped_with_mask)):
        seconds, peak, found = timed(lambda work=work: work(frame, some))
        seconds *= len(every) / len(some)
        gap = max(abs(matrix[places[a], places[b]] - value) for (a, b), value in zip(some, found, strict=True))
        print(f"{label}: {seconds:.1f} s, {peak:.0f} MB: {seconds / ours:.0f} times ours, within {gap:.0e}")

    table = one_factor_table(0.6, models=27, cases=61_233)
    values = table.decisions.to_numpy()
    ours, room, report = timed(lambda: audit(table, np.inf, n_boot=chosen.draws), chosen.repeats)
    plain, peak, (agreement, none) = timed(lambda: plain_audit(values, chosen.draws))
    gap = abs(report.content["agreement"]["mean"] - agreement)
    error = abs(report.content["recourse"]["none"] - none.mean())
    print(f"audit of 27 models on 61233 rows, {chosen.draws} draws: {ours:.2f} s, {room:.0f} MB, with every measure;")
    print(f"  loops, agreement and no recourse only: {plain:.1f} s, {peak:.0f} MB: {plain / ours:.0f} times ours,")
    print(f"  agreement within {gap:.0e}, mean share without recourse within {error:.0e}")
    same, room, (_, drawn) = timed(lambda: same_outputs(table, chosen.draws), chosen.repeats)
    spread = drawn.std() / none.std()
    print(
        f"  ours, these outputs only: {same:.3f} s, {room:.0f} MB: {plain / same:.0f} times, spread {spread:.2f} times"
    )
    rates = values.mean(axis=0)
    one, _, first = timed(lambda: poisson_binomial_pmf(rates), 50)
    two, _, second = timed(lambda: np.array([poisson_binom.pmf(k, rates) for k in range(28)]), 5)
    gap = np.abs(first - second).max()
    print(f"Poisson-binomial of 27 models: {two / one:.0f} times faster than a call a count, within {gap:.0e}")


if __name__ == "__main__":
    main()
