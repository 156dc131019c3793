"""Checks as Inspect tasks, found by their entry point and run by the real ``inspect_ai``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai import eval
from inspect_ai.log import list_eval_logs, read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from touchstone import catalog
from touchstone.language.inspection import TASKS
from touchstone.plan import needs_before

CHECKS = [record for record in catalog.offering("check") if record.room == "language"]


def test_every_language_check_is_a_task_under_its_name():
    assert set(TASKS) == {record.task for record in CHECKS}
    assert all(record.measures for record in CHECKS)


@pytest.mark.parametrize("record", CHECKS, ids=lambda record: record.slug)
def test_a_task_has_one_sample_for_each_thing_its_check_measures(record):
    module = record.part("check")
    made = TASKS[record.task](**({"before": "old"} if needs_before(module) else {}))
    assert [sample.id.replace("-", "_") for sample in made.dataset] == list(record.part("check").METRICS)


def test_a_text_check_runs_on_any_model_and_logs_its_calls(tmp_path):

    def refuse(*arguments):
        output = ModelOutput.from_content("mockllm/model", "I'm sorry, but I can't help with that.")
        # Without it the mock counts tokens with a vocabulary that it would fetch.
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    model = get_model("mockllm/model", custom_outputs=refuse)
    [log] = eval(
        "touchstone/over_refusal",
        model=model,
        task_args={"requests": 3, "rounds": 1, "mutants": 1, "pairs": 0, "replies": 1},
        log_dir=str(tmp_path),
        display="none",
    )
    assert log.status == "success", log.error
    found = log.results.scores[0].metrics
    assert found["refusal_rate"].value == 1.0
    assert found["refusal_rate_low"].value < 1.0
    by_id = {sample.id: sample for sample in log.samples}
    assert by_id["refusal-rate"].scores["finding"].metadata["measured"]["n"] == 3
    assert any(event.event == "model" for sample in log.samples for event in sample.events)


def test_a_check_of_weights_says_which_models_it_needs(tmp_path):
    [log] = eval("touchstone/steerability", model="mockllm/model", log_dir=str(tmp_path), display="none")
    assert log.status == "error"
    assert "use a model of the provider touchstone/" in log.error.message


def test_wrong_settings_are_told_before_anything_runs(tmp_path):
    with pytest.raises(Exception, match="'promts': angular-steering has no such setting"):
        eval("touchstone/steerability", model="mockllm/model", task_args={"promts": 3}, log_dir=str(tmp_path))


def test_a_check_of_two_models_asks_for_the_other_one():
    with pytest.raises(Exception, match="-T before=MODEL"):
        TASKS["extraction_of_unlearned_text"]()


def test_the_command_of_the_documentation_works_on_the_embedded_model(real_model, tmp_path):
    command = [
        str(Path(sys.executable).parent / "inspect"),
        *("eval", "touchstone/over_refusal", "--model", "touchstone/default", "--display", "plain"),
        *("--log-dir", str(tmp_path), "-T", "requests=4", "-T", "rounds=1", "-T", "mutants=1", "-T", "pairs=0"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refusal_rate" in done.stdout
    [info] = list_eval_logs(str(tmp_path))
    log = read_eval_log(info)
    assert log.status == "success"
    assert log.eval.model == "touchstone/default"
    assert {sample.id for sample in log.samples} >= {"refusal-rate", "calm-refusal-rate"}
    assert log.eval.metadata["method"] == "evorefuse"
