"""What a probe found, as one file of JSON that can be kept, compared between models and held to limits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from touchstone.errors import InputError
from touchstone.evidence import Limit
from touchstone.files import read_text, write_text

__all__ = ["SCHEMA", "Report", "compare", "gate"]

SCHEMA = "touchstone.continuity/1"


@dataclass(frozen=True)
class Report:
    """One probe of one model.

    Attributes
    ----------
    probe : ``curve``, ``position``, ``basin``, ``period``, ``pairs``, ``edit`` or ``twin``.
    model : where the model came from.
    prompt : the instruction in front of the body; empty for none.
    seed : the seed it ran with.
    rows : the table.
    numbers : the headline numbers by name; NaN where one is not defined (``null`` in JSON).
    settings : what else it was measured with.
    """

    probe: str
    model: str
    prompt: str
    seed: int
    rows: pd.DataFrame
    numbers: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The report as text; numbers that are not finite become ``null``."""
        rows = json.loads(self.rows.to_json(orient="records", double_precision=15))
        numbers = {name: value if math.isfinite(value) else None for name, value in self.numbers.items()}
        content = {
            "schema": SCHEMA,
            "probe": self.probe,
            "model": self.model,
            "prompt": self.prompt,
            "seed": self.seed,
            "numbers": numbers,
            "settings": self.settings,
            "columns": list(self.rows.columns),
            "rows": rows,
        }
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> Path:
        """Write the file as a whole."""
        write_text(path, self.to_json())
        return Path(path)

    @classmethod
    def from_json(cls, text: str, what: str = "report") -> Report:
        """Read :meth:`to_json`; raises :class:`InputError` naming ``what`` on anything else."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(f"{what}: not JSON ({error})") from None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise InputError(f"{what}: expected a report of schema {SCHEMA!r}")
        try:
            return cls(
                probe=str(data["probe"]),
                model=str(data["model"]),
                prompt=str(data["prompt"]),
                seed=int(data["seed"]),
                rows=pd.DataFrame(data["rows"], columns=list(data["columns"])),
                numbers={str(k): math.nan if v is None else float(v) for k, v in data["numbers"].items()},
                settings=dict(data["settings"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{what}: damaged ({type(error).__name__}: {error})") from None

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read a file of :meth:`save`."""
        return cls.from_json(read_text(path, "report"), f"report {path}")


def compare(reports: Sequence[Report]) -> pd.DataFrame:
    """One row a model and one column a headline number, named ``probe.number``; NaN where it was not measured."""
    if not reports:
        raise InputError("reports: expected at least one")
    found: dict[str, dict[str, float]] = {}
    for report in reports:
        row = found.setdefault(report.model, {})
        row.update({f"{report.probe}.{name}": value for name, value in report.numbers.items()})
    return pd.DataFrame.from_dict(found, orient="index").rename_axis("model").reset_index()


def gate(reports: Sequence[Report], limits: Mapping[str, Limit]) -> pd.DataFrame:
    """Hold headline numbers to limits: one row a report and limit, with ``allowed``.

    Parameters
    ----------
    limits : for each number, such as ``p_max``, the bound that it must keep. A number that could not be measured
        breaks its limit.

    Raises
    ------
    InputError
        If a limit names a number that none of the reports has.
    """
    rows = []
    for name, limit in limits.items():
        having = [report for report in reports if name in report.numbers]
        if not having:
            known = sorted({key for report in reports for key in report.numbers})
            raise InputError(f"limit {name!r}: no report has it; there are: {', '.join(known) or 'none'}")
        for report in having:
            value = report.numbers[name]
            allowed = limit.allows(value)
            rows.append(
                {"model": report.model, "number": name, "value": value, "limit": str(limit), "allowed": allowed}
            )
    return pd.DataFrame(rows, columns=["model", "number", "value", "limit", "allowed"])
