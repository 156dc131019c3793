"""A table of predictions and what its columns are: the subject of the room's checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.errors import InputError

__all__ = ["ROLES", "Predictions"]

# What a column can be, and the words of column names by which it is guessed.
ROLES = {
    "truth": "the outcome or label that came true",
    "scores": "a model's probability of the favourable outcome, one column a model",
    "decisions": "a model's decision, one column a model",
    "groups": "an attribute by which people are compared",
}
_TRUTH = ("y", "y_true", "truth", "label", "target", "outcome", "actual", "ground_truth")
_SCORE = re.compile(r"(?:^|_)(?:score|prob|probability|proba|p|risk)(?:_|$|\d)")
_DECISION = re.compile(r"(?:^|_)(?:decision|pred|prediction|predicted|y_pred|decided|hat)(?:_|$|\d)")
_GROUP = re.compile(r"(?:^|_)(?:group|sex|gender|race|ethnicity|age_group|age_cat|region|nationality|religion)(?:_|$)")


@dataclass(frozen=True)
class Predictions:
    """A table of predictions, one row a case.

    Attributes
    ----------
    frame : the table.
    truth : column of the outcome; empty if there is none.
    scores : columns of probabilities of the favourable outcome, each in [0, 1], one a model.
    decisions : columns of decisions, one a model.
    groups : columns of attributes by which cases are compared.
    favourable : the value of ``truth`` and ``decisions`` that people want; ``1`` by default, and strings are compared
        as strings.
    threshold : a score of at least this is a favourable decision, where the table has scores and no decisions.
    guessed : the roles that were guessed from column names, not named.
    """

    frame: pd.DataFrame
    truth: str = ""
    scores: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    favourable: object = 1
    threshold: float = 0.5
    guessed: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.frame.empty:
            raise InputError("predictions: the table has no rows")
        used = [name for name in (self.truth, *self.scores, *self.decisions, *self.groups) if name]
        for name in used:
            if name not in self.frame.columns:
                known = ", ".join(map(str, self.frame.columns[:20]))
                raise InputError(f"column {name!r}: the table has no such column; it has {known}")
        twice = {name for name in used if used.count(name) > 1}
        if twice:
            raise InputError(f"column {min(twice)!r}: has two roles; expected one")
        for name in self.scores:
            values = pd.to_numeric(self.frame[name], errors="coerce")
            wrong = values.isna() & self.frame[name].notna() | (values < 0) | (values > 1)
            if wrong.any():
                raise InputError(f"column {name!r}, row {_row(wrong)}: expected a probability between 0 and 1")
        if self.truth and self.frame[self.truth].isna().any():
            raise InputError(f"column {self.truth!r}, row {_row(self.frame[self.truth].isna())}: no outcome")
        if self.truth and not self.outcomes.any():
            raise InputError(f"column {self.truth!r}: no row has the favourable value {self.favourable!r}")

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        truth: str = "",
        scores: Sequence[str] = (),
        decisions: Sequence[str] = (),
        groups: Sequence[str] = (),
        favourable: object = 1,
        threshold: float = 0.5,
    ) -> Predictions:
        """Read a ``.csv`` or ``.parquet`` file; roles that are not named are guessed from the columns' names.

        Raises
        ------
        InputError
            If the file cannot be read as a table, or a named column is not what its role asks.
        """
        frame = read_table(path, "predictions")
        named = {"truth": truth, "scores": tuple(scores), "decisions": tuple(decisions), "groups": tuple(groups)}
        taken = {truth, *scores, *decisions, *groups}
        guessed = []
        for role in ROLES:
            if named[role]:
                continue
            found = _guess(role, frame, taken)
            if found:
                named[role] = found[0] if role == "truth" else tuple(found)
                taken.update(found[:1] if role == "truth" else found)
                guessed.append(role)
        return cls(frame, **named, favourable=favourable, threshold=threshold, guessed=tuple(guessed))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.frame)

    def need(self, *roles: str, who: str) -> None:
        """Raise :class:`InputError` naming the first of ``roles`` that the table lacks; ``who`` is the check."""
        for role in roles:
            if not getattr(self, role):
                raise InputError(f"{who} needs {role} ({ROLES[role]}): name its column in the plan")

    @property
    def outcomes(self) -> NDArray[np.bool_]:
        """Whether each case's outcome is the favourable one, [cases]."""
        return _is(self.frame[self.truth], self.favourable)

    @property
    def models(self) -> tuple[str, ...]:
        """The columns that decide: those of decisions, else those of scores."""
        return self.decisions or self.scores

    def decided(self) -> pd.DataFrame:
        """Decisions of each model as 1 (favourable), 0 and NaN (none), [cases, models]."""
        if self.decisions:
            columns = {
                name: np.where(self.frame[name].isna(), np.nan, _is(self.frame[name], self.favourable))
                for name in self.decisions
            }
        else:
            columns = {
                name: np.where(values.isna(), np.nan, values >= self.threshold)
                for name, values in ((name, pd.to_numeric(self.frame[name])) for name in self.scores)
            }
        return pd.DataFrame(columns, index=self.frame.index, dtype=float)

    def group(self, name: str) -> NDArray[np.str_]:
        """Names of the groups of one attribute, [cases]; a missing value is the group ``"(missing)"``."""
        column = self.frame[name]
        return np.where(column.isna(), "(missing)", column.astype(str)).astype(str)


def read_table(path: str | Path, what: str) -> pd.DataFrame:
    """A ``.csv`` or ``.parquet`` file as a table; ``what`` names it in errors."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise InputError(f"{what} {path}: expected a .csv or .parquet file")
    if not path.is_file():
        raise InputError(f"{what} {path}: no such file")
    try:
        return pd.read_csv(path) if kind == ".csv" else pd.read_parquet(path)
    except ImportError:
        from touchstone.errors import MissingExtraError

        raise MissingExtraError("reading Parquet", "tables") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{what} {path}: cannot be read as a table ({str(error).splitlines()[0]})") from None


def _guess(role: str, frame: pd.DataFrame, taken: set[str]) -> list[str]:
    free = [name for name in map(str, frame.columns) if name not in taken]
    lower = {name: name.lower().replace(" ", "_").replace("-", "_") for name in free}
    if role == "truth":
        return [name for word in _TRUTH for name in free if lower[name] == word]
    if role == "scores":
        return [name for name in free if _SCORE.search(lower[name]) and _probabilities(frame[name])]
    if role == "decisions":
        return [name for name in free if _DECISION.search(lower[name]) and frame[name].nunique() <= 20]
    return [name for name in free if _GROUP.search(lower[name]) and 2 <= frame[name].nunique() <= 20]


def _probabilities(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column) and column.dropna().between(0, 1).all())


def _is(column: pd.Series, value: object) -> NDArray[np.bool_]:
    """Where a column equals ``value``: numbers as numbers (``True`` is 1), anything else as text."""
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        try:
            return (column.astype(float) == float(str(value))).to_numpy()
        except ValueError:
            return np.zeros(len(column), dtype=bool)
    return (column.astype(str) == str(value)).to_numpy()


def _row(wrong: pd.Series) -> int:
    """Number of the first row where ``wrong`` is true, counted from 1 after the header."""
    return int(np.flatnonzero(wrong.to_numpy())[0]) + 1
