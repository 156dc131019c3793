"""What the method is measured against: trees for one loss, recalibration, thresholds, conformal sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from touchstone.decisions.selective_omniprediction.groups import membership
from touchstone.decisions.selective_omniprediction.losses import ChowLoss, labels, probabilities
from touchstone.decisions.selective_omniprediction.trees import bin_column, bin_edges
from touchstone.errors import InputError

__all__ = ["ChowTree", "confidence_threshold", "lac_sets", "mondrian_sets", "recalibrated"]

Floats = NDArray[np.float64]
Sets = NDArray[np.bool_]


def recalibrated(
    h: ArrayLike, y: ArrayLike, kind: Literal["isotonic", "platt"] = "isotonic"
) -> Callable[[Floats], Floats]:
    """The recalibration of probabilities that fits these rows best, as a function of probabilities."""
    h, y = probabilities(h), labels(y)
    if kind == "isotonic":
        fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(h, y)
        return lambda p: np.asarray(fitted.predict(p), dtype=float)
    if kind != "platt":
        raise InputError(f"kind {kind!r}: expected 'isotonic' or 'platt'")
    line = LogisticRegression(C=1e6).fit(_logit(h)[:, None], y)
    return lambda p: np.asarray(line.predict_proba(_logit(p)[:, None])[:, 1], dtype=float)


def _logit(p: Floats) -> Floats:
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return np.log(p) - np.log1p(-p)


@dataclass
class _Node:
    p: float
    feature: int = -1
    threshold: float = 0.0
    left: _Node | None = None
    right: _Node | None = None


class ChowTree:
    """A tree that is grown for one loss: splits lower ``n min(kappa_pred, kappa_abs)`` of its nodes.

    Where no split lowers it, one that lowers the Gini impurity is taken as a tie-break, for the next level may gain.

    Parameters
    ----------
    loss : the loss, with its price of abstaining; ``None`` grows a plain Gini tree, whose leaves any k* can use.
    max_depth, min_leaf : of the tree.
    bins : thresholds a feature, at quantiles.
    """

    def __init__(self, loss: ChowLoss | None, *, max_depth: int = 3, min_leaf: int = 20, bins: int = 33) -> None:
        self.loss, self.max_depth, self.min_leaf, self.bins = loss, max_depth, min_leaf, bins

    def fit(self, X: Floats, y: ArrayLike) -> ChowTree:
        """Grow the tree on features [rows, features] and outcomes of 0 and 1."""
        self._edges = [bin_edges(X[:, f], self.bins) for f in range(X.shape[1])]
        self._codes = [bin_column(X[:, f], edges) for f, edges in enumerate(self._edges)]
        self._y = labels(y).astype(float)
        self.root_ = self._grow(np.arange(len(X)), self.max_depth)
        del self._codes, self._y
        return self

    def predict_proba(self, X: Floats) -> Floats:
        """Share of outcome 1 in each row's leaf, as probabilities of both, [rows, 2]."""
        p = np.empty(len(X))
        stack = [(self.root_, np.arange(len(X)))]
        while stack:
            node, rows = stack.pop()
            if node.left is None or node.right is None:
                p[rows] = node.p
                continue
            left = X[rows, node.feature] <= node.threshold
            stack += [(node.left, rows[left]), (node.right, rows[~left])]
        return np.column_stack([1 - p, p])

    def _grow(self, rows: NDArray[Any], depth: int) -> _Node:
        y = self._y[rows]
        node = _Node(float(y.mean()))
        if depth == 0 or len(rows) < 2 * self.min_leaf or y.min() == y.max():
            return node
        split = self._split(rows, y, self._chow) if self.loss is not None else None
        split = split or self._split(rows, y, lambda p: 2 * p * (1 - p))
        if split is None:
            return node
        node.feature, place = split
        node.threshold = float(self._edges[node.feature][place])
        left = self._codes[node.feature][rows] <= place
        node.left, node.right = self._grow(rows[left], depth - 1), self._grow(rows[~left], depth - 1)
        return node

    def _chow(self, p: Floats) -> Floats:
        assert self.loss is not None
        return np.minimum(self.loss.kappa_pred(p), self.loss.kappa_abs(p))

    def _split(self, rows: NDArray[Any], y: Floats, impurity: Callable[[Floats], Floats]) -> tuple[int, int] | None:
        counts = np.stack([np.bincount(code[rows], minlength=self.bins) for code in self._codes]).cumsum(axis=1)
        ones = np.stack([np.bincount(code[rows], y, self.bins) for code in self._codes]).cumsum(axis=1)
        n, total = len(rows), float(y.sum())
        left, left_ones = counts[:, :-1].astype(float), ones[:, :-1]
        right, right_ones = n - left, total - left_ones
        allowed = (left >= self.min_leaf) & (right >= self.min_leaf)
        if not allowed.any():
            return None
        cost = np.full(left.shape, np.inf)
        # Sums of whole numbers in floating point: no share can leave [0, 1].
        cost[allowed] = left[allowed] * impurity(left_ones[allowed] / left[allowed])
        cost[allowed] += right[allowed] * impurity(right_ones[allowed] / right[allowed])
        f, s = np.unravel_index(int(cost.argmin()), cost.shape)
        if cost[f, s] >= n * float(impurity(np.array([total / n]))[0]) - 1e-9:
            return None
        return int(f), int(s)


