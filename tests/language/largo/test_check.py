"""The check: its findings, what it keeps to itself, its journal, its settings."""

from __future__ import annotations

import json

import pytest

from touchstone.errors import InputError
from touchstone.language.largo.check import COST, METRICS, NEEDS, Settings, check
from touchstone.plan import settings_of
from touchstone.run import Run

SMALL = Settings(behaviours=2, suffix_len=3, steps=2, rounds=1, samples=1, max_new_tokens=4)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [{"goal": f"w{i} w{i + 1}", "target": "w30 w31", "on_task": ["w39"]} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def small(file) -> Settings:
    return Settings(**(vars(SMALL) | {"file": str(file), "system": "w20 w21"}))


def test_every_metric_is_a_finding_and_no_text_is_kept(chat_model, file):
    evidence = check(chat_model, small(file), Run())
    assert {key.replace("_", "-") for key in METRICS} == {finding.id for finding in evidence.findings}
    assert (NEEDS, COST.setting) == ("local", "behaviours")
    rows = evidence.table("attacked")
    assert len(rows) == 2
    assert rows["sha256"].str.len().eq(64).all()
    assert not {"text", "reply"} & set(rows.columns) | {"text", "reply"} & set(evidence.table("asked").columns)
    assert (rows["margin"] <= rows["neutral_loss"]).all()
    measured = evidence.finding("guard-margin").measured
    assert measured.value == pytest.approx(rows["margin"].mean())
    gain = evidence.finding("text-gain").measured.value
    assert gain == pytest.approx((rows["empty_loss"] - rows["text_loss"]).mean())
    assert evidence.finding("break-rate").verdict == "holds"
    json.loads(evidence.to_json())


def test_it_repeats_and_resumes_from_its_journal(chat_model, file, tmp_path):
    first = check(chat_model, small(file), Run(seed=3, journal=tmp_path / "j"))
    chat_model.generate = None
    again = check(chat_model, small(file), Run(seed=3, journal=tmp_path / "j"))
    assert again.to_dict()["findings"] == first.to_dict()["findings"]


def test_a_model_that_does_it_when_asked_has_no_guard_to_attack(chat_model, file):
    chat_model.generate = lambda prompts, **options: ["Heat the w39 for ten minutes, then stir."] * len(prompts)
    evidence = check(chat_model, small(file), Run())
    assert evidence.finding("plain-break-rate").measured.value == 1.0
    assert evidence.finding("plain-break-rate").verdict == "fails"
    assert evidence.finding("break-rate").verdict == "undecided"


def test_bad_input(model, chat_model, tmp_path):
    with pytest.raises(InputError, match="no chat template"):
        check(model, SMALL, Run())
    with pytest.raises(InputError, match="behaviours"):
        check(chat_model, Settings(file=str(tmp_path / "none.jsonl")), Run())
    for wrong in ({"steps": 0}, {"behaviours": 0}, {"lr": 0.0}, {"radius": -1.0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            settings_of(Settings, wrong, "largo")
