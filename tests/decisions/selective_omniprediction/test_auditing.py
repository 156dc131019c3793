"""Audits against hand-worked values, and the intervals they carry."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification

from touchstone.decisions.selective_omniprediction import MulticalibratedClassifier, audit
from touchstone.errors import InputError

H = np.array([0.05, 0.05, 0.45, 0.45, 0.95, 0.95, 0.95, 0.55])
Y = np.array([0, 1, 0, 1, 1, 1, 0, 1])
G = pd.DataFrame({"a": [1, 1, 1, 1, 0, 0, 0, 0], "b": [0, 1, 0, 1, 0, 1, 0, 1]})


def test_by_hand():
    found = audit(H, Y, G, {"first": np.arange(8) == 1}, n_boot=0).frame.set_index("group")
    everyone, a, b = (found.loc[name] for name in ("everyone", "a", "b"))
    # Sums of residuals in the level sets: .05 -> .9, .45 -> .1, .55 -> .45, .95 -> -.85.
    assert everyone["multicalibration"] == pytest.approx((0.9 + 0.1 + 0.45 + 0.85) / 8)
    assert everyone["ece"] == pytest.approx(everyone["multicalibration"])
    assert everyone["multiaccuracy_gap"] == pytest.approx((0.9 + 0.1 + 0.45 - 0.85) / 8)
    assert a["n"] == 4
    assert a["multicalibration"] == pytest.approx((0.9 + 0.1) / 8)
    assert a["ece"] == pytest.approx((0.9 + 0.1) / 4)
    assert a["bias"] == pytest.approx((0.9 + 0.1) / 4)
    assert b["multiaccuracy_gap"] == pytest.approx((0.95 + 0.55 + 0.05 + 0.45) / 8)
    # At 0.1 five rows are decided, two of them wrongly: one in a, one outside of both.
    assert everyone["predicted_share"] == pytest.approx(5 / 8)
    assert everyone["set_coverage"] == pytest.approx(6 / 8)
    assert everyone["selective_error"] == pytest.approx(2 / 5)
    assert a["set_coverage"] == pytest.approx(3 / 4)
    assert b["base_rate"] == 1
    assert np.isnan(found["ece_low"]).all()


def test_concepts_and_own_decisions():
    found = audit(H, Y, G, {"second row": np.arange(8) == 1}, decision=[1, -1, -1, -1, -1, -1, -1, 1], n_boot=50)
    gaps = found.concepts.set_index(["concept", "group"])["multiaccuracy_gap"]
    assert gaps["second row", "everyone"] == pytest.approx(0.95 / 8)
    assert gaps["second row", "b"] == pytest.approx(0.95 / 8)
    assert found.frame["predicted_share"].tolist()[:2] == pytest.approx([2 / 8, 1 / 4])
    assert found.frame["selective_error"].tolist()[0] == pytest.approx(1 / 2)


def test_row_order_does_not_matter():
    order = np.random.default_rng(0).permutation(8)
    first, again = audit(H, Y, G, n_boot=0).frame, audit(H[order], Y[order], G.iloc[order], n_boot=0).frame
    estimates = [c for c in first.select_dtypes("number") if not c.endswith("calibrated")]
    assert np.allclose(first[estimates], again[estimates], equal_nan=True)


@pytest.fixture(scope="module")
def calibrated():
    rng = np.random.default_rng(0)
    h = rng.random(3000)
    return h, (rng.random(3000) < h).astype(int), rng.random((3000, 3)) < [0.1, 0.4, 0.4]


def test_calibrated_scores_pass(calibrated):
    found = audit(*calibrated, n_boot=200).frame
    assert (found["p_calibrated"] > 0.01).all()
    assert found["ece_debiased"].max() < found["ece_if_calibrated"].max() * 2
    assert (found["bias_low"] < 0.01).all()
    assert (found["bias_high"] > -0.01).all()


def test_a_biased_group_is_found(calibrated):
    h, y, groups = calibrated
    y = np.where(groups[:, 0], (np.random.default_rng(1).random(len(h)) < np.clip(h + 0.25, 0, 1)), y).astype(int)
    found = audit(h, y, groups, n_boot=200)
    row = found.frame.set_index("group").loc["group 0"]
    assert row["p_calibrated"] < 0.01
    assert row["ece_low"] > 0.1
    assert row["bias_low"] > 0.15
    assert found.worst("ece").name == "ece, group 0"
    worst = found.worst("ece")
    assert worst.low <= worst.value <= worst.high
    assert found.measurement("ece", "group 1").value < worst.low
    assert found.worst("ece", smallest=1000).value < worst.value


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """A score that is off by 0.1 everywhere has an ECE of 0.1."""
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(60):
        h = rng.uniform(0.2, 0.7, 800)
        y = (rng.random(800) < h + 0.1).astype(int)
        found = audit(h, y, n_boot=200, seed=seed).measurement("ece")
        hits += found.low <= 0.1 <= found.high
    assert hits >= 48


def test_it_warns_on_the_rows_of_the_fit():
    x, y = make_classification(400, 5, random_state=0)
    model = MulticalibratedClassifier(max_iter=5).fit(x[:300], y[:300])
    with pytest.warns(UserWarning, match="rows of the fit"):
        model.audit(x[:300], y[:300], n_boot=0)
    fresh = model.audit(x[300:], y[300:], n_boot=0).frame
    assert fresh["n"].tolist() == [100]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"h": [0.5, np.nan, *H[2:]]}, "scores"),
        ({"y": Y[:-1]}, "y"),
        ({"y": Y + 1}, "y"),
        ({"groups": G[:-1]}, "groups"),
        ({"eps": 0.5}, "eps"),
        ({"eps": 0}, "eps"),
        ({"decision": [2] * 8}, "decision"),
        ({"concepts": {"c": [1, 2]}}, "concepts"),
        ({"bins": 0}, "bins"),
    ],
)
def test_bad_input(arguments, named):
    with pytest.raises(InputError, match=named):
        audit(**({"h": H, "y": Y, "groups": G} | arguments))


def test_unknown_estimates():
    found = audit(H, Y, G, n_boot=0)
    with pytest.raises(InputError, match="no estimate"):
        found.measurement("charm")
    with pytest.raises(InputError, match="no estimate"):
        found.measurement("ece", "nobody")
    assert found.measurement("ece").low is None
