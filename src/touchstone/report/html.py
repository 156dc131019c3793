"""Evidence as one HTML file that needs nothing else: no network, no script, no font."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from touchstone.evidence import Evidence, Figure, Finding, Measurement
from touchstone.files import write_text
from touchstone.report.advice import next_steps
from touchstone.report.grid import Grid, grid
from touchstone.report.summary import Part, found, machine, overall, parts, shown_badge, sureness, tried
from touchstone.report.words import (
    LABELS,
    NOT_MEASURED,
    count,
    date,
    decimals_for,
    duration,
    interval,
    limit_text,
    number,
    parsed_limit,
    seconds,
    standing,
    value_text,
)

__all__ = ["render_html", "write_report"]

MOST_CLAIMS = 12


def render_html(title: str, evidences: Sequence[Evidence], *, audit: dict[str, Any] | None = None) -> str:
    """One self-contained HTML document.

    The first page says what was tried, what was found, how sure that is and what to do next; a section per
    Evidence follows.

    Parameters
    ----------
    title : headline of the document.
    evidences : what is shown, in order; for an audit, the Evidence of each check that finished.
    audit : content of ``audit.json``; ``None`` for a study or a single check.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = parts(evidences, audit)
    verdict = overall(shown, audit)
    sections = _sections(shown)
    # Claim by claim as long as that makes a page, else study by study.
    many = len(shown) > 1 and sum(len(part.findings) for part in shown) > MOST_CLAIMS
    return environment.get_template("report.html").render(
        title=title,
        kind=_kind(evidences, audit),
        is_audit=audit is not None,
        verdict=verdict,
        badge_word=shown_badge(shown, audit),
        words=LABELS,
        found=found(shown, audit),
        tried=tried(shown, audit),
        lines=_lines(shown, sections, audit is not None) if audit is not None or many else [],
        sure=sureness(shown),
        next=next_steps(shown, verdict, audit),
        sections=sections,
        drawn=any(f.bar for section in sections for f in section.findings),
        version=_version(evidences),
    )


def write_report(
    folder: str | Path, title: str, evidences: Sequence[Evidence], audit: dict[str, Any] | None = None
) -> Path:
    """Write ``report.html`` into ``folder`` and return its path."""
    path = Path(folder) / "report.html"
    write_text(path, render_html(title, evidences, audit=audit))
    return path


@dataclass(frozen=True)
class _Bar:
    """Places in percent of the width of an interval bar; ``None`` where there is nothing to draw."""

    value: float | None
    low: float | None
    high: float | None
    base: float | None
    base_low: float | None
    base_high: float | None
    limit: float | None
    allowed_from: float
    allowed_width: float
    left: str
    right: str
    label: str


@dataclass(frozen=True)
class _Number:
    name: str
    value: str
    spread: str


@dataclass(frozen=True)
class _Shown:
    """A finding as the template shows it."""

    anchor: str
    statement: str
    verdict: str
    measured: _Number
    against: _Number | None
    limit: str
    standing: str
    placed: str
    bar: _Bar | None


@dataclass(frozen=True)
class _Picture:
    title: str
    source: str
    width: int
    height: int
    wide: bool


@dataclass(frozen=True)
class _Section:
    anchor: str
    title: str
    use: str
    kind: str
    verdict: str
    findings: list[_Shown]
    figures: list[_Picture]
    tables: list[Grid]
    facts: list[tuple[str, str]]
    seconds: str
    error: str | None


@dataclass(frozen=True)
class _Line:
    """One check on the first page."""

    anchor: str
    name: str
    use: str
    verdict: str
    seconds: str
    error: str | None
    finding: _Shown | None
    note: str


def _sections(shown: Sequence[Part]) -> list[_Section]:
    result = []
    for i, part in enumerate(shown, 1):
        evidence = part.evidence
        result.append(
            _Section(
                anchor=f"part-{i}",
                title=part.name if evidence is None else evidence.title,
                use=part.use,
                kind="check" if evidence is None else evidence.kind,
                verdict=part.badge,
                findings=[_finding(f, f"part-{i}") for f in part.findings],
                figures=[] if evidence is None else [_picture(f) for f in evidence.figures],
                tables=[] if evidence is None else [grid(t) for t in evidence.tables],
                facts=[] if evidence is None else _facts(evidence),
                seconds=duration(part.seconds),
                error=part.error,
            )
        )
    return result


def _lines(shown: Sequence[Part], sections: Sequence[_Section], audited: bool) -> list[_Line]:
    lines = []
    for part, section in zip(shown, sections, strict=True):
        headline = part.headline
        finding = None if headline is None else section.findings[part.findings.index(headline)]
        lines.append(
            _Line(
                section.anchor,
                part.name,
                part.use,
                part.badge,
                seconds(part.seconds),
                part.error,
                finding if part.error is None else None,
                _note(part, audited),
            )
        )
    return lines


def _note(part: Part, audited: bool) -> str:
    """What the headline of a part leaves unsaid about its other findings."""
    headline = part.headline
    if audited and not part.judged:
        # Nothing judges this check, so that what it found amiss would not show.
        of, amiss = len(part.findings), sum(f.verdict == "fails" for f in part.findings)
        return f"{amiss} of {of} finding{'' if of == 1 else 's'} {'fails' if amiss == 1 else 'fail'}" if amiss else ""
    of = len(part.judged or part.findings)
    if headline is None or of < 2:
        return ""
    what = "limits" if part.judged else "findings"
    if headline.verdict != "holds":
        return f"worst of {of} {what}"
    return f"both {what} hold" if of == 2 else f"all {of} {what} hold"


