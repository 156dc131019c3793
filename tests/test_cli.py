"""The command line as a user meets it: fast help, exit codes, one line an error, JSON on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUN = """
import sys
sys.path.insert(0, {root!r})
from tests import fakes
fakes.install()
from touchstone.cli import main
main()
"""


def touchstone(*arguments: str, cwd: Path | None = None, fake: bool = False, **environment: str):
    command = ["-c", RUN.format(root=str(ROOT))] if fake else ["-m", "touchstone.cli"]
    return subprocess.run(
        [sys.executable, *command, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"NO_COLOR": "1", "TERM": "dumb"} | environment,
    )


def one_line_of(done) -> str:
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("·")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("touchstone: ")
    return lines[0]


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory) -> Path:
    from tests.language.conftest import tiny

    folder = tmp_path_factory.mktemp("model") / "tiny"
    model = tiny(chat=True)
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def test_help_is_there_at_once():
    best = 9.0
    for _ in range(5):
        start = time.perf_counter()
        done = touchstone("--help")
        best = min(best, time.perf_counter() - start)
    assert best < 0.5
    for command in ("methods", "audit", "study", "report", "models", "language"):
        assert command in done.stdout


@pytest.mark.parametrize("command", ["audit", "study", "report", "methods", "models", "language"])
def test_every_command_explains_itself(command):
    done = touchstone(command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_version():
    assert touchstone("--version").stdout.startswith("touchstone 0.")


def test_methods():
    everything = json.loads(touchstone("methods", "--json").stdout)
    assert len(everything) == 38
    assert everything[0]["offers"] == ["check", "remedy", "study"]
    text = touchstone("methods").stdout
    assert all(record["slug"] in text for record in everything)
    assert [record["slug"] for record in json.loads(touchstone("methods", "--room", "images", "--json").stdout)] == [
        "maskwm",
        "mlep",
    ]
    assert "expected one of language" in one_line_of(touchstone("methods", "--room", "kitchen"))


def test_an_audit_with_limits(tmp_path, tiny_folder):
    plan = tmp_path / "plan.toml"
    limit = 'limit = { refusal_rate = "<= 0.10" }'
    text = f'[subject]\nmodel = "{tiny_folder}"\n[[check]]\nuse = "fake"\nrate = RATE\n{limit}\n'
    plan.write_text(text.replace("RATE", "0.05"))
    done = touchstone("audit", str(plan), "--out", str(tmp_path / "a"), fake=True)
    assert done.returncode == 0, done.stderr
    assert "not decided" in done.stdout
    assert str(tmp_path / "a" / "report.html") in done.stdout
    assert touchstone("audit", str(plan), "--out", str(tmp_path / "s"), "--strict", fake=True).returncode == 1
    plan.write_text(text.replace("RATE", "0.5"))
    done = touchstone("audit", str(plan), "--out", str(tmp_path / "b"), "--json", fake=True)
    assert done.returncode == 1
    record = json.loads(done.stdout)
    assert record["verdict"] == "fails"
    assert record["evidence"][0]["schema"] == "touchstone.evidence/1"
    again = touchstone("report", str(tmp_path / "b"), fake=True)
    assert again.returncode == 0
    assert "refusal" in again.stdout


def test_an_audit_without_out_writes_under_runs(tmp_path, tiny_folder):
    plan = tmp_path / "release 4.toml"
    plan.write_text(f'[subject]\nmodel = "{tiny_folder}"\n[[check]]\nuse = "fake"\n')
    assert touchstone("audit", str(plan), cwd=tmp_path, fake=True).returncode == 0
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-audit-release-4")


def test_a_study_with_an_option(tmp_path):
    done = touchstone("study", "fake", "--scale", "smoke", "--set", "shift=2.5", "--json", cwd=tmp_path, fake=True)
    assert json.loads(done.stdout)["findings"][0]["measured"]["value"] == 5.5
    assert "name=value" in one_line_of(touchstone("study", "fake", "--set", "shift", cwd=tmp_path, fake=True))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["audit", "no-such-model"], "no such file or folder"),
        (["audit", "missing.toml"], "cannot be read"),
        (["audit", "--resume"], "needs --out"),
        (["audit", "--engine", "cloud"], "'local' or 'ray'"),
        (["study", "unheard-of"], "unknown"),
        (["study", "angular-steering", "--scale", "huge"], "expected smoke, cpu or gpu"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_wrong_input_is_one_line(tmp_path, arguments, says):
    assert says in one_line_of(touchstone(*arguments, cwd=tmp_path))
    assert [path.name for path in tmp_path.iterdir() if path.name != "runs"] == []


def test_an_output_folder_that_cannot_be_written(tmp_path, tiny_folder):
    (tmp_path / "file").touch()
    line = one_line_of(touchstone("audit", str(tiny_folder), "--out", str(tmp_path / "file" / "out")))
    assert "cannot be written" in line


def test_a_cache_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    line = one_line_of(touchstone("models", "fetch", TOUCHSTONE_CACHE=str(tmp_path / "file")))
    assert "cannot be written" in line


def test_a_missing_extra_names_its_pip_install(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ModuleNotFoundError('no torch', name='torch')")
    code = "from touchstone.language import LanguageModel"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)}
    )
    assert "pip install 'touchstone-ml[language]'" in done.stderr.splitlines()[-1]


def test_models_list(tmp_path):
    record = json.loads(touchstone("models", "list", "--json", TOUCHSTONE_CACHE=str(tmp_path)).stdout)
    assert record["name"] == "smollm2-135m-instruct"
    assert record["cached"] is False
