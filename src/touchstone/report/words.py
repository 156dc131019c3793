"""Numbers, verdicts and dates as a reader wants them; shared by the HTML report and the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from touchstone.errors import InputError
from touchstone.evidence import Limit, Measurement

__all__ = [
    "LABELS",
    "NOT_MEASURED",
    "VERDICTS",
    "count",
    "cut",
    "date",
    "decimals_for",
    "duration",
    "enough",
    "interval",
    "limit_text",
    "number",
    "parsed_limit",
    "position",
    "seconds",
    "standing",
    "value_text",
]

VERDICTS = {"holds": "holds", "fails": "fails", "undecided": "not decided"}
# What no limit bounds can neither pass nor fail.
LABELS = VERDICTS | {"measured": "measured"}
NOT_MEASURED = "not measured"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NBSP = "\u00a0"
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def decimals_for(values: Sequence[float], digits: int = 3) -> int | None:
    """Decimals that give the largest of ``values`` three significant digits; ``None`` asks for powers of ten."""
    known = [abs(v) for v in values if math.isfinite(v)]
    largest = max(known, default=0.0)
    if largest == 0:
        return 0
    if largest < 1e-4 or largest >= 1e12:
        return None
    if all(v == int(v) for v in known):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(largest)))


def number(value: float, decimals: int | None) -> str:
    """One number with thousands separators and a true minus sign; NaN reads "not measured"."""
    if math.isnan(value):
        return NOT_MEASURED
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if decimals is None:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPT)}".replace("-", "−")
    text = f"{value:,.{decimals}f}"
    # A small negative number must not round to "−0.00".
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def _decimals(measured: Measurement, limit: str | None = None) -> int | None:
    ends = [end for end in (measured.low, measured.high) if end is not None and math.isfinite(end)]
    decimals = decimals_for([measured.value, *ends])
    if decimals is None:
        return None
    whole = all(v == int(v) for v in (measured.value, *ends) if math.isfinite(v))
    if not whole and len(ends) == 2 and (width := abs(ends[1] - ends[0])) > 0:
        # An interval must keep two digits of its width: 1 [0.985, 1] must not read 1.00 [0.99, 1.00].
        decimals = max(decimals, min(decimals + 3, 1 - math.floor(math.log10(width))))
    bound = parsed_limit(limit)
    if bound is not None:
        # 0.1004 that breaks "<= 0.10" must not read 0.100.
        for value in (measured.value, *ends):
            most = decimals + 4
            while (
                math.isfinite(value)
                and value != bound.bound
                and decimals < most
                and float(f"{value:.{decimals}f}") == bound.bound
            ):
                decimals += 1
    return decimals


def value_text(measured: Measurement, limit: str | None = None) -> str:
    """The value with its unit, to three significant digits or as many as tell it from its limit."""
    text = number(measured.value, _decimals(measured, limit))
    return text if not measured.unit or math.isnan(measured.value) else f"{text}{_NBSP}{measured.unit}"


def interval(measured: Measurement, limit: str | None = None) -> str:
    """``[low, high]``, or an empty string where there is no interval."""
    if measured.low is None and measured.high is None:
        return ""
    decimals = _decimals(measured, limit)
    low, high = ("–" if e is None or math.isnan(e) else number(e, decimals) for e in (measured.low, measured.high))
    return f"[{low},{_NBSP}{high}]"


def count(n: int | None) -> str:
    """Number of observations, "–" if it is not known."""
    return "–" if n is None else f"{n:,}"


def parsed_limit(text: str | None) -> Limit | None:
    """The limit as a relation and a bound, ``None`` where it is absent or put in other words."""
    if text is None:
        return None
    try:
        return Limit.parse(text)
    except InputError:
        return None


def limit_text(text: str) -> str:
    """``<= 0.10`` as ``≤ 0.10``."""
    return re.sub(r"^\s*(<=|>=|<|>)\s*", lambda m: {"<=": "≤", ">=": "≥"}.get(m[1], m[1]) + _NBSP, text)


def seconds(value: float) -> str:
    """``12.3 s``; what a step cost."""
    if not math.isfinite(value):
        return "–"
    decimals = 0 if value >= 100 else 1 if value >= 0.95 else 2
    return f"{value:,.{decimals}f}{_NBSP}s"


def duration(value: float) -> str:
    """``432 s (7 min 12 s)``; the seconds, and from two minutes on what they come to."""
    text = seconds(value)
    if not math.isfinite(value) or value < 120:
        return text
    whole = round(value)
    if whole < 3600:
        return f"{text} ({whole // 60}{_NBSP}min {whole % 60}{_NBSP}s)"
    return f"{text} ({whole // 3600:,}{_NBSP}h {whole % 3600 // 60}{_NBSP}min)"


def date(text: str) -> str:
    """``2026-01-01T00:00:00Z`` as ``1 January 2026, 00:00 UTC``; any other text as it is."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return f"{moment.day} {_MONTHS[moment.month - 1]} {moment.year}, {moment:%H:%M} UTC"


