"""Write what follows from the catalog: the table of methods in the docs, and CITATION.cff. Run by `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

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


FILES = {"docs/methods/index.md": table, "CITATION.cff": citation}


def main() -> int:
    for name, make in FILES.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(make(), encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
