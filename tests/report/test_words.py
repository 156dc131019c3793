from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from touchstone.evidence import Limit, Measurement
from touchstone.report.words import cut, date, duration, enough, interval, limit_text, position, seconds, value_text


def shown(value: float, low: float | None = None, high: float | None = None, unit: str = "", limit: str = "") -> str:
    measured = Measurement("m", value, unit, low, high)
    return f"{value_text(measured, limit or None)} {interval(measured, limit or None)}".strip().replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (shown(0.91, 0.86, 0.95), "0.910 [0.860, 0.950]"),
        (shown(1.0, 0.985, 1.0), "1.000 [0.985, 1.000]"),
        (shown(0.0, 0.0, 0.0149), "0 [0, 0.0149]"),
        (shown(12345.6, 12300.2, 12391.0), "12,346 [12,300, 12,391]"),
        (shown(12.0), "12"),
        (shown(0.5), "0.500"),
        (shown(-0.031), "−0.0310"),
        (shown(12.3, unit="%"), "12.3 %"),
        (shown(3.2e-6), "3.20×10⁻⁶"),
        (shown(math.nan, unit="ms"), "not measured"),
        (shown(math.inf), "∞"),
        (shown(5.0, None, 9.0), "5 [–, 9]"),
        # What breaks its limit must not read as the limit.
        (shown(0.1004, limit="<= 0.10"), "0.1004"),
        (shown(0.1004), "0.100"),
    ],
)
def test_numbers(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(1e-3, 1e6), st.floats(-0.2, 0.2))
def test_a_number_never_reads_as_a_limit_that_it_is_not(bound: float, shift: float) -> None:
    limit = f"<= {bound:.3g}"
    exact = Limit.parse(limit).bound
    value = exact * (1 + shift)
    text = value_text(Measurement("m", value), limit).replace(",", "").replace("−", "-")
    if "×" not in text:
        # Up to the four decimals that are added at most.
        assert (float(text) == exact) <= (abs(value - exact) <= 1e-4 * exact)
        assert float(text) == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    ("value", "low", "high", "against", "limit", "expected"),
    [
        (0.05, 0.02, 0.09, None, "<= 0.1", "inside"),
        (0.05, 0.02, 0.12, None, "<= 0.1", "crosses"),
        (0.11, 0.09, 0.12, None, "<= 0.1", "reaches"),
        (0.20, 0.15, 0.30, None, "<= 0.1", "outside"),
        (0.05, None, None, None, "<= 0.1", "inside"),
        (math.nan, None, None, None, "<= 0.1", "unmeasured"),
        (0.9, 0.8, 1.0, Measurement("b", 0.5, "", 0.4, 0.6), None, "clear"),
        (0.9, 0.5, 1.0, Measurement("b", 0.5, "", 0.4, 0.6), None, "overlaps"),
        (0.9, 0.8, 1.0, Measurement("b", 0.5), "in other words", "clear"),
        (0.9, 0.8, 1.0, Measurement("b", math.nan), None, "unknown"),
        (0.9, 0.8, 1.0, None, None, "unknown"),
    ],
)
def test_position(
    value: float, low: float | None, high: float | None, against: Measurement | None, limit: str | None, expected: str
) -> None:
    assert position(Measurement("m", value, "", low, high), against, limit) == expected


def test_enough_observations() -> None:
    assert enough(Measurement("m", 0.06, "", 0.02, 0.14, 100), "<= 0.10") == 400
    assert enough(Measurement("m", 0.94, "", 0.86, 0.98, 100), ">= 0.90") == 400
    assert enough(Measurement("m", 0.05, "", 0.02, 0.09, 100), "<= 0.10") is None
    assert enough(Measurement("m", 0.0999, "", 0.02, 0.14, 100), "<= 0.10") is None
    assert enough(Measurement("m", 0.1, "", 0.02, 0.14, 100), "<= 0.10") is None
    assert enough(Measurement("m", 0.06, "", 0.02, 0.14), "<= 0.10") is None
    assert enough(Measurement("m", 0.06, "", 0.02, 0.14, 100), None) is None


def test_times_and_dates() -> None:
    assert [seconds(v).replace("\u00a0", " ") for v in (0.04, 3.9, 48.02, 1234.5)] == [
        "0.04 s",
        "3.9 s",
        "48.0 s",
        "1,234 s",
    ]
    assert duration(378.2).replace("\u00a0", " ") == "378 s (6 min 18 s)"
    assert duration(4211.7).replace("\u00a0", " ") == "4,212 s (1 h 10 min)"
    assert seconds(math.nan) == "–"
    assert date("2026-01-01T00:00:00Z") == "1 January 2026, 00:00 UTC"
    assert date("2026-01-01T00:30:00+01:00") == "31 December 2025, 23:30 UTC"
    assert date("some day") == "some day"


def test_limit_text_and_cut() -> None:
    assert limit_text("<= 0.10") == "≤\u00a00.10"
    assert limit_text(">5") == ">\u00a05"
    assert limit_text("twice the baseline") == "twice the baseline"
    assert cut("a short one", 20) == "a short one"
    assert cut("a statement that is long", 16) == "a statement…"
    assert len(cut("x" * 50, 16)) == 16
