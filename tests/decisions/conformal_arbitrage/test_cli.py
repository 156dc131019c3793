"""The commands, on files as a person would have them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import openai
import pytest
from typer.testing import CliRunner

from touchstone.decisions.conformal_arbitrage.cli import app
from touchstone.decisions.conformal_arbitrage.parties import Query
from touchstone.decisions.conformal_arbitrage.queue import QueueParty
from touchstone.errors import InputError, TouchstoneError

from .upstream import upstream


def run(*words: object, **more) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], **more)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def scores(tmp_path):
    """A log of 300 queries and one of 200 others."""
    rng = np.random.default_rng(0)
    paths = []
    for name, n in (("scores", 300), ("test", 200)):
        labels = rng.integers(3, size=n)
        right = np.eye(3)[labels]
        primary, guardian = rng.random((n, 3)) + 0.4 * right, rng.random((n, 3)) + 0.9 * right
        lines = [
            {
                "id": f"{name}{i}",
                "options": ["a", "b", "c"],
                "primary": primary[i].tolist(),
                "guardian": guardian[i].tolist(),
                "label": int(labels[i]),
            }
            for i in range(n)
        ]
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return paths


def test_calibrate_decide_and_frontier(tmp_path, scores):
    known, test = scores
    router = tmp_path / "router.json"
    text = run("calibrate", known, "--out", router, "--alpha", "0.1", "--unit", "cents")
    assert "not for each of them" in text
    assert "with the Guardian's own errors" in text
    with pytest.raises(InputError, match="already exists"):
        run("calibrate", known, "--out", router)
    record = json.loads(run("calibrate", known, "--out", router, "--replace", "--json"))
    assert record["empirical_risk"] <= 0.1 < record["realised_risk"] + 0.1
    text = run("decide", router, test, "--out", tmp_path / "decisions.jsonl")
    assert "risk of the candidates" in text
    assert len((tmp_path / "decisions.jsonl").read_text().splitlines()) == 200
    found = json.loads(run("decide", router, test, "--json"))
    assert found["summary"]["candidate_risk"] == pytest.approx(0.1, abs=0.07)
    assert found["decisions"][0]["id"] == "test0"
    with pytest.raises(InputError, match="normalise 'rank'"):
        run("decide", router, test, "--normalise", "rank")
    done = CliRunner().invoke(app, ["decide", str(router), str(known)])
    assert "these are the calibration queries" in done.stderr


def test_the_frontier_of_a_log(tmp_path, scores):
    known, test = scores
    text = run("frontier", known, "--out", tmp_path / "frontier", "--budget", "15")
    assert "calibrated on 150 queries, measured on 150 others" in text
    assert "allows alpha" in text
    assert (tmp_path / "frontier" / "frontier.png").read_bytes()[:4] == b"\x89PNG"
    found = json.loads(run("frontier", known, "--test", test, "--alphas", "0.001,0.1,0.3", "--json"))
    assert found["test_queries"] == 200
    rows = found["frontier"]
    assert rows[0]["lam"] == "inf"
    assert rows[2]["lam"] < rows[1]["lam"]
    assert rows[1]["guard"] > rows[1]["random"]
    strict = run("frontier", known, "--risk", "realised_monotone", "--alphas", "0.005,0.3", "--json")
    assert json.loads(strict)["frontier"][0]["lam"] is None
    for words, message in (
        (["--alphas", "0.1,x"], "--alphas: 'x' is no number"),
        (["--risk", "none"], "risk 'none'"),
        (["--split", "1"], "leaves one part of 300 queries empty"),
        (["--risk", "realised_monotone", "--alphas", "0.01"], "the smallest alpha they can certify"),
    ):
        with pytest.raises(InputError, match=message):
            run("frontier", known, *words)


def test_labels_and_guardian_scores_are_asked_for_where_they_are_needed(tmp_path):
    path = tmp_path / "bare.jsonl"
    path.write_text(json.dumps({"id": 1, "options": ["a", "b"], "primary": [1, 0]}) + "\n")
    with pytest.raises(InputError, match="a label or guard_value on every line"):
        run("calibrate", path, "--out", tmp_path / "router.json")
    with pytest.raises(InputError, match="a label or guard_value on every line"):
        run("frontier", path, "--test", path)


def test_questions_are_scored_by_two_servers_and_a_stopped_run_goes_on(tmp_path):
    questions = tmp_path / "questions.jsonl"
    lines = [
        {"id": f"q{i}", "prompt": f"Capital of {c}?", "options": ["Paris", "Santiago"], "label": i % 2}
        for i, c in enumerate(["France", "Chile"] * 10)
    ]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "scores.jsonl"
    with upstream(0.6) as small, upstream(0.9) as large:
        words = ["score", questions, "--primary", f"{small.url}#s", "--guardian", f"{large.url}#l", "--out", out]
        large.behave = lambda body: (400, "out of money") if len(large.bodies) > 18 else None
        with pytest.raises(TouchstoneError, match="answered 400 out of money"):
            run(*words)
        assert not out.exists()
        large.behave = None
        asked = len(small.bodies)
        assert json.loads(run(*words, "--json"))["queries"] == 20
        # The first sixteen were kept.
        assert len(small.bodies) == asked + 4
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["label"] for one in found] == [0, 1] * 10
    assert found[0]["primary"] == pytest.approx([0.6, 0.4])
    assert found[1]["guardian"] == pytest.approx([0.1, 0.9])
    assert found[0]["reduce"] == "letter"
    run("calibrate", out, "--alpha", "0.2", "--out", tmp_path / "router.json")
    assert json.loads((tmp_path / "router.json").read_text())["reduce"] == "letter"
    for line, message in (
        ({"id": 1, "options": ["a"]}, "expected 'prompt'"),
        ({"prompt": "?", "options": ["a"]}, "expected an 'id'"),
        ({"id": 1, "prompt": "?", "options": "ab"}, "expected 'options'"),
    ):
        questions.write_text(json.dumps(line) + "\n")
        with pytest.raises(InputError, match=message):
            run("score", questions, "--primary", f"queue:{tmp_path}/q.jsonl", "--out", tmp_path / "other.jsonl")


def test_people_review_a_queue(tmp_path):
    path = tmp_path / "queue.jsonl"
    people = QueueParty(path, timeout=0)
    for query in (Query("a", "Which?", ("left", "right")), Query("b", "Who?", ("you", "me"))):
        with pytest.raises(TouchstoneError):
            people.score([query])
    text = run("review", path, input="2\n7\n0\n")
    assert "1 open questions" in text
    assert people.score([Query("a", "Which?", ("left", "right"))])[0].scores == (0, 1)


def test_serve_as_a_process_with_a_real_client(tmp_path, scores):
    """The command as it is typed, asked by the openai client, stopped as with Ctrl-C."""
    router = tmp_path / "router.json"
    run("calibrate", scores[0], "--out", router)
    code = "from touchstone.decisions.conformal_arbitrage.cli import app; app()"
    with upstream(0.5) as small, upstream(0.99) as large:
        words = ["serve", str(router), "--primary", f"{small.url}#small", "--guardian", f"{large.url}#large"]
        words += ["--port", "0", "--log", str(tmp_path / "log.jsonl"), "--key-variable", "CLIENT_KEY"]
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"CLIENT_KEY": "k"},
        )
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("serving http://127.0.0.1:"), line
            client = openai.OpenAI(base_url=line.split()[1].rstrip(","), api_key="k", max_retries=0)
            found = client.chat.completions.create(
                model="touchstone-router",
                messages=[{"role": "user", "content": "What is the capital of Chile?"}],
                extra_body={"options": ["Lima", "Santiago"]},
            )
            assert found.choices[0].message.content == "Santiago"
            assert found.model_extra["arbitrage"]["deferred"] is True
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=10)
        assert process.returncode == 0
        assert "stopped after 1 queries, 1 deferred" in process.stderr.read()
    assert json.loads((tmp_path / "log.jsonl").read_text())["choice"] == 1


def test_what_serve_refuses(tmp_path, scores, monkeypatch):
    router = tmp_path / "router.json"
    run("calibrate", scores[0], "--out", router)
    words = ["serve", router, "--primary", "queue:a.jsonl", "--guardian", "queue:b.jsonl"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(InputError, match="--key-variable NO_KEY: not set"):
        run(*words, "--key-variable", "NO_KEY")
    with pytest.raises(InputError, match="on_missing 'never'"):
        run(*words, "--on-missing", "never")
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(InputError, match="expected version"):
        run("serve", tmp_path / "none.json", *words[2:])
