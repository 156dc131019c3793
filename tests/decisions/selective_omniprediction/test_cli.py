"""The command from a table to a report, and what it says to wrong input."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from touchstone.decisions.selective_omniprediction import ChowLoss
from touchstone.decisions.selective_omniprediction.cli import app
from touchstone.decisions.selective_omniprediction.tables import TablePredictor
from touchstone.errors import InputError


@pytest.fixture(scope="module")
def files(scored, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    scored.iloc[:2500].to_csv(folder / "fit.csv", index=False)
    scored.iloc[2500:].to_csv(folder / "new.csv", index=False)
    run(
        f"fit {folder}/fit.csv --truth label --favourable paid --score score --groups region,kind "
        f"--features strength,kind,region --out {folder}/model.safetensors"
    )
    return folder


def run(line):
    found = CliRunner().invoke(app, line.split())
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.stdout


def test_fit(files):
    shown = json.loads(
        run(
            f"fit {files}/fit.csv --truth label --favourable paid --features strength,region --groups region "
            f"--out {files}/own.safetensors --rounds 30 --json"
        )
    )
    assert shown["rows"] == 2500
    assert shown["groups"] == ["region=north", "region=south", "region=west"]
    assert shown["squared_error"][1] < shown["squared_error"][0]
    assert TablePredictor.load(files / "own.safetensors").score == ""


def test_predict_is_the_rule(files):
    shown = json.loads(
        run(
            f"predict {files}/new.csv --model {files}/model.safetensors --out {files}/a.csv --loss l2 "
            "--a-plus 0.3 --json"
        )
    )
    found = pd.read_csv(files / "a.csv")
    loss = ChowLoss("l2", 0.3, 0.1)
    assert shown["interval"] == pytest.approx(list(loss.abstention_interval()))
    assert np.allclose(found["decision"], loss.decide(found["probability"]), equal_nan=True)
    assert shown["without_decision"] == found["decision"].isna().sum()
    run(f"predict {files}/new.csv --model {files}/model.safetensors --out {files}/b.csv --eps 0.2")
    sets = pd.read_csv(files / "b.csv")
    assert ((sets["may_be_0"] + sets["may_be_1"] == 2) == sets["decision"].isna()).all()


def test_report_of_a_model_beside_its_base(files):
    roles = "--truth label --favourable paid --groups region,kind --draws 100"
    out = run(f"report {files}/new.csv {roles} --model {files}/model.safetensors --out {files}/report --json")
    shown = {f["id"]: f for f in json.loads(out)["findings"]}
    # The planted bias is repaired on rows that the fit has not seen.
    found = shown["multiaccuracy-gap"]
    assert found["measured"]["value"] < 0.02 < found["against"]["value"]
    assert (files / "report" / "figures" / "selective.png").is_file()
    text = run(f"report {files}/new.csv {roles} --scores score")
    assert "group-calibration" in text


def test_certify_and_price(files):
    roles = "--truth label --favourable paid"
    shown = json.loads(run(f"certify {files}/new.csv {roles} --model {files}/model.safetensors --eps 0.15 --json"))
    assert 0.1 < shown["threshold"] <= 0.5
    assert "use predict --eps" in run(f"certify {files}/new.csv {roles} --model {files}/model.safetensors")
    rows = json.loads(run(f"price {files}/new.csv --score score --groups region --most 0.3 --json"))
    assert rows[0]["deferred"] == pytest.approx(0.3, abs=0.01)
    assert "deferred: region=west" in run(f"price {files}/new.csv --score score --groups region")


def test_the_predictor_keeps_how_columns_become_numbers(scored, files):
    predictor = TablePredictor.load(files / "model.safetensors")
    first = predictor.scores(scored)
    order = np.random.default_rng(0).permutation(len(scored))
    assert np.array_equal(first[order], predictor.scores(scored.iloc[order]))
    holes = scored.assign(strength=scored["strength"].where(scored.index % 2 == 0), kind="new")
    assert np.isfinite(predictor.scores(holes)).all()
    with pytest.raises(InputError, match="strength"):
        predictor.scores(scored.assign(strength="much"))
    with pytest.raises(InputError, match="region"):
        predictor.scores(scored.drop(columns="region"))
    again = predictor.save(files / "again.safetensors")
    assert again.read_bytes() == (files / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("fit {f}/fit.csv --truth nope --out {f}/x", "nope"),
        ("fit {f}/fit.csv --truth label --favourable paid --score strength --out {f}/x", "strength"),
        ("fit {f}/fit.csv --truth label --favourable paid --features nope --out {f}/x", "nope"),
        ("predict {f}/new.csv --model {f}/new.csv --out {f}/x", "model"),
        ("predict {f}/new.csv --model {f}/model.safetensors --loss hinge --out {f}/x", "hinge"),
        ("predict {f}/new.csv --model {f}/model.safetensors --a-plus -1 --out {f}/x", "a-plus"),
        ("predict {f}/new.csv --model {f}/model.safetensors --eps 0.6 --out {f}/x", "eps"),
        ("report {f}/nothing.csv", "nothing.csv"),
        ("report {f}/new.csv --truth label --favourable paid --scores score --eps 0", "eps"),
        ("report {f}/new.csv --truth label --favourable paid --scores score --loss cost01", "cost01"),
        ("report {f}/new.csv --truth label --favourable paid --scores score --out {f}", "already exists"),
        ("certify {f}/fit.csv --truth label --favourable paid --model {f}/model.safetensors", "table of the fit"),
        ("price {f}/new.csv --score score --group-most 0.2", "group-most"),
    ],
)
def test_bad_input(files, line, named):
    with pytest.raises(InputError, match=named):
        run(line.format(f=files))
