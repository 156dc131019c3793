"""Decisive edits: what they are, and what is read."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.isolation_continuity import findings
from touchstone.language.isolation_continuity.edit_sources import (
    SYNTAX_KINDS,
    breaks,
    read_edits,
    stdlib_functions,
    syntax_edits,
    text_edits,
)
from touchstone.language.isolation_continuity.edits import DecisiveEdit, decisive_edits, length_slope, restated

_SOURCE = 'def f(a):\n    if a:\n        return [a, "x"]\n    return (a + 1) * len(str(a)) - max(a, 2) + min(a, 3)\n'


@pytest.mark.parametrize("kind", SYNTAX_KINDS)
def test_an_edit_breaks_a_function_by_one_mark(kind: str) -> None:
    edited = breaks(_SOURCE, kind, np.random.default_rng(0))
    assert edited is not None
    with pytest.raises(SyntaxError):
        ast.parse(edited)
    grown = {"double bracket": 1, "dedent": -2}.get(kind, -1)
    assert len(edited) - len(_SOURCE) == grown
    # The end stays as it was.
    assert edited.endswith("min(a, 3)\n")


def test_a_function_without_a_place_for_an_edit_has_none() -> None:
    assert breaks("def f():\n    return 1\n", "drop quote", np.random.default_rng(0)) is None
    with pytest.raises(InputError, match="kind 'rename'"):
        breaks(_SOURCE, "rename", np.random.default_rng(0))
    with pytest.raises(InputError, match="valid Python"):
        breaks("def f(:", "dedent", np.random.default_rng(0))


def test_the_built_in_edits_are_what_they_say() -> None:
    assert len(stdlib_functions()) > 150
    edits = syntax_edits(functions=20, most=1200)
    assert len(edits) >= 18
    assert {edit.kind for edit in edits} == set(SYNTAX_KINDS)
    for edit in edits:
        before, after = (text.rpartition("\n\n")[0] for text in (edit.before, edit.after))
        ast.parse(before)
        with pytest.raises(SyntaxError):
            ast.parse(after)
    assert edits == syntax_edits(functions=20, most=1200)
    for edit in text_edits(each=2):
        assert edit.before != edit.after
        assert edit.before.count("\n") == edit.after.count("\n")
        assert edit.decisive_before in edit.before
        assert edit.decisive_after in edit.after
    with pytest.raises(InputError, match="kind 'rumour'"):
        text_edits(kinds=["rumour"])


def test_saying_it_again_puts_it_before_the_question() -> None:
    edit = text_edits(kinds=["negation"], lines=[2], each=1)[0]
    again = restated(edit, 2)
    assert again.before.splitlines()[-3:] == [edit.decisive_before] * 2 + [edit.before.splitlines()[-1]]
    assert again.after.count(edit.decisive_after) == 3
    with pytest.raises(InputError, match="names no sentence"):
        restated(syntax_edits(functions=2)[0])
    with pytest.raises(InputError, match="times 0"):
        restated(edit, 0)


def test_slope_by_hand() -> None:
    tokens = np.array([10.0, 100.0, 1000.0])
    assert length_slope(tokens, 1 / tokens) == pytest.approx(-1.0)
    assert np.isnan(length_slope(np.array([10.0, 10.0]), np.array([0.1, 0.2])))


def test_answers_read_are_those_of_the_log_likelihood(model: LanguageModel) -> None:
    edits = [
        DecisiveEdit("toy", "w1 w2 w3 w4", "w1 w2 w9 w4", "w5", "w6"),
        DecisiveEdit("toy", "w1 w2", "w8 w2 w2", "w6", "w7"),
    ]
    rows = decisive_edits(model, edits).rows
    for edit, row in zip(edits, rows.itertuples(), strict=True):
        scores = model.log_likelihood([edit.before, edit.after], [edit.answer_before, edit.answer_after]).total
        before, after = 1 / (1 + np.exp(scores[:, 1] - scores[:, 0]))
        assert row.p_before == pytest.approx(before, abs=1e-4)
        assert row.delta == pytest.approx(before - after, abs=1e-4)
        assert row.flipped == float((before > 0.5) != (after > 0.5))
    assert rows["distance"].tolist() == pytest.approx([1 / 4, 2 / 3])
    report = decisive_edits(model, edits)
    assert findings.flip_rate(report).measured.n == 2
    assert 0 <= findings.edit_accuracy(report, 0).measured.value <= 1


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([], "at least one"),
        ([DecisiveEdit("toy", "w1", "w1", "w2", "w3")], "are the same"),
        ([DecisiveEdit("toy", "w1", "w2", "w3", "w3")], "different tokens"),
    ],
)
def test_bad_input(model: LanguageModel, edits: list[DecisiveEdit], message: str) -> None:
    with pytest.raises(InputError, match=message):
        decisive_edits(model, edits)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "at least one object"),
        ('[{"kind": 1}]', "not an object of texts"),
        ('[{"kind": "a"}]', "missing 4 required"),
        ('[{"rumour": "a"}]', "unexpected keyword argument 'rumour'"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "edits.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_edits(path)


def test_a_file_of_edits(tmp_path: Path) -> None:
    path = tmp_path / "edits.json"
    record = {"kind": "k", "before": "a", "after": "b", "answer_before": "Yes", "answer_after": "No"}
    path.write_text(json.dumps([record]), encoding="utf-8")
    assert read_edits(path) == [DecisiveEdit("k", "a", "b", "Yes", "No")]
