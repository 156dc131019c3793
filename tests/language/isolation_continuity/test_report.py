"""Reports on disk, compared and held to limits; the commands."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from touchstone.errors import InputError
from touchstone.evidence import Limit
from touchstone.language.isolation_continuity.cli import app
from touchstone.language.isolation_continuity.report import Report, compare, gate


def _report(model: str = "a", p_max: float = 16.0) -> Report:
    rows = pd.DataFrame({"period": [2, 4], "due_acc": [1.0, 0.5], "learnable": [True, False]})
    return Report("period", model, "Go on.", 3, rows, {"p_max": p_max, "slope": math.nan}, {"length": 64})


def test_a_report_comes_back_as_it_was(tmp_path: Path) -> None:
    report = _report()
    loaded = Report.load(report.save(tmp_path / "r.json"))
    pd.testing.assert_frame_equal(loaded.rows, report.rows)
    assert loaded.numbers["p_max"] == 16
    assert math.isnan(loaded.numbers["slope"])
    assert (loaded.probe, loaded.model, loaded.prompt, loaded.seed) == ("period", "a", "Go on.", 3)
    assert loaded.settings == {"length": 64}
    assert loaded.to_json() == report.to_json()


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}', '{"schema": "touchstone.continuity/1"}'])
def test_damaged_reports_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"r\.json"):
        Report.load(path)


def test_models_stand_beside_each_other() -> None:
    table = compare([_report("a", 16), _report("b", 8)]).set_index("model")
    assert table["period.p_max"].to_dict() == {"a": 16, "b": 8}
    with pytest.raises(InputError, match="at least one"):
        compare([])


def test_a_gate_holds_or_not_and_what_is_not_measured_breaks_it() -> None:
    table = gate([_report("a", 16), _report("b", 8)], {"p_max": Limit.parse(">= 16")})
    assert table["allowed"].tolist() == [True, False]
    assert not gate([_report()], {"slope": Limit.parse("< 0")})["allowed"].any()
    with pytest.raises(InputError, match="no report has it; there are: p_max, slope"):
        gate([_report()], {"radius": Limit.parse("> 0")})


def test_commands_on_reports(tmp_path: Path) -> None:
    paths = [str(_report(name, value).save(tmp_path / f"{name}.json")) for name, value in (("a", 16), ("b", 8))]
    runner = CliRunner()
    shown = runner.invoke(app, ["compare", *paths, "--json"])
    assert [row["period.p_max"] for row in json.loads(shown.stdout)] == [16, 8]
    assert runner.invoke(app, ["gate", paths[0], "--limit", "p_max >= 16"]).exit_code == 0
    assert runner.invoke(app, ["gate", *paths, "--limit", "p_max >= 16"]).exit_code == 1
    wrong = runner.invoke(app, ["gate", paths[0], "--limit", "p_max ~ 16"])
    assert isinstance(wrong.exception, InputError)


def test_the_command_that_trains(tmp_path: Path) -> None:
    out = tmp_path / "twin.json"
    done = CliRunner().invoke(app, ["twin", "--longest", "4", "--steps", "10", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert Report.load(out).numbers.keys() == {"tv_at_4x", "accuracy_at_4x"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["curve", "--lengths", "a"], "--lengths"),
        (["curve", "--fractions", "x"], "--fractions"),
        (["period", "--symbols", "0"], "--symbols"),
        (["period", "--periods", "2;3"], "--periods"),
        (["edit", "nowhere.json"], "nowhere.json"),
        (["twin", "--positions", "none"], "positions 'none'"),
    ],
)
def test_bad_options_are_found_before_the_model_is_loaded(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


def test_a_command_on_a_real_model(tmp_path: Path) -> None:
    out = tmp_path / "period.json"
    done = CliRunner().invoke(app, ["period", "--periods", "2,8", "--length", "96", "--out", str(out)])
    assert done.exit_code == 0, done.output
    report = Report.load(out)
    assert report.rows["period"].tolist() == [0, 2, 8]
    assert report.numbers["p_max"] >= 2
