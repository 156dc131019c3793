"""Evidence as a summary for the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from touchstone.evidence import Evidence, Finding
from touchstone.report.summary import Part, found, parts, shown_badge
from touchstone.report.words import (
    LABELS,
    VERDICTS,
    count,
    duration,
    interval,
    limit_text,
    seconds,
    standing,
    value_text,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

__all__ = ["render_terminal"]

_MARKS = {"holds": "✓", "fails": "✗", "undecided": "?", "measured": "–"}
_STYLES = {"holds": "green", "fails": "bold red", "undecided": "yellow", "measured": "bold"}
_ASCII = {"✓": "+", "✗": "x", "≤": "<=", "≥": ">=", "−": "-", "–": "-", "\u00a0": " ", "∞": "inf", "×10": "e"} | dict(
    zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True)
)
# Evidence may quote what a model wrote; escape sequences in it must not reach the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def render_terminal(evidences: Sequence[Evidence], audit: dict[str, Any] | None = None) -> RenderableType:
    """A summary for ``rich.console.Console.print``: the verdict, then a table of findings for each Evidence.

    Parameters
    ----------
    evidences : what is shown, in order; for an audit, the Evidence of each check that finished.
    audit : content of ``audit.json``; ``None`` for a study or a single check.
    """
    return _Summary(parts(evidences, audit), audit)


@dataclass(frozen=True)
class _Summary:
    shown: Sequence[Part]
    audit: dict[str, Any] | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = options.ascii_only
        cost = float(self.audit["seconds"]) if self.audit and self.audit.get("seconds") else None
        cost = sum(part.seconds for part in self.shown) if cost is None else cost
        for part in self.shown:
            head = _text(part.name, "bold", plain)
            if part.name != part.use:
                head.append_text(_text(f"  {part.use}", "dim", plain))
            head.append_text(_text(f"  {seconds(part.seconds)}", "dim", plain))
            yield head
            if part.error:
                yield _text(f"{_MARKS[part.verdict]} did not finish: {part.error}", "bold red", plain)
            if part.findings:
                yield _table(part.findings, plain)
            yield _statements([f for f in part.findings if f.verdict != "holds"], plain)
            if not part.findings and not part.error:
                yield _text("no findings", "dim", plain)
            yield _text("", "", plain)
        badge = shown_badge(self.shown, self.audit)
        last = _text(f"{_MARKS[badge]} {LABELS[badge]}", _STYLES[badge], plain)
        last.append_text(_text(f"  {found(self.shown, self.audit)}  ", "", plain))
        last.append_text(_text(duration(cost), "dim", plain))
        yield last


def _table(findings: Sequence[Finding], plain: bool) -> Table:
    from rich import box
    from rich.table import Table as RichTable

    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim", show_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("finding", overflow="fold", ratio=1)
    table.add_column("value [95 % interval]", justify="right")
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("against", justify="right")
    table.add_column("limit", justify="right")
    for f in findings:
        table.add_row(
            _text(f"{_MARKS[f.verdict]} {VERDICTS[f.verdict]}", _STYLES[f.verdict], plain),
            _text(f.id, "", plain),
            _text(f"{value_text(f.measured, f.limit)} {interval(f.measured, f.limit)}".rstrip(), "", plain),
            _text(count(f.measured.n), "", plain),
            _text("–" if f.against is None else value_text(f.against), "", plain),
            _text("–" if f.limit is None else limit_text(f.limit), "", plain),
        )
    return table


def _statements(findings: Sequence[Finding], plain: bool) -> Table:
    from rich.table import Table as RichTable

    grid = RichTable.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for f in findings:
        where = standing(f.measured, f.against, f.limit)
        line = _text(f.statement, _STYLES[f.verdict], plain)
        if where:
            line.append_text(_text(f" ({where})", "dim", plain))
        grid.add_row(_text(_MARKS[f.verdict], _STYLES[f.verdict], plain), line)
    return grid


def _text(content: str, style: str, plain: bool) -> Text:
    from rich.text import Text as RichText

    if plain:
        for sign, letters in _ASCII.items():
            content = content.replace(sign, letters)
        content = _CONTROL.sub("?", content).encode("ascii", "replace").decode()
    return RichText(_CONTROL.sub("\ufffd", content), style)
