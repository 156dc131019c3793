"""The threshold: values worked by hand, the brute-force minimum, monotonicity and invariances."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from touchstone.decisions.conformal_arbitrage import ConformalArbitrage, Costs
from touchstone.decisions.conformal_arbitrage.bounds import hoeffding_bentkus, last_rejected
from touchstone.decisions.conformal_arbitrage.risk import candidate_curve, monotone_curve, realised_curve
from touchstone.decisions.conformal_arbitrage.tables import table
from touchstone.errors import InputError


def nine() -> tuple[np.ndarray, np.ndarray]:
    """Nine queries with one right option each, 0.0, 0.1, …, 0.8 below the Primary's best."""
    scores = np.stack([np.ones(9), 1 - np.arange(9) / 10], axis=1)
    right = np.tile([0.0, 1.0], (9, 1))
    return scores, right


@pytest.mark.parametrize(("alpha", "lam"), [(0.3, 0.6), (0.29, 0.7), (0.1, 0.8), (0.9, 0.0)])
def test_the_worked_example(alpha, lam):
    router = ConformalArbitrage(alpha).calibrate(*nine())
    assert router.lam_ == pytest.approx(lam, abs=1e-12)
    assert (9 * router.empirical_risk_ + 1) / 10 <= alpha + 1e-12


def test_too_few_queries_send_everything_to_the_guardian():
    scores, right = nine()
    with pytest.warns(UserWarning, match="needs at least 19 calibration queries"):
        router = ConformalArbitrage(0.05).calibrate(scores, right)
    assert math.isinf(router.lam_)
    assert router.decide(np.array([[9.0, 0.0]]), np.array([[0.0, 1.0]])).deferred.all()


def test_a_threshold_at_the_smallest_alpha_that_n_allows():
    # n = 99 and alpha = 0.01: k = 100 · 0.01 − 1 = 0 misses are left, though 0.01 · 100 is not exactly 1 in binary.
    rng = np.random.default_rng(0)
    scores = rng.random((99, 3))
    right = np.eye(3)[rng.integers(3, size=99)]
    router = ConformalArbitrage(0.01).calibrate(scores, right)
    gap = (scores.max(axis=1) - (scores * right).sum(axis=1)).max()
    assert router.lam_ == pytest.approx(gap)
    assert router.empirical_risk_ == 0


def brute(scores: np.ndarray, guard: np.ndarray, alpha: float, bound: float = 1.0) -> float:
    """The smallest breakpoint that satisfies the bound, by trying every one."""
    gap = scores.max(axis=1, keepdims=True) - scores
    n = len(scores)
    for lam in np.unique(np.append(gap, 0.0)):
        inside = np.where(gap <= lam + 1e-12, guard, -np.inf).max(axis=1)
        if ((guard.max(axis=1) - inside).sum() + bound) / (n + 1) <= alpha + 1e-12:
            return float(lam)
    return math.inf


def test_the_exact_threshold_is_the_brute_force_minimum_and_below_any_grid():
    rng = np.random.default_rng(1)
    for case in range(200):
        scores = rng.random((30, 5)).round(2 if case % 2 else 8)
        guard = rng.random((30, 5)) if case % 3 else rng.integers(0, 2, size=(30, 5)).astype(float)
        alpha = float(rng.uniform(0.05, 0.6))
        exact = ConformalArbitrage(alpha).calibrate(scores, guard).lam_
        assert exact == pytest.approx(brute(scores, guard, alpha), abs=1e-9)
        coarse = ConformalArbitrage(alpha, grid=np.linspace(0, 1, 17)).calibrate(scores, guard).lam_
        assert exact - 1e-9 <= coarse <= exact + 1 / 16


def test_the_fast_path_for_right_and_wrong_is_the_general_one():
    rng = np.random.default_rng(2)
    scores, right = rng.random((200, 4)), rng.integers(0, 2, size=(200, 4)).astype(float)
    fast = candidate_curve(table(scores, "p"), right, 1.0)
    # A value that is neither 0 nor 1, on an option that is never the best, takes the general path.
    nudged = np.vstack([right, [1.0, 0.5, 0.0, 0.0]])
    general = candidate_curve(table(np.vstack([scores, [1.0, 0.5, 0.2, 0.1]]), "p"), nudged, 1.0)
    lams = np.linspace(0, 1, 50)
    assert fast.total(lams) == pytest.approx(general.total(lams))


def test_curves_are_the_losses_of_each_threshold():
    rng = np.random.default_rng(3)
    scores, guard, guardian = rng.random((40, 4)).round(1), rng.random((40, 4)), rng.random((40, 4))
    options = table(scores, "p")
    gap = scores.max(axis=1, keepdims=True) - scores
    lams = np.linspace(0, 1, 21)

    def realised(lam: float) -> np.ndarray:
        inside = gap <= lam + 1e-12
        chosen = np.where(inside, guardian, -np.inf).argmax(axis=1)
        return guard.max(axis=1) - guard[np.arange(40), chosen]

    curve = realised_curve(options, guard, guardian, 1.0)
    assert curve.total(lams) == pytest.approx([realised(lam).sum() for lam in lams])
    later = np.append(np.unique(gap), 2.0)
    worst = [sum(max(realised(x)[i] for x in (lam, *later[later > lam])) for i in range(40)) for lam in lams]
    assert monotone_curve(options, guard, guardian, 1.0).total(lams) == pytest.approx(worst)


