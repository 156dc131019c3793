"""`touchstone language steer` on a tiny model: every verb with good input, and each way in which input can be bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from touchstone.errors import InputError
from touchstone.language.cli import app


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_tiny) -> Path:
    folder = tmp_path_factory.mktemp("steer")
    for name, seed in (("tiny", 0), ("other", 1)):
        model = make_tiny(chat=True, seed=seed)
        model.module.save_pretrained(folder / name)
        model.tokenizer.save_pretrained(folder / name)
    wide = make_tiny("gpt2", chat=True)
    wide.module.save_pretrained(folder / "gpt2")
    wide.tokenizer.save_pretrained(folder / "gpt2")
    (folder / "positive.txt").write_text("# happy\nw1 w2\nw1 w3\n\nw1 w4 w5\n", encoding="utf-8")
    (folder / "negative.txt").write_text("w9 w2\nw9 w3\nw9 w4 w5\n", encoding="utf-8")
    (folder / "asked.txt").write_text("w11\nw12 w13\n", encoding="utf-8")
    run("fit", "positive.txt", "negative.txt", "--out", "plane.safetensors", place=folder)
    return folder


def run(*arguments: str, place: Path, model: str = "tiny", stdin: str | None = None):
    files = {"positive.txt", "negative.txt", "asked.txt", "plane.safetensors", "out.csv", "empty.txt", "latin.txt"}
    full = [str(place / a) if a in files else a for a in arguments]
    result = CliRunner().invoke(app, ["steer", *full, "--model", str(place / model)], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_fit_reports_what_it_found(place):
    result = run("fit", "positive.txt", "negative.txt", "--out", "plane.safetensors", "--json", place=place)
    found = json.loads(result.stdout)
    assert found["prompts"] == [3, 3]
    assert found["chosen"].split(".")[0] in ("attention_input", "mlp_input")
    assert len(found["points"]) == 6
    assert (place / "plane.safetensors").stat().st_size > 0


def test_generate_changes_with_the_angle_and_repeats(place):
    def replies(degrees: str) -> list[str]:
        options = ["--plane", "plane.safetensors", "--degrees", degrees, "--max-new-tokens", "6", "--no-adaptive"]
        records = json.loads(run("generate", "w11", "w12 w13", *options, "--json", place=place).stdout)
        assert [record["prompt"] for record in records] == ["w11", "w12 w13"]
        return [record["reply"] for record in records]

    assert replies("0") == replies("360")
    assert replies("0") != replies("180")


def test_generate_reads_stdin(place):
    options = ["--plane", "plane.safetensors", "--degrees", "90", "--max-new-tokens", "3"]
    assert run("generate", "-", *options, place=place, stdin="w11\nw12\n").stdout.count("> w1") == 2
    with pytest.raises(InputError, match="none on stdin"):
        run("generate", "-", *options, place=place, stdin="\n")


def test_chat_turns_the_dial(place):
    talk = "w11 w12\n/angle 180\nw13\n/off\n/on\n/angle north\n/dance\n/new\n/quit\n"
    result = run("chat", "--plane", "plane.safetensors", "--max-new-tokens", "4", place=place, stdin=talk)
    assert result.exit_code == 0
    for line in ("at 180°", "not steered", "could not convert", "/dance: expected"):
        assert line in result.stderr


def test_sweep_writes_a_table(place):
    options = ["--plane", "plane.safetensors", "--prompts", "asked.txt", "--positive", "w1", "--negative", "w9"]
    rows = json.loads(run("sweep", *options, "--angles", "4", "--json", place=place).stdout)
    assert [(row["arm"], row["degrees"]) for row in rows] == [
        ("unsteered", 0),
        *(("rotation", angle) for angle in (0, 90, 180, 270)),
    ]
    assert all(row["n"] == 2 and row["perplexity"] > 1 for row in rows)
    run("sweep", *options, "--angles", "4", "--out", "out.csv", place=place)
    assert (place / "out.csv").read_text().startswith("arm,degrees,log_odds,low,high,n,perplexity")


def test_calibrate_and_card(place):
    options = ["--plane", "plane.safetensors", "--prompts", "asked.txt", "--target", "0.5", "--judge", "logprob"]
    found = json.loads(run("calibrate", *options, "--json", place=place).stdout)
    assert 0 <= found["degrees"] < 360
    assert found["rate"]["n"] == 2
    assert "target" in run("calibrate", *options, place=place).stdout
    card = ["card", "--plane", "plane.safetensors", "--degrees", "0", "--degrees", "180", "--json"]
    assert [row["degrees"] for row in json.loads(run(*card, place=place).stdout)] == [0, 180]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fit", "empty.txt", "negative.txt"], "holds no prompt"),
        (["fit", "positive.txt", "latin.txt"], "not UTF-8"),
        (["fit", "positive.txt", "missing.txt"], "cannot be read"),
        (["fit", "positive.txt", "positive.txt"], "do not differ|same|zero"),
        (["fit", "positive.txt", "negative.txt", "--out", "plane.pt"], r"ends in \.safetensors"),
        (["fit", "positive.txt", "negative.txt", "--select", "best"], "select"),
        (["generate", "w1", "--plane", "positive.txt", "--degrees", "1"], "cannot be read as safetensors"),
        (["generate", "w1", "--plane", "nowhere", "--degrees", "1"], "nowhere"),
        (["generate", "w1", "--plane", "plane.safetensors", "--degrees", "nan"], "finite"),
        (["generate", "w1", "--plane", "plane.safetensors", "--degrees", "1", "--form", "spin"], "--form"),
        (["generate", "w1", "--plane", "plane.safetensors", "--degrees", "1", "--layers", "top"], "--layers"),
        (["generate", "w1", "--plane", "plane.safetensors", "--degrees", "1", "--layers", "99"], "99"),
        (["calibrate", "--plane", "plane.safetensors", "--prompts", "asked.txt", "--target", "2"], "target"),
    ],
)
def test_bad_input_is_one_clear_line(place, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    (place / "empty.txt").write_text("# nothing\n\n")
    (place / "latin.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match=says) as caught:
        run(*arguments, place=place)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_plane_of_another_model_warns_and_of_another_width_fails(place, tmp_path):
    from touchstone.language.angular_steering import SteeringPlane

    options = ["--plane", "plane.safetensors", "--degrees", "0", "--max-new-tokens", "2"]
    assert "fitted on tiny, not on other" in run("generate", "w1", *options, place=place, model="other").stderr
    plane = SteeringPlane.load(place / "plane.safetensors")
    import dataclasses

    import torch

    narrow = dataclasses.replace(plane, b1=torch.eye(4)[0], b2=torch.eye(4)[1], candidates=plane.candidates[:, :4])
    narrow.save(tmp_path / "narrow.safetensors")
    with pytest.raises(InputError, match=r"width|wide"):
        run("generate", "w1", "--plane", str(tmp_path / "narrow.safetensors"), "--degrees", "0", place=place)
