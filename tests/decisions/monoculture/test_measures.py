"""Measures against values worked by hand, definitions written plainly, and invariants."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from touchstone.decisions.monoculture import baselines, bits, measures
from touchstone.decisions.monoculture.measures import (
    agreement_curve,
    ambiguity,
    discrepancy,
    homogenisation_log10,
    pairwise_agreement,
    pairwise_baseline,
    rashomon_set,
    recourse_curve,
    recourse_levels,
    shares,
    upper,
)
from touchstone.decisions.monoculture.table import DecisionTable, fit_threshold

HAND = [[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 0, 0]]


def random_votes(seed: int, models: int, cases: int, missing: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    votes = (rng.random((models, cases)) < rng.random((models, 1))).astype(np.int8)
    votes[rng.random(votes.shape) < missing] = -1
    return votes


def as_table(votes: np.ndarray, y: np.ndarray) -> DecisionTable:
    return DecisionTable(np.where(votes < 0, np.nan, votes).T, y)


def test_hand_matrix() -> None:
    table = DecisionTable(HAND, [1, 1, 1, 1])
    assert recourse_levels(table) == pytest.approx([1, 2 / 3, 0, 1 / 3])
    found = shares(recourse_levels(table))
    assert (found.none, found.full, found.substantial, found.limited) == (0.25, 0.25, 0.5, 0.5)
    assert (found.some_limited, found.some_substantial, found.arbitrary) == (0.25, 0.25, 0.5)
    assert found.median == pytest.approx(0.5)
    assert ambiguity(table, "model 1") == ambiguity(table) == ambiguity(table, "none") == 0.5
    assert discrepancy(table, "model 1") == 0.5
    agreement = pairwise_agreement(table)
    assert agreement == pytest.approx(np.array([[1, 0.5, 0.75], [0.5, 1, 0.75], [0.75, 0.75, 1]]))
    assert discrepancy(table, "none") == 0.5
    assert discrepancy(table, "model 3") == 0.25


def test_two_independent_models_by_hand() -> None:
    # Accepted by both 48, by the first only 32, by the second only 12, by neither 8 of 100: exactly independent.
    rows = [[1, 1]] * 48 + [[1, 0]] * 32 + [[0, 1]] * 12 + [[0, 0]] * 8
    table = DecisionTable(rows, [1] * 100)
    assert pairwise_agreement(table)[0, 1] == pytest.approx(0.56)
    assert pairwise_baseline(table)[0, 1] == pytest.approx(0.56)
    found = shares(recourse_levels(table))
    assert found.none == pytest.approx(0.08)
    assert found.full == pytest.approx(0.48)
    # With two models a tie is limited recourse.
    assert found.limited == pytest.approx(0.52)
    assert baselines.poisson_binomial_pmf([0.8, 0.6]) == pytest.approx([0.08, 0.44, 0.48])
    assert homogenisation_log10(table) == pytest.approx(0)


def test_strict_monoculture() -> None:
    column = np.array([1] * 70 + [0] * 30)
    table = DecisionTable(np.stack([column] * 5, axis=1), np.ones(100))
    assert (pairwise_agreement(table) == 1).all()
    assert set(recourse_levels(table)) == {0.0, 1.0}
    found = shares(recourse_levels(table))
    assert found.none == pytest.approx(0.3)
    assert found.full == pytest.approx(0.7)
    assert ambiguity(table) == discrepancy(table) == 0
    curve = recourse_curve(table)
    assert curve.y == pytest.approx(curve.monoculture)
    assert agreement_curve(table).y == pytest.approx(agreement_curve(table).monoculture)


@pytest.mark.parametrize("models", [1, 7, 60, 520, 700])
def test_poisson_binomial_is_that_of_scipy(models: int) -> None:
    p = np.random.default_rng(models).random(models)
    pmf = baselines.poisson_binomial_pmf(p)
    assert pmf.sum() == pytest.approx(1, abs=1e-12)
    assert pmf @ np.arange(models + 1) == pytest.approx(p.sum())
    assert pmf == pytest.approx(stats.poisson_binom.pmf(np.arange(models + 1), p), abs=1e-12)
    even = baselines.poisson_binomial_pmf(np.full(models, 0.3))
    assert even == pytest.approx(stats.binom.pmf(np.arange(models + 1), models, 0.3), abs=1e-12)


@pytest.mark.parametrize(("cases", "missing"), [(1, 0.0), (63, 0.0), (64, 0.0), (65, 0.3), (1003, 0.0), (200_003, 0.1)])
def test_packed_agreement_is_the_plain_one(cases: int, missing: float) -> None:
    votes = random_votes(cases, 5, cases, missing)
    votes[:, 0] = 1
    agree, both = bits.pack(votes).pairs()
    for i in range(5):
        for j in range(5):
            seen = (votes[i] >= 0) & (votes[j] >= 0)
            assert both[i, j] == seen.sum()
            assert agree[i, j] == (votes[i][seen] == votes[j][seen]).sum()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 200))
def test_packed_counts_are_the_plain_ones(seed: int, models: int, cases: int) -> None:
    votes = random_votes(seed, models, cases)
    packed = bits.pack(votes)
    chosen = np.random.default_rng(seed).permutation(models)[: 1 + seed % models]
    won = votes[chosen].sum(axis=0)
    assert packed.at_least_one(chosen) == (won > 0).sum()
    assert packed.all_of(chosen) == (won == len(chosen)).sum()
    assert packed.more_than_half(chosen) == (2 * won > len(chosen)).sum()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(20, 120), st.sampled_from([0.0, 0.1]))
def test_order_of_cases_and_models_changes_nothing(seed: int, models: int, cases: int, missing: float) -> None:
    votes = random_votes(seed, models, cases, missing)
    votes[:, :2] = 1
    y = np.arange(cases) % 3 > 0
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(cases), rng.permutation(models)
    one, other = as_table(votes, y), as_table(votes[columns][:, rows], y[rows])
    assert shares(recourse_levels(one)) == shares(recourse_levels(other))
    assert np.sort(upper(pairwise_agreement(one))) == pytest.approx(np.sort(upper(pairwise_agreement(other))))
    assert ambiguity(one, "none") == ambiguity(other, "none")
    assert discrepancy(one, "none") == discrepancy(other, "none")
    assert homogenisation_log10(one) == pytest.approx(homogenisation_log10(other))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8))
def test_more_models_never_make_a_set_less_ambiguous(seed: int, models: int) -> None:
    table = as_table(random_votes(seed, models, 50), np.arange(50) % 2)
    found = []
    for m in range(1, models + 1):
        part = table.select(table.models[:m])
        found.append((ambiguity(part, "model 1"), discrepancy(part, "model 1")))
    assert found[0] == (0, 0)
    for smaller, larger in pairwise(found):
        assert smaller[0] <= larger[0]
        assert smaller[1] <= larger[1]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_turning_labels_and_focus_round_mirrors_recourse(seed: int) -> None:
    votes, y = random_votes(seed, 5, 60), np.arange(60) % 3 > 0
    one, other = as_table(votes, y), as_table(1 - votes, ~y)
    positive = recourse_levels(one, "positive", "accept")
    assert recourse_levels(other, "negative", "reject") == pytest.approx(positive)
    assert recourse_levels(other, "negative", "accept") == pytest.approx(1 - positive)
    assert recourse_levels(other, "negative", "correct") == pytest.approx(positive)
    assert pairwise_baseline(one, "positive") == pytest.approx(pairwise_baseline(other, "negative"))


def test_baseline_of_agreement_uses_the_rates_of_the_cases_in_focus() -> None:
    rng = np.random.default_rng(1)
    y = rng.random(200_000) < 0.25
    # Good on negatives and poor on positives: accuracy is .8, the true-positive rate .5.
    votes = np.where(y, rng.random((2, len(y))) < 0.5, rng.random((2, len(y))) < 0.1).astype(np.int8)
    table = as_table(votes, y)
    assert pairwise_agreement(table)[0, 1] == pytest.approx(0.5, abs=0.01)
    assert pairwise_baseline(table)[0, 1] == pytest.approx(0.5, abs=0.01)
    assert pairwise_baseline(table, "negative")[0, 1] == pytest.approx(0.82, abs=0.01)
    q = measures.model_scores(table)
    assert pairwise_baseline(table, "all")[0, 1] == pytest.approx(q[0] * q[1] + (1 - q[0]) * (1 - q[1]))


def test_recourse_over_all_cases_is_a_mixture_given_the_outcome() -> None:
    rng = np.random.default_rng(2)
    y = rng.random(100_000) < 0.4
    votes = np.where(y, rng.random((4, len(y))) < 0.8, rng.random((4, len(y))) < 0.3).astype(np.int8)
    curve = recourse_curve(as_table(votes, y), "all")
    assert curve.y == pytest.approx(curve.independent, abs=0.01)
    # One binomial of the mean rate would be far off.
    assert abs(stats.binom.cdf(0, 4, votes.mean()) - curve.y[0]) > 0.03


def test_missing_decisions_are_no_disagreement() -> None:
    rows = [[1, 1, 1, 1, 1], [1, 0, 1, 1, np.nan], [0, 0, 0, np.nan, np.nan], [1, 1, 1, 1, 0]]
    table = DecisionTable(rows, [1, 1, 1, 1])
    agreement = pairwise_agreement(table)
    # The last two both decided cases 1 and 4, and agree on the first.
    assert agreement[3, 4] == 0.5
    assert agreement[0, 3] == 1
    level = recourse_levels(table)
    assert level[:2] == pytest.approx([1, 0.75])
    # Three of five decided it: fewer than 80 %.
    assert np.isnan(level[2])
    assert level[3] == pytest.approx(0.8)
    assert shares(level).none == 0
    assert shares(level).full == pytest.approx(1 / 3)


def test_rashomon_set_by_hand() -> None:
    y = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    right, one_off = y.copy(), y.copy()
    one_off[0] = 0
    never = np.zeros(10)
    table = DecisionTable(pd.DataFrame({"right": right, "one off": one_off, "never": never}), y)
    assert rashomon_set(table, 0.0) == ["right"]
    assert rashomon_set(table, 0.1) == ["right", "one off"]
    assert rashomon_set(table, 0.4) == ["right", "one off", "never"]
    # Refusing everybody is .6 accurate and .5 balanced.
    assert measures.model_scores(table, "balanced_accuracy") == pytest.approx([1, 0.875, 0.5])
    assert rashomon_set(table, 0.4, "balanced_accuracy") == ["right", "one off"]
    # On the cases that are split off for selection, both are perfect.
    assert rashomon_set(table, 0.0, split=np.arange(1, 10)) == ["right", "one off"]


def test_threshold_is_the_best_of_all() -> None:
    rng = np.random.default_rng(3)
    y = rng.random(300) < 0.2
    scores = np.round(rng.normal(y, 1.0), 1)
    bound = fit_threshold(scores, y)

    def balanced(t: float) -> float:
        return float(((scores >= t)[y].mean() + (scores < t)[~y].mean()) / 2)

    assert balanced(bound) == max(balanced(t) for t in np.append(np.unique(scores), np.inf))
    right = ((scores >= fit_threshold(scores, y, criterion="accuracy")) == y).mean()
    assert right == max(((scores >= t) == y).mean() for t in np.append(np.unique(scores), np.inf))
    with pytest.raises(ValueError, match="all validation outcomes are the same"):
        fit_threshold([0.1, 0.2], [1, 1])


def test_tables_come_back_from_files(tmp_path) -> None:
    rows = [[1, 1, np.nan], [1, 0, 1], [0, 0, 0], [1, 0, 0]]
    table = DecisionTable(pd.DataFrame(rows, columns=["a", "b", "c"]), [1, 0, 1, 1], {"region": ["n", "s", "s", None]})
    table.save(tmp_path / "t.csv")
    again = DecisionTable.read(tmp_path / "t.csv")
    assert again.models == ("decision_a", "decision_b", "decision_c")
    assert (again.votes == table.votes).all()
    assert (again.y == table.y).all()
    (group,) = again.groups.values()
    assert [group.names[k] for k in group.codes] == ["n", "s", "s", "(missing)"]
    again.save(tmp_path / "u.csv")
    assert (tmp_path / "u.csv").read_text() == (tmp_path / "t.csv").read_text()


def test_classes_become_favourable_and_not() -> None:
    labels = pd.DataFrame({"a": ["gold", "none", "silver"], "b": ["none", None, "gold"]})
    table = DecisionTable.from_labels(labels, ["gold", "none", "gold"], {"gold", "silver"})
    assert table.votes.tolist() == [[1, 0, 1], [0, -1, 1]]
    assert table.y.tolist() == [True, False, True]


def test_scores_become_decisions() -> None:
    val_y = np.array([0, 0, 0, 1, 1, 1])
    val = pd.DataFrame({"a": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "b": [0.1, 0.6, 0.2, 0.7, 0.8, 0.9]})
    scores = pd.DataFrame({"b": [0.6, 0.7, np.nan], "a": [0.34, 0.36, 0.2]})
    table = DecisionTable.from_scores(scores, [0, 1, 1], val, val_y)
    assert table.models == ("b", "a")
    assert table.votes.tolist() == [[0, 1, -1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DecisionTable([[1, 2]], [1]), "not binary"),
        (lambda: DecisionTable([[1, 0]], [1, 0]), "2 outcomes for 1 rows"),
        (lambda: DecisionTable(pd.DataFrame([[1, 0]], columns=["a", "a"]), [1]), "'a' stands twice"),
        (lambda: DecisionTable([[1, 0]], [0.5]), "each 1 or 0"),
        (lambda: DecisionTable([[1, np.nan]], [1]), "no decision on any case"),
        (lambda: DecisionTable([[1, 0]], [1], {"sex": ["f", "m"]}), "group 'sex': 2 values for 1"),
        (lambda: recourse_levels(DecisionTable([[1, 0]], [0])), "no case has the outcome 1"),
        (lambda: rashomon_set(DecisionTable([[1, 0]], [1]), -0.1), "eps -0.1"),
        (lambda: discrepancy(DecisionTable([[1, 0]], [1]), "x"), "baseline 'x'"),
        (lambda: baselines.poisson_binomial_pmf([1.2]), "between 0 and 1"),
        (lambda: agreement_curve(DecisionTable([[1], [0]], [1, 1])), "two models or more"),
    ],
)
def test_bad_input_is_named(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()
