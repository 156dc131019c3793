"""Sets of models of different size made comparable, and what one more model is worth.

Recourse depends on how many models there are, whatever they do: sets are compared at the same size, by drawing models
from the larger ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import gammaln

from touchstone.decisions.monoculture.bits import pack
from touchstone.decisions.monoculture.measures import levels, pairwise_agreement, shares, tally, upper
from touchstone.decisions.monoculture.table import DecisionTable, Favourable, Focus
from touchstone.errors import InputError

__all__ = ["by_model_attribute", "compare_sets", "greedy_portfolio", "recourse_by_size", "subsampled"]

Floats = NDArray[np.float64]
STATISTICS = ("none", "substantial", "full", "agreement")


def subsampled(
    table: DecisionTable,
    size: int,
    *,
    draws: int = 1000,
    focus: Focus = "positive",
    favourable: Favourable = "accept",
    seed: int = 0,
) -> pd.DataFrame:
    """Recourse and agreement of subsets of ``size`` models, drawn without replacement; all of them if there are fewer.

    Columns ``none``, ``substantial``, ``full`` and ``agreement``, one row a subset. Their standard deviation is the
    uncertainty that comes from which models were looked at.

    Raises
    ------
    InputError
        If there are fewer models than that.
    """
    m = len(table.models)
    if not 1 <= size <= m:
        raise InputError(f"size {size}: expected 1 to {m} models")
    if comb(m, size) <= draws:
        subsets = np.array(list(combinations(range(m), size)), dtype=np.intp)
    else:
        rng = np.random.default_rng(seed)
        subsets = rng.permuted(np.tile(np.arange(m), (draws, 1)), axis=1)[:, :size]
    success = table.in_focus(focus, favourable).success
    agreement = pairwise_agreement(table, focus)
    packed = None if (success < 0).any() else pack(success)
    rows = []
    for subset in subsets:
        if packed is not None:
            n = packed.cases
            recourse = (
                1 - packed.at_least_one(subset) / n,
                packed.more_than_half(subset) / n,
                packed.all_of(subset) / n,
            )
        else:
            found = shares(levels(success[subset]))
            recourse = (found.none, found.substantial, found.full)
        pairs = upper(agreement[np.ix_(subset, subset)])
        rows.append((*recourse, float(np.nanmean(pairs)) if len(pairs) else np.nan))
    return pd.DataFrame(rows, columns=list(STATISTICS))


def recourse_by_size(
    table: DecisionTable, focus: Focus = "positive", favourable: Favourable = "accept"
) -> pd.DataFrame:
    """Expected recourse of a random subset of each size: exact, from the numbers of successes on each case.

    Columns ``models``, ``none``, ``substantial``, ``full``. The step from one row to the next is the value of one more
    model. Cases without all decisions are left out.
    """
    success = table.in_focus(focus, favourable).success
    m = len(success)
    won, decided = tally(success)
    n = np.bincount(won[decided == m], minlength=m + 1).astype(float)
    if not n.sum():
        raise InputError("recourse by size: no case was decided by all models")
    share, k = n / n.sum(), np.arange(m + 1)
    rows = []
    for size in range(1, m + 1):
        from scipy.stats import hypergeom

        most = hypergeom.sf(size // 2, m, k, size)
        none, full = np.exp(_choose(m - k, size) - _choose(m, size)), np.exp(_choose(k, size) - _choose(m, size))
        rows.append((size, float(share @ none), float(share @ most), float(share @ full)))
    return pd.DataFrame(rows, columns=["models", "none", "substantial", "full"])


def greedy_portfolio(
    table: DecisionTable, size: int | None = None, focus: Focus = "positive", favourable: Favourable = "accept"
) -> pd.DataFrame:
    """Models in the order in which each leaves the fewest cases without recourse: a set chosen for second chances.

    Columns ``model``, ``none`` (share without recourse once it is in) and ``drop`` (what it took off). Greedy choice is
    within 1 - 1/e of the best set's coverage. A missing decision gives nobody recourse.
    """
    packed = pack(table.in_focus(focus, favourable).success)
    covered = np.zeros(packed.bits.shape[1], dtype=np.uint64)
    left, rows, before = list(range(len(table.models))), [], 1.0
    for _ in range(min(size or len(left), len(left))):
        gains = np.bitwise_count(packed.bits[left] & ~covered).sum(axis=1, dtype=np.int64)
        best = left.pop(int(np.argmax(gains)))
        covered |= packed.bits[best]
        none = 1 - int(np.bitwise_count(covered).sum(dtype=np.int64)) / packed.cases
        rows.append((table.models[best], none, before - none))
        before = none
    return pd.DataFrame(rows, columns=["model", "none", "drop"])


def by_model_attribute(
    table: DecisionTable,
    attribute: str,
    *,
    least: int = 4,
    draws: int = 1000,
    focus: Focus = "positive",
    favourable: Favourable = "accept",
    seed: int = 0,
) -> pd.DataFrame:
    """Recourse within providers, or base and instruct models: sets of at least ``least``, all at the smallest's size.

    Columns ``set``, ``models``, ``size``, and for each statistic its mean and standard deviation over subsets.

    Raises
    ------
    InputError
        If nothing is known of the models, or no set is large enough.
    """
    if table.model_meta is None or attribute not in table.model_meta.columns:
        known = "nothing" if table.model_meta is None else ", ".join(map(str, table.model_meta.columns))
        raise InputError(f"attribute {attribute!r}: of the models is known {known}")
    names = table.model_meta[attribute].astype(str)
    sets = {str(name): [m for m in table.models if names[m] == name] for name in sorted(set(names))}
    sets = {name: members for name, members in sets.items() if len(members) >= least}
    if not sets:
        raise InputError(f"attribute {attribute!r}: no value has {least} models or more")
    tables = {name: table.select(members) for name, members in sets.items()}
    return compare_sets(tables, draws=draws, focus=focus, favourable=favourable, seed=seed)


def compare_sets(
    tables: Mapping[str, DecisionTable],
    *,
    draws: int = 100,
    focus: Focus = "positive",
    favourable: Favourable = "accept",
    seed: int = 0,
) -> pd.DataFrame:
    """Sets of models, or of prompts, at the size of the smallest; the paper's comparison of models with prompts.

    Parameters
    ----------
    tables : by name; they need not be of the same cases.
    draws : subsets of each larger set (the paper: 100 sets of prompts).
    """
    size = min(len(table.models) for table in tables.values())
    rows = []
    for name, table in tables.items():
        found = subsampled(table, size, draws=draws, focus=focus, favourable=favourable, seed=seed)
        spread = {f"{key}_sd": float(found[key].std(ddof=0)) for key in STATISTICS}
        rows.append(
            {"set": name, "models": len(table.models), "size": size, "subsets": len(found)}
            | {key: float(found[key].mean()) for key in STATISTICS}
            | spread
        )
    return pd.DataFrame(rows)


def _choose(n: NDArray[np.int64] | int, k: int) -> Floats:
    """log of the binomial coefficient, minus infinity where there is no such choice."""
    whole = np.asarray(n, dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = gammaln(whole + 1) - gammaln(k + 1) - gammaln(np.maximum(whole - k, 0) + 1)
    return np.where(whole >= k, found, -np.inf)