def cut(text: str, longest: int) -> str:
    """``text`` in at most ``longest`` characters, shortened at a word where that is possible."""
    if len(text) <= longest:
        return text
    head = text[: longest - 1]
    word = head.rsplit(" ", 1)[0]
    return (word if len(word) > longest // 2 else head).rstrip(" ,;:") + "…"


Position = Literal["unmeasured", "inside", "outside", "crosses", "reaches", "clear", "overlaps", "unknown"]


def position(measured: Measurement, against: Measurement | None = None, limit: str | None = None) -> Position:
    """Where a number stands towards its limit, or else towards its baseline.

    ``inside`` and ``outside``: the value and its interval, if it has one, on one side of the limit. ``crosses``: the
    value inside, its interval not; ``reaches``: the value outside, its interval not. ``clear`` and ``overlaps``: the
    interval and that of the baseline.
    """
    if math.isnan(measured.value):
        return "unmeasured"
    bound = parsed_limit(limit)
    if bound is not None:
        inside = bound.allows(measured.value)
        ends = [bound.allows(end) for end in (measured.low, measured.high) if end is not None]
        if all(end is inside for end in ends):
            return "inside" if inside else "outside"
        return "crosses" if inside else "reaches"
    if against is None or math.isnan(against.value) or measured.low is None or measured.high is None:
        return "unknown"
    low = against.value if against.low is None else against.low
    high = against.value if against.high is None else against.high
    return "clear" if measured.low > high or measured.high < low else "overlaps"


def standing(measured: Measurement, against: Measurement | None = None, limit: str | None = None) -> str:
    """:func:`position` in words that follow the number; empty where nothing is known."""
    where = position(measured, against, limit)
    bare = measured.low is None and measured.high is None
    match where:
        case "unmeasured":
            return NOT_MEASURED
        case "inside" | "outside":
            return f"{where} the limit, without an interval" if bare else f"the whole interval is {where} the limit"
        case "crosses":
            return "the interval crosses the limit"
        case "reaches":
            return "outside the limit, but the interval reaches inside"
        case "clear":
            return "the interval is clear of the baseline"
        case "overlaps":
            return "the interval overlaps the baseline"
        case _:
            return ""


def enough(measured: Measurement, limit: str | None) -> int | None:
    """Observations after which the interval would stop crossing the limit, should the value stay where it is.

    The width of an interval falls with the square root of n. ``None`` where the interval does not cross the
    limit, n is unknown, or more than a hundred times as many would be needed.
    """
    bound = parsed_limit(limit)
    if bound is None or not measured.n or measured.low is None or measured.high is None:
        return None
    if not all(math.isfinite(v) for v in (measured.value, measured.low, measured.high)):
        return None
    distance = abs(measured.value - bound.bound)
    reach = measured.high - measured.value if bound.bound > measured.value else measured.value - measured.low
    if distance == 0 or reach < distance or reach > 10 * distance:
        return None
    exact = measured.n * (reach / distance) ** 2
    step = 10 ** max(0, math.floor(math.log10(exact)) - 1)
    return math.ceil(round(exact / step, 6)) * step
