"""A multicalibrated classifier for tables: its columns, how they become numbers, and who is in which group."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.decisions.selective_omniprediction.groups import SMALLEST, Term, indicators, terms
from touchstone.decisions.selective_omniprediction.multicalibrated import MulticalibratedClassifier
from touchstone.decisions.selective_omniprediction.saving import load_with_extra, save
from touchstone.errors import InputError

__all__ = ["TablePredictor"]

# Rarer values of a column are one value; a column with more values than this many rows each has them all.
_MOST_VALUES = 40
_OTHER, _MISSING = "(other)", "(missing)"


@dataclass(frozen=True)
class _Column:
    """How a column becomes numbers: as it is, with missing values filled, or one indicator a value."""

    name: str
    fill: float = 0.0
    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, column: pd.Series) -> _Column:
        if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
            numbers = column.astype(float)
            return cls(str(column.name), float(numbers.median()) if numbers.notna().any() else 0.0)
        counts = column.astype(object).where(column.notna(), _MISSING).astype(str).value_counts()
        return cls(str(column.name), values=(*sorted(counts.index[:_MOST_VALUES]), _OTHER))

    def encode(self, column: pd.Series) -> dict[str, NDArray[np.float64]]:
        if not self.values:
            numbers = pd.to_numeric(column, errors="coerce").astype(float)
            if (wrong := numbers.isna() & column.notna()).any():
                row = int(np.flatnonzero(wrong.to_numpy())[0]) + 1
                raise InputError(f"column {self.name!r}, row {row}: expected a number, as in the fit")
            return {self.name: np.asarray(numbers.fillna(self.fill), dtype=float)}
        texts = column.astype(object).where(column.notna(), _MISSING).astype(str)
        texts = texts.where(texts.isin(self.values), _OTHER)
        return {f"{self.name}={value}": np.asarray(texts == value, dtype=float) for value in self.values}


@dataclass(frozen=True)
class TablePredictor:
    """A fitted classifier and the columns that it reads.

    Attributes
    ----------
    model : the classifier.
    columns : features, in order.
    groups : groups by name, each as the attributes and values that its cases have.
    score : column of the base's probabilities; empty if there is none.
    digest : of the file of the fit; empty if it was no file.
    """

    model: MulticalibratedClassifier
    columns: tuple[_Column, ...]
    groups: dict[str, tuple[Term, ...]]
    score: str = ""
    digest: str = ""

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        y: NDArray[Any],
        *,
        features: Sequence[str],
        score: str = "",
        groups: Sequence[str] = (),
        depth: int = 2,
        min_group: int = SMALLEST,
        path: str | Path | None = None,
        progress: Callable[[int], None] | None = None,
        **options: Any,
    ) -> TablePredictor:
        """Fit a :class:`MulticalibratedClassifier` on columns of a table.

        Parameters
        ----------
        frame : one row a case.
        y : outcomes of 0 and 1, [rows].
        features : columns that concepts look at.
        score : column of a model's probabilities to begin from; the base rate if empty.
        groups : attributes; their values, and intersections of up to ``depth`` of them, are the groups.
        min_group : rows of the smallest group in the half that finds concepts.
        path : file of the table, whose digest is kept.
        progress : called with 1 after each round.
        options : of the classifier.

        Raises
        ------
        InputError
            If a column is missing, or there is nothing to look at.
        """
        wanted = [*features, *([score] if score else [])]
        _need(frame, [*wanted, *groups])
        if not wanted:
            raise InputError("features: expected at least one column, or a column of scores")
        columns = tuple(_Column.of(frame[name]) for name in dict.fromkeys(wanted))
        model = MulticalibratedClassifier(score or None, min_group=min_group, **options)
        # A little more than what is expected in the half, whose rows are drawn.
        least = math.ceil(1.05 * min_group / (1 - model.held_out))
        members = terms(frame[list(groups)], depth, least) if groups else {}
        digest = _file_digest(path) if path is not None else ""
        found = cls(model, columns, members, score, digest)
        model.fit(found._features(frame), y, groups=found.membership(frame), progress=progress)
        return found

    def scores(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Probability of the favourable outcome of each row, [rows]."""
        return self.model.predict_proba(self._features(frame), groups=self.membership(frame))[:, 1]

    def membership(self, frame: pd.DataFrame) -> pd.DataFrame | None:
        """Which rows are in which group, [rows, groups]; ``None`` without groups."""
        if not self.groups:
            return None
        _need(frame, sorted({name for one in self.groups.values() for name, _ in one}))
        return indicators(frame, self.groups)

    def saw(self, path: str | Path) -> bool:
        """Whether a file is the one of the fit."""
        return bool(self.digest) and _file_digest(path) == self.digest

    def save(self, path: str | Path) -> Path:
        """Write classifier and columns into one safetensors file."""
        columns = [{"name": c.name, "fill": c.fill, "values": list(c.values)} for c in self.columns]
        groups = {name: [list(term) for term in one] for name, one in self.groups.items()}
        extra = {"columns": columns, "groups": groups, "score": self.score, "digest": self.digest}
        return save(self.model, path, extra)

    @classmethod
    def load(cls, path: str | Path) -> TablePredictor:
        """Read what :meth:`save` wrote; raises :class:`InputError` on any other file."""
        model, extra = load_with_extra(MulticalibratedClassifier, path)
        try:
            columns = tuple(_Column(c["name"], float(c["fill"]), tuple(c["values"])) for c in extra["columns"])
            groups = {name: tuple((a, v) for a, v in one) for name, one in extra["groups"].items()}
            return cls(model, columns, groups, extra["score"], extra["digest"])
        except (KeyError, TypeError, ValueError):
            raise InputError(f"model {path}: was not fitted on a table") from None

    def _features(self, frame: pd.DataFrame) -> pd.DataFrame:
        _need(frame, [column.name for column in self.columns])
        found: dict[str, NDArray[np.float64]] = {}
        for column in self.columns:
            found |= column.encode(frame[column.name])
        return pd.DataFrame(found)


def _need(frame: pd.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in frame.columns:
            known = ", ".join(map(str, frame.columns[:20]))
            raise InputError(f"column {name!r}: the table has no such column; it has {known}")


def _file_digest(path: str | Path) -> str:
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
