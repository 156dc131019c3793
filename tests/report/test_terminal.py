from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from touchstone.evidence import Evidence, Finding, Measurement
from touchstone.report import render_terminal


def printed(evidences: list[Evidence], audit: dict[str, Any] | None = None, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(render_terminal(evidences, audit))
    return stream.getvalue()


def test_summary_of_an_audit(audit: dict[str, Any], refusal: Evidence, awkward: Evidence) -> None:
    text = printed([refusal, awkward], audit).replace("\u00a0", " ")
    assert "Over-refusal  evorefuse  312 s" in text
    row = next(line for line in text.splitlines() if "0.230" in line)
    assert row.split() == ["✗", "fails", "refusal-rate", "0.230", "[0.183,", "0.286]", "256", "0.0469", "≤", "0.10"]
    row = next(line for line in text.splitlines() if "0.561" in line)
    assert row.split() == ["?", "not", "decided", "drift", "0.561", "[0.489,", "0.633]", "120", "–", "≤", "0.6"]
    row = next(line for line in text.splitlines() if " lost " in line)
    assert row.split() == ["?", "not", "decided", "lost", "not", "measured", "–", "–", "–"]
    assert "✗ did not finish: images/: no pictures found" in text
    assert "✗ fails  1 of 3 checks fails, 1 did not finish and 1 is not decided.  362 s" in " ".join(text.split("\n"))
    assert "undecided" not in text


def test_statement_is_given_where_a_finding_does_not_hold(refusal: Evidence) -> None:
    text = printed([refusal])
    assert "✗ The model refuses at most one in ten harmless prompts" in text
    assert "Plain prompts are answered" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_the_terminal_and_rows_stay_whole_at_80(
    width: int, audit: dict[str, Any], refusal: Evidence, awkward: Evidence
) -> None:
    lines = printed([refusal, awkward], audit, width).splitlines()
    assert max(len(line) for line in lines) <= width
    if width >= 80:
        assert sum("[0.183,\u00a00.286]" in line and "refusal-rate" in line for line in lines) == 1


def test_markup_and_escape_sequences_in_evidence_are_text() -> None:
    statement = "says [bold red]stop[/] and \x1b[31mred\x1b]0;title\x07"
    finding = Finding("a", statement, "fails", Measurement("m", 1.0))
    stream = io.StringIO()
    evidence = Evidence("t [link=x]", "m", "study", (finding,))
    Console(file=stream, width=120, force_terminal=True, color_system=None).print(render_terminal([evidence]))
    text = stream.getvalue()
    assert "[bold red]stop[/]" in text
    assert "[link=x]" in text
    assert "\x1b[31m" not in text
    assert "\x1b]0" not in text
    assert "\x07" not in text


def test_terminal_without_unicode_gets_ascii(refusal: Evidence, awkward: Evidence) -> None:
    buffer = io.BytesIO()
    tiny = Evidence("tiny", "tiny", "study", (Finding("p", "s", "holds", Measurement("p", 3.2e-6)),))
    stream = io.TextIOWrapper(buffer, encoding="ascii")
    Console(file=stream, width=80).print(render_terminal([refusal, awkward, tiny]))
    stream.flush()
    text = buffer.getvalue().decode("ascii")
    assert "x fails" in text
    assert "+ holds" in text
    assert "<= 0.10" in text
    assert "3.20e-6" in text


def test_no_findings_and_no_evidence(refusal: Evidence) -> None:
    assert "no findings" in printed([replace(refusal, findings=())])
    assert "? not decided  There are no findings to show." in printed([])
