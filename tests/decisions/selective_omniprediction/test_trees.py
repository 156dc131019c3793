"""Histogram trees against exact ones, and their arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from touchstone.decisions.selective_omniprediction.trees import bin_column, bin_edges, from_sklearn, grow, shift


def _grown(x, y, **options):
    edges = [bin_edges(x[:, f]) for f in range(x.shape[1])]
    codes = [bin_column(x[:, f], e) for f, e in enumerate(edges)]
    return grow(codes, edges, y, **options)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_few_values_give_the_exact_tree(seed, depth, leaf):
    """With fewer values than bins the histogram tree is the least-squares tree of scikit-learn."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 12, size=(200, 3)).astype(float)
    y = rng.normal(size=200) + (x[:, 0] > 5) - (x[:, 1] < 3)
    tree, values = _grown(x, y, max_depth=depth, min_leaf=leaf)
    exact = DecisionTreeRegressor(max_depth=depth, min_samples_leaf=leaf, random_state=0).fit(x, y)
    assert np.mean((y - values) ** 2) == pytest.approx(np.mean((y - exact.predict(x)) ** 2), rel=1e-9)
    columns = list(np.ascontiguousarray(x.T))
    assert np.array_equal(tree(columns), values)
    assert np.bincount(np.unique(values, return_inverse=True)[1]).min() >= leaf


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(2, 40))
@settings(deadline=None)
def test_bins_and_thresholds_agree(values, bins):
    column = np.array(values)
    edges = bin_edges(column, bins)
    codes = bin_column(column, edges)
    assert len(edges) < bins or len(edges) == bins - 1
    assert (np.diff(edges) > 0).all()
    for s, edge in enumerate(edges):
        assert np.array_equal(codes <= s, column <= edge)
        assert 0 < (column <= edge).sum() < len(column)


def test_neighbouring_floats_are_told_apart():
    low = 0.1
    column = np.array([low, np.nextafter(low, 1)])
    edges = bin_edges(column)
    assert bin_column(column, edges).tolist() == [0, 1]


def test_arrays_of_scikit_learn():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32).astype(float)
    fitted = DecisionTreeRegressor(max_depth=4).fit(x, x[:, 0] * x[:, 1])
    assert np.array_equal(from_sklearn(fitted)(list(np.ascontiguousarray(x.T))), fitted.predict(x))


def test_a_constant_target_is_one_leaf():
    tree, values = _grown(np.arange(40.0)[:, None], np.full(40, 0.25), min_leaf=2)
    assert len(tree.feature) == 1
    assert (values == 0.25).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_step_function(points):
    edges, values = np.array([0.1, 0.2, 0.5, 0.9]), np.array([5.0, 1.0, 2.0, 3.0, 4.0])
    x = np.array([*points, 0.1, 0.5, 0.9])
    tree = shift(edges, values, feature=1)
    assert np.array_equal(tree([np.zeros(len(x)), x]), values[np.searchsorted(edges, x, side="left")])
    rows = np.array([0, len(x) - 1])
    assert np.array_equal(tree([np.zeros(len(x)), x], rows), tree([np.zeros(len(x)), x])[rows])
