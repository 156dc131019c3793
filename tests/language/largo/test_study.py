"""The study at its smallest scale, and how its findings come from results."""

from __future__ import annotations

import pytest

from touchstone.errors import InputError
from touchstone.language.largo.study import study
from touchstone.language.largo.study_bypass import ARMS, BypassSize, _compared
from touchstone.run import Run

from .test_beyond import _result


def test_smoke_reports_every_claim(real_model):
    evidence = study("smoke", Run(), model=real_model)
    ids = {finding.id for finding in evidence.findings}
    assert {"control", "beats-zero-latent", "beats-random-latent", "fewest-checks", "backdoor", "universal"} <= ids
    assert {"latent-halves-the-loss", "words-carry-it", "words-are-fluent", "guard-breaks"} <= ids
    assert set(evidence.table("attacks")["attack"]) == set(ARMS)
    assert {figure.name for figure in evidence.figures} == {"survival", "early"}
    assert not {"text", "reply"} & set(evidence.table("model").columns)
    with pytest.raises(InputError, match="scale 'huge'"):
        study("huge", Run())


def test_verdicts_follow_the_paired_results():
    size = BypassSize(topics=4, seeds=1, budget=1000, epochs=1)
    weak = {name: [None] * 4 for name in ARMS}
    cases = weak | {"LARGO": [2, 3, 1, 4], "GCG": [1, 1, 1, 1], "uniform": [40, 50, 60, 70]}
    results = [_result(name, f"topic{i}", at) for name, row in cases.items() for i, at in enumerate(row)]
    found = {finding.id: finding for finding in _compared(results, size, 0)}
    assert found["beats-zero-latent"].verdict == "holds"
    # All of uniform's texts come too late for 15 tries, and in time for the budget.
    assert found["saves-checks"].verdict == "holds"
    assert found["saves-checks"].against.value == 0.0
    # GCG does as well: nothing is shown, and the rival named is the best one.
    assert found["fewest-checks"].verdict == "undecided"
    assert found["fewest-checks"].against.name.endswith("GCG")
    worse = cases | {"LARGO": [None] * 4}
    results = [_result(name, f"topic{i}", at) for name, row in worse.items() for i, at in enumerate(row)]
    assert {f.id: f.verdict for f in _compared(results, size, 0)}["fewest-checks"] == "fails"
