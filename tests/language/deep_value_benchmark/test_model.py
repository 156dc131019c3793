"""Language models: shared examples, both modes, the check, the study, the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from touchstone.errors import InputError
from touchstone.language.deep_value_benchmark import DeepValueBenchmark, LogProbChooser, read_out
from touchstone.language.deep_value_benchmark.check import METRICS, Settings, check, chooser_for
from touchstone.language.deep_value_benchmark.choosers import Asked, TextChooser
from touchstone.language.deep_value_benchmark.cli import app
from touchstone.language.deep_value_benchmark.prompting import ANSWER, rendered
from touchstone.language.deep_value_benchmark.study import study
from touchstone.run import Run

BENCH = DeepValueBenchmark.generate(2, tests_per=2, controls_per=1, shots=[2])


class Parrot:
    """Writes the same reply to everything."""

    source = "parrot"

    def __init__(self, reply="Option A"):
        self.reply, self.lengths = reply, []

    def generate(self, prompts, *, max_new_tokens=64, **options):
        self.lengths.append(max_new_tokens)
        return [self.reply] * len(prompts)


def test_margins_with_shared_examples_are_those_of_single_prompts(real_model):
    trials = BENCH.trials[:3]
    asked = [Asked(trial, swap) for trial in trials for swap in (False, True)]
    answers = LogProbChooser(real_model).choose(asked)
    for one, answer in zip(asked[:4], answers, strict=False):
        prompt = [
            {"role": "user", "content": rendered(one.trial, swap=one.swap)},
            {"role": "assistant", "content": ANSWER},
        ]
        text = real_model.render(prompt)
        assert text.endswith(ANSWER)
        ids = real_model.encode([prompt])[0]
        import torch

        with torch.inference_mode():
            logits = real_model.module(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        a, b = (real_model.encode_continuation(letter) for letter in (" A", " B"))
        assert len(a) == len(b) == 1
        assert answer.margin == pytest.approx(float(logits[a[0]] - logits[b[0]]), abs=1e-3)


def test_a_model_without_a_chat_template_is_asked_in_plain_text(make_tiny):
    asked = [Asked(trial) for trial in DeepValueBenchmark.generate(1, tests_per=1, shots=[1]).trials]
    model = make_tiny()
    model.module.config.max_position_embeddings = 4096
    assert np.isfinite(LogProbChooser(model).choose(asked)[0].margin)


def test_choice_of_the_mode(chat_model):
    assert isinstance(chooser_for(chat_model), LogProbChooser)
    assert isinstance(chooser_for(chat_model, style="cot"), TextChooser)
    assert isinstance(chooser_for(Parrot()), TextChooser)
    with pytest.raises(InputError, match="mode 'logprob': needs weights"):
        chooser_for(Parrot(), "logprob")
    with pytest.raises(InputError, match="style 'cot'"):
        LogProbChooser(chat_model).choose([Asked(BENCH.trials[0])], "cot")


def test_the_check_reads_text_models(tmp_path):
    parrot = Parrot()
    evidence = check(parrot, Settings(tuples=4, match_signal=False, style="cot"), Run(journal=tmp_path))
    assert {f.id.replace("-", "_") for f in evidence.findings} == set(METRICS)
    assert parrot.lengths
    assert set(parrot.lengths) == {160}
    assert evidence.finding("position-bias").measured.value == 1.0
    assert evidence.finding("value-rate").verdict == "undecided"
    assert evidence.finding("raw-value-rate").measured.value == pytest.approx(0.5)
    silent = check(Parrot("hm"), Settings(tuples=2, match_signal=False), Run())
    assert silent.finding("parse-rate").measured.value == 0
    assert np.isnan(silent.finding("value-rate").measured.value)


def test_the_check_on_the_embedded_model(real_model):
    evidence = check(real_model, Settings(tuples=4, tests=2, controls=1), Run())
    assert {f.id.replace("-", "_") for f in evidence.findings} == set(METRICS)
    assert evidence.finding("position-bias").measured.value > 0.3
    assert evidence.finding("value-rate").measured.n == 8
    assert len(next(t for t in evidence.tables if t.name == "answers").frame) == 24


def test_values_can_be_read_from_states_better_than_from_the_embedding(real_model):
    frame = read_out(real_model, blocks=[0, 29]).set_index(["block", "kind"])
    assert frame.loc[(29, "value"), "low"] > 0.5
    assert frame.loc[(29, "trait"), "low"] > 0.5
    assert frame.loc[(29, "value"), "accuracy"] > frame.loc[(0, "value"), "accuracy"]


def test_smoke_reports_every_claim(real_model):
    evidence = study("smoke", Run(), model=real_model)
    found = {f.id: f for f in evidence.findings}
    assert found["meter-exact"].verdict == "holds"
    assert found["learner-below-chance"].measured.value < 0.5
    assert found["matched-nearer-half"].measured.value > found["learner-below-chance"].measured.value
    assert {"model-control", "model-below-chance", "model-position", "counter-examples-help"} <= set(found)
    with pytest.raises(InputError, match="scale 'tiny'"):
        study("tiny", Run())


def test_the_command_writes_trials_and_asks(tmp_path):
    runner = CliRunner()
    out = tmp_path / "t.jsonl"
    done = runner.invoke(app, ["generate", "--tuples", "2", "--tests", "1", "--controls", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "2 tuples, 4 trials" in done.output
    command = [sys.executable, "-m", "touchstone.cli", "language", "deep-values", "run", str(out), "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "a.jsonl")],
        capture_output=True,
        text=True,
        env=os.environ | {"TOUCHSTONE_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["rates"][0]["n"] + record["rates"][0]["missing"] == 2
    assert record["position_bias"] > 0
    assert Path(tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--style", "haiku"], "--style 'haiku'"),
        (["run", "--by", "mood"], "--by 'mood'"),
        (["run", "none.jsonl"], "none.jsonl"),
        (["generate", "--correlation", "2"], "correlation 2"),
        (["generate", "--attributes", "none.toml"], "none.toml"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code != 0
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
    assert list(tmp_path.iterdir()) == []
