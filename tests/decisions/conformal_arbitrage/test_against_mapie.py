"""The threshold beside MAPIE's conformal risk control, where MAPIE is installed."""

from __future__ import annotations

import numpy as np
import pytest

from touchstone.decisions.conformal_arbitrage import ConformalArbitrage
from touchstone.decisions.conformal_arbitrage.bounds import hoeffding_bentkus

risk_control = pytest.importorskip("mapie.risk_control")


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_the_exact_threshold_is_at_most_one_step_below_mapies(alpha):
    rng = np.random.default_rng(0)
    right = np.eye(3)[rng.integers(3, size=150)]
    scores = rng.random((150, 3)) + 0.3 * right
    gap = scores.max(axis=1, keepdims=True) - scores
    grid = np.linspace(-0.4, 1, 71)
    control = risk_control.MultiLabelClassificationController(
        lambda x: x, risk="recall", method="crc", target_level=1 - alpha, predict_params=grid
    )
    theirs = 1 - float(control.calibrate(1 - gap, right.astype(int)).best_predict_param[0])
    ours = ConformalArbitrage(alpha).calibrate(scores, right).lam_
    # Theirs is open, {gap < lam}, and searched so that it stops a step early.
    assert ours <= theirs + 1e-9 <= ours + 2 * (grid[1] - grid[0]) + 1e-9


def test_p_values_are_mapies():
    from mapie.risk_control.methods import compute_hoeffding_bentkus_p_value

    for mean in (0.0, 0.02, 0.06, 0.2):
        theirs = np.asarray(compute_hoeffding_bentkus_p_value(np.array([mean]), 50, np.array([0.1]))).ravel()[0]
        assert hoeffding_bentkus(mean, 50, 0.1) == pytest.approx(min(1.0, theirs), abs=1e-9)
