"""`touchstone language red-team` on a tiny model: every verb with good input, and bad input of each kind."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from touchstone.errors import InputError
from touchstone.language.largo.cli import app
from touchstone.language.refusal import RefusalJudge

TINY = ["--suffix-len", "3", "--steps", "2"]


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_tiny) -> Path:
    folder = tmp_path_factory.mktemp("red-team")
    model = make_tiny(chat=True)
    model.module.save_pretrained(folder / "tiny")
    model.tokenizer.save_pretrained(folder / "tiny")
    rows = [{"goal": f"w{i} w{i + 1}", "target": "w30 w31", "on_task": ["nowhere"]} for i in range(4)]
    for name, part in (("mine", rows), ("first", rows[:2]), ("second", rows[2:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "plain.txt").write_text("".join(f"w{i} w{i + 2}\n" for i in range(6)))
    return folder


def run(verb: str, *arguments: str, place: Path, own: bool = True):
    full = [str(place / a) if a.endswith((".jsonl", ".txt", ".safetensors", ".png")) else a for a in arguments]
    tail = ["--model", str(place / "tiny"), *(["--own-model"] if own else [])]
    result = CliRunner().invoke(app, [verb, *full, *tail])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_attack_writes_hashes_and_latents(place):
    options = ["--rounds", "2", "--out", "r.jsonl", "--latents", "z.safetensors", "--pairs", "p.jsonl"]
    result = run("attack", "mine.jsonl", *TINY, *options, "--benign", "plain.txt", place=place)
    assert "0 of 4 guards gave way" in result.output
    assert not (place / "p.jsonl").exists()
    rows = [json.loads(line) for line in (place / "r.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert all(len(row["sha256"]) == 64 and "text" not in row for row in rows)
    assert (place / "z.safetensors").exists()
    shown = json.loads(run("attack", "first.jsonl", *TINY, "--keep-text", "--json", place=place).stdout)
    assert all(row["text"] for row in shown["results"])
    assert shown["defences"] is None


def test_what_is_found_is_defended_against_and_exported(place, monkeypatch):
    turns = itertools.cycle(["refusal", "answer"])

    class Alternating(RefusalJudge):
        """Each guard holds against the bare goal, and gives way to the first text."""

        def classify(self, prompts, replies):
            return [next(turns)] * len(prompts)

    judges = {"turns": Alternating(lambda prompts, replies: [0.0] * len(replies))}
    monkeypatch.setattr("touchstone.language.largo.trial.default_judges", lambda: judges)
    rows = [{"goal": f"w{i}", "target": "w30"} for i in range(2)]
    (place / "any.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--benign", "plain.txt", "--pairs", "q.jsonl", "--json"]
    shown = json.loads(run("attack", "any.jsonl", *TINY, *options, place=place).stdout)
    assert [row["broke"] for row in shown["results"]] == [True, True]
    names = [row["defence"] for row in shown["defences"]]
    assert names == ["none", "perplexity filter", "smoothing vote", "paraphrase", "activation probe"]
    rows = [json.loads(line) for line in (place / "q.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["decline"] * 2 + ["answer"] * 12


def test_compare_shows_every_attack_at_one_budget(place):
    attacks = ["--attack", "largo", "--attack", "gcg", "--attack", "uniform", "--attack", "zero-latent"]
    options = ["--budget", "300", "--plot", "s.png", "--json"]
    rows = json.loads(run("compare", "first.jsonl", *TINY, *attacks, *options, place=place).stdout)
    assert [row["attack"] for row in rows] == ["largo", "gcg", "uniform", "zero-latent"]
    assert all(row["n"] == 2 for row in rows)
    assert (place / "s.png").read_bytes().startswith(b"\x89PNG")
    table = run("compare", "first.jsonl", *TINY, "--attack", "genetic", "--budget", "200", place=place).output
    assert "within_15" in table


def test_margin_universal_and_hunt(place):
    rows = json.loads(run("margin", "first.jsonl", "--steps", "2", "--around", "w5 w6", "--json", place=place).stdout)
    assert all(row["margin"] <= row["plain"] for row in rows)
    options = ["--epochs", "2", "--passes", "1", "--suffix-len", "3", "--json"]
    rows = json.loads(run("universal", "first.jsonl", "second.jsonl", *options, place=place).stdout)
    assert len(rows) == 2
    assert all("text" not in row and row["test"] == 0.0 for row in rows)
    shown = json.loads(run("hunt", "first.jsonl", *TINY, "--rounds", "1", "--json", place=place).stdout)
    assert shown == {"broke": 0, "behaviours": 2, "shared": [], "triggers": {}}


@pytest.mark.parametrize("verb", ["attack", "compare", "margin", "hunt"])
def test_nothing_runs_without_the_word_of_the_owner(place, verb):
    with pytest.raises(InputError, match="--own-model"):
        run(verb, "first.jsonl", place=place, own=False)


def test_bad_input(place):
    with pytest.raises(InputError, match="behaviours"):
        run("attack", "none.jsonl", place=place)
    with pytest.raises(InputError, match="--pairs: needs --benign"):
        run("attack", "first.jsonl", "--pairs", "p.jsonl", place=place)
    with pytest.raises(InputError, match="--attack x"):
        run("compare", "first.jsonl", "--attack", "x", place=place)
    with pytest.raises(InputError, match="both hold the goal"):
        run("universal", "first.jsonl", "first.jsonl", place=place)
    (place / "one.jsonl").write_text('{"goal": "w1", "target": "w2"}\n')
    with pytest.raises(InputError, match="two or more"):
        run("hunt", "one.jsonl", place=place)
    (place / "few.txt").write_text("w1\n")
    with pytest.raises(InputError, match="--benign"):
        run("attack", "first.jsonl", "--benign", "few.txt", place=place)
