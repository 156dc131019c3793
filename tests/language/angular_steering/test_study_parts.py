"""The study's own arithmetic, by hand: arcs, garbage, trade-offs, and part D on a tiny model."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from touchstone.errors import InputError
from touchstone.language.angular_steering import study_organism_findings as organism
from touchstone.language.angular_steering import study_tone
from touchstone.language.angular_steering.prompts import (
    ASKED_IN_VAIN,
    ASKED_PLAINLY,
    NEUTRAL_PROMPTS,
    NEUTRAL_TEXTS,
    TONE_TEST,
    TONE_TRAIN,
    UNRELATED_PROMPTS,
    prompt_lists,
)
from touchstone.language.angular_steering.study_geometry import geometry
from touchstone.language.angular_steering.study_replies import ReplySize, replies
from touchstone.run import Run


@pytest.mark.parametrize(
    ("inside", "expected"),
    [("1100", True), ("1001", True), ("1010", False), ("1111", True), ("0000", True), ("0110110", False)],
)
def test_arcs_on_a_circle(inside, expected):
    assert organism.contiguous(np.array([c == "1" for c in inside])) is expected


def sweep_of(outcomes: dict[str, dict[float, list[str]]], topics: str = "guarded") -> pd.DataFrame:
    rows = []
    for arm, settings in outcomes.items():
        for value, replies_ in settings.items():
            for item, reply in enumerate(replies_):
                for measure in ("refused", "answered"):
                    score = float(reply == measure)
                    rows.append({"arm": arm, "value": value, "item": item, "measure": measure, "score": score})
    return pd.DataFrame(rows).assign(topics=topics)


def test_garbage_by_hand():
    frame = sweep_of({"x": {0.0: ["refused", "refused"], 90.0: ["answered", "neither"], 180.0: ["wrong", "neither"]}})
    found = organism._garbage(frame, "x")
    # Of three settings, the first prompt gets garbage at one, the second at two.
    assert found.value == pytest.approx(0.5)
    assert found.n == 2
    assert organism._garbage(frame, "x", {90.0, 180.0}).value == pytest.approx(0.75)
    assert math.isnan(organism._garbage(frame, "x", set()).value)


def test_arc_findings_say_what_was_measured():
    frame = sweep_of(
        {"x": {0.0: ["refused"] * 20, 90.0: ["answered"] * 20, 180.0: ["refused"] * 10 + ["answered"] * 10}}
    )
    rates = pd.DataFrame({"arm": "x", "value": [0.0, 90.0, 180.0], "guarded refused": [1.0, 0.0, 0.5]})
    found = organism._arc("refusal-arc", "x", "Rotation", frame, rates, able=True)
    assert (found.verdict, found.measured.value, found.against.value, found.measured.n) == ("holds", 0.0, 1.0, 20)
    assert organism._arc("refusal-arc", "x", "Rotation", frame, rates, able=False).verdict == "undecided"
    # Two separate arcs of low refusal don't make a dial.
    apart = pd.DataFrame({"arm": "x", "value": range(4), "guarded refused": [1.0, 0.0, 1.0, 0.0]})
    frame = sweep_of({"x": {float(i): [r] * 4 for i, r in enumerate(("refused", "answered") * 2)}})
    assert organism._arc("refusal-arc", "x", "Rotation", frame, apart, able=True).verdict == "fails"
    weak = apart.assign(**{"guarded refused": [1.0, 0.3, 0.5, 0.9]})
    assert organism._arc("refusal-arc", "x", "Rotation", frame, weak, able=True).verdict == "fails"


def test_trade_off_by_hand():
    settings = pd.DataFrame(
        {
            "arm": ["unsteered", "x", "x", "x", "lines"],
            "value": [0.0, 1.0, 2.0, 3.0, 0.0],
            "tone": [0.5, 1.0, -1.0, 3.0, 9.0],
            "perplexity": [20.0, 22.0, 30.0, 90.0, np.nan],
        }
    )
    curves = study_tone._trade_off(settings, 0.5, 20.0)
    # The unsteered model belongs to the arm; a budget takes in all settings below it.
    assert curves["budget"].tolist() == [20.0, 22.0, 30.0, 90.0]
    assert curves["range"].tolist() == [0.0, 0.5, 2.0, 4.0]


def test_worst_perplexity_weighs_texts_by_their_tokens():
    # Two texts of 1 and 3 tokens; mean NLL a token of (1, 2) and (3, 1) at two settings: 7/4 and 6/4.
    rows = np.array([[1.0 * 1, 2.0 * 3], [3.0 * 1, 1.0 * 3], [1.0, 3.0]])
    assert study_tone._highest(rows) == pytest.approx(math.exp(7 / 4))
    assert study_tone._highest(rows, 1, 2) == pytest.approx(math.exp(6 / 4))


def test_a_few_prompts_decide_nothing():
    from touchstone.evidence import Measurement

    assert study_tone._above(Measurement("x", 9.0, low=8.0, high=10.0, n=3), 1.0) == "undecided"
    assert study_tone._above(Measurement("x", 9.0, low=8.0, high=10.0, n=6), 1.0) == "holds"
    assert study_tone._above(Measurement("x", 9.0, low=0.5, high=10.0, n=6), 1.0) == "undecided"
    assert study_tone._above(Measurement("x", 0.5, low=0.1, high=10.0, n=6), 1.0) == "fails"


def test_geometry_fails_where_an_operator_is_wrong(monkeypatch):
    from touchstone.language.angular_steering import study_geometry

    findings, tables = geometry(0, count=500)
    assert {finding.verdict for finding in findings} == {"holds"}
    assert len(tables[0].frame) == len(findings) == 6
    right = study_geometry.set_angle
    monkeypatch.setattr(study_geometry, "set_angle", lambda h, b1, b2, degrees: right(h, b1, b2, degrees) * 1.001)
    assert {finding.id for finding in geometry(0, count=500)[0] if finding.verdict == "fails"} >= {
        "norm-kept",
        "rest-kept",
    }
    monkeypatch.setattr(study_geometry, "set_angle", lambda h, b1, b2, degrees: right(h, b2, b1, degrees))
    failed = {finding.id for finding in geometry(0, count=500)[0] if finding.verdict == "fails"}
    assert failed >= {"angle-reached", "addition-is-rotation", "ablation-is-quarter-turn", "equals-projection"}


def test_built_in_prompts_are_apart_and_paired():
    assert len(TONE_TRAIN) == len(TONE_TEST) == 16
    assert not set(TONE_TRAIN) & set(TONE_TEST)
    assert len(set(ASKED_IN_VAIN)) == len(set(ASKED_PLAINLY)) == 24
    assert len(NEUTRAL_TEXTS) >= 8
    assert len(UNRELATED_PROMPTS) >= 6
    assert all(any(topic in prompt for topic in TONE_TEST) for prompt in NEUTRAL_PROMPTS)
    asked, plain, held = prompt_lists(None, None, None)
    assert not set(held) & {*asked, *plain}
    assert (len(asked), len(plain), len(held)) == (16, 16, 8)


def test_prompt_lists_from_files_and_bad_ones(tmp_path):
    (tmp_path / "asked.txt").write_text("# mine\n" + "\n".join(f"a{i}" for i in range(6)), encoding="utf-8")
    asked, plain, held = prompt_lists(tmp_path / "asked.txt", ["b1", "b2", "b3", "b4"], None)
    assert (asked, plain, held) == (["a0", "a1", "a2", "a3"], ["b1", "b2", "b3", "b4"], ["a4", "a5"])
    assert prompt_lists(tmp_path / "asked.txt", ["b"] * 4, ["c"])[2] == ["c"]
    for arguments, match in (
        ((None, ["b"] * 4, None), "expected both"),
        ((["a"] * 3, ["b"] * 4, None), "expected at least 4"),
        ((tmp_path / "absent.txt", ["b"] * 4, None), "cannot be read"),
    ):
        with pytest.raises(InputError, match=match):
            prompt_lists(*arguments)


def test_part_d_writes_judges_and_reports(make_model):
    model = make_model(chat=True)
    asked, plain = [f"w{i} w38 w1" for i in range(6)], [f"w{i} w39 w1" for i in range(6)]
    findings, tables, figures = replies(model, ReplySize(3, 4), Run(), positive=asked, negative=plain, test=None)
    assert [finding.id for finding in findings] == [
        "replies-arc",
        "replies-arc-all-tokens",
        "replies-random-plane",
        "replies-judges",
    ]
    # A model that does not refuse cannot show that refusals go: nothing is claimed.
    assert all(finding.verdict == "undecided" for finding in findings[:3])
    sweep = next(table.frame for table in tables if table.name == "replies-sweep")
    assert len(sweep) == 1 + 3 * 3 + 1 + 8 + 8
    shares = sweep[[column for column in sweep if column.startswith("refused") or column == "garbage"]]
    assert ((shares >= 0) & (shares <= 1)).all(axis=None)
    assert (sweep["perplexity"] > 1).all()
    assert figures[0].png.startswith(b"\x89PNG")
