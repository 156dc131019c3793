"""The check of a table of predictions."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from touchstone.decisions import Predictions
from touchstone.decisions.conformal_arbitrage.check import COST, METRICS, Settings, check
from touchstone.errors import InputError
from touchstone.run import Run


def frame(n: int = 600, seed: int = 0) -> pd.DataFrame:
    """A weak model, a strong one, and a group for which the weak one is no better than a coin."""
    rng = np.random.default_rng(seed)
    chance = rng.random(n)
    y = rng.random(n) < chance
    region = np.where(rng.random(n) < 0.3, "north", "south")
    noise = np.where(region == "north", rng.normal(0, 3, n), rng.normal(0, 1, n))
    weak = 1 / (1 + np.exp(-(np.log(chance / (1 - chance)) + noise)))
    strong = np.clip(0.85 * y + 0.075 + rng.normal(0, 0.1, n), 0, 1)
    return pd.DataFrame({"y": y.astype(int), "score_a": weak, "score_b": strong, "region": region})


def table(data: pd.DataFrame, **more) -> Predictions:
    return Predictions(data, truth="y", scores=("score_a", "score_b"), **more)


def test_the_check_of_two_models(tmp_path):
    found = check(table(frame(), groups=("region",)), Settings(alpha=0.1, splits=10), Run(seed=0))
    assert {finding.id for finding in found.findings} == {name.replace("_", "-") for name in METRICS}
    value = {finding.id: finding.measured.value for finding in found.findings}
    assert value["candidate-risk"] == pytest.approx(0.1, abs=0.02)
    assert value["candidate-risk"] <= value["realised-risk"] < found.finding("candidate-risk").against.value
    assert 0.1 < value["deferral-rate"] < 0.9
    assert found.finding("accuracy-gain").verdict == "holds"
    assert found.finding("group-risk").measured.name.endswith("north")
    assert value["group-risk"] > 1.3 * value["candidate-risk"]
    assert len(found.table("groups")) == 2
    assert found.table("frontier")["deferred"].is_monotonic_increasing
    found.save(tmp_path / "evidence")
    assert COST.setting == "splits"


def test_a_person_instead_of_the_second_model():
    found = check(table(frame()), Settings(alpha=0.1, guardian="person", splits=6), Run(seed=0))
    value = {finding.id: finding.measured.value for finding in found.findings}
    assert value["realised-risk"] == pytest.approx(value["candidate-risk"])
    assert math.isnan(value["group-risk"])
    assert found.finding("group-risk").verdict == "undecided"
    alone = Predictions(frame()[["y", "score_a"]], truth="y", scores=("score_a",))
    same = check(alone, Settings(alpha=0.1, splits=6), Run(seed=0))
    assert same.finding("deferral-rate").measured == found.finding("deferral-rate").measured


def test_a_table_that_changes_breaks_the_promise_from_earlier_to_later_rows():
    data = frame(800)
    # Sorted so that the cases that the model finds easy come first.
    wrong = (data["score_a"] >= 0.5) != data["y"]
    sorted_ = data.loc[wrong.sort_values(kind="stable").index].reset_index(drop=True)
    found = check(table(sorted_), Settings(alpha=0.1, splits=4), Run(seed=0))
    assert found.finding("order-risk").verdict == "fails"
    assert found.finding("candidate-risk").verdict != "fails"


def test_missing_scores_are_left_out_and_a_threshold_is_kept():
    data = frame()
    data.loc[:99, "score_a"] = np.nan
    found = check(table(data, threshold=0.3), Settings(alpha=0.1, splits=2), Run(seed=0))
    assert found.finding("candidate-risk").measured.n == 500
    kept = data[100:]
    expected = ((kept["score_a"] >= 0.3) != kept["y"]).mean()
    assert found.finding("candidate-risk").against.value == pytest.approx(expected)


def test_what_the_check_refuses():
    data = frame()
    for settings, message in (
        (Settings(primary="y"), "primary 'y': is no column of scores; the table has score_a, score_b"),
        (Settings(guardian="nobody"), "guardian 'nobody': is no column"),
        (Settings(primary="score_a", guardian="score_a"), "guardian 'score_a': is the primary"),
        (Settings(alpha=0.001), "alpha 0.001: needs at least 1998 cases with scores, there are 600"),
    ):
        with pytest.raises(InputError, match=message):
            check(table(data), settings, Run())
    with pytest.raises(InputError, match="conformal-arbitrage needs scores"):
        check(Predictions(data, truth="y"), Settings(), Run())
