"""Groups that may overlap, as indicator columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from touchstone.errors import InputError

__all__ = ["SMALLEST", "Membership", "Term", "indicators", "intersections", "membership", "plurality", "terms"]

Membership = NDArray[np.bool_]
Term = tuple[str, str]
"""An attribute and the value that a group's cases have."""
SMALLEST = 50
"""Rows below which a group says too little: the spec's, for fitting and for intersections."""


def membership(groups: ArrayLike | pd.DataFrame | None, rows: int) -> tuple[tuple[str, ...], Membership]:
    """Names and indicators [rows, groups] of ``groups``: a table, an array of 0 and 1, or nothing.

    Raises
    ------
    InputError
        If it has another number of rows, or a value that is neither 0 nor 1.
    """
    if groups is None:
        return (), np.zeros((rows, 0), dtype=bool)
    if isinstance(groups, pd.DataFrame):
        names = tuple(map(str, groups.columns))
        found = groups.to_numpy()
    else:
        found = np.asarray(groups)
        found = found[:, None] if found.ndim == 1 else found
        names = tuple(f"group {k}" for k in range(found.shape[-1]))
    if found.ndim != 2 or len(found) != rows:
        raise InputError(f"groups: expected {rows} rows of indicators, got shape {found.shape}")
    if len(set(names)) < len(names):
        raise InputError("groups: two columns have the same name")
    if found.dtype != bool:
        try:
            numbers = found.astype(float)
        except (TypeError, ValueError):
            numbers = np.full(found.shape, np.nan)
        if not np.isin(numbers, (0, 1)).all():
            raise InputError("groups: expected indicators, 0 or 1; `intersections` makes them from attributes")
        found = numbers == 1
    return names, np.ascontiguousarray(found)


def terms(columns: pd.DataFrame, depth: int = 2, min_size: int = SMALLEST) -> dict[str, tuple[Term, ...]]:
    """The groups of :func:`intersections`, each as the attributes and values that its cases have."""
    if depth < 1 or columns.shape[1] == 0:
        raise InputError(f"intersections: expected an attribute and a depth of at least 1, got depth {depth}")
    texts = {str(name): _texts(columns[name]) for name in columns}
    found: dict[str, tuple[Term, ...]] = {}
    for size in range(1, min(depth, len(texts)) + 1):
        for names in combinations(texts, size):
            for values in product(*(sorted(texts[name].unique()) for name in names)):
                one = tuple(zip(names, values, strict=True))
                inside = np.logical_and.reduce([(texts[name] == value).to_numpy() for name, value in one])
                if min_size <= inside.sum() < len(columns):
                    found[" & ".join(f"{name}={value}" for name, value in one)] = one
    return found


def indicators(columns: pd.DataFrame, groups: Mapping[str, Sequence[Term]]) -> pd.DataFrame:
    """Which cases are in which of the groups that :func:`terms` describes, [rows, groups]."""
    texts = {name: _texts(columns[name]) for name in {name for one in groups.values() for name, _ in one}}
    found = {
        group: np.logical_and.reduce([(texts[name] == value).to_numpy() for name, value in one])
        for group, one in groups.items()
    }
    return pd.DataFrame(found, index=columns.index, dtype=bool)


def intersections(columns: pd.DataFrame, depth: int = 2, min_size: int = SMALLEST) -> pd.DataFrame:
    """Indicators of each value of each attribute, and of each combination of values of up to ``depth`` attributes.

    Parameters
    ----------
    columns : attributes, one row a case; missing values are the value ``(missing)``.
    depth : attributes that are combined at most.
    min_size : smaller groups are left out, and so is a group of all cases.

    Raises
    ------
    InputError
        If there is no attribute, or ``depth`` is below 1.
    """
    return indicators(columns, terms(columns, depth, min_size))


def _texts(column: pd.Series) -> pd.Series:
    return column.astype(object).where(column.notna(), "(missing)").astype(str)


def plurality(votes: ArrayLike, groups: ArrayLike | pd.DataFrame) -> NDArray[np.int8]:
    """One decision a row from one classifier a group: 0, 1, or -1 (none) where votes are tied or no group has the row.

    Parameters
    ----------
    votes : decision of each group's classifier, [rows, groups]: 0, 1, or -1 for none.
    groups : indicators, [rows, groups].
    """
    said = np.asarray(votes)
    _, inside = membership(groups, len(said))
    if said.shape != inside.shape:
        raise InputError(f"votes: expected shape {inside.shape}, one column a group, got {said.shape}")
    counts = np.stack([((said == value) & inside).sum(axis=1) for value in (-1, 0, 1)])
    first = counts.argmax(axis=0)
    tied = (counts == counts.max(axis=0)).sum(axis=0) > 1
    return np.where(tied, -1, first - 1).astype(np.int8)
