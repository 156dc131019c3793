"""``touchstone audit decisions``: fairness between groups against fairlearn, plans, guessed columns, bad input."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from touchstone.cli import app
from touchstone.decisions import Predictions, group_fairness
from touchstone.errors import InputError
from touchstone.run import Run


def frame(n=1500, seed=0, shift=0.8):
    rng = np.random.default_rng(seed)
    group = rng.choice(["north", "south", "west"], n)
    z = rng.normal(size=n) + shift * (group == "north")
    y = (z + rng.normal(size=n) > 0).astype(int)
    scores = {f"score_{k}": 1 / (1 + np.exp(-z - rng.normal(size=n) * 0.4)) for k in "ab"}
    return pd.DataFrame({"y": y, "region": group, **scores})


@pytest.fixture
def csv(tmp_path):
    place = tmp_path / "predictions.csv"
    frame().to_csv(place, index=False)
    return place


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    if isinstance(result.exception, InputError):
        raise result.exception
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def test_gaps_of_counts_by_hand():
    # Group one: 10 favourable outcomes of which 8 are decided so, 10 others of which 2; group two: 10 of 4, 10 of 1.
    counts = np.array([[[8, 2], [2, 8]], [[9, 1], [6, 4]]])
    found = {name: float(value) for name, value in group_fairness.gaps(counts).items()}
    assert found == pytest.approx(
        {"parity_gap": 0.25, "tpr_gap": 0.4, "fpr_gap": 0.1, "equalized_odds_gap": 0.4, "accuracy_gap": 0.15}
    )


def test_gaps_are_those_of_fairlearn():
    metrics = pytest.importorskip("fairlearn.metrics")
    data = frame()
    table = Predictions(data, truth="y", scores=("score_a",), groups=("region",))
    evidence = group_fairness.check(table, group_fairness.Settings(), Run())
    said = (data["score_a"] >= 0.5).astype(int)
    options = {"sensitive_features": data["region"]}
    value = {one.id: one.measured.value for one in evidence.findings}
    assert value["parity-gap"] == pytest.approx(metrics.demographic_parity_difference(data["y"], said, **options))
    assert value["equalized-odds-gap"] == pytest.approx(metrics.equalized_odds_difference(data["y"], said, **options))
    assert {one.id for one in evidence.findings} == {name.replace("_", "-") for name in group_fairness.METRICS}
    assert evidence.finding("parity-gap").verdict == "fails"
    rates = next(one for one in evidence.tables if one.name == "rates").frame
    assert set(rates["group"]) == {"north", "south", "west"}


def test_the_interval_is_that_of_drawing_cases():
    data = frame(400)
    table = Predictions(data, truth="y", scores=("score_a",), groups=("region",))
    measured = group_fairness.check(table, group_fairness.Settings(draws=4000), Run()).finding("tpr-gap").measured
    rng = np.random.default_rng(1)
    y, said, codes = data["y"].to_numpy(), data["score_a"].to_numpy() >= 0.5, pd.factorize(data["region"])[0]
    drawn = []
    for _ in range(1500):
        pick = rng.integers(len(y), size=len(y))
        rates = [said[pick][(codes[pick] == g) & (y[pick] == 1)].mean() for g in range(3)]
        drawn.append(max(rates) - min(rates))
    assert (measured.low, measured.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.02)


def test_where_groups_are_alike_the_gap_is_not_called_large():
    data = frame(6000, shift=0.0)
    table = Predictions(data, truth="y", scores=("score_a",), groups=("region",))
    evidence = group_fairness.check(table, group_fairness.Settings(), Run())
    assert evidence.finding("parity-gap").verdict != "fails"
    with pytest.raises(InputError, match="no column has two groups of 9999"):
        group_fairness.check(table, group_fairness.Settings(least=9999), Run())
    with pytest.raises(InputError, match="model 'x': expected one of score_a"):
        group_fairness.check(table, group_fairness.Settings(model="x"), Run())
    with pytest.raises(InputError, match="needs groups"):
        group_fairness.check(Predictions(data, truth="y", scores=("score_a",)), group_fairness.Settings(), Run())
    with pytest.raises(InputError, match="needs decisions or scores"):
        group_fairness.check(Predictions(data, truth="y", groups=("region",)), group_fairness.Settings(), Run())


def test_every_check_runs_on_a_table_whose_columns_are_guessed(csv, tmp_path):
    record = json.loads(run("decisions", csv, "--out", tmp_path / "out", "--json"))
    used = [check["use"] for check in record["checks"]]
    assert {"group-fairness", "conformal-arbitrage", "monoculture"} <= set(used)
    assert not any(check["error"] for check in record["checks"])
    assert record["subject"]["predictions"] == str(csv)
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "predictions.csv" in html
    assert "region" in html


def test_a_plan_holds_a_table_to_limits(csv, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f"""
[subject]
predictions = "{csv}"
truth = "y"
scores = ["score_a"]
groups = ["region"]

[[check]]
use = "group-fairness"
limit = {{ parity_gap = "<= 0.02", accuracy_gap = "<= 0.5" }}
"""
    )
    for target in ((plan,), ("decisions", plan)):
        out = tmp_path / f"out{len(target)}"
        record = json.loads(run(*target, "--out", out, "--json", code=1))
        assert [limit["verdict"] for limit in record["checks"][0]["limits"]] == ["fails", "holds"]
    # An audit that ended goes on as what it is: nothing is measured again.
    run(plan, "--out", tmp_path / "out1", "--resume", "--json", code=1)


def test_what_a_table_lacks_leaves_checks_out_or_is_an_error(csv, tmp_path):
    alone = tmp_path / "alone.csv"
    frame().drop(columns="region").to_csv(alone, index=False)
    record = json.loads(run("decisions", alone, "--out", tmp_path / "a", "--json"))
    assert "group-fairness" not in [check["use"] for check in record["checks"]]
    frame()[["region"]].to_csv(alone, index=False)
    with pytest.raises(InputError, match="no check has what it needs"):
        run("decisions", alone)
    for arguments, match in (
        (("decisions",), "needs a table of predictions"),
        (("decisions", tmp_path / "none.csv"), "no such file"),
        (("decisions", csv, "--truth", "nope"), "column 'nope'"),
        (("decisions", csv, "--ledger", "x"), "--ledger: is for audits of a model"),
        (("default", csv), "goes after 'decisions'"),
        (("default", "--score", "a"), "--score: is for audits of a table"),
    ):
        with pytest.raises(InputError, match=match):
            run(*arguments)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (
            '[subject]\npredictions = "x.csv"\n[[check]]\nuse = "evorefuse"\n',
            "check of a language model",
        ),
        ('[[check]]\nuse = "monoculture"\n', "monoculture is a check of a table"),
        ('[subject]\npredictions = "x.csv"\nmodel = "m"\n[[check]]\nuse = "monoculture"\n', "'subject.model': unknown"),
        (
            '[subject]\npredictions = "x.csv"\n[[check]]\nuse = "group-fairness"\nlimit = {gap = "<= 1"}\n',
            "'gap'",
        ),
    ],
)
def test_plans_that_cannot_be_are_told_by_line(body, match, tmp_path):
    plan = tmp_path / "p.toml"
    plan.write_text(body)
    with pytest.raises(InputError, match=match):
        run(plan)
