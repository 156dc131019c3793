"""Reports against the measures one by one, known correlations, intervals, subsets, groups, drift."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from touchstone.decisions.monoculture import measures
from touchstone.decisions.monoculture.baselines import poisson_binomial_pmf, success_rates
from touchstone.decisions.monoculture.correlation import equivalent_correlation, one_factor_pmf, one_factor_table
from touchstone.decisions.monoculture.difficulty import item_difficulty
from touchstone.decisions.monoculture.drift import recourse_drift
from touchstone.decisions.monoculture.exclusion import describe_excluded
from touchstone.decisions.monoculture.measures import levels, pairwise_agreement, recourse_levels, shares, upper
from touchstone.decisions.monoculture.patterns import Summer, collapse
from touchstone.decisions.monoculture.report import audit, deficit_sweep, split_half
from touchstone.decisions.monoculture.subsets import (
    by_model_attribute,
    compare_sets,
    greedy_portfolio,
    recourse_by_size,
    subsampled,
)
from touchstone.decisions.monoculture.table import DecisionTable


def mixed_table(missing: float = 0.0, cases: int = 900, models: int = 6) -> DecisionTable:
    rng = np.random.default_rng(5)
    y = rng.random(cases) < 0.6
    hard = rng.normal(size=cases)
    votes = (np.where(y, 0.8, -0.8) + hard + 0.6 * rng.normal(size=(models, cases)) > 0).astype(float)
    votes[rng.random(votes.shape) < missing] = np.nan
    groups = {"sex": rng.choice(["f", "m"], cases), "rare": np.where(np.arange(cases) < 9, "few", "many")}
    return DecisionTable(votes.T, y, groups)


@pytest.mark.parametrize("missing", [0.0, 0.06])
@pytest.mark.parametrize("focus", ["positive", "negative", "all"])
def test_report_holds_what_the_measures_say(missing: float, focus) -> None:
    table = mixed_table(missing)
    report = audit(table, np.inf, focus=focus, n_boot=20)
    content = report.to_dict()
    level = recourse_levels(table, focus)
    found = shares(level)
    for name in ("none", "limited", "substantial", "full", "median", "arbitrary", "some_limited"):
        assert content["recourse"][name] == pytest.approx(getattr(found, name)), name
    pairs = upper(pairwise_agreement(table, focus))
    assert content["agreement"]["mean"] == pytest.approx(pairs.mean(), abs=1e-6)
    assert content["agreement"]["min"] == pairs.min()
    assert content["agreement"]["baseline_mean"] == pytest.approx(
        upper(measures.pairwise_baseline(table, focus)).mean()
    )
    assert content["ambiguity"] == pytest.approx(measures.ambiguity(table, focus=focus))
    assert content["discrepancy"] == pytest.approx(measures.discrepancy(table, focus=focus))
    assert content["homogenisation_log10"] == pytest.approx(measures.homogenisation_log10(table, focus))
    assert content["dropped"] == np.isnan(level).sum()
    assert (content["dropped"] > 0) == (missing > 0)
    json.dumps(content, allow_nan=False)
    sex = {g["name"]: g["none"] for g in content["groups"]["sex"]["groups"]}
    rows = table.in_focus(focus).rows
    for code, name in enumerate(table.groups["sex"].names):
        inside = table.groups["sex"].codes[rows] == code
        assert sex[name] == pytest.approx(shares(level[inside]).none)
    assert content["groups"]["rare"]["too_small"] == ["few"]
    assert content["groups"]["rare"]["largest_ratio"] is None


@pytest.mark.parametrize("missing", [0.0, 0.05])
def test_bootstrap_of_patterns_is_that_of_cases(missing: float) -> None:
    table = mixed_table(missing)
    seen = table.in_focus("positive")
    patterns = collapse(seen, {})
    assert patterns.cases == len(seen.rows)
    assert (patterns.success[:, patterns.of_case] == seen.success).all()
    assert len(patterns.counts) < len(seen.rows) / 2
    assert np.unique(patterns.success, axis=1).shape[1] == len(patterns.counts)
    summer = Summer(patterns, 0)
    rng = np.random.default_rng(1)
    picked = rng.integers(len(seen.rows), size=len(seen.rows))
    weights = np.bincount(patterns.of_case[picked], minlength=len(patterns.counts)).astype(np.float32)[None]
    sums = summer(weights)
    again = DecisionTable(table.decisions.to_numpy()[seen.rows[picked]], np.ones(len(picked)))
    assert sums.by_level[0, summer.levels == 0] / sums.by_level.sum() == pytest.approx(
        shares(recourse_levels(again)).none
    )
    assert summer.rates(sums)[0][0] == pytest.approx(success_rates(again.votes))
    # With missing decisions the mean of ratios is taken to first order.
    tolerance = 1e-6 if missing == 0 else 2e-3
    assert sums.agreement[0] == pytest.approx(upper(pairwise_agreement(again)).mean(), abs=tolerance)


def test_intervals_cover_and_shrink() -> None:
    truth = one_factor_table(0.5, cases=100_000, models=8, seed=1)
    exact = audit(truth, np.inf, n_boot=0)
    covered = {"agreement": 0, "none": 0, "full": 0, "correlation": 0}
    widths = []
    for seed in range(30):
        part = truth.rows(np.random.default_rng(seed).integers(len(truth), size=800))
        found = audit(part, np.inf, n_boot=200, seed=seed).estimates
        for name in covered:
            m = found.measured[name]
            covered[name] += m.low <= exact.estimates.value(name) <= m.high
        widths.append(found.measured["agreement"].high - found.measured["agreement"].low)
    # 95 % of 30 is 28.5; fewer than 24 has a chance of 0.03 %.
    assert min(covered.values()) >= 24
    large = audit(truth.rows(np.arange(12_800)), np.inf, n_boot=200).estimates.measured["agreement"]
    assert np.mean(widths) / (large.high - large.low) == pytest.approx(4, rel=0.2)


def test_independent_errors_give_both_baselines_and_monoculture_its_own() -> None:
    table = one_factor_table(0.0, seed=3)
    report = audit(table, np.inf, n_boot=100)
    beside = report.to_dict()["beside"]["independent"]
    error = np.sqrt(beside["full"] / 10_000)
    assert report.estimates.value("agreement") == pytest.approx(beside["agreement"], abs=0.006)
    assert report.estimates.value("full") == pytest.approx(beside["full"], abs=4 * error)
    assert report.estimates.value("correlation") < 0.01
    assert report.to_dict()["verdict"]["word"] == "near strong multiplicity"
    assert "below resolution" in " ".join(report.to_dict()["flags"])
    strict = audit(one_factor_table(1.0, seed=3, spread=0.002), np.inf, n_boot=100)
    assert strict.to_dict()["verdict"]["word"] == "near monoculture"
    assert strict.estimates.value("correlation") > 0.99
    assert audit(one_factor_table(0.5), np.inf, n_boot=50).to_dict()["verdict"]["word"] == "between"


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
def test_correlation_is_found_again(rho: float) -> None:
    table = one_factor_table(rho, models=12, cases=20_000, spread=0.05, seed=7)
    won = np.bincount((table.votes > 0).sum(axis=0), minlength=13)
    rates = success_rates(table.votes)
    assert equivalent_correlation(rates, won).rho == pytest.approx(rho, abs=0.02)
    pmf = one_factor_pmf(rates, rho)
    assert pmf.sum() == pytest.approx(1)
    assert np.abs(pmf - won / won.sum()).max() < 0.01
    assert one_factor_pmf(rates, 0.0) == pytest.approx(poisson_binomial_pmf(rates))
    # The rates of models do not depend on rho.
    assert one_factor_pmf(rates, rho) @ np.arange(13) == pytest.approx(rates.sum(), abs=0.01)


def test_every_measure_moves_with_the_correlation() -> None:
    found = [
        audit(one_factor_table(rho, cases=4000), np.inf, n_boot=0).estimates for rho in (0, 0.25, 0.5, 0.75, 0.9, 1)
    ]
    for name, sign in (
        ("agreement", 1),
        ("none", 1),
        ("full", 1),
        ("ambiguity", -1),
        ("position", 1),
        ("correlation", 1),
    ):
        values = sign * np.array([one.value(name) for one in found])
        assert (np.diff(values) >= -1e-9).all(), name


def test_difficulty_explains_the_mean_and_leaves_copies() -> None:
    table = one_factor_table(0.6, models=8, cases=6000, spread=0.06, seed=2)
    votes = table.votes.copy()
    copied = np.random.default_rng(0).random(6000) < 0.7
    votes[1] = np.where(copied, votes[0], votes[1])
    agreement = upper_matrix(votes)
    found = item_difficulty(votes, agreement)
    assert upper(found.excess).mean() == pytest.approx(0, abs=1e-9)
    assert found.chance.sum(axis=1)[1:-1] == pytest.approx(np.arange(1, 8))
    counts = np.bincount((votes > 0).sum(axis=0), minlength=9)
    assert counts @ found.chance == pytest.approx((votes > 0).sum(axis=1), rel=1e-6)
    excess = found.excess - 2 * np.eye(8)
    assert np.unravel_index(np.argmax(excess), excess.shape) in [(0, 1), (1, 0)]
    assert excess.max() > 0.03
    # Without the copies no pair stands out by more than sampling error.
    clean = item_difficulty(table.votes, upper_matrix(table.votes))
    error = np.sqrt(agreement * (1 - agreement) / 6000)
    assert (np.abs(upper(clean.excess)) < 4 * upper(error)).all()


def upper_matrix(votes: np.ndarray) -> np.ndarray:
    return (votes[:, None] == votes[None]).mean(axis=2)


def test_expected_recourse_by_size_is_the_mean_over_all_subsets() -> None:
    table = mixed_table()
    by_size = recourse_by_size(table).set_index("models")
    for size in (1, 2, 3, 6):
        found = [shares(levels(table.in_focus().success[list(subset)])) for subset in combinations(range(6), size)]
        for name in ("none", "substantial", "full"):
            assert by_size.loc[size, name] == pytest.approx(np.mean([getattr(one, name) for one in found])), (
                size,
                name,
            )
        drawn = subsampled(table, size)
        assert drawn["none"].mean() == pytest.approx(by_size.loc[size, "none"])
        assert drawn["substantial"].mean() == pytest.approx(by_size.loc[size, "substantial"])
        assert len(drawn) == len(found)
    assert len(subsampled(table, 3, draws=10)) == 10


def test_subsets_with_missing_decisions() -> None:
    table = mixed_table(0.05)
    found = subsampled(table, 6)
    assert found["none"].iloc[0] == shares(recourse_levels(table)).none
    assert found["agreement"].iloc[0] == pytest.approx(upper(pairwise_agreement(table)).mean())


def test_portfolio_takes_the_model_that_helps_most() -> None:
    rows = [[1, 1, 0]] * 5 + [[1, 0, 0]] * 3 + [[0, 0, 1]] * 2
    found = greedy_portfolio(DecisionTable(pd.DataFrame(rows, columns=["a", "b", "c"]), np.ones(10)))
    assert found["model"].tolist() == ["a", "c", "b"]
    assert found["none"].tolist() == pytest.approx([0.2, 0, 0])


def test_providers_are_compared_at_one_size() -> None:
    table = one_factor_table(0.5, models=10, cases=2000)
    meta = pd.DataFrame({"provider": ["x"] * 4 + ["y"] * 5 + ["z"]}, index=list(table.models))
    table = DecisionTable(table.decisions, table.y, model_meta=meta)
    found = by_model_attribute(table, "provider").set_index("set")
    assert list(found.index) == ["x", "y"]
    assert (found["size"] == 4).all()
    assert found["subsets"].tolist() == [1, 5]
    assert found.loc["x", "none"] == pytest.approx(shares(recourse_levels(table.select(table.models[:4]))).none)
    with pytest.raises(ValueError, match="attribute 'age'"):
        by_model_attribute(table, "age")
    sets = compare_sets({"models": table, "prompts": table.select(table.models[:3])}, draws=50)
    assert sets["size"].tolist() == [3, 3]


def test_sweep_only_adds_models() -> None:
    rng = np.random.default_rng(4)
    y = rng.random(3000) < 0.5
    right = rng.random((12, 3000)) < np.linspace(0.9, 0.78, 12)[:, None]
    found = deficit_sweep(DecisionTable(np.where(right, y, ~y).T.astype(int), y))
    assert (found["models"].diff().dropna() >= 0).all()
    assert found["models"].iloc[0] == 1
    assert np.isnan(found["agreement"].iloc[0])
    assert found["models"].iloc[-1] > 6
    for name in ("ambiguity", "discrepancy"):
        assert (found[name].diff().dropna() >= -1e-12).all()


def test_selection_on_other_cases() -> None:
    table = mixed_table(cases=2000)
    report = audit(table, 0.02, split=0.5, n_boot=10, seed=3)
    assert len(report.table) == 1000
    assert audit(table, 0.02, split=0.5, n_boot=10, seed=3).to_dict() == report.to_dict()
    assert audit(table, 0.02, split=0.5, n_boot=10, seed=4).to_dict() != report.to_dict()


def test_split_half_is_close_to_the_whole() -> None:
    table = one_factor_table(0.0, models=6, cases=20_000)
    found = split_half(table).set_index("measure")
    assert found["observed"].to_numpy() == pytest.approx(found["independent"].to_numpy(), abs=0.02)


def test_one_model_and_constant_models_are_said() -> None:
    y = np.array([1] * 50 + [0] * 50)
    right = y.copy()
    right[:10] = 0
    one = audit(DecisionTable(pd.DataFrame({"a": right}), y), n_boot=10)
    content = one.to_dict()
    assert content["agreement"]["mean"] is None
    assert content["recourse"]["none"] == pytest.approx(0.2)
    assert content["verdict"]["word"] == "one model only"
    assert "one model only" in content["flags"][0]
    assert "agreement" not in one.curves
    three = DecisionTable(pd.DataFrame({"a": right, "b": right, "never": np.zeros(100)}), y)
    flag = audit(three, 1.0, n_boot=10).to_dict()["flags"][0]
    assert flag.startswith("never decide all cases alike; without them none 0.200, full 0.800, agreement 1.000")


def test_report_as_text_and_picture(tmp_path) -> None:
    report = audit(mixed_table(), np.inf, n_boot=50)
    text = report.to_markdown()
    assert text.startswith("# 6 models on ")
    assert "independent errors" in text
    assert "By sex: " in text
    report.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    report.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == report.to_dict()


def test_tree_finds_who_is_excluded_and_no_one_where_there_is_none() -> None:
    rng = np.random.default_rng(0)
    features = pd.DataFrame({"region": rng.choice(["n", "s", "e"], 4000), "age": rng.integers(18, 90, 4000)})
    out = (features["region"] == "s") & (features["age"] > 60) & (rng.random(4000) < 0.8)
    found = describe_excluded(features, out.to_numpy())
    assert "region is s" in found["rule"].iloc[0]
    assert "age > 60.5" in found["rule"].iloc[0]
    assert found["share"].iloc[0] > 0.7
    assert found["of_excluded"].sum() == pytest.approx(1)
    noise = describe_excluded(features, rng.random(4000) < 0.1)
    assert (noise["low"] < 0.12).all()
    with pytest.raises(ValueError, match="nothing to tell apart"):
        describe_excluded(features, np.zeros(4000, dtype=bool))


def test_drift_by_hand() -> None:
    before = DecisionTable([[1, 0]] * 60 + [[0, 0]] * 40, np.ones(100))
    after = DecisionTable([[1, 1]] * 50 + [[0, 0]] * 30 + [[0, 1]] * 20, np.ones(100))
    found = recourse_drift(before, after)
    assert (found.lost.value, found.gained.value) == (0.1, 0.2)
    assert found.none.value == pytest.approx(-0.1)
    assert found.level.value == pytest.approx(0.6 - 0.3)
    # Two-sided binomial test of 10 among 30.
    assert found.p_value == pytest.approx(0.0987, abs=1e-3)
    with pytest.raises(ValueError, match="3 models where before had 2"):
        recourse_drift(before, DecisionTable(np.ones((100, 3)), np.ones(100)))


def test_bad_arguments_are_named() -> None:
    table = mixed_table()
    with pytest.raises(ValueError, match="group 'age'"):
        audit(table, groups=["age"])
    with pytest.raises(ValueError, match=r"split 1\.5"):
        audit(table, split=1.5)
    with pytest.raises(ValueError, match="size 9"):
        subsampled(table, 9)
