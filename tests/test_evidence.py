"""Evidence: the schema to the letter, whole folders or none, intervals by hand."""

from __future__ import annotations

import json
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.evidence import SCHEMA, Evidence, Figure, Finding, Limit, Measurement, Table, worst


def example(**changes) -> Evidence:
    figure, axes = plt.subplots(figsize=(2, 1))
    axes.plot([0, 1])
    values = {
        "title": "Steering <b>é</b>",
        "method": "angular-steering",
        "kind": "study",
        "scale": "cpu",
        "findings": (
            Finding(
                "refusal-arc",
                "Rotation moves refusal.",
                "holds",
                Measurement("refusal rate", 0.91, "", 0.86, 0.95, 256),
                Measurement("random plane", 0.12, "", 0.08, 0.17, 256),
                ">= 0.8",
            ),
            Finding("lost", "Could not be measured.", "undecided", Measurement("perplexity", math.nan)),
        ),
        "tables": (Table("sweep", "The sweep", pd.DataFrame({"degrees": [0, 90], "rate": [0.5, 0.25]})),),
        "figures": (Figure.draw("arc", "The arc", figure),),
        "environment": {"touchstone": "0.1.0"},
        "started": "2026-01-01T00:00:00Z",
        "seconds": 12.3,
    }
    return Evidence(**(values | changes))


def test_schema_is_the_documented_one(tmp_path):
    example().save(tmp_path / "e")
    data = json.loads((tmp_path / "e" / "evidence.json").read_text(encoding="utf-8"))
    keys = "schema title method kind scale seed findings tables figures environment started seconds"
    assert list(data) == keys.split()
    assert data["schema"] == SCHEMA == "touchstone.evidence/1"
    assert data["findings"][0] == {
        "id": "refusal-arc",
        "statement": "Rotation moves refusal.",
        "verdict": "holds",
        "measured": {"name": "refusal rate", "value": 0.91, "unit": "", "low": 0.86, "high": 0.95, "n": 256},
        "against": {"name": "random plane", "value": 0.12, "unit": "", "low": 0.08, "high": 0.17, "n": 256},
        "limit": ">= 0.8",
    }
    assert data["findings"][1]["measured"]["value"] is None
    assert data["findings"][1]["against"] is None
    assert data["tables"] == [{"name": "sweep", "title": "The sweep", "file": "tables/sweep.csv"}]
    assert data["figures"] == [{"name": "arc", "title": "The arc", "file": "figures/arc.png"}]
    assert data["seconds"] == 12.3


def test_save_and_load_give_the_same(tmp_path):
    before = example()
    after = Evidence.load(before.save(tmp_path / "deep" / "e"))
    assert after.findings[0] == before.findings[0]
    assert math.isnan(after.findings[1].measured.value)
    pd.testing.assert_frame_equal(after.table("sweep"), before.table("sweep"))
    assert after.figures[0].png == before.figures[0].png
    assert after.to_json() == before.to_json()


def test_save_never_touches_what_is_there(tmp_path):
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="already exists"):
        example().save(tmp_path / "e")
    assert [p.name for p in tmp_path.rglob("*")] == ["e", "mine.txt"]
    example().save(tmp_path / "e", replace=True)
    assert not (tmp_path / "e" / "mine.txt").exists()


def test_a_failure_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    with pytest.raises(InputError, match="No space left"):
        example().save(tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file/e", "/proc/touchstone/e"])
def test_a_place_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        example().save(tmp_path / place)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not readable"),
        ("[]", "expected schema"),
        ('{"schema": "touchstone.evidence/9"}', "expected schema"),
        ('{"schema": "touchstone.evidence/1"}', "damaged"),
    ],
)
def test_damaged_evidence_is_one_line(tmp_path, content, says):
    (tmp_path / "evidence.json").write_text(content)
    with pytest.raises(InputError, match=says) as caught:
        Evidence.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        ('"low": 0.86', '"low": "x"'),
        ('"verdict": "holds"', '"verdict": "perhaps"'),
        ('"title": "The sweep"', '"title": null'),
        ('"n": 256', '"n": 2.5'),
        ('"value": 0.91', '"value": "0.91"'),
        ('"statement": "Rotation moves refusal."', '"statement": 5'),
        ('"limit": ">= 0.8"', '"limit": 3'),
        ('"measured": {', '"measured": 1, "x": {'),
    ],
)
def test_fields_of_the_wrong_type_are_refused(tmp_path, change):
    path = example().save(tmp_path / "e") / "evidence.json"
    text = path.read_text(encoding="utf-8")
    assert change[0] in text
    path.write_text(text.replace(*change, 1), encoding="utf-8")
    with pytest.raises(InputError, match="damaged") as caught:
        Evidence.load(tmp_path / "e")
    assert "\n" not in str(caught.value)


