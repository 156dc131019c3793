"""Small regression trees on features that are binned once: the concepts with which residuals may correlate.

Histograms of all nodes of a level come from one pass over the rows a feature, so that a tree costs O(rows * features) a
level whatever its depth (Ke et al. 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeRegressor

__all__ = ["BINS", "Columns", "Tree", "bin_column", "bin_edges", "from_sklearn", "grow", "shift"]

Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]
Columns = Sequence[Floats]
BINS = 32
_LEAF = -1


@dataclass(frozen=True)
class Tree:
    """A regression tree as arrays, [nodes]; node 0 is the root.

    Attributes
    ----------
    feature : the column that a node looks at, -1 for a leaf.
    threshold : rows with at most this go left, all others right.
    left, right : the nodes below.
    value : what a leaf predicts.
    """

    feature: NDArray[np.int32]
    threshold: Floats
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: Floats

    def __call__(self, columns: Columns, rows: NDArray[np.intp] | None = None) -> Floats:
        """Predictions [rows] from columns [features][all rows]."""
        n = len(columns[0]) if rows is None else len(rows)
        found = np.empty(n)
        self._fill(found, columns, rows, np.arange(n), 0)
        return found

    def _fill(
        self, found: Floats, columns: Columns, rows: NDArray[np.intp] | None, places: NDArray[np.intp], node: int
    ) -> None:
        if self.feature[node] == _LEAF:
            found[places] = self.value[node]
            return
        column = columns[self.feature[node]]
        left = column[places if rows is None else rows[places]] <= self.threshold[node]
        self._fill(found, columns, rows, places[left], int(self.left[node]))
        self._fill(found, columns, rows, places[~left], int(self.right[node]))


def bin_edges(column: Floats, bins: int = BINS) -> Floats:
    """Thresholds between at most ``bins`` bins: between all values if they are few, else at quantiles.

    A value that many rows share has a bin of its own, and takes no quantiles from the others: a column that is nearly
    always 0 is still told apart where it is not.
    """
    values, counts = np.unique(column, return_counts=True)
    after = np.arange(len(values) - 1)
    if len(values) > bins:
        heavy = np.flatnonzero(counts * bins >= len(column))
        around = np.unique(np.concatenate([heavy - 1, heavy]))
        around = around[(around >= 0) & (around < len(values) - 1)][: bins - 1]
        light = np.delete(counts, heavy).cumsum()
        places = np.delete(np.arange(len(values)), heavy)
        left = bins - 1 - len(around)
        wanted = np.arange(1, left + 1) * light[-1] / (left + 1) if len(light) else np.zeros(0)
        at = places[np.minimum(np.searchsorted(light, wanted), len(places) - 1)] if len(light) else places
        after = np.unique(np.concatenate([around, at]))
        after = after[after < len(values) - 1].astype(np.intp)
    below, above = values[after], values[after + 1]
    middle = below + (above - below) / 2
    # Between neighbouring floats the middle is one of them, and must not be the upper one.
    return np.where(middle < above, middle, below)


def bin_column(column: Floats, edges: Floats) -> Codes:
    """The bin of each row: ``code <= s`` where ``column <= edges[s]``."""
    return np.searchsorted(edges, column, side="left").astype(np.uint8)


def grow(
    codes: Sequence[Codes],
    edges: Sequence[Floats],
    target: Floats,
    *,
    max_depth: int = 3,
    min_leaf: int = 20,
    bins: int = BINS,
) -> tuple[Tree, Floats]:
    """A least-squares tree and its predictions for the rows that it was grown on.

    Parameters
    ----------
    codes, edges : of each feature, see :func:`bin_column`.
    target : [rows].
    max_depth : levels of questions.
    min_leaf : fewest rows of a leaf.
    """
    n, d = len(target), len(codes)
    node = np.zeros(n, dtype=np.int64)
    builder = _Builder()
    # Open nodes of this level, by their place in ``node``: number in the tree, sum of the target and rows.
    open_nodes = [builder.leaf(float(target.sum()), n)]
    splittable = np.array([[len(edge) > s for s in range(bins - 1)] for edge in edges]).reshape(d, bins - 1)
    for _ in range(max_depth):
        width = len(open_nodes)
        sums, counts = np.empty((d, width, bins)), np.empty((d, width, bins))
        for f in range(d):
            cell = node * bins + codes[f]
            # Rows of nodes that are closed are gathered behind the last open one.
            sums[f] = np.bincount(cell, target, (width + 1) * bins)[: width * bins].reshape(width, bins)
            counts[f] = np.bincount(cell, minlength=(width + 1) * bins)[: width * bins].reshape(width, bins)
        best = _best_splits(sums, counts, splittable, min_leaf)
        going = {k: split for k, split in enumerate(best) if split is not None}
        if not going:
            break
        after = np.full(width + 1, 2 * len(going), dtype=np.int64)
        right = np.zeros(n, dtype=bool)
        below: list[int] = []
        for place, (k, (f, s, left_sum, left_n)) in enumerate(going.items()):
            after[k] = 2 * place
            here = node == k
            right[here] = codes[f][here] > s
            total, rows = sums[0, k].sum(), counts[0, k].sum()
            a, b = builder.leaf(left_sum, left_n), builder.leaf(total - left_sum, rows - left_n)
            builder.split(open_nodes[k], f, float(edges[f][s]), a, b)
            below += [a, b]
        node = after[node] + right
        open_nodes = below
    tree = builder.tree()
    return tree, _predict_codes(tree, codes, edges, n)


def _best_splits(
    sums: Floats, counts: Floats, splittable: NDArray[np.bool_], min_leaf: int
) -> list[tuple[int, int, float, float] | None]:
    """For each node the feature and bin after which to split, with sum and rows on the left; ``None`` for no split."""
    left_sum, left_n = sums.cumsum(2)[:, :, :-1], counts.cumsum(2)[:, :, :-1]
    total, rows = sums[:1].sum(2, keepdims=True), counts[:1].sum(2, keepdims=True)
    right_sum, right_n = total - left_sum, rows - left_n
    allowed = (left_n >= min_leaf) & (right_n >= min_leaf) & splittable[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = left_sum**2 / left_n + right_sum**2 / right_n - total**2 / rows
    gain = np.where(allowed, gain, -1.0)
    found: list[tuple[int, int, float, float] | None] = []
    for k in range(gain.shape[1]):
        f, s = np.unravel_index(int(gain[:, k].argmax()), gain[:, k].shape)
        # Gains of rounding are none.
        worth = gain[f, k, s] > 1e-12
        found.append((int(f), int(s), float(left_sum[f, k, s]), float(left_n[f, k, s])) if worth else None)
    return found


def _predict_codes(tree: Tree, codes: Sequence[Codes], edges: Sequence[Floats], n: int) -> Floats:
    """The tree's predictions from bins, which are eight times smaller than the columns."""
    found = np.empty(n)
    stack = [(0, np.arange(n))]
    while stack:
        node, rows = stack.pop()
        f = int(tree.feature[node])
        if f == _LEAF:
            found[rows] = tree.value[node]
            continue
        left = codes[f][rows] <= np.searchsorted(edges[f], tree.threshold[node], side="left")
        stack += [(int(tree.left[node]), rows[left]), (int(tree.right[node]), rows[~left])]
    return found


