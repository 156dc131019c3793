"""What the columns of a table mean in words: labels, values, coarse values, units; kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from touchstone.errors import InputError

__all__ = ["Column", "Schema"]


@dataclass(frozen=True)
class Column:
    """One feature.

    Attributes
    ----------
    name : of the column in the table.
    label : what a prompt calls it.
    values : words for values; a value without any stands as it is.
    coarse : words for values at coarse granularity.
    step : a number is rounded down to a multiple of it at coarse granularity, and named by the range; 0 for none.
    unit : follows a number.
    """

    name: str
    label: str
    values: Mapping[str, str] = field(default_factory=dict)
    coarse: Mapping[str, str] = field(default_factory=dict)
    step: int = 0
    unit: str = ""

    def word(self, value: Hashable, coarse: bool) -> str:
        """``value`` in words."""
        if value is None or value != value:
            return "unknown"
        if coarse and self.step:
            low = int(float(str(value)) // self.step) * self.step
            return self._with_unit(f"{low} to {low + self.step - 1}")
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
        if coarse and self.coarse:
            return self.coarse.get(text, self.values.get(text, text))
        return self.values.get(text, self._with_unit(text))

    def _with_unit(self, text: str) -> str:
        return f"{text} {self.unit}" if self.unit else text


@dataclass(frozen=True)
class Schema:
    """A table, and the question that is asked of each row.

    Attributes
    ----------
    columns : in the default order.
    question : asked after the features.
    choices : the two answers, that of outcome 0 first.
    """

    columns: tuple[Column, ...]
    question: str
    choices: tuple[str, str]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise InputError("schema: expected at least one column, each with a name of its own")
        if len(self.choices) != 2 or self.choices[0] == self.choices[1]:
            raise InputError(f"schema: expected two different choices, got {list(self.choices)}")

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    @classmethod
    def of(cls, frame: pd.DataFrame, question: str, choices: tuple[str, str]) -> Schema:
        """A plain schema: columns are called by their names, numbers are coarse in tens."""
        columns = [
            Column(str(c), str(c).replace("_", " "), step=10 if pd.api.types.is_numeric_dtype(frame[c]) else 0)
            for c in frame.columns
        ]
        return cls(tuple(columns), question, choices)

    def to_json(self) -> str:
        """The schema as JSON."""
        columns = [
            {"name": c.name, "label": c.label}
            | ({"values": dict(c.values)} if c.values else {})
            | ({"coarse": dict(c.coarse)} if c.coarse else {})
            | ({"step": c.step} if c.step else {})
            | ({"unit": c.unit} if c.unit else {})
            for c in self.columns
        ]
        content = {"question": self.question, "choices": list(self.choices), "columns": columns}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """Read a JSON file such as :meth:`to_json` writes.

        Raises
        ------
        InputError
            If it cannot be read, or lacks something; the message names what.
        """
        from touchstone.files import read_text

        try:
            content = json.loads(read_text(path, "schema"))
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"schema {path}: not JSON ({error})") from None
        try:
            columns = tuple(_column(item) for item in content["columns"])
            choices = [str(choice) for choice in content["choices"]]
            return cls(columns, str(content["question"]), tuple(choices))  # type: ignore[arg-type]
        except InputError:
            raise
        except KeyError as error:
            raise InputError(f"schema {path}: lacks {error}") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise InputError(f"schema {path}: not a schema ({error})") from None


def _column(item: Mapping[str, Any]) -> Column:
    unknown = set(item) - {"name", "label", "values", "coarse", "step", "unit"}
    if unknown:
        raise InputError(f"schema: a column has {min(unknown)!r}; expected name, label, values, coarse, step and unit")
    return Column(
        name=str(item["name"]),
        label=str(item.get("label", item["name"])),
        values={str(k): str(v) for k, v in item.get("values", {}).items()},
        coarse={str(k): str(v) for k, v in item.get("coarse", {}).items()},
        step=int(item.get("step", 0)),
        unit=str(item.get("unit", "")),
    )
