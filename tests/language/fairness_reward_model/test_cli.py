"""`touchstone language fair-reasoning`: every verb with good input, and bad input of each kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from touchstone.errors import InputError
from touchstone.language.fairness_reward_model.cli import app


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*arguments: object):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def chains(tmp_path):
    rows = []
    for case, (label, group) in enumerate([("yes", "a"), ("no", "a"), ("yes", "b"), ("no", "b")]):
        for k in range(3):
            bad = k < 2 and group == "b"
            text = "Pensioners tend to be careless." if bad else "The bill was paid."
            answer = "yes" if bad else label
            rows.append({"case_id": case, "text": f"{text}\n\n\\boxed{{{answer}}}", "label": label, "group": group})
    return write(tmp_path / "chains.jsonl", rows)


def test_from_labels_to_a_report(tmp_path, chains):
    steps = write(tmp_path / "s.jsonl", [{"text": "Women tend to be late."}, {"text": "The bill was paid."}] * 4)
    shown = json.loads(run("label", steps, "--out", tmp_path / "l.jsonl", "--json").stdout)
    assert (shown["steps"], shown["biased"], shown["unknown"]) == (8, 4, 0)
    labels = [json.loads(line)["label"] for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert labels == [0, 1] * 4

    own = json.loads(run("train", tmp_path / "l.jsonl", "--out", tmp_path / "own.st", "--json").stdout)
    assert own["training_accuracy"] == 1.0
    assert "learnt from 6000 steps" in run("train", "--out", tmp_path / "r.st").output

    rows = json.loads(run("score", chains, "--reward", tmp_path / "r.st", "--json", "--out", tmp_path / "k").stdout)
    assert len(rows) == 12
    low = [row["score"] for row in rows if row["lowest"][0]["step"].startswith("Pensioners")]
    high = [row["score"] for row in rows if not row["lowest"][0]["step"].startswith("Pensioners")]
    assert max(low) < min(high)
    assert "lowest" in run("score", chains, "--reward", tmp_path / "r.st").output

    out = tmp_path / "d.jsonl"
    shown = json.loads(
        run("vote", chains, "--reward", tmp_path / "r.st", "--tau", "0.01", "--out", out, "--json").stdout
    )
    assert shown == {"out": str(out), "cases": 4, "changed": 1, "without_answer": 0}
    decided = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["answer"] for row in decided] == ["yes", "no", "yes", "no"]
    assert decided[3]["majority"] == "yes"

    report = json.loads(run("report", out, "--positive", "yes", "--json").stdout)
    assert report["decision"]["eodds_sum"]["value"] == 0
    assert report["majority"]["fpr_gap"]["value"] == 1
    assert "tpr_gap" in run("report", out, "--positive", "yes").output


def test_a_language_model_is_trained_and_used(tmp_path, chains, make_tiny):
    model = make_tiny()
    model.module.save_pretrained(tmp_path / "tiny")
    model.tokenizer.save_pretrained(tmp_path / "tiny")
    rows = [{"text": f"w{i} w{i + 1}", "label": i % 2, "question": "w30", "step_index": i} for i in range(8)]
    steps = write(tmp_path / "s.jsonl", [*rows, {"text": "w1", "label": None}])
    options = ["--backend", "lm", "--encoder", tmp_path / "tiny", "--epochs", "1", "--checkpoint", tmp_path / "c.st"]
    shown = json.loads(run("train", steps, "--out", tmp_path / "lm.st", *options, "--json").stdout)
    assert (shown["steps"], shown["without_label"]) == (8, 1)
    rows = json.loads(
        run("score", chains, "--reward", tmp_path / "lm.st", "--encoder", tmp_path / "tiny", "--json").stdout
    )
    assert all(0 < row["score"] < 1 for row in rows)
    with pytest.raises(InputError, match="encoder"):
        run("score", chains, "--reward", tmp_path / "lm.st")


def test_bad_input(tmp_path, chains):
    with pytest.raises(InputError, match="none"):
        run("label", tmp_path / "none.jsonl", "--out", tmp_path / "o")
    with pytest.raises(InputError, match="line 1: expected an object with the text 'text'"):
        run("train", write(tmp_path / "x.jsonl", [{"label": 1}]), "--out", tmp_path / "o")
    with pytest.raises(InputError, match="needs --judge"):
        run("label", chains, "--out", tmp_path / "o", "--endpoint", "http://x")
    with pytest.raises(InputError, match="reward model"):
        run("vote", chains, "--reward", tmp_path / "none")
    with pytest.raises(InputError, match="--pattern"):
        run("vote", chains, "--reward", tmp_path / "none", "--pattern", "(")
    with pytest.raises(InputError, match="group in parentheses"):
        run("vote", chains, "--reward", tmp_path / "none", "--pattern", "yes")
    run("train", "--out", tmp_path / "r.st")
    with pytest.raises(InputError, match="tau"):
        run("vote", chains, "--reward", tmp_path / "r.st", "--tau", "0")
    decisions = write(
        tmp_path / "d.jsonl", [{"answer": "a", "label": "a", "group": "g"}, {"answer": "b", "label": "b"}]
    )
    with pytest.raises(InputError, match="record 2: has no group"):
        run("report", decisions, "--positive", "a")
    decisions = write(tmp_path / "d.jsonl", [{"answer": "a", "label": "a", "group": "g"}])
    with pytest.raises(InputError, match="--positive 'z'"):
        run("report", decisions, "--positive", "z")