def _kind(evidences: Sequence[Evidence], audit: dict[str, Any] | None) -> str:
    if audit is not None:
        return "Audit"
    kinds = {e.kind for e in evidences}
    if len(kinds) != 1:
        return "Evidence"
    kind = kinds.pop().capitalize()
    return kind if len(evidences) == 1 else "Studies" if kind == "Study" else f"{kind}s"


def _version(evidences: Sequence[Evidence]) -> str:
    return ", ".join(
        dict.fromkeys(str(e.environment["touchstone"]) for e in evidences if e.environment.get("touchstone"))
    )


def _finding(finding: Finding, anchor: str) -> _Shown:
    where = standing(finding.measured, finding.against, finding.limit)
    return _Shown(
        anchor=f"{anchor}-{finding.id}",
        statement=finding.statement,
        verdict=finding.verdict,
        measured=_number(finding.measured, finding.limit),
        against=None if finding.against is None else _number(finding.against),
        limit="" if finding.limit is None else limit_text(finding.limit),
        standing=where,
        # Beside "limit ≤ 0.10" the word need not stand again.
        placed=""
        if where == NOT_MEASURED
        else where.replace("crosses the limit", "crosses it").replace(" the limit", ""),
        bar=_bar(finding),
    )


def _number(measured: Measurement, limit: str | None = None) -> _Number:
    spread = f"{interval(measured, limit) or 'no interval'}, n\u00a0=\u00a0{count(measured.n)}"
    if math.isnan(measured.value):
        spread = "" if measured.n is None else f"n\u00a0=\u00a0{count(measured.n)}"
    return _Number(measured.name, value_text(measured, limit), spread)


def _bar(finding: Finding) -> _Bar | None:
    measured, against = finding.measured, finding.against
    if against is not None and against.unit != measured.unit:
        against = None
    limit = parsed_limit(finding.limit)
    own = _reach(measured)
    base = [] if against is None else _reach(against)
    points = own + base + ([] if limit is None else [limit.bound])
    # A lone point on a line says nothing that its number does not.
    if not own or len(set(points)) < 2:
        return None
    low, high = min(points), max(points)
    if 0 < low <= 0.4 * high:
        low = 0.0
    elif 0.4 * low <= high < 0:
        high = 0.0
    edge = 0.06 * (high - low)
    start = low if low == 0 else low - edge
    end = high if high in (0.0, 1.0) else high + edge
    if not math.isfinite(end - start) or end <= start:
        return None

    def place(value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        # Two per cent at either end keep a marker at the edge whole.
        return round(2 + 96 * (value - start) / (end - start), 2)

    bound = None if limit is None else place(limit.bound)
    below = limit is not None and limit.relation in ("<", "<=")
    decimals = decimals_for([start, end], 2)
    said = f"{measured.name} {value_text(measured, finding.limit)} {interval(measured, finding.limit)}".strip()
    if against is not None:
        said += f"; {against.name} {value_text(against)} {interval(against)}".rstrip()
    if limit is not None:
        said += f"; limit {limit_text(str(finding.limit))}"
    return _Bar(
        place(measured.value),
        place(measured.low),
        place(measured.high),
        None if against is None else place(against.value),
        None if against is None else place(against.low),
        None if against is None else place(against.high),
        bound,
        0.0 if bound is None or below else bound,
        0.0 if bound is None else bound if below else 100 - bound,
        number(start, decimals),
        number(end, decimals),
        said,
    )


def _reach(measured: Measurement) -> list[float]:
    """What an interval bar shows of a number: its value, and its interval if both ends are known."""
    ends = [] if measured.low is None or measured.high is None else [measured.low, measured.high]
    return [v for v in (measured.value, *ends) if math.isfinite(v)]


def _picture(figure: Figure) -> _Picture:
    width = height = 0
    # The size stands at a fixed place in a PNG; with it the page does not jump while it loads.
    if figure.png[:8] == b"\x89PNG\r\n\x1a\n" and figure.png[12:16] == b"IHDR":
        width = int.from_bytes(figure.png[16:20], "big")
        height = int.from_bytes(figure.png[20:24], "big")
    source = "data:image/png;base64," + base64.b64encode(figure.png).decode("ascii")
    # Figures are drawn at 144 dpi, one and a half times as fine as a CSS pixel.
    return _Picture(figure.title, source, round(width / 1.5), round(height / 1.5), height > 0 and width > 1.9 * height)


def _facts(evidence: Evidence) -> list[tuple[str, str]]:
    """Environment, as label and text."""
    environment = evidence.environment
    rows = [("Method", f"{evidence.method}, {evidence.kind}")]
    if evidence.scale:
        rows.append(("Scale", evidence.scale))
    rows.append(("Seed", str(evidence.seed)))
    if evidence.started:
        rows.append(("Started", date(evidence.started)))
    if machine(environment):
        rows.append(("Machine", machine(environment)))
    packages = environment.get("packages")
    software = [f"{name} {environment[name]}" for name in ("touchstone", "python") if environment.get(name)]
    software += [f"{name} {version}" for name, version in packages.items()] if isinstance(packages, dict) else []
    if software:
        rows.append(("Software", ", ".join(software)))
    # What a run adds to its environment is for the reader too.
    known = {"touchstone", "python", "packages", "cpu", "device", "threads"}
    rows += [
        (str(key).replace("_", " ").capitalize(), str(value))
        for key, value in environment.items()
        if key not in known and isinstance(value, str | int | float)
    ]
    return rows
