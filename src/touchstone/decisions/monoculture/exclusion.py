"""Who has no recourse: a shallow tree that describes the cases that every model refuses."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.errors import InputError

__all__ = ["describe_excluded"]


def describe_excluded(
    features: pd.DataFrame, excluded: NDArray[np.bool_], *, depth: int = 3, least: float = 0.02
) -> pd.DataFrame:
    """Rules of a shallow tree, the one with the largest share of excluded cases first.

    The tree is fitted on one half of the cases and the shares are counted on the other: a rule that only fits noise
    shows no difference there.

    Parameters
    ----------
    features : of the cases, numbers or names; names are tested for being one value.
    excluded : whether each case is refused by every model.
    depth : most conditions of a rule.
    least : smallest share of cases that a rule covers.

    Returns
    -------
    Columns ``rule``, ``cases``, ``share`` (excluded among them), ``low``, ``high`` (95 %) and ``of_excluded`` (share of
    all excluded cases that it covers), on the held-out half.

    Raises
    ------
    InputError
        If lengths differ, or all or none are excluded.
    """
    from sklearn.tree import DecisionTreeClassifier

    from touchstone.evidence import Measurement

    if len(features) != len(excluded):
        raise InputError(f"excluded: {len(excluded)} values for {len(features)} cases; expected as many")
    fitted = np.arange(len(features)) % 2 == 0
    if len({*excluded[fitted].tolist()}) < 2 or not excluded[~fitted].any():
        raise InputError("excluded: all or none of the cases are; there is nothing to tell apart")
    named = [c for c in features.columns if not pd.api.types.is_numeric_dtype(features[c])]
    x = pd.get_dummies(features, columns=named, prefix_sep=" = ", dtype=float).astype(float)
    x = x.fillna(x.median())
    tree = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=max(1, int(least * fitted.sum())), random_state=0)
    tree.fit(x[fitted], excluded[fitted])
    leaf = tree.apply(x[~fitted])
    out = excluded[~fitted]
    rows = []
    for node, rule in _rules(tree, list(x.columns), named).items():
        inside = leaf == node
        if inside.any():
            share = Measurement.rate("excluded", int(out[inside].sum()), int(inside.sum()))
            rows.append(
                (rule, int(inside.sum()), share.value, share.low, share.high, float(out[inside].sum() / out.sum()))
            )
    frame = pd.DataFrame(rows, columns=["rule", "cases", "share", "low", "high", "of_excluded"])
    return frame.sort_values("share", ascending=False, kind="stable").reset_index(drop=True)


def _rules(tree: object, columns: list[str], named: list[str]) -> dict[int, str]:
    inner = tree.tree_  # type: ignore[attr-defined]
    found: dict[int, str] = {}

    def walk(node: int, conditions: list[str]) -> None:
        if inner.children_left[node] < 0:
            found[node] = " and ".join(conditions) or "all cases"
            return
        name, cut = columns[inner.feature[node]], float(inner.threshold[node])
        attribute, _, value = name.partition(" = ")
        if attribute in named and value:
            low, high = f"{attribute} is not {value}", f"{attribute} is {value}"
        else:
            low, high = f"{name} <= {cut:g}", f"{name} > {cut:g}"
        walk(inner.children_left[node], [*conditions, low])
        walk(inner.children_right[node], [*conditions, high])

    walk(0, [])
    return found
