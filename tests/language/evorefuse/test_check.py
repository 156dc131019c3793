"""The check on weights, on an endpoint, and in an audit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.language.endpoint import RemoteModel
from touchstone.language.evorefuse.check import METRICS, NEEDS, Settings, check
from touchstone.language.evorefuse.grammar import default_grammar
from touchstone.run import Run

SMALL = Settings(requests=4, rounds=1, mutants=2, max_new_tokens=6)


def test_every_metric_is_a_finding(chat_model):
    evidence = check(chat_model, SMALL, Run())
    assert {key.replace("_", "-") for key in METRICS} == {finding.id for finding in evidence.findings}
    assert NEEDS == "text"
    assert evidence.method == "evorefuse"
    grammar = default_grammar()
    rows = evidence.table("requests")
    assert len(rows) == 4
    for row in rows.itertuples():
        asked, evolved, calm = (grammar.parse(text) for text in (row.request, row.prompt, row.calm))
        assert asked.action == evolved.action == calm.action
        assert (calm.calm, evolved.calm) == (True, False)
    assert evidence.finding("refusal-gain").measured.value >= 0
    json.loads(evidence.to_json())


def test_the_check_repeats_and_resumes_from_its_journal(chat_model, tmp_path):
    first = check(chat_model, SMALL, Run(seed=3, journal=tmp_path))
    calls = []
    chat_model.generate = lambda *a, **o: calls.append(1)
    again = check(chat_model, SMALL, Run(seed=3, journal=tmp_path))
    assert not calls
    assert again.to_dict()["findings"] == first.to_dict()["findings"]


def test_on_an_endpoint_it_reads_text_alone(server):
    url, seen = server
    evidence = check(RemoteModel(url, "served"), Settings(requests=6, rounds=3, mutants=4), Run())
    rates = {finding.id: finding.measured.value for finding in evidence.findings}
    # The server refuses two of the ten outbursts and no calm question: the search has the means to find out.
    assert rates["calm-refusal-rate"] == 0.0
    assert rates["refusal-rate"] >= 0.5
    assert rates["refusal-gain"] > 1.0
    refused = evidence.table("requests").query("prefix == 'refusal'")["prompt"]
    assert all("furious" in text or "desperate" in text for text in refused)
    wording = evidence.table("wording")
    assert "furious" in wording["part"][0] or "desperate" in wording["part"][0]
    assert all(request["max_tokens"] == 24 for request in seen)
    assert all(message["role"] == "user" for request in seen for message in request["messages"])


def test_a_system_message_reaches_the_model(server):
    url, seen = server
    check(RemoteModel(url, "served"), Settings(requests=1, rounds=1, mutants=1, system="Be careful."), Run())
    assert {request["messages"][0]["content"] for request in seen} == {"Be careful."}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"requests": 0}, "requests 0: expected 1 to 36"),
        ({"requests": 37}, "requests 37"),
        ({"mutants": 10}, "mutants 10"),
        ({"rounds": 0}, "rounds 0"),
        ({"replies": 0}, "replies 0"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        Settings(**settings)


def test_on_the_real_model(real_model):
    evidence = check(real_model, Settings(requests=2, rounds=1, mutants=2, max_new_tokens=8), Run())
    gain = evidence.finding("refusal-gain").measured
    assert np.isfinite(gain.value)
    assert gain.value >= 0
    assert evidence.table("requests")["reply"].str.len().min() > 0
