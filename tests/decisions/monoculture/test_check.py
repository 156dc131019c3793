"""The check on tables of predictions, the commands, and the study at its smallest scale."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from touchstone.decisions import Predictions
from touchstone.decisions.monoculture.check import COST, METRICS, NEEDS, Settings, check
from touchstone.decisions.monoculture.cli import app
from touchstone.decisions.monoculture.correlation import one_factor_table
from touchstone.errors import InputError
from touchstone.evidence import Evidence
from touchstone.run import Run


def predictions(rho: float, *, cases: int = 1500, models: int = 6, groups: bool = True) -> pd.DataFrame:
    table = one_factor_table(rho, models=models, cases=cases, seed=1)
    frame = pd.DataFrame({"y": np.ones(cases, dtype=int)})
    for name, votes in zip(table.models, table.votes, strict=True):
        frame[f"pred_{name.replace(' ', '_')}"] = votes
    if groups:
        # The second group fares worse: half of it is refused by all.
        rng = np.random.default_rng(0)
        frame["region"] = rng.choice(["north", "south"], cases)
        out = (frame["region"] == "south") & (rng.random(cases) < 0.5)
        frame.loc[out, [c for c in frame if c.startswith("pred_")]] = 0
    return frame


def read(tmp_path: Path, frame: pd.DataFrame, **roles: object) -> Predictions:
    frame.to_csv(tmp_path / "t.csv", index=False)
    return Predictions.read(tmp_path / "t.csv", **roles)


def test_every_metric_is_a_finding_and_groups_are_seen(tmp_path) -> None:
    evidence = check(read(tmp_path, predictions(0.5)), Settings(draws=100), Run())
    assert [finding.id.replace("-", "_") for finding in evidence.findings] == list(METRICS)
    assert NEEDS == ("truth",)
    assert hasattr(Settings(), COST.setting)
    ratio = evidence.finding("group-ratio")
    assert ratio.verdict == "fails"
    assert "south over north" in ratio.measured.name
    assert ratio.measured.low > 5
    assert evidence.finding("no-recourse").verdict == "fails"
    assert evidence.finding("no-recourse").measured.value == pytest.approx(0.26, abs=0.03)
    assert {"verdict", "measures", "models", "groups", "by_size", "portfolio", "pairs", "sweep"} == {
        table.name for table in evidence.tables
    }
    assert {figure.name for figure in evidence.figures} == {"curves", "groups-region", "sweep"}
    again = check(read(tmp_path, predictions(0.5)), Settings(draws=100), Run())
    assert again.findings == evidence.findings
    evidence.save(tmp_path / "out")
    assert Evidence.load(tmp_path / "out").findings == evidence.findings


def test_copies_and_strangers_are_told_apart(tmp_path) -> None:
    frame = predictions(0.0, groups=False)
    strangers = check(read(tmp_path, frame), Settings(draws=100), Run())
    assert strangers.finding("agreement-position").measured.value == pytest.approx(0, abs=0.03)
    assert strangers.finding("no-recourse").verdict == "holds"
    assert strangers.finding("group-ratio").verdict == "undecided"
    for name in frame.columns[2:]:
        frame[name] = frame[frame.columns[1]]
    copies = check(read(tmp_path, frame), Settings(draws=100), Run())
    for id in ("agreement-position", "no-recourse-ratio", "equivalent-correlation", "no-recourse"):
        assert copies.finding(id).verdict == "fails", id
    assert copies.finding("agreement-position").measured.value == 1
    assert copies.finding("no-recourse-ratio").measured.value == pytest.approx(1)
    assert copies.finding("ambiguity").measured.value == 0


def test_scores_are_thresholded_and_one_model_is_undecided(tmp_path) -> None:
    frame = pd.DataFrame({"y": [1, 1, 1, 0] * 20, "score_a": [0.9, 0.7, 0.2, 0.1] * 20})
    evidence = check(read(tmp_path, frame, threshold=0.6), Settings(draws=50), Run())
    assert evidence.finding("agreement-position").verdict == "undecided"
    assert math.isnan(evidence.finding("agreement-position").measured.value)
    assert evidence.finding("no-recourse").measured.value == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"pred_a": [1, 0]}, "monoculture needs truth"),
        ({"y": [1, 0]}, "monoculture needs scores or decisions"),
    ],
)
def test_what_a_table_lacks_is_named(tmp_path, columns, message) -> None:
    with pytest.raises(InputError, match=message):
        check(read(tmp_path, pd.DataFrame(columns)), Settings(), Run())


def command(*arguments: object):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_audit_of_one_task_and_of_two(tmp_path) -> None:
    predictions(0.5).to_csv(tmp_path / "one.csv", index=False)
    predictions(0.9).to_csv(tmp_path / "two.csv", index=False)
    shown = json.loads(command("audit", tmp_path / "one.csv", "--draws", 50, "--json").stdout)
    assert shown["m"] == 6
    assert shown["groups"]["region"]["largest_ratio"]["value"] > 5
    out = tmp_path / "out"
    text = command("audit", tmp_path / "one.csv", tmp_path / "two.csv", "--draws", 50, "--out", out).stdout
    assert "# one" in text
    assert "task" in text
    assert (out / "one" / "report.json").is_file()
    assert (out / "two" / "curves.png").is_file()
    tasks = pd.read_csv(out / "tasks.csv").set_index("task")
    assert tasks.loc["two", "correlation"] > tasks.loc["one", "correlation"]
    only = json.loads(command("audit", tmp_path / "one.csv", "--models", "pred_model_1,pred_model_2", "--json").stdout)
    assert only["m"] == 2
    for arguments, message in (
        (["--out", out], "already exists"),
        (["--label", "nope"], "column 'nope'"),
        (["--focus", "some"], "focus 'some'"),
        (["--eps", "-1"], "eps"),
        (["--success", "win"], "favourable 'win'"),
    ):
        with pytest.raises(InputError, match=message):
            command("audit", tmp_path / "one.csv", *arguments)


def test_prompt_refuses_what_it_cannot_do(tmp_path) -> None:
    frame = pd.DataFrame({"x": range(12), "label": [0, 1] * 6})
    frame.to_csv(tmp_path / "task.csv", index=False)
    base = ["prompt", "--task", tmp_path / "task.csv", "--out", tmp_path / "out", "--rows", 4, "--fit-threshold", 8]
    ask = ["--label", "label", "--question", "Good?"]
    for arguments, message in (
        ([], "--label: a task of your own needs it"),
        (["--label", "label"], "--question, --choices"),
        ([*ask, "--rows", 90], "the task has 12 rows"),
        ([*ask, "--groups", "z"], "--groups 'z'"),
        ([*ask, "--shots", 2], "no rows are left for examples"),
        ([*ask, "--models", "default,default"], "each once"),
    ):
        with pytest.raises(InputError, match=message):
            command(*base, *arguments)
    assert not (tmp_path / "out").exists()


def test_commands_and_check_import_no_torch(tmp_path) -> None:
    predictions(0.5, cases=200).to_csv(tmp_path / "t.csv", index=False)
    code = (
        "import sys, touchstone.decisions.monoculture.cli\n"
        "assert not {'torch', 'transformers', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "from touchstone.decisions import Predictions; from touchstone.run import Run\n"
        "from touchstone.decisions.monoculture.check import Settings, check\n"
        f"check(Predictions.read({str(tmp_path / 't.csv')!r}), Settings(draws=10), Run())\n"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_prompt_then_audit(tmp_path, tiny) -> None:
    tiny.module.save_pretrained(tmp_path / "model")
    tiny.tokenizer.save_pretrained(tmp_path / "model")
    out = tmp_path / "asked"
    arguments = ["--models", tmp_path / "model", "--rows", 10, "--fit-threshold", 8, "--styles", 3, "--shots", 2]
    shown = json.loads(command("prompt", "--out", out, *arguments, "--cache", tmp_path / "s.sqlite", "--json").stdout)
    assert shown["rows"] == 10
    assert len(shown["columns"]) == 3
    assert {path.name for path in out.iterdir()} == {"decisions.csv", "scores.csv", "prompts.json", "schema.json"}
    record = json.loads((out / "prompts.json").read_text())
    assert record["styles"][0]["order"][0] == "age"
    text = command("audit", out / "decisions.csv", "--focus", "all", "--draws", 20, "--eps", 1).stdout
    assert text.startswith("# 3 models on 10 cases")
    with pytest.raises(InputError, match="already exists"):
        command("prompt", "--out", out, *arguments)


def test_smoke_study_measures_every_claim() -> None:
    from touchstone.decisions.monoculture.study import study

    evidence = study("smoke", Run())
    verdicts = {finding.id: finding.verdict for finding in evidence.findings}
    for id in ("agreement-between-extremes", "no-recourse-above-independence", "encodings-agree-more"):
        assert verdicts[id] == "holds", id
    for id in ("independence-agreement", "independence-recourse", "monotone-in-correlation", "correlation-found"):
        assert verdicts[id] == "holds", id
    assert {figure.name for figure in evidence.figures} == {"models", "encodings", "sweep", "groups-race", "known"}
    assert evidence.scale == "smoke"
    with pytest.raises(InputError, match="scale 'huge'"):
        study("huge", Run())
