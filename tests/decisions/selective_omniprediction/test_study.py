"""The study at its smallest scale, its baselines, and its parts."""

from __future__ import annotations

import numpy as np
import pytest

from touchstone.decisions.selective_omniprediction import ChowLoss
from touchstone.decisions.selective_omniprediction.baselines import (
    ChowTree,
    confidence_threshold,
    lac_sets,
    mondrian_sets,
    recalibrated,
)
from touchstone.decisions.selective_omniprediction.study import study
from touchstone.decisions.selective_omniprediction.study_certify import _risks
from touchstone.errors import InputError
from touchstone.run import Run


@pytest.fixture(scope="module")
def evidence():
    return study("smoke", Run(seed=0))


def test_smoke(evidence):
    assert len(evidence.findings) == 16
    assert evidence.finding("isotonic-below-raw").verdict == "holds"
    assert evidence.finding("multicalibrated-below-isotonic").verdict == "holds"
    assert evidence.finding("error-within-eps").verdict == "holds"
    assert evidence.finding("squared-error").measured.value < evidence.finding("squared-error").against.value
    assert {f.name for f in evidence.figures} == {"losses", "random-losses", "coverage", "calibration", "blobs"}
    losses = evidence.table("losses").set_index(["loss", "method"])["total"]
    assert losses["l1, 0.1/0.1", "multicalibrated"] < losses["l1, 0.1/0.1", "tree for the loss"]
    blobs = evidence.table("blobs")
    assert (blobs.loc[(blobs["method"] == "forests") & (blobs["level"] == 1), "predicted_share"] == 1).all()


def test_unknown_scale():
    with pytest.raises(InputError, match="scale"):
        study("huge", Run())


def test_chow_tree_of_depth_one_is_the_best_stump():
    """Against every threshold of every feature, by their own count."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 8, size=(300, 3)).astype(float)
    y = (rng.random(300) < np.where(x[:, 1] > 4, 0.9, 0.15)).astype(int)
    loss = ChowLoss("l1", 0.2, 0.1)

    def cost(rows):
        p = np.array([y[rows].mean()])
        return rows.sum() * min(loss.kappa_pred(p)[0], loss.kappa_abs(p)[0])

    stumps = {
        (f, t): cost(x[:, f] <= t) + cost(x[:, f] > t)
        for f in range(3)
        for t in np.arange(0.5, 7)
        if min((x[:, f] <= t).sum(), (x[:, f] > t).sum()) >= 20
    }
    root = ChowTree(loss, max_depth=1).fit(x, y).root_
    assert stumps[root.feature, root.threshold] == pytest.approx(min(stumps.values()))


def test_chow_tree_takes_a_gini_split_where_none_gains():
    """Abstaining everywhere is best after any one split, and no longer after two."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, size=(2000, 2)).astype(float)
    y = ((x[:, 0] == x[:, 1]) ^ (rng.random(2000) < 0.02)).astype(int)
    tree = ChowTree(ChowLoss("l1", 0.2, 0.2), max_depth=2).fit(x, y)
    p = tree.predict_proba(x)[:, 1]
    assert set(np.round(p).astype(int)) == {0, 1}
    assert np.mean((p >= 0.5) == y) > 0.95


def test_gini_tree_agrees_with_scikit_learn():
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(1)
    x = rng.integers(0, 10, size=(500, 4)).astype(float)
    y = (rng.random(500) < np.where((x[:, 0] > 4) & (x[:, 2] < 6), 0.8, 0.2)).astype(int)
    ours = ChowTree(None).fit(x, y).predict_proba(x)[:, 1]
    other = DecisionTreeClassifier(max_depth=3, min_samples_leaf=20, random_state=0).fit(x, y).predict_proba(x)[:, 1]
    assert np.mean(ours * (1 - ours)) == pytest.approx(np.mean(other * (1 - other)), abs=1e-9)


def test_recalibrations_and_thresholds():
    rng = np.random.default_rng(0)
    h = rng.random(4000)
    y = (rng.random(4000) < h**2).astype(int)
    for kind in ("isotonic", "platt"):
        assert np.mean((recalibrated(h, y, kind)(h) - h**2) ** 2) < 0.1 * np.mean((h - h**2) ** 2)
    with pytest.raises(InputError, match="kind"):
        recalibrated(h, y, "magic")
    said = confidence_threshold(h, 0.3)
    assert (said >= 0).mean() == pytest.approx(0.3)
    assert np.abs(h[said >= 0] - 0.5).min() >= np.abs(h[said < 0] - 0.5).max()


def test_conformal_sets_cover():
    pytest.importorskip("mapie")
    rng = np.random.default_rng(0)
    h, groups = rng.random(6000), rng.random((6000, 2)) < 0.4
    y = (rng.random(6000) < np.where(groups[:, 0], 1 - h, h)).astype(int)
    fit, new = slice(0, 3000), slice(3000, None)
    plain = lac_sets(h[fit], y[fit], h[new], 0.1)
    assert plain[np.arange(3000), y[new]].mean() == pytest.approx(0.9, abs=0.02)
    by_group = mondrian_sets(h[fit], y[fit], groups[fit], h[new], groups[new], 0.1)
    covered = by_group[np.arange(3000), y[new]]
    assert min(covered[groups[new][:, g]].mean() for g in range(2)) > 0.88


def test_risks_of_the_certificate_are_integrals():
    p = np.linspace(0, 1, 200_001)
    for t in (0.1, 0.35):
        said = (p >= 1 - t).astype(float) - (p <= t)
        truth = 0.5 + 0.6 * (p - 0.5)
        wrong = np.where(said > 0, 1 - truth, np.where(said < 0, truth, 0)).mean()
        assert _risks(t)[1] == pytest.approx(wrong, abs=1e-4)
