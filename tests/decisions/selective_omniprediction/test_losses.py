"""Losses, intervals and the rule k*."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from touchstone.decisions.selective_omniprediction import ChowLoss
from touchstone.decisions.selective_omniprediction.interval import concave_interval
from touchstone.errors import InputError

prices = st.floats(0, 0.6)
weights = st.tuples(st.floats(0.05, 1), st.floats(0.05, 1), st.floats(0.05, 1))
kinds = st.sampled_from(["l1", "l2", "cost01", "logistic"])
root = np.sqrt


@pytest.mark.parametrize(
    ("kind", "a_plus", "a_minus", "expected"),
    [
        ("l1", 0.1, 0.1, (0.1, 0.9)),
        ("l1", 0.2, 0.2, (0.2, 0.8)),
        ("l1", 0.3, 0.1, (0.125, 0.75)),
        ("l2", 0.1, 0.1, ((1 - root(0.6)) / 2, (1 + root(0.6)) / 2)),
        ("l2", 0.2, 0.2, ((1 - root(0.2)) / 2, (1 + root(0.2)) / 2)),
        ("l2", 0.3, 0.1, ((4 - root(6)) / 10, (4 + root(6)) / 10)),
    ],
)
def test_closed_forms(kind, a_plus, a_minus, expected):
    assert ChowLoss(kind, a_plus, a_minus).abstention_interval() == pytest.approx(expected, abs=1e-12)


@given(kinds, prices, prices, weights, st.floats(0.2, 3), st.floats(0.2, 3))
@settings(max_examples=80, deadline=None)
def test_closed_forms_are_what_the_search_finds(kind, a_plus, a_minus, w, c0, c1):
    loss = ChowLoss(kind, a_plus, a_minus, w, c0, c1)

    def difference(p):
        return float((loss.kappa_pred([p]) - loss.kappa_abs([p]))[0])

    found, searched = loss.abstention_interval(), concave_interval(difference)
    assert found is None or 0 <= found[0] <= found[1] <= 1
    if found is None or searched is None:
        # Where one sees an interval of rounding errors, the other may see none.
        assert (found or searched) is None or np.ptp(np.clip(found or searched, 0, 1)) < 1e-5
    elif np.ptp(found) > 1e-4:
        assert found == pytest.approx(np.clip(searched, 0, 1), abs=1e-7)


def test_no_interval_where_abstaining_is_dear():
    assert ChowLoss("l1", 0.5, 0.5).abstention_interval() is None
    assert ChowLoss("l2", 0.25, 0.25).abstention_interval() is None
    assert ChowLoss("logistic", 0.7, 0.7).abstention_interval() is None
    assert not np.isnan(ChowLoss("l1", 0.5, 0.5).decide(np.linspace(0, 1, 101))).any()


def test_a_loss_that_never_abstains_though_its_polynomial_is_positive_somewhere():
    assert ChowLoss("l2", 0.5, 0.5, (1.0, 0.125, 1.0)).abstention_interval() is None


@given(kinds, prices)
@settings(deadline=None)
def test_equal_prices_give_a_symmetric_interval(kind, price):
    found = ChowLoss(kind, price, price).abstention_interval()
    assert found is None or found[0] + found[1] == pytest.approx(1, abs=1e-9)


@given(kinds, prices, prices, weights, st.floats(0.1, 0.95))
@settings(deadline=None)
def test_lower_prices_widen_the_interval(kind, a_plus, a_minus, w, factor):
    dear = ChowLoss(kind, a_plus, a_minus, w).abstention_interval()
    cheap = ChowLoss(kind, factor * a_plus, factor * a_minus, w).abstention_interval()
    if dear is not None:
        assert cheap is not None
        assert cheap[0] <= dear[0] + 1e-9
        assert cheap[1] >= dear[1] - 1e-9


@given(kinds, prices, prices, weights, st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_no_action_of_a_grid_beats_the_rule(kind, a_plus, a_minus, w, p):
    loss = ChowLoss(kind, a_plus, a_minus, w, c0=0.7, c1=1.4)
    lam, mu, _ = w
    grid = np.linspace(-14, 14, 4001) if kind == "logistic" else np.linspace(0, 1, 2001)
    plus, minus = loss._losses(grid)
    best = (p * mu * minus + (1 - p) * lam * plus).min()
    silent = float(loss.kappa_abs([p])[0])
    decision = loss.decide([p])[0]
    cost = silent if np.isnan(decision) else float(loss.kappa_pred([p])[0])
    assert cost <= min(best, silent) + 1e-9
    # The grid comes near: the rule does not claim less than it costs.
    assert cost >= min(best, silent) - 1e-4


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=12), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_own_losses_find_the_best_action(lines, p):
    table = np.array(lines)
    loss = ChowLoss(lambda y, t: table[t.astype(int), y], 0.3, 0.2, actions=tuple(range(len(lines))))
    expected = ((1 - p) * table[:, 0] + p * table[:, 1]).min()
    assert loss.kappa_pred([p])[0] == pytest.approx(expected, abs=1e-12)


def test_own_loss_agrees_with_a_named_one():
    own, named = ChowLoss(lambda y, t: np.abs(y - t), 0.3, 0.1), ChowLoss("l1", 0.3, 0.1)
    assert own.abstention_interval() == pytest.approx(named.abstention_interval(), abs=1e-10)
    p = np.linspace(0.013, 0.987, 77)
    assert np.array_equal(own.decide(p), named.decide(p), equal_nan=True)


def test_worked_example():
    loss = ChowLoss("l1", 0.3, 0.1)
    assert loss.kappa_pred([0.82])[0] == pytest.approx(0.18)
    assert loss.kappa_abs([0.82])[0] == pytest.approx(0.264)
    assert loss.decide([0.82])[0] == 1
    assert np.isnan(loss.decide([0.70])[0])


def test_ties_predict():
    assert ChowLoss("l1", 0.25, 0.25).decide([0.25, 0.75]).tolist() == [0, 1]


def test_free_abstention_where_the_loss_is_never_zero():
    """The logistic loss is bounded away from 0 by its clip: k* abstains at 0 and 1 too, where that is free."""
    loss = ChowLoss("logistic", 0.0, 0.0)
    assert loss.abstention_interval() == (0.0, 1.0)
    assert np.isnan(loss.decide([0.0, 0.5, 1.0])).all()


@given(kinds, prices, prices, weights, st.integers(0, 10_000))
@settings(deadline=None)
def test_chow_identity(kind, a_plus, a_minus, w, seed):
    rng = np.random.default_rng(seed)
    p = rng.random(50)
    y = (rng.random(50) < p).astype(int)
    loss = ChowLoss(kind, a_plus, a_minus, w)
    found = loss.evaluate(loss.decide(p), y)
    share = found.predicted_share
    parts = share * np.nan_to_num(found.selective_loss) + (1 - share) * np.nan_to_num(found.abstain_cost)
    assert found.total == pytest.approx(parts)


def test_table_of_the_paper():
    """22 % predicted at a loss of 0.045, abstaining at 0.1: 0.088."""
    y = np.zeros(1000, dtype=int)
    decision = np.full(1000, np.nan)
    decision[:220] = 0.045
    found = ChowLoss("l1", 0.1, 0.1).evaluate(decision, y)
    assert (found.predicted_share, found.selective_loss, found.abstain_cost) == pytest.approx((0.22, 0.045, 0.1))
    assert found.total == pytest.approx(0.0879)


@pytest.mark.parametrize("loss", [ChowLoss("l1", 0.3, 0.1), ChowLoss("cost01", 0.2, 0.2, (0.5, 1, 1), 1, 2)])
def test_no_other_rule_on_six_points_is_better(loss):
    p, mass = np.array([0.05, 0.2, 0.4, 0.6, 0.8, 0.97]), np.array([0.1, 0.2, 0.25, 0.2, 0.15, 0.1])
    costs = np.stack(
        [
            (1 - p) * loss.costs(np.full(6, t), np.zeros(6)) + p * loss.costs(np.full(6, t), np.ones(6))
            for t in (0.0, 1.0, np.nan)
        ]
    )
    every = [sum(mass[i] * costs[c, i] for i, c in enumerate(rule)) for rule in product(range(3), repeat=6)]
    decided = loss.decide(p)
    ours = [2 if np.isnan(t) else int(t) for t in decided]
    assert sum(mass[i] * costs[c, i] for i, c in enumerate(ours)) == pytest.approx(min(every))
    assert len(every) == 729


def test_fully_reliable_rule_is_a_threshold():
    eps = 0.2
    loss = ChowLoss.fully_reliable(eps)
    assert loss.abstention_interval() == pytest.approx((eps / 2, 1 - eps / 2), abs=1e-12)
    assert loss.decide([0.05, 0.95]).tolist() == [0, 1]
    assert np.isnan(loss.decide([0.15, 0.85])).all()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"a_plus": -0.1}, "a_plus"),
        ({"a_minus": float("nan")}, "a_minus"),
        ({"weights": (1, -1, 1)}, "weights"),
        ({"weights": (1, 1)}, "weights"),
        ({"kind": "hinge"}, "kind"),
        ({"clip": 0.7}, "clip"),
        ({"c1": -1}, "c1"),
    ],
)
def test_bad_losses(arguments, named):
    with pytest.raises(InputError, match=named):
        ChowLoss(**arguments)


@pytest.mark.parametrize("p", [[0.2, 1.2], [0.1, float("nan")], [[0.1]], [-0.001]])
def test_bad_scores(p):
    with pytest.raises(InputError, match="scores"):
        ChowLoss().decide(p)


def test_bad_outcomes_and_own_losses():
    with pytest.raises(InputError, match="y"):
        ChowLoss().evaluate([0.0, 1.0], [0, 2])
    with pytest.raises(InputError, match="decision"):
        ChowLoss().evaluate([0.0], [0, 1])
    with pytest.raises(InputError, match="kind"):
        ChowLoss(lambda y, t: t - 1.0).decide([0.5])
    with pytest.raises(InputError, match="actions"):
        ChowLoss(lambda y, t: t, actions=()).decide([0.5])