def test_missing_or_outside_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"no evidence\.json"):
        Evidence.load(tmp_path)
    folder = example().save(tmp_path / "e")
    text = (folder / "evidence.json").read_text(encoding="utf-8")
    (folder / "evidence.json").write_text(text.replace("tables/sweep.csv", "../../secret.csv"), encoding="utf-8")
    with pytest.raises(InputError, match="outside"):
        Evidence.load(folder)
    (folder / "evidence.json").write_text(text, encoding="utf-8")
    (folder / "figures" / "arc.png").unlink()
    with pytest.raises(InputError, match="damaged"):
        Evidence.load(folder)


def test_names_are_unique_and_kebab_case():
    finding = Finding("a", "A.", "holds", Measurement("m", 1.0))
    with pytest.raises(InputError, match="stands twice"):
        example(findings=(finding, finding))
    with pytest.raises(InputError, match="kebab"):
        Finding("Not Kebab", "A.", "holds", Measurement("m", 1.0))
    with pytest.raises(InputError, match="verdict"):
        Finding("a", "A.", "maybe", Measurement("m", 1.0))
    with pytest.raises(InputError, match="not in this evidence"):
        example().finding("nothing")
    with pytest.raises(InputError, match="not in this evidence"):
        example().table("nothing")


def test_verdict_is_the_worst():
    assert example().verdict == "undecided"
    assert worst(["holds", "undecided", "fails"]) == "fails"
    assert worst([]) == "holds"


def test_wilson_interval_by_hand():
    # 8 of 10: centre (0.8 + 0.19207) / 1.38415, half-width 0.22657 (z = 1.96).
    rate = Measurement.rate("r", 8, 10)
    assert (rate.low, rate.high) == (pytest.approx(0.49016, abs=1e-4), pytest.approx(0.94332, abs=1e-4))
    from scipy.stats import binomtest

    reference = binomtest(8, 10).proportion_ci(method="wilson")
    assert (rate.low, rate.high) == (pytest.approx(reference.low), pytest.approx(reference.high))
    assert Measurement.rate("r", 0, 5).low == 0
    assert Measurement.rate("r", 5, 5).high == 1
    with pytest.raises(InputError, match="hits"):
        Measurement.rate("r", 6, 5)


@given(st.integers(1, 500), st.data())
def test_wilson_interval_holds_the_rate(n, data):
    hits = data.draw(st.integers(0, n))
    rate = Measurement.rate("r", hits, n)
    assert 0 <= rate.low <= rate.value <= rate.high <= 1


def test_student_interval_by_hand():
    # t(0.975, 3) = 3.18245; mean 2.5, s = 1.29099, half-width 2.05426.
    mean = Measurement.mean("m", [1, 2, 3, 4], "nats")
    assert (mean.value, mean.unit, mean.n) == (2.5, "nats", 4)
    assert mean.low == pytest.approx(2.5 - 2.05426, abs=1e-4)
    assert Measurement.mean("m", np.array([3.0])).low is None
    with pytest.raises(InputError, match="at least one"):
        Measurement.mean("m", [])


@pytest.mark.parametrize(
    ("text", "value", "allowed"),
    [("<= 0.10", 0.1, True), ("< 0.1", 0.1, False), (">=-2", -2, True), ("> 1e3", 1000.5, True), ("<= .5", 0.6, False)],
)
def test_limits(text, value, allowed):
    assert Limit.parse(text).allows(value) is allowed
    assert not Limit.parse(text).allows(math.nan)
    assert Limit.parse(str(Limit.parse(text))) == Limit.parse(text)


@pytest.mark.parametrize("text", ["", "0.1", "<= ", "= 1", "<= one", "<= 1 %", "<= 0.1 or so"])
def test_limits_that_are_none(text):
    with pytest.raises(InputError, match="expected a relation"):
        Limit.parse(text)


def test_a_finding_is_held_to_its_limit():
    low, high = Measurement("rate", 0.05, low=0.01, high=0.2, n=9), Measurement("rate", 0.5, low=0.3, high=0.7, n=9)
    found = [Finding.held_to("rate", "it is low", one, "<= 0.10", high) for one in (low, high)]
    assert [one.verdict for one in found] == ["undecided", "fails"]
    assert (found[0].limit, found[0].against, found[0].measured) == ("<= 0.10", high, low)


def test_a_limit_judges_value_and_interval():
    limit = Limit.parse("<= 0.10")
    assert limit.judge(Measurement("r", 0.05)) == "holds"
    assert limit.judge(Measurement("r", 0.05, low=0.01, high=0.09)) == "holds"
    assert limit.judge(Measurement("r", 0.05, low=0.01, high=0.12)) == "undecided"
    assert limit.judge(Measurement("r", 0.11, low=0.01, high=0.2)) == "fails"
    assert limit.judge(Measurement("r", math.nan)) == "fails"
