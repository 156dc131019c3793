"""The alarm: rare without drift, quick with it."""

from __future__ import annotations

import numpy as np
import pytest

from touchstone.decisions.conformal_arbitrage import DriftAlarm
from touchstone.decisions.conformal_arbitrage.bounds import conditional_level
from touchstone.errors import InputError


def alarm(seed: int, every: int = 1000, n: int = 300) -> DriftAlarm:
    margins = np.random.default_rng([seed, 1]).beta(2, 2, n)
    return DriftAlarm(margins, alpha=0.1, n=n, false_alarm_every=every, seed=seed)


def queries_until_off(found: DriftAlarm, draw, most: int) -> int:
    for t in range(1, most + 1):
        if draw(found):
            return t
    return most


def test_without_drift_false_alarms_are_as_rare_as_asked():
    times = []
    for seed in range(60):
        rng = np.random.default_rng([seed, 2])
        times.append(queries_until_off(alarm(seed, every=200), lambda a, rng=rng: a.see(rng.beta(2, 2)), 800))
    # Runs are cut at 800 queries, so this mean is below the true one; it must be above 200 all the same.
    assert np.mean(times) > 200


def test_losses_at_their_level_rarely_raise_an_alarm():
    times = []
    for seed in range(60):
        rng, found = np.random.default_rng([seed, 3]), alarm(seed, every=200)
        times.append(queries_until_off(found, lambda a, rng=rng: a.lose(float(rng.random() < a.level)), 800))
    assert np.mean(times) > 200


def test_drift_is_seen_soon():
    rng = np.random.default_rng(0)
    found = alarm(0)
    before = [found.see(rng.beta(2, 2)) for _ in range(500)]
    assert not any(before)
    late = queries_until_off(found, lambda a: a.see(rng.beta(2, 5)), 500)
    assert late < 150
    assert found.margin_alarm
    assert not found.risk_alarm
    assert found.summary()["queries"] == 500 + late
    found.reset()
    assert not found.margin_alarm


def test_losses_above_alpha_are_seen_soon():
    rng = np.random.default_rng(1)
    found = alarm(1)
    assert queries_until_off(found, lambda a: a.lose(float(rng.random() < 0.35)), 500) < 150
    assert found.risk_alarm
    assert not found.margin_alarm


def test_the_level_leaves_room_for_the_draw_of_the_calibration_set():
    # k = 29 misses of 300 are left; the risk of such a set is Beta(30, 271).
    rng = np.random.default_rng(2)
    assert conditional_level(0.1, 300, 0.05) == pytest.approx(np.quantile(rng.beta(30, 271, 200_000), 0.95), abs=1e-3)
    assert conditional_level(0.01, 20, 0.05) == 0.01


def test_evidence_stays_a_number_and_bad_input():
    found = alarm(3, every=10)
    for _ in range(8000):
        found.see(2.0)
        found.lose(1.0)
    assert np.isfinite(found.margin_evidence)
    assert np.isfinite(found.risk_evidence)
    with pytest.raises(InputError, match=r"loss 2: expected a number in \[0, 1\]"):
        found.lose(2)
    with pytest.raises(InputError, match="false_alarm_every"):
        alarm(0, every=1)
