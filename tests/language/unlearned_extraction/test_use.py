"""The check in an audit, the commands, and the study."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from touchstone.errors import InputError
from touchstone.files import write_jsonl
from touchstone.language.loading import save
from touchstone.language.unlearned_extraction import check as checking
from touchstone.language.unlearned_extraction import study as studying
from touchstone.language.unlearned_extraction.cli import app
from touchstone.plan import Plan
from touchstone.run import Run

FORGET = 16


@pytest.fixture(scope="module")
def folders(pair, tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for name, one in (("before", pair.pre), ("after", pair.post)):
        (place / name).mkdir()
        save(one.module, one.tokenizer, place / name)
    return place


@pytest.fixture(scope="module")
def deleted(records, tmp_path_factory):
    place = tmp_path_factory.mktemp("data") / "deleted.jsonl"
    rows = [{"text": r.text, "question": r.prefix, "answer": r.rest, **r.slots} for r in records[:FORGET]]
    write_jsonl(place, rows)
    return place


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, InputError):
        raise result.exception
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def test_the_check_finds_what_the_old_model_gives_away(pair, deleted):
    settings = checking.Settings(forgotten=str(deleted), prefix="question", max_new_tokens=48)
    evidence = checking.check(pair.post, settings, Run(), before=pair.pre)
    assert {one.id for one in evidence.findings} == {name.replace("_", "-") for name in checking.METRICS}
    assert evidence.finding("extraction-gain").measured.value > 0
    assert evidence.finding("divergence").verdict == "holds"
    assert evidence.finding("remembered").measured.value < evidence.finding("remembered").against.value
    rates = next(table for table in evidence.tables if table.name == "rates").frame.set_index("generator")
    assert rates.loc["guided", "rouge_l"] > rates.loc["post", "rouge_l"]


def test_without_records_it_looks_blindly(pair):
    settings = checking.Settings(records=6, max_new_tokens=12)
    evidence = checking.check(pair.post, settings, Run(), before=pair.pre)
    assert {one.id for one in evidence.findings} == {name.replace("_", "-") for name in checking.METRICS}
    assert math.isnan(evidence.finding("extracted").measured.value)
    assert evidence.finding("divergence").measured.n == 6
    same = checking.check(pair.pre, settings, Run(), before=pair.pre)
    assert same.finding("divergence").measured.value == pytest.approx(0, abs=1e-5)
    assert same.finding("divergence").verdict != "holds"


def test_an_audit_of_two_checkpoints_holds_it_to_limits(folders, deleted, tmp_path):
    from touchstone.audit import run_audit

    plan = Plan.model_validate(
        {
            "subject": {"model": str(folders / "after"), "before": str(folders / "before")},
            "check": [
                {"use": "unlearned-extraction", "forgotten": str(deleted), "records": 8, "prefix": "question",
                 "limit": {"extraction_gain": "<= -0.9", "remembered": "<= 1.0"}}
            ],
        }
    )  # fmt: skip
    found = run_audit(plan, tmp_path / "out")
    assert found.exit_code == 1
    assert [limit["verdict"] for limit in found.record["checks"][0]["limits"]] == ["fails", "holds"]


def test_extract_prints_rates_and_writes_texts(folders, deleted, tmp_path):
    models = ("--pre", folders / "before", "--post", folders / "after")
    out = tmp_path / "texts.jsonl"
    shown = run(
        "extract", *models, "--data", deleted, "--prefix-field", "question", "--w", "1.3", "--slot", "drug",
        "--out", out, "--json",
    )  # fmt: skip
    record = json.loads(shown)
    assert record["w"] == 1.3
    assert {row["metric"] for row in record["summary"]} >= {"rouge_l", "slot_drug"}
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 3 * FORGET
    table = run("extract", *models, "--data", deleted, "--w", "auto", "--max-new-tokens", 12)
    assert "esr_90" in table
    assert "guided over pre" in table
    with pytest.raises(InputError, match="already exists"):
        run("extract", *models, "--data", deleted, "--out", out)
    for options, match in (
        (("--w", "much"), "--w 'much'"),
        (("--prefix-field", "who"), "record 0: expected a text in the field 'who'"),
        (("--gamma", "3"), "gamma 3"),
    ):
        with pytest.raises(InputError, match=match):
            run("extract", *models, "--data", deleted, *options)
    with pytest.raises(InputError, match=r"none\.jsonl"):
        run("extract", *models, "--data", tmp_path / "none.jsonl")


def test_candidates_are_ranked(folders, deleted, records, tmp_path):
    data = tmp_path / "c.jsonl"
    write_jsonl(data, [{"text": r.text} for r in (*records[FORGET : FORGET + 3], records[0])])
    models = ("--pre", folders / "before", "--post", folders / "after")
    ranked = json.loads(run("candidates", *models, "--data", data, "--json"))
    assert ranked[0]["text"] == records[0].text
    assert "nats" in run("candidates", *models, "--data", data)


def test_the_gate_has_an_exit_code(folders, deleted):
    models = ("--pre", folders / "before", "--post", folders / "after", "--data", deleted, "--prefix-field", "question")
    strict = run("gate", *models, "--metric", "rouge_l", "--budget", 0.0, "--json", code=1)
    record = json.loads(strict)
    assert record["mildest_safe"] is None
    assert len(record["options"]) == 5
    assert "passes with the old model" in run("gate", *models, "--budget", 1.0, "--max-new-tokens", 6)
    with pytest.raises(InputError, match="--treated 'open'"):
        run("gate", *models, "--treated", "open")


def test_a_pair_is_trained_by_command(folders, deleted, tmp_path):
    forget = tmp_path / "f.jsonl"
    forget.write_text("\n".join(deleted.read_text().splitlines()[:2]))
    options = ("--data", deleted, "--model", folders / "after", "--epochs", 1, "--lr", 1e-3)
    out = tmp_path / "pair"
    record = json.loads(run("pair", *options, "--forget", forget, "--out", out, "--json"))
    assert (record["records"], record["deleted"]) == (FORGET, 2)
    assert {item.name for item in tmp_path.iterdir()} == {"f.jsonl", "pair"}
    assert (out / "before" / "model.safetensors").is_file()
    forget.write_text('{"text": "somebody else"}\n')
    with pytest.raises(InputError, match="not among the data"):
        run("pair", *options, "--forget", forget, "--out", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_smoke_reports_every_claim():
    evidence = studying.study("smoke", Run())
    claims = {one.id for one in evidence.findings}
    assert {"guidance-gain", "control", "filter", "noise-utility", "approximate-npo", "saved-logits"} <= claims
    assert len(evidence.findings) == 23
    control = evidence.finding("control")
    assert control.measured.n == 12
    with pytest.raises(InputError, match="scale 'big'"):
        studying.study("big", Run())
