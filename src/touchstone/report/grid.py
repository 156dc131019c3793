"""Tables of a report: every cell as text, and how wide and how large it is all shown and printed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from touchstone.evidence import Table
from touchstone.report.words import cut, decimals_for, number

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Grid", "grid"]

FIRST_ROWS = 25
MOST_ROWS = 200
LONGEST_CELL = 300


@dataclass(frozen=True)
class Grid:
    """A table as the template shows it: every cell as text."""

    title: str
    file: str
    columns: list[tuple[str, bool, str]]
    rows: list[list[str]]
    first: int
    total: int
    left_out: int
    width: str
    print_size: str
    landscape: bool
    sticky: bool


def grid(table: Table) -> Grid:
    """``table`` as the template shows it; its first rows, if it is long."""
    frame = table.frame
    total = len(frame)
    head = frame.iloc[:MOST_ROWS]
    texts, columns, chars = [], [], []
    for i, name in enumerate(frame.columns):
        cells, is_number = _cells(head.iloc[:, i], str(name))
        texts.append(cells)
        # Digits are all of one width, letters are narrower than that on average.
        longest = max((len(c) for c in cells), default=0)
        title = max((len(word) for word in str(name).replace("_", " ").split()), default=1)
        chars.append(max(4.0, min(28.0, max(longest, title)) + 2.5))
        columns.append((str(name).replace("_", " "), is_number))
    width = sum(chars)
    # 180 mm and 267 mm of A4 in points, and 0.56 em for a digit.
    portrait, landscape = 510 / (0.56 * width or 1), 757 / (0.56 * width or 1)
    turned = portrait < 6
    return Grid(
        title=table.title,
        file=f"tables/{table.name}.csv",
        columns=[
            (name, is_number, f"{100 * c / width:.2f}%") for (name, is_number), c in zip(columns, chars, strict=True)
        ],
        rows=[list(row) for row in zip(*texts, strict=True)],
        first=FIRST_ROWS,
        total=total,
        left_out=total - len(head),
        width=f"{width:.1f}ch",
        print_size=f"{max(5.0, min(8.5, landscape if turned else portrait)):.1f}pt",
        landscape=turned,
        sticky=bool(chars) and chars[0] <= 16,
    )


def _cells(column: pd.Series, name: str) -> tuple[list[str], bool]:
    """The cells of a column as text, and whether they are numbers."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column):
        return ["yes" if value else "no" for value in column], False
    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_complex_dtype(column):
        return [
            "–" if value is None or value is pd.NA or value != value else cut(str(value), LONGEST_CELL)
            for value in column
        ], False
    values = [math.nan if pd.isna(value) else float(value) for value in column]
    known = sorted(abs(v) for v in values if math.isfinite(v) and v != 0)
    if all(v == int(v) for v in known):
        plain = any(word in name.lower() for word in ("seed", "year", "id"))
        decimals: int | None = 0 if not known or known[-1] < 1e15 else None
    else:
        plain = False
        decimals = decimals_for(known)
        if decimals is not None:
            # More decimals where a column spans magnitudes, so that its small numbers do not read 0.
            small = decimals_for(known[: max(1, len(known) // 4)], 2)
            decimals = min(decimals + 2, max(decimals, decimals + 2 if small is None else small))
    texts = []
    for value in values:
        if math.isnan(value):
            texts.append("–")
        elif decimals is not None and 0 < abs(value) < 0.5 * 10.0**-decimals:
            # One that would round to zero gets the decimals of its first digit, or a power of ten if they are many.
            own = decimals_for([value], 1)
            texts.append(number(value, own if own is not None and own <= decimals + 2 else None))
        elif value == 0 and decimals:
            texts.append(f"{0:.{decimals}f}")
        else:
            text = number(value, decimals)
            texts.append(text.replace(",", "") if plain else text)
    return texts, True