def shift(edges: Floats, values: Floats, feature: int) -> Tree:
    """The step function with ``values[k]`` up to ``edges[k]`` and the last value beyond, as a tree on one feature."""
    builder = _Builder()

    def build(first: int, last: int) -> int:
        here = builder.leaf(float(values[first]), 1)
        if first < last:
            middle = (first + last) // 2
            builder.split(here, feature, float(edges[middle]), build(first, middle), build(middle + 1, last))
        return here

    build(0, len(values) - 1)
    return builder.tree()


def from_sklearn(fitted: DecisionTreeRegressor) -> Tree:
    """The arrays of a fitted tree of scikit-learn."""
    tree = fitted.tree_
    leaf = tree.children_left < 0
    return Tree(
        np.where(leaf, _LEAF, tree.feature).astype(np.int32),
        np.where(leaf, 0.0, tree.threshold),
        tree.children_left.astype(np.int32),
        tree.children_right.astype(np.int32),
        tree.value[:, 0, 0].astype(float),
    )


class _Builder:
    """Nodes as they come; all are leaves until they are split."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, float, int, int, float]] = []

    def leaf(self, total: float, rows: float) -> int:
        self.nodes.append((_LEAF, 0.0, _LEAF, _LEAF, total / rows if rows else 0.0))
        return len(self.nodes) - 1

    def split(self, node: int, feature: int, threshold: float, left: int, right: int) -> None:
        self.nodes[node] = (feature, threshold, left, right, self.nodes[node][4])

    def tree(self) -> Tree:
        feature, threshold, left, right, value = zip(*self.nodes, strict=True)
        return Tree(
            np.array(feature, dtype=np.int32),
            np.array(threshold, dtype=float),
            np.array(left, dtype=np.int32),
            np.array(right, dtype=np.int32),
            np.array(value, dtype=float),
        )