@st.composite
def tables(draw):
    n, m = draw(st.integers(5, 25)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    digits = draw(st.sampled_from([1, 2, 9]))
    return rng.random((n, m)).round(digits), rng.random((n, m)).round(digits), rng


@given(tables(), st.floats(0.2, 0.5), st.floats(0.01, 0.4))
@settings(max_examples=60, deadline=None)
def test_more_risk_means_a_smaller_threshold_and_fewer_calls(case, alpha, more):
    scores, guard, rng = case
    tight, loose = (ConformalArbitrage(a).calibrate(scores, guard) for a in (alpha, alpha + more))
    assert loose.lam_ <= tight.lam_
    fresh = rng.random(scores.shape)
    assert (loose.candidates(fresh) <= tight.candidates(fresh)).all()
    assert loose.expected_cost(fresh).calls <= tight.expected_cost(fresh).calls


@given(tables(), st.floats(0.21, 0.9))
@settings(max_examples=60, deadline=None)
def test_the_choice_is_within_lam_of_the_best_and_invariances(case, alpha):
    scores, guard, rng = case
    router = ConformalArbitrage(alpha).calibrate(scores, guard)
    fresh, judged = rng.random(scores.shape).round(1), rng.random(scores.shape).round(1)
    fresh[0] = 0.5  # all options tied
    made = router.decide(fresh, judged)
    kept = np.take_along_axis(fresh, made.choice[:, None], axis=1)[:, 0]
    assert (fresh.max(axis=1) - kept <= router.lam_ + 1e-11).all()
    shift = rng.integers(-3, 4, size=(len(scores), 1))
    moved = ConformalArbitrage(alpha).calibrate(scores + shift, guard)
    assert moved.lam_ == pytest.approx(router.lam_, abs=1e-9)
    order = rng.permutation(scores.shape[1])
    shuffled = ConformalArbitrage(alpha).calibrate(scores[:, order], guard[:, order])
    assert shuffled.lam_ == router.lam_
    again = shuffled.decide(fresh[:, order], judged[:, order])
    rows = np.arange(len(fresh))
    assert (fresh[rows, order[again.choice]] == fresh[rows, made.choice]).all()
    assert (judged[rows, order[again.choice]] == judged[rows, made.choice]).all()
    padding = np.full((len(scores), 2), 99.0)
    mask = np.hstack([np.ones(scores.shape, dtype=bool), np.zeros(padding.shape, dtype=bool)])
    wide = ConformalArbitrage(alpha).calibrate(
        np.hstack([scores, padding]), np.hstack([guard, padding]), mask=mask
    )  # fmt: skip
    assert wide.lam_ == router.lam_
    assert (
        wide.decide(np.hstack([fresh, padding]), np.hstack([judged, padding]), mask=mask).choice == made.choice
    ).all()


def test_rows_of_varying_length():
    scores, guard = [[0.9, 0.5], [0.2], [0.1, 0.3, 0.2]] * 10, [[0.0, 1.0], [1.0], [1.0, 0.0, 0.0]] * 10
    router = ConformalArbitrage(0.1).calibrate(scores, guard)
    assert router.lam_ == pytest.approx(0.4)
    made = router.decide([[0.7], [0.5, 0.4, 0.0]], [[0.0], [0.0, 1.0, 5.0]])
    assert made.choice.tolist() == [0, 1]
    assert made.deferred.tolist() == [False, True]


@pytest.mark.parametrize("how", ["softmax", "minmax", "rank"])
def test_normalising_removes_each_querys_own_scale(how):
    rng = np.random.default_rng(4)
    scores, guard = rng.random((60, 4)), rng.random((60, 4))
    scale = 1.0 if how == "softmax" else rng.uniform(0.1, 9, size=(60, 1))
    plain, scaled = (
        ConformalArbitrage(0.1, normalise=how).calibrate(s, guard)
        for s in (scores, scale * scores + rng.normal(size=(60, 1)))
    )
    assert scaled.lam_ == pytest.approx(plain.lam_, abs=1e-9)
    assert 0 < plain.lam_ <= 1


def test_realised_modes_bound_what_is_returned():
    rng = np.random.default_rng(5)
    p, G = rng.random((400, 4)), rng.random((400, 4))
    noisy = G + rng.normal(0, 0.2, G.shape)
    paper = ConformalArbitrage(0.2).calibrate(p, G)
    mono = ConformalArbitrage(0.2, risk="realised_monotone").calibrate(p, G, noisy)
    tested = ConformalArbitrage(0.2, risk="realised_ltt").calibrate(p, G, noisy)
    assert paper.lam_ < mono.lam_ < tested.lam_
    with pytest.raises(InputError, match=r"smallest alpha they can certify is 0\.061"):
        ConformalArbitrage(0.05, risk="realised_monotone").calibrate(p, G, noisy)
    with pytest.raises(InputError, match="the Guardian alone loses"):
        ConformalArbitrage(0.05, risk="realised_ltt").calibrate(p, G, noisy)
    for risk, alpha in (("realised_monotone", mono.alpha_min_), ("realised_ltt", tested.alpha_min_)):
        assert np.isfinite(ConformalArbitrage(alpha + 1e-6, risk=risk).calibrate(p, G, noisy).lam_)


def test_hoeffding_bentkus_against_its_parts():
    from scipy.stats import binom

    assert hoeffding_bentkus(0.0, 50, 0.1) == pytest.approx(min(0.9**50, np.e * 0.9**50))
    assert hoeffding_bentkus(0.06, 50, 0.1) <= np.e * binom.cdf(3, 50, 0.1) + 1e-12
    assert hoeffding_bentkus(0.2, 50, 0.1) == 1
    assert last_rejected(np.array([0.01, 0.05, 0.2, 0.01]), 0.1) == 1
    assert last_rejected(np.array([0.2, 0.01]), 0.1) == -1


def test_the_frontier_agrees_with_single_calibrations_and_the_budget():
    rng = np.random.default_rng(6)
    scores, guard = rng.random((300, 4)), rng.random((300, 4))
    router = ConformalArbitrage(0.1, costs=Costs(guardian=10, per_option=1)).calibrate(scores, guard)
    found = router.frontier([0.05, 0.1, 0.3])
    for row in found.itertuples():
        assert row.lam == ConformalArbitrage(row.alpha).calibrate(scores, guard).lam_
        inside = scores.max(axis=1, keepdims=True) - scores <= row.lam + 1e-12
        size = inside.sum(axis=1)
        assert row.cost == pytest.approx((1 + (size > 1) * (10 + size)).mean())
    alpha = router.alpha_for(float(found["cost"][1]))
    assert alpha <= 0.1
    cost = ConformalArbitrage(alpha, costs=router.costs).calibrate(scores, guard).expected_cost(scores).cost
    assert cost <= found["cost"][1]
    with pytest.raises(InputError, match="budget 1: the Primary alone costs"):
        ConformalArbitrage(0.1).calibrate(np.zeros((50, 2)), np.eye(2)[[0] * 50]).alpha_for(1.0)


def test_tied_scores_are_counted_and_jitter_breaks_them():
    scores = np.round(np.random.default_rng(7).random((200, 3)), 1)
    right = np.eye(3)[np.random.default_rng(8).integers(3, size=200)]
    plain = ConformalArbitrage(0.2).calibrate(scores, right)
    fine = ConformalArbitrage(0.2, jitter=9e-10, seed=3).calibrate(scores, right)
    assert plain.distinct_gaps_ <= 11
    assert fine.distinct_gaps_ > 200
    assert fine.lam_ == pytest.approx(plain.lam_, abs=2e-9)
    assert ConformalArbitrage(0.2, jitter=9e-10, seed=3).calibrate(scores, right).lam_ == fine.lam_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ConformalArbitrage(0.2).calibrate(scores, right).lam_ == plain.lam_


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha: expected a number between 0 and B = 1"),
        ({"alpha": 1.0}, "alpha: expected a number between 0 and B = 1"),
        ({"alpha": 0.5, "B": -1}, "B: expected a positive number"),
        ({"risk": "output"}, "risk 'output': expected one of candidate"),
        ({"normalise": "zscore"}, "normalise 'zscore': expected one of none"),
        ({"costs": (1,)}, "costs: expected a pair"),
        ({"costs": (1, -2)}, "costs: guardian is -2"),
        ({"jitter": 0.1}, "jitter: expected a number from 0"),
        ({"delta": 1.5}, "delta: expected"),
        ({"grid": []}, "grid: expected finite thresholds"),
    ],
)
def test_parameters_out_of_range(options, message):
    with pytest.raises(InputError, match=message):
        ConformalArbitrage(**options)


@pytest.mark.parametrize(
    ("scores", "guard", "message"),
    [
        (np.zeros((0, 2)), np.zeros((0, 2)), "primary_scores: expected at least one query"),
        ([[1.0], []], [[1.0], []], "primary_scores, row 2: no options"),
        (np.array([[1.0, np.nan]]), np.ones((1, 2)), "primary_scores, row 1: expected finite scores"),
        (np.array([[1.0, np.inf]]), np.ones((1, 2)), "primary_scores, row 1: expected finite scores"),
        (np.ones(3), np.ones(3), r"primary_scores: expected an array \[queries, options\]"),
        ("scores", np.ones(3), "primary_scores: expected numbers"),
        (np.ones((3, 2)), np.array([[0, 1], [2, 0], [0, -1.0]]), r"guard_values, row 2, 3: expected .* \[0, 1\]"),
        (np.ones((3, 2)), np.ones((3, 3)), "guard_values: expected a number for each option"),
    ],
)
def test_tables_that_cannot_be_used(scores, guard, message):
    with pytest.raises(InputError, match=message):
        ConformalArbitrage(0.5).calibrate(scores, guard)
