"""Bootstrap intervals: hand-worked values, coverage, and what is drawn together."""

from __future__ import annotations

import numpy as np
import pytest

from touchstone.bootstrap import clustered, over_items, quotient, sign
from touchstone.evidence import Measurement


def test_an_item_is_drawn_with_all_its_settings():
    scores = np.array([[0.0, 5.0, 9.0], [1.0, 6.0, 10.0]])
    found = over_items("rise", scores, lambda s: float(s[1].mean() - s[0].mean()), seed=0)
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))
    assert found.n == 3
    assert over_items("rise", scores[:, :1], lambda s: 0.0, seed=0).low is None


def test_clusters_are_drawn_whole():
    constant = clustered("mean", [[0.0, 2.0], [1.0, 1.0]], seed=0)
    assert (constant.value, constant.low, constant.high, constant.n) == (1.0, 1.0, 1.0, 2)
    assert clustered("mean", [1.0, 2.0, 3.0], seed=0).value == 2.0
    assert clustered("mean", [4.0], seed=0).low is None


def test_interval_of_a_mean_covers_it_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(200):
        found = clustered("mean", rng.normal(size=60), seed=trial)
        inside += found.low <= 0.0 <= found.high
    assert 0.88 <= inside / 200 <= 0.99


def test_quotient_by_hand_and_where_there_is_none():
    assert quotient("ratio", [2.0, 4.0], [1.0, 2.0], seed=0).value == pytest.approx(2.0)
    assert quotient("ratio", [2.0, 4.0], [1.0, 2.0], seed=0).low == pytest.approx(2.0)
    assert np.isnan(quotient("ratio", [1.0, 1.0], [0.0, 0.0], seed=0).value)
    assert quotient("ratio", [1.0, 1.0], [0.0, 1.0], seed=0).high is None


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.1, 0.5, "holds"), (-0.5, -0.1, "fails"), (-0.1, 0.1, "undecided")]
)
def test_sign_follows_the_whole_interval(low, high, verdict):
    assert sign(Measurement("x", 0.0, "", low, high, 9)) == verdict
    assert sign(Measurement("x", 0.0, n=1)) == "undecided"
