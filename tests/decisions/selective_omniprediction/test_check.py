"""The check on a table with a planted bias."""

from __future__ import annotations

import numpy as np
import pytest

from touchstone.decisions import Predictions
from touchstone.decisions.selective_omniprediction.check import COST, METRICS, Settings, check
from touchstone.errors import InputError
from touchstone.run import Run


def _table(frame, **roles):
    return Predictions(frame, truth="label", favourable="paid", **({"scores": ("score",)} | roles))


@pytest.fixture(scope="module")
def evidence(scored):
    return check(_table(scored, groups=("region", "kind")), Settings(draws=120), Run(seed=0))


def test_every_metric_is_a_finding(evidence):
    assert {f.id for f in evidence.findings} == {name.replace("_", "-") for name in METRICS}
    assert evidence.kind == "check"
    assert hasattr(Settings(), COST.setting)


def test_the_planted_bias_is_found(evidence):
    found = evidence.finding("group-calibration-error")
    assert found.verdict == "fails"
    assert "region=west" in found.measured.name
    assert 0.12 < found.measured.low < found.measured.value < found.measured.high
    assert evidence.finding("multiaccuracy-gap").measured.value == pytest.approx(0.2 * 0.2, abs=0.02)
    assert "region=west" in evidence.finding("group-wrong-decisions").measured.name
    groups = evidence.table("groups").set_index("group")
    assert groups.loc["region=west", "p_calibrated"] < 0.01 < groups.loc["region=north", "p_calibrated"]
    assert "region=west & kind=a" in groups.index


def test_findings_agree_with_one_another(evidence):
    wrong, silent, selective = (
        evidence.finding(name).measured.value for name in ("wrong-decisions", "abstention", "selective-error")
    )
    assert wrong == pytest.approx((1 - silent) * selective)
    assert evidence.finding("loss-ratio").measured.low <= evidence.finding("loss-ratio").measured.value


def test_a_perfect_score_passes(scored):
    rng = np.random.default_rng(3)
    frame = scored.assign(label=np.where(rng.random(len(scored)) < scored["score"], "paid", "default"))
    found = check(_table(frame, groups=("region",)), Settings(draws=100), Run(seed=0))
    for name in ("calibration-error", "multicalibration-error", "wrong-decisions", "loss-ratio"):
        assert found.finding(name).verdict == "holds"


def test_the_worst_of_several_models_or_the_one_that_is_named(scored):
    frame = scored.assign(blurred=0.5 + 0.2 * (scored["score"] - 0.5))
    table = _table(frame, scores=("score", "blurred"))
    worst = check(table, Settings(draws=50), Run(seed=0))
    assert worst.finding("calibration-error").measured.name.endswith("blurred")
    named = check(table, Settings(draws=50, model="score"), Run(seed=0)).finding("calibration-error")
    assert named.measured.value < named.against.value
    assert named.against.name.endswith("blurred")
    with pytest.raises(InputError, match="model"):
        check(table, Settings(model="kind"), Run(seed=0))


def test_without_groups_nothing_is_claimed_about_them(scored):
    found = check(_table(scored), Settings(draws=50), Run(seed=0))
    assert found.finding("group-abstention").verdict == "undecided"
    assert found.finding("abstention").verdict != "undecided"
    assert len(found.table("groups")) == 1


def test_the_same_seed_gives_the_same_evidence_also_from_a_journal(scored, tmp_path):
    table = _table(scored, groups=("region",))
    here = check(table, Settings(draws=50), Run(seed=5))
    there = check(table, Settings(draws=50), Run(seed=5, journal=tmp_path))
    assert here.findings == there.findings
    assert any(tmp_path.iterdir())
    assert check(table, Settings(draws=50), Run(seed=5, journal=tmp_path)).findings == here.findings


def test_bad_tables(scored):
    with pytest.raises(InputError, match="needs truth"):
        check(Predictions(scored, scores=("score",)), Settings(), Run())
    with pytest.raises(InputError, match="needs scores"):
        check(Predictions(scored, truth="label", favourable="paid"), Settings(), Run())
    with pytest.raises(InputError, match="row 1: has no score"):
        check(_table(scored.assign(score=scored["score"].where(scored.index > 0))), Settings(), Run())


def test_a_table_of_a_few_rows(scored):
    found = check(_table(scored.head(6), groups=("region",)), Settings(draws=20), Run(seed=0))
    assert found.finding("loss-ratio").verdict == "undecided"
