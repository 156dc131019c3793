"""The meter: oracles, statistics by hand, position bias, learners and legibility."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.evidence import Measurement
from touchstone.language.deep_value_benchmark import (
    DeepValueBenchmark,
    LinearPreferenceLearner,
    MixtureOracle,
    RandomChooser,
    Results,
    ShallowOracle,
    TextChooser,
    ValueOracle,
    agreement,
    confounding_curve,
    power_n,
)
from touchstone.language.deep_value_benchmark.attributes import default_attributes
from touchstone.language.deep_value_benchmark.auditing import audit, matched
from touchstone.language.deep_value_benchmark.check import verdict
from touchstone.language.deep_value_benchmark.choosers import Answer
from touchstone.language.deep_value_benchmark.confounding import crossing
from touchstone.language.deep_value_benchmark.statistics import adjusted_rate, cramers_v
from touchstone.run import Run

SMALL = DeepValueBenchmark.generate(30, tests_per=2, controls_per=1, shots=[4])


@pytest.mark.parametrize("order", ["both", "random"])
def test_oracles_are_read_exactly(order):
    value, shallow = SMALL.run(ValueOracle(), order=order), SMALL.run(ShallowOracle(), order=order)
    assert (value.rate().value, shallow.rate().value) == (1.0, 0.0)
    assert value.control_accuracy().value == shallow.control_accuracy().value == 1.0
    assert value.meaningful
    assert value.rate().n == 60


def test_coin_and_mixture_are_read_within_their_error():
    bench = DeepValueBenchmark.generate(434, tests_per=1, shots=[4, 20, 40])
    coin, mixed = bench.run(RandomChooser()).rate(), bench.run(MixtureOracle(0.30)).rate()
    assert coin.low <= 0.5 <= coin.high
    assert abs(mixed.value - 0.30) <= 0.025


class Biased:
    """Likes the first place by three, and content as a function of what stands there."""

    def __init__(self, pull, bias=3.0):
        self.pull, self.bias = pull, bias

    def choose(self, asked, style="baseline"):
        return [Answer.of(self.bias + (1 if one.deep == "A" else -1) * self.pull(one.trial)) for one in asked]


@settings(max_examples=25, deadline=None)
@given(bias=st.floats(-5, 5), pull=st.floats(0.01, 2))
def test_position_bias_cancels_exactly(bias, pull):
    for sign in (1, -1):
        found = SMALL.run(Biased(lambda trial, s=sign: s * pull, bias))
        assert found.rate().value == (sign + 1) / 2
        assert found.position_bias().value == pytest.approx(bias, abs=1e-9)


def test_raw_rates_of_a_biased_model_are_half_and_ties_are_missing():
    found = SMALL.run(Biased(lambda trial: 0.1))
    assert found.rate(debiased=False).value == pytest.approx(0.5)
    tied = SMALL.run(Biased(lambda trial: 0.0))
    row = tied.dvgr().iloc[0]
    assert (row["n"], row["missing"]) == (0, 60)
    assert np.isnan(tied.rate().value)


def test_intervals_and_tests_by_hand():
    found = Measurement.rate("x", 30, 100)
    assert (found.low, found.high) == (pytest.approx(0.2189, abs=5e-5), pytest.approx(0.3958, abs=5e-5))
    assert power_n() == 1302
    assert cramers_v([[10, 10], [10, 10]])[0] == 0
    assert cramers_v([[20, 0], [0, 20]])[0] == pytest.approx(1)
    assert cramers_v([[20, 0], [5, 0]])[0] == 0
    rates = [0.40, 0.37, 0.35, 0.34, 0.27, 0.25, 0.24, 0.24, 0.23]
    assert np.mean(rates) == pytest.approx(0.299, abs=5e-4)


def test_power_is_reached_at_1302_and_not_at_1300():
    from scipy.stats import binom, binomtest

    def power(n):
        hits = [k for k in range(n + 1) if abs(k - n / 2) > n / 60 and binomtest(k, n).pvalue <= 0.05]
        return sum(binom.pmf(hits, n, 0.55))

    assert power(1302) == pytest.approx(0.9503, abs=1e-4)
    assert power(1300) == pytest.approx(0.9498, abs=1e-4)


def test_a_random_intercept_changes_nothing_where_groups_are_alike():
    rate, spread = adjusted_rate([30] * 11, [100] * 11)
    assert rate == pytest.approx(0.30, abs=0.01)
    assert spread < 0.1
    rate, spread = adjusted_rate([10, 90, 50], [100, 100, 100])
    assert rate == pytest.approx(0.5, abs=0.01)
    assert spread > 1
    with pytest.raises(InputError, match="no trials"):
        adjusted_rate([0], [0])


def test_the_random_intercept_is_that_of_an_independent_integral():
    from scipy.integrate import quad
    from scipy.optimize import minimize
    from scipy.special import expit
    from scipy.stats import binom, norm

    hits, totals = np.array([3, 8, 5, 9]), np.array([10, 10, 12, 20])

    def loss(theta):
        mean, spread = theta[0], np.exp(theta[1])
        parts = [
            quad(lambda u, k=k, n=n: binom.pmf(k, n, expit(mean + spread * u)) * norm.pdf(u), -8, 8)[0]
            for k, n in zip(hits, totals, strict=True)
        ]
        return -np.log(parts).sum()

    best = minimize(loss, [0.0, -0.5], method="Nelder-Mead").x
    assert adjusted_rate(hits, totals)[0] == pytest.approx(float(expit(best[0])), abs=2e-3)


def test_a_cluster_interval_is_wider_where_trials_of_a_tuple_agree():
    row = SMALL.run(Biased(lambda trial: 1 if zlib.crc32(trial.case.id.encode()) % 3 else -1)).dvgr().iloc[0]
    assert row["cluster_high"] - row["cluster_low"] > row["high"] - row["low"]


def test_rates_by_factor_add_up():
    found = SMALL.run(MixtureOracle(0.4))
    table = found.dvgr("context")
    assert table["n"].sum() == 60
    assert (table["rate"] * table["n"]).sum() == pytest.approx(found.rate().value * 60)
    assert 0 <= found.cramers_v("context")[0] <= 1


def test_agreement_of_two_choosers():
    value, shallow = SMALL.run(ValueOracle()), SMALL.run(ShallowOracle())
    assert agreement(value, value).value == 1
    assert agreement(value, shallow).value == 0


def test_text_is_parsed_and_what_cannot_be_read_is_missing():
    found = SMALL.run(TextChooser(lambda prompts: ["Option A" if i % 2 else "hm" for i in range(len(prompts))]))
    assert found.parse_rate().value == pytest.approx(0.5)
    assert found.dvgr().iloc[0]["missing"] == 60
    with pytest.raises(InputError, match="1 replies to"):
        SMALL.run(TextChooser(lambda prompts: ["Option A"]))
    with pytest.raises(InputError, match="order 'first'"):
        SMALL.run(ValueOracle(), order="first")


def test_results_come_back_from_disk(tmp_path):
    found = SMALL.run(TextChooser(lambda prompts: ["Option A" if i % 3 else "hm" for i in range(len(prompts))]))
    back = Results.from_jsonl(found.to_jsonl(tmp_path / "answers.jsonl"))
    assert back.rate(debiased=False) == found.rate(debiased=False)
    assert back.parse_rate() == found.parse_rate()
    assert back.dvgr("context").equals(found.dvgr("context"))
    with pytest.raises(InputError, match="not of schema"):
        DeepValueBenchmark.from_jsonl(tmp_path / "answers.jsonl")


def test_an_interrupted_run_goes_on(tmp_path):
    asked = []

    class Counting(ValueOracle):
        def choose(self, one, style="baseline"):
            asked.append(len(one))
            if len(asked) == 5:
                raise KeyboardInterrupt
            return super().choose(one, style)

    with pytest.raises(KeyboardInterrupt):
        SMALL.run(Counting(), run=Run(journal=tmp_path))
    found = SMALL.run(Counting(), run=Run(journal=tmp_path))
    assert len(asked) == 5 + 26
    assert found.rate().value == 1


def test_learners_generalise_what_is_legible():
    bench = DeepValueBenchmark.generate(60, tests_per=2, controls_per=2, shots=[20])
    found = bench.run(LinearPreferenceLearner())
    assert found.rate().high < 0.5
    assert found.control_accuracy().low > 0.5
    assert abs(found.position_bias().value) < 1e-9


def test_a_learner_on_given_features_follows_them():
    def value_only(texts):
        names = [a.name for a in default_attributes().deep]
        phrases = {p: a.name for a in default_attributes().deep for p in a.phrases}
        rows = np.zeros((len(texts), len(names)))
        for row, text in zip(rows, texts, strict=True):
            row[[names.index(phrases[p]) for p in phrases if p in text]] = 1
        return rows

    assert SMALL.run(LinearPreferenceLearner(value_only)).rate().value == 1.0
    with pytest.raises(InputError, match="c 0"):
        LinearPreferenceLearner(c=0)


def test_audit_tells_who_is_more_legible_and_matching_makes_them_alike():
    report = audit(default_attributes())
    assert report.trait_acc > report.value_acc + 0.05
    assert "traits can be read" in report.warning
    table = matched(default_attributes())
    after = audit(table)
    assert abs(after.gap) <= 0.05
    assert after.warning == ""
    assert min(after.n_families) >= 2
    assert len(table.deep) == 11


def test_counter_examples_turn_the_learner():
    curve = confounding_curve(LinearPreferenceLearner(), [0.0, 1.0], run=Run(), n_tuples=48, tests_per=2, shots=[20])
    assert curve["rate"].iloc[0] > 0.5 > curve["rate"].iloc[1]
    assert 0 < crossing(curve) < 1


def test_crossing_by_hand():
    import pandas as pd

    curve = pd.DataFrame({"correlation": [0.0, 0.5, 1.0], "rate": [0.9, 0.6, 0.2]})
    assert crossing(curve) == pytest.approx(0.5 + 0.5 * 0.1 / 0.4)
    assert np.isnan(crossing(curve.assign(rate=[0.4, 0.3, 0.2])))
    assert crossing(curve.assign(rate=[0.9, 0.8, 0.7])) == 1.0


def test_no_verdict_without_the_control_gate():
    low, high = Measurement("x", 0.2, "", 0.1, 0.3, 50), Measurement("x", 0.8, "", 0.7, 0.9, 50)
    assert (verdict(low), verdict(high)) == ("fails", "holds")
    assert verdict(low, meaningful=False) == "undecided"
    assert verdict(Measurement("x", 0.5, "", 0.4, 0.6, 50)) == "undecided"
