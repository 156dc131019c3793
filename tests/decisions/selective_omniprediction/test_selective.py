"""Rules on top of a predictor: k* of many losses, thresholds, certificates, forests, groups and workloads."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_blobs, make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

from touchstone.decisions.selective_omniprediction import (
    ChowLoss,
    FullyReliableClassifier,
    MulticalibratedClassifier,
    MultigroupSelectiveClassifier,
    SelectiveOmnipredictor,
    budget_cost,
    certified_threshold,
    intersections,
    plurality,
    workload,
)
from touchstone.decisions.selective_omniprediction.selective import as_sets, threshold_decision
from touchstone.errors import InputError


@pytest.fixture(scope="module")
def data():
    return make_classification(2000, 6, n_informative=4, class_sep=1.0, random_state=0)


@pytest.mark.parametrize(
    "estimator", [MultigroupSelectiveClassifier(), FullyReliableClassifier(n_estimators=5)], ids=["groups", "reliable"]
)
def test_scikit_learn_accepts_it(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(estimator)


def test_omnipredictor_is_the_rule_on_its_scores(data):
    x, y = data
    model = SelectiveOmnipredictor(LogisticRegression().fit(x, y))
    losses = {"l1": ChowLoss("l1", 0.2, 0.1), "l2": ChowLoss("l2", 0.1, 0.1)}
    h = model.scores(x)
    for loss in losses.values():
        assert np.array_equal(model.decide(x, loss), loss.decide(h), equal_nan=True)
    found = model.evaluate(x, y, losses)
    assert found["l1"] == losses["l1"].evaluate(losses["l1"].decide(h), y)
    with pytest.raises(InputError, match="predict_proba"):
        SelectiveOmnipredictor(object())


def test_one_predictor_beats_always_and_never_abstaining(data):
    """With its own probabilities as the truth, k* loses less than either habit, for every loss."""
    rng = np.random.default_rng(0)
    p = rng.random(200_000)
    y = (rng.random(len(p)) < p).astype(int)
    for loss in (ChowLoss("l1", 0.2, 0.1), ChowLoss("l2", 0.1, 0.05), ChowLoss("logistic", 0.4, 0.3)):
        ours = loss.evaluate(loss.decide(p), y).total
        assert ours < loss.evaluate(loss.predict(p), y).total
        assert ours < loss.evaluate(np.full(len(p), np.nan), y).total


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0.01, 0.49))
def test_sets_and_errors_add_up(points, eps):
    """For an answer that is a set, coverage and error are one."""
    p = np.array(points)
    y = np.random.default_rng(0).integers(0, 2, len(p))
    said = threshold_decision(p, eps)
    covered = as_sets(said)[np.arange(len(p)), y].mean()
    wrong = ((said >= 0) & (said != y)).mean()
    assert covered + wrong == pytest.approx(1)
    assert np.array_equal(as_sets(said).sum(axis=1) == 2, said == -1)
    assert (
        np.array_equal(said, np.nan_to_num(ChowLoss.fully_reliable(2 * eps).decide(p), nan=-1))
        or np.isclose(np.minimum(p, 1 - p), eps).any()
    )


def test_selective_classifier(data):
    x, y = data
    labels = np.where(y == 1, "good", "bad")
    groups = pd.DataFrame({"a": x[:, 0] > 0, "b": x[:, 1] > 0})
    model = MultigroupSelectiveClassifier(0.1).fit(x[:1500], labels[:1500], groups=groups[:1500])
    said = model.predict(x[1500:], groups[1500:])
    truth = (labels[1500:] == model.classes_[1]).astype(int)
    assert set(said) <= {-1, 0, 1}
    assert 0.2 < (said >= 0).mean() < 1
    assert ((said >= 0) & (said != truth)).mean() <= 0.1
    assert np.array_equal(model.predict_set(x[1500:], groups[1500:]), as_sets(said))
    order = np.random.default_rng(0).permutation(500)
    assert np.array_equal(model.predict(x[1500:][order], groups[1500:].iloc[order]), said[order])


def test_selective_classifier_on_a_model_that_is_there(data):
    x, y = data
    plain = LogisticRegression().fit(x, y)
    model = MultigroupSelectiveClassifier(0.2, FrozenEstimator(plain)).fit(x, y)
    assert np.array_equal(model.predict(x), threshold_decision(plain.predict_proba(x)[:, 1], 0.2))
    with pytest.raises(InputError, match="takes none"):
        model.predict(x, x[:, 0] > 0)
    with pytest.raises(InputError, match="takes none"):
        MultigroupSelectiveClassifier(0.2, LogisticRegression()).fit(x, y, groups=x[:, 0] > 0)
    group = x[:, 0] > 0
    own = MulticalibratedClassifier(max_iter=10).fit(x, y, groups=group)
    around = MultigroupSelectiveClassifier(0.2, FrozenEstimator(own)).fit(x, y)
    assert np.array_equal(around.scores(x, group), own.predict_proba(x, group)[:, 1])
    for eps in (0, 0.5, -1):
        with pytest.raises(InputError, match="eps"):
            MultigroupSelectiveClassifier(eps).fit(x, y)


def test_certificate_by_hand():
    """20 sure rows and 80 at 0.3: up to 0.3 nothing is wrong, from 0.3 on the ones among the 80 are."""
    p = np.repeat([0.01, 0.3], [120, 80])
    y = np.zeros(200, dtype=int)
    y[120:150] = 1
    # 30 of 200 wrong at 0.3 is far above 0.1; the grid's last threshold below 0.3 is certified.
    assert certified_threshold(p, y, 0.1) == pytest.approx(0.295)
    assert certified_threshold(p, y, 0.3) == pytest.approx(0.5)
    assert certified_threshold(np.full(200, 0.001), np.ones(200, int), 0.1) == 0.0


def test_certificate_holds_as_often_as_it_says():
    """Scores that are too sure: thresholds by eps err too often, certified ones hardly ever do."""
    rng = np.random.default_rng(0)
    grid = np.linspace(0, 1, 2001)
    truth = 0.5 + (grid - 0.5) * 0.75
    broken = tried = 0
    for _ in range(120):
        p = rng.random(400)
        y = (rng.random(400) < 0.5 + (p - 0.5) * 0.75).astype(int)
        group = np.ones(400, bool)
        t = certified_threshold(p, y, 0.1, group[:, None], group_eps=0.12, delta=0.1)
        said = threshold_decision(grid, t) if t else np.full(len(grid), -1)
        risk = np.where(said == 1, 1 - truth, np.where(said == 0, truth, 0)).mean()
        broken += risk > 0.1
        tried += 1
    assert broken / tried <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / tried)
    assert broken > 0


def test_certify_on_fresh_rows(data):
    x, y = data
    groups = pd.DataFrame({"a": x[:, 0] > 0})
    model = MultigroupSelectiveClassifier(0.1).fit(x[:1000], y[:1000])
    plain = model.threshold_
    found = model.certify(x[1000:], y[1000:], bounded=groups[1000:], group_eps=0.15)
    assert found == model.threshold_ != plain
    with pytest.raises(InputError, match="at least 29 are needed"):
        model.certify(x[:20], y[:20])
    with pytest.raises(InputError, match="group_eps"):
        model.certify(x[1000:], y[1000:], group_eps=0.1)
    with pytest.raises(InputError, match="delta"):
        model.certify(x[1000:], y[1000:], delta=0)


def test_forests_with_one_weight_are_the_same():
    x, y = make_blobs(600, centers=[(0, 0), (2, 0)], cluster_std=1.6, random_state=0)
    one = FullyReliableClassifier(1, n_estimators=15).fit(x, y)
    assert (one.predict(x) >= 0).all()
    shares = [
        (FullyReliableClassifier(w, n_estimators=15).fit(x[:400], y[:400]).predict(x[400:]) >= 0).mean()
        for w in (1, 5, 25)
    ]
    assert shares[0] == 1
    assert shares[0] > shares[1] > shares[2]


def test_forests_that_never_agree_warn():
    x, y = make_blobs(600, centers=[(0, 0), (1, 0)], cluster_std=2, random_state=0)
    model = FullyReliableClassifier(200, n_estimators=15, min_samples_leaf=20).fit(x, y)
    with pytest.warns(UserWarning, match="weight 200"):
        model.predict(x)
    with pytest.raises(InputError, match="weight"):
        FullyReliableClassifier(0.5).fit(x, y)


def test_plurality():
    votes = [[1, 0, 1], [1, 0, -1], [-1, -1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1]]
    groups = [[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert plurality(votes, groups).tolist() == [1, -1, -1, 1, -1, -1]
    with pytest.raises(InputError, match="votes"):
        plurality([[1, 0]], [[1, 0, 1]])


def test_intersections():
    frame = pd.DataFrame({"sex": ["f", "m", "f", "m", None, "f"], "race": list("aabbab")})
    found = intersections(frame, depth=2, min_size=2)
    assert list(found) == ["sex=f", "sex=m", "race=a", "race=b", "sex=f & race=b"]
    assert found["sex=f & race=b"].tolist() == [False, False, True, False, False, True]
    assert "sex=(missing)" in intersections(frame, depth=1, min_size=1)
    with pytest.raises(InputError, match="depth"):
        intersections(frame, depth=0)


@given(st.integers(0, 10_000), st.floats(0, 1), st.sampled_from(["l1", "l2", "logistic"]))
@settings(max_examples=12, deadline=None)
def test_budget_is_met_and_not_by_more_than_needed(seed, most, kind):
    p = np.random.default_rng(seed).random(200)
    groups = p[:, None] > 0.4
    loss = ChowLoss(kind)
    cost = budget_cost(loss, p, most, groups, group_most=min(1.0, most + 0.1))

    def deferred(price):
        row = workload(loss, p, [price], groups).iloc[0]
        return row["deferred"] <= most and row["deferred: group 0"] <= min(1.0, most + 0.1)

    assert deferred(cost)
    assert cost == 0 or not deferred(cost * (1 - 1e-6))


def test_workload_falls_with_the_price():
    p = np.linspace(0, 1, 1001)
    found = workload(ChowLoss("l1"), p, [0.1, 0.3, 0.6])
    assert found["deferred"].tolist() == pytest.approx([0.8, 0.4, 0.0], abs=0.003)
    assert found["low"].tolist()[:2] == pytest.approx([0.1, 0.3])
    assert np.isnan(found["low"].iloc[2])
    with pytest.raises(InputError, match="most"):
        budget_cost(ChowLoss("l1"), p, 1.5)
    with pytest.raises(InputError, match="free"):
        budget_cost(ChowLoss("l1", weights=(1, 1, 0)), p, 0.5)


def test_multicalibration_repairs_abstention_of_a_group():
    """A base that is right on average and wrong in a group: afterwards the group's errors are within the bound."""
    rng = np.random.default_rng(0)
    n = 8000
    strength, group = rng.normal(size=n), rng.random(n) < 0.3
    y = (rng.random(n) < 1 / (1 + np.exp(-3 * np.where(group, -strength, strength)))).astype(int)
    x = np.column_stack([strength, rng.normal(size=n)])
    base = LogisticRegression().fit(x[:2000], y[:2000])
    raw = threshold_decision(base.predict_proba(x[5000:])[:, 1], 0.2)
    model = MultigroupSelectiveClassifier(0.2, MulticalibratedClassifier(FrozenEstimator(base), step=0.3))
    said = model.fit(x[2000:5000], y[2000:5000], groups=group[2000:5000]).predict(x[5000:], group[5000:])
    here, truth = group[5000:], y[5000:]

    def wrong(decision):
        return ((decision >= 0) & (decision != truth))[here].mean()

    assert wrong(said) < 0.2 / here.mean()
    assert wrong(said) < 0.15 < (raw != truth)[here & (raw >= 0)].mean()
    assert (said[here] >= 0).mean() > (raw[here] >= 0).mean()
