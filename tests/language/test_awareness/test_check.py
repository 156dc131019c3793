"""The check on the real model, the study where it is smallest, and their settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from touchstone.errors import InputError
from touchstone.evidence import Evidence, Measurement
from touchstone.language.test_awareness.check import METRICS, NEEDS, Settings, _equal, check
from touchstone.language.test_awareness.study import study
from touchstone.run import Run

SMALL = Settings(pairs=30, randoms=2, cost_randoms=1, requests=2, shuffles=1)


@pytest.fixture(scope="module")
def found(real_model) -> Evidence:
    return check(real_model, SMALL, Run())


def test_every_metric_is_a_finding(found: Evidence) -> None:
    assert NEEDS == "local"
    assert {key.replace("_", "-") for key in METRICS} == {finding.id for finding in found.findings}
    for finding in found.findings:
        assert finding.measured.n
        assert finding.measured.low is not None


def test_the_embedded_model_tells_cues_apart_by_more_than_words(found: Evidence) -> None:
    probe = found.finding("probe-accuracy")
    assert probe.measured.value > 0.85
    assert probe.verdict == "holds"
    # Both sides of a pair pool the same tokens, so that words and embedding are at chance exactly.
    assert found.finding("bag-of-words-accuracy").measured.value == 0.5
    assert found.finding("embedding-accuracy").measured.value == 0.5
    layers = found.table("layers").set_index("layer")
    assert len(layers) == 31
    assert layers["accuracy"].loc[10] > layers["accuracy"].loc[0]


def test_every_control_has_its_arm(found: Evidence) -> None:
    kinds = found.table("arms")["kind"].value_counts()
    assert kinds.to_dict() == {"edit": 2, "random": 4, "shuffled": 2, "same_rows": 2, "prompt": 2}
    raises = found.finding("edit-raises")
    assert raises.against is not None
    assert raises.against.n == 2
    if raises.verdict == "undecided":
        assert raises.against.low <= raises.measured.value <= raises.against.high  # type: ignore[operator]


def test_the_model_is_as_it_was(found: Evidence, real_model) -> None:
    from touchstone.language import LanguageModel

    fresh = LanguageModel.load(threads=1).module.state_dict()
    assert all(bool((value == fresh[name]).all()) for name, value in real_model.module.state_dict().items())


def test_evidence_is_saved_with_its_figures(found: Evidence, tmp_path: Path) -> None:
    found.save(tmp_path / "evidence")
    assert {file.name for file in (tmp_path / "evidence" / "figures").iterdir()} == {"layers.png", "shifts.png"}
    assert Evidence.load(tmp_path / "evidence").findings == found.findings


def test_a_model_without_gates_is_checked_by_its_stream(make_tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from touchstone.language.test_awareness import survey

    # The tiny model's words; what it says means nothing, only that every path runs.
    from touchstone.language.test_awareness.pairs import PairTemplate, build_pairs

    words, made_up = [f"w{i}" for i in range(15)], [f"w{i}" for i in range(15, 30)]
    texts = [f"w3{k} {{x}} " + " ".join(f"w{i}" for i in range(30, 40)) for k in range(2)]
    templates = [PairTemplate(text, words, made_up) for text in texts]
    monkeypatch.setattr(survey, "build_pairs", lambda **options: build_pairs(templates, 30))
    model = make_tiny("gpt2", chat=True)
    found = check(model, replace(SMALL, folds=3), Run())
    assert "residual" in set(found.table("arms")["kind"])
    with pytest.raises(InputError, match="no gate projection"):
        check(model, replace(SMALL, how="edit"), Run())


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.2, 0.3, "holds"), (0.1, 0.4, "holds"), (-0.4, 0.6, "undecided"), (0.1, 0.6, "fails"), (-2.0, -0.1, "fails")],
)
def test_equal_willingness_needs_an_interval_within_the_margin(low: float, high: float, verdict: str) -> None:
    assert _equal(Measurement("gap", (low + high) / 2, "nats", low, high, 12)) == verdict


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pairs": 29}, "'pairs': 29; expected 30 or more"),
        ({"folds": 1}, "'folds'"),
        ({"strength": 0.0}, "'strength'"),
        ({"randoms": 0}, "'randoms'"),
        ({"cost_randoms": 9}, "'cost_randoms': 9; expected 1 to 2"),
        ({"rank": "best"}, "'rank', 'how'"),
        ({"how": "magic"}, "'rank', 'how'"),
    ],
)
def test_wrong_settings_are_named(change: dict, message: str, random_model) -> None:
    with pytest.raises(InputError, match=message):
        check(random_model, replace(SMALL, **change), Run())


def test_the_smoke_study_runs_and_claims_nothing_of_untrained_organisms() -> None:
    found = study("smoke", Run())
    assert found.scale == "smoke"
    assert len(found.findings) == 20
    assert {finding.verdict for finding in found.findings} == {"undecided"}
    assert {table.name for table in found.tables} == {"organism-arms", "organism-layers", "organism-dose"}
    assert len(found.figures) == 3