def confidence_threshold(h: ArrayLike, share: float) -> NDArray[np.int8]:
    """The more probable label for the ``share`` of rows that are furthest from 0.5, -1 for the others, [rows]."""
    h = probabilities(h)
    confident = np.argsort(-np.abs(h - 0.5), kind="stable")[: round(share * len(h))]
    found = np.full(len(h), -1, dtype=np.int8)
    found[confident] = h[confident] >= 0.5
    return found


def lac_sets(h_fit: ArrayLike, y_fit: ArrayLike, h: ArrayLike, alpha: float) -> Sets:
    """Split conformal sets [rows, 2] with the score 1 - p(label), by MAPIE; empty sets are possible.

    Raises
    ------
    MissingExtraError
        If MAPIE is not installed.
    """
    fit, new = probabilities(h_fit), probabilities(h)
    return _mapie(fit, labels(y_fit), new, alpha)


def mondrian_sets(
    h_fit: ArrayLike, y_fit: ArrayLike, groups_fit: ArrayLike, h: ArrayLike, groups: ArrayLike, alpha: float
) -> Sets:
    """Split conformal sets with a threshold of each group; a case of several groups takes the largest of their sets.

    That is what makes the coverage of every one of overlapping groups hold; cases of no group take all rows' threshold.
    """
    fit, truth, new = probabilities(h_fit), labels(y_fit), probabilities(h)
    _, inside_fit = membership(groups_fit, len(fit))
    _, inside = membership(groups, len(new))
    found = np.zeros((len(new), 2), dtype=bool)
    for g in range(inside.shape[1]):
        mine, here = inside_fit[:, g], inside[:, g]
        if here.any():
            found[here] |= _mapie(fit[mine], truth[mine], new[here], alpha) if mine.any() else True
    lonely = ~inside.any(axis=1)
    if lonely.any():
        found[lonely] = _mapie(fit, truth, new[lonely], alpha)
    return found


def _mapie(fit: Floats, truth: NDArray[np.int8], new: Floats, alpha: float) -> Sets:
    try:
        # Without types of its own.
        mapie: Any = import_module("mapie.classification")
    except ImportError:
        from touchstone.errors import MissingExtraError

        raise MissingExtraError("Split conformal sets", "conformal") from None
    conformal = mapie.SplitConformalClassifier(
        _Given(), confidence_level=1 - alpha, conformity_score="lac", prefit=True
    ).conformalize(fit[:, None], truth)
    return np.asarray(conformal.predict_set(new[:, None])[1][:, :, 0], dtype=bool)


class _Given:
    """Probabilities as a classifier: its features are the probability of 1."""

    def __init__(self) -> None:
        self.classes_ = np.array([0, 1])
        self.n_features_in_ = 1

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Floats, y: Any) -> _Given:
        return self

    def predict_proba(self, X: Floats) -> Floats:
        p = np.asarray(X, dtype=float)[:, 0]
        return np.column_stack([1 - p, p])

    def predict(self, X: Floats) -> NDArray[Any]:
        return (np.asarray(X)[:, 0] >= 0.5).astype(int)
