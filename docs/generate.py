"""Write what follows from the catalog and the Evidence: the table of methods, CITATION.cff, and each page's numbers.

Run by `make docs`; a test fails when a file is out of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from touchstone import __version__
from touchstone.catalog import METHODS, ROOMS, Method

ROOT = Path(__file__).parent.parent


def table() -> str:
    """The page ``docs/methods/index.md``."""
    built = sum(bool(record.offers) for record in METHODS)
    lines = [
        "# Methods",
        "",
        f"Touchstone sets out to hold {len(METHODS)} methods; {built} of them work today. This table is made from the",
        "catalog (`touchstone methods`), and a test fails if it says more than is there.",
        "",
    ]
    for room, line in ROOMS.items():
        rows = [record for record in METHODS if record.room == room]
        lines += [
            f"## {room}",
            "",
            f"{line}.",
            "",
            "| method | what it is for | works today | paper |",
            "|---|---|---|---|",
        ]
        lines += [_row(record) for record in rows] + [""]
    return "\n".join(lines)


def _row(record: Method) -> str:
    name = f"[{record.slug}]({record.slug}.md)" if record.offers else record.slug
    paper = f"[{record.paper}]({record.url})" if record.url else record.paper
    return f"| {name} | {record.purpose} | {', '.join(record.offers) or '–'} | {paper} |"


def citation() -> str:
    """``CITATION.cff``: the toolkit, and the papers it implements or sets out to."""
    lines = [
        "cff-version: 1.2.0",
        "message: If you use Touchstone, please cite it and the paper of each method that you use.",
        "title: Touchstone",
        "type: software",
        f"version: {__version__}",
        "license: Apache-2.0",
        "authors:",
        "  - name: The Touchstone authors",
        "references:",
    ]
    for record in METHODS:
        lines += [
            "  - type: conference-paper",
            f'    title: "{record.paper}"',
            "    authors:",
            f'      - name: "The authors of this paper{_identifier(record)}"',
            "    year: 2025",
            "    collection-title: Advances in Neural Information Processing Systems 38 (NeurIPS 2025)",
        ]
        if record.url:
            lines.append(f'    url: "{record.url}"')
    return "\n".join(lines) + "\n"


def _identifier(record: Method) -> str:
    if record.arxiv:
        return f", arXiv:{record.arxiv}"
    return f", OpenReview {record.openreview}" if record.openreview else ""


OPENING, CLOSING = "<!-- numbers: written by docs/generate.py -->", "<!-- end of numbers -->"
VERDICTS = {"holds": "holds", "fails": "**fails**", "undecided": "not decided"}


TASKS = "<!-- tasks: written by docs/generate.py -->", "<!-- end of tasks -->"


def page(slug: str) -> str:
    """``docs/methods/<slug>.md`` with the numbers of the study's Evidence between its two marks."""
    return _between(f"docs/methods/{slug}.md", OPENING, CLOSING, lambda: numbers(slug))


def _between(name: str, opening: str, closing: str, make: Callable[[], str]) -> str:
    text = (ROOT / name).read_text(encoding="utf-8")
    before, _, rest = text.partition(opening)
    _, _, after = rest.partition(closing)
    return f"{before}{opening}\n{make()}\n{closing}{after}" if rest else text


def tasks() -> str:
    """``docs/inspect.md`` with the table of tasks between its two marks."""

    def rows() -> str:
        lines = ["| task | measures | method | runs on |", "|---|---|---|---|"]
        for record in METHODS:
            if record.room == "language" and "check" in record.offers:
                text = record.part("check").NEEDS == "text"
                where = "any model of Inspect" if text else "models of the provider `touchstone/`"
                page = f"[{record.slug}](methods/{record.slug}.md)"
                lines.append(f"| `touchstone/{record.task}` | {record.measures} | {page} | {where} |")
        return "\n".join(lines)

    return _between("docs/inspect.md", *TASKS, rows)


def numbers(slug: str) -> str:
    """A table of the findings in ``docs/evidence/<slug>``."""
    evidence = json.loads((ROOT / "docs" / "evidence" / slug / "evidence.json").read_text(encoding="utf-8"))
    lines = ["| claim | measured | against | limit | verdict |", "|---|---|---|---|---|"]
    for finding in evidence["findings"]:
        against = _number(finding["against"]) if finding["against"] else "–"
        cells = (finding["statement"], _number(finding["measured"]), against, finding["limit"] or "–")
        texts = (cell.replace("|", "\\|") for cell in cells)
        lines.append(f"| {' | '.join(texts)} | {VERDICTS[finding['verdict']]} |")
    machine = evidence["environment"]
    command = f"touchstone study {slug} --scale {evidence['scale']} --seed {evidence['seed']}"
    where = f"{evidence['seconds']:.0f} s on {machine['cpu']}, {machine['threads']} threads"
    return "\n".join(lines) + f"\n\nMeasured by `{command}` in one run of {where}. Intervals are 95 %."


def _number(measured: dict[str, Any]) -> str:
    if measured["value"] is None:
        return "not measured"
    unit = f" {measured['unit']}" if measured["unit"] else ""
    text = f"{measured['value']:.3g}{unit}"
    if measured["low"] is not None:
        high = "–" if measured["high"] is None else f"{measured['high']:.3g}"
        text += f" [{measured['low']:.3g}, {high}]"
    return text + (f", n = {measured['n']}" if measured["n"] else "")


FILES = {
    "docs/methods/index.md": table,
    "CITATION.cff": citation,
    "docs/inspect.md": tasks,
    **{f"docs/methods/{r.slug}.md": partial(page, r.slug) for r in METHODS if "study" in r.offers},
}


def main() -> int:
    for name, make in FILES.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(make(), encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
