"""The table that is audited: decisions of several models on the same cases, with what came true."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.decisions.predictions import Predictions

__all__ = ["Criterion", "DecisionTable", "Favourable", "Focus", "Group", "InFocus", "fit_threshold"]

Focus = Literal["positive", "negative", "all"]
Favourable = Literal["accept", "reject", "correct"]
Criterion = Literal["balanced_accuracy", "accuracy"]


@dataclass(frozen=True)
class Group:
    """One attribute of the cases: ``codes`` [cases] point into ``names``."""

    codes: NDArray[np.intp]
    names: tuple[str, ...]


@dataclass(frozen=True)
class InFocus:
    """What the measures look at: whether each model gave each case in focus its favourable outcome.

    Attributes
    ----------
    success : 1, 0, or -1 for no decision, [models, cases in focus].
    correct : as ``success``, with success meaning that the decision is what came true.
    truth : what came true, [cases in focus].
    rows : places of the cases in the table.
    """

    success: NDArray[np.int8]
    correct: NDArray[np.int8]
    truth: NDArray[np.bool_]
    rows: NDArray[np.intp]


class DecisionTable:
    """Binary decisions of models (or of one model under several prompts) on the same cases.

    Parameters
    ----------
    decisions : one row a case and one column a model, each entry 1 (accepted), 0 or NaN (no decision); an array is
        taken with models named ``model 1``, ``model 2``, …
    y : what came true, 1 or 0 a case.
    groups : attributes of the cases, one column each.
    model_meta : what is known of the models (provider, base or instruct, …), one row a model, indexed by its name.

    Attributes
    ----------
    votes : 1, 0, or -1 for no decision, int8 [models, cases]: a byte a decision.
    y : what came true, bool [cases].
    models : names.
    groups : attributes by name.
    model_meta : as given.

    Raises
    ------
    InputError
        If an entry is not binary, lengths differ, a name stands twice, a model has no decision at all, or there are
        no cases.
    """

    def __init__(
        self,
        decisions: pd.DataFrame | ArrayLike,
        y: ArrayLike,
        groups: pd.DataFrame | Mapping[str, ArrayLike] | None = None,
        model_meta: pd.DataFrame | None = None,
    ) -> None:
        names, votes = _votes(decisions)
        self._fill(names, votes, _truth(y), groups, model_meta)

    def _fill(
        self,
        names: Sequence[str],
        votes: NDArray[np.int8],
        y: NDArray[np.bool_],
        groups: pd.DataFrame | Mapping[str, ArrayLike] | None,
        model_meta: pd.DataFrame | None,
    ) -> None:
        self.models = tuple(names)
        self.votes = votes
        self.y = y
        twice = sorted({name for name in self.models if self.models.count(name) > 1})
        if twice:
            raise InputError(f"decisions: model {twice[0]!r} stands twice; expected different names")
        if not self.models or not len(y):
            raise InputError("decisions: expected at least one model and one case")
        if votes.shape[1] != len(y):
            raise InputError(f"y: {len(y)} outcomes for {votes.shape[1]} rows of decisions; expected as many")
        empty = np.flatnonzero((votes < 0).all(axis=1))
        if len(empty):
            raise InputError(f"model {self.models[empty[0]]!r}: has no decision on any case")
        self.groups = {} if groups is None else {str(k): _group(str(k), v, len(y)) for k, v in groups.items()}
        if model_meta is not None:
            lacking = [name for name in self.models if name not in model_meta.index]
            if lacking:
                raise InputError(f"model_meta: has no row for model {lacking[0]!r}")
            model_meta = model_meta.loc[list(self.models)]
        self.model_meta = model_meta

    @classmethod
    def from_scores(
        cls,
        scores: pd.DataFrame,
        y: ArrayLike,
        val_scores: pd.DataFrame,
        val_y: ArrayLike,
        *,
        criterion: Criterion = "balanced_accuracy",
        groups: pd.DataFrame | Mapping[str, ArrayLike] | None = None,
        model_meta: pd.DataFrame | None = None,
    ) -> DecisionTable:
        """Decide by scores: each model's threshold is the best one on validation cases, as in the paper.

        Parameters
        ----------
        scores, y : of the cases to decide, one column a model.
        val_scores, val_y : of other cases, with the same columns (the paper: 2,000).
        criterion : what the threshold maximises.
        """
        missing = [str(name) for name in scores.columns if name not in val_scores.columns]
        if missing:
            raise InputError(f"val_scores: has no column {missing[0]!r}")
        decided = {}
        for name in scores.columns:
            column = scores[name].to_numpy()
            bound = fit_threshold(val_scores[name].to_numpy(), val_y, criterion=criterion, name=str(name))
            decided[name] = np.where(np.isnan(column), np.nan, column >= bound)
        return cls(pd.DataFrame(decided), y, groups, model_meta)

    @classmethod
    def from_labels(
        cls,
        labels: pd.DataFrame,
        truth: ArrayLike,
        favourable: Collection[object],
        groups: pd.DataFrame | Mapping[str, ArrayLike] | None = None,
        model_meta: pd.DataFrame | None = None,
    ) -> DecisionTable:
        """Decisions of several classes: those in ``favourable`` count as acceptance, the others as refusal.

        Ranked outcomes are given by the ranks that people want, such as ``{1, 2, 3}``.

        Raises
        ------
        InputError
            If no outcome is among the favourable classes.
        """
        wanted = set(favourable)
        y = pd.Series(np.asarray(truth)).isin(wanted).to_numpy()
        if not y.any():
            raise InputError(f"favourable {sorted(map(str, wanted))}: no outcome is one of them")
        decided = {name: np.where(column.isna(), np.nan, column.isin(wanted)) for name, column in labels.items()}
        return cls(pd.DataFrame(decided), y, groups, model_meta)

    @classmethod
    def from_predictions(cls, predictions: Predictions) -> DecisionTable:
        """The decisions (or thresholded scores), outcomes and groups of a table of predictions."""
        predictions.need("truth", who="monoculture")
        if not predictions.models:
            raise InputError("monoculture needs scores or decisions, one column a model: name them in the plan")
        groups = {name: predictions.group(name) for name in predictions.groups}
        return cls(predictions.decided(), predictions.outcomes, groups)

    @classmethod
    def read(
        cls,
        path: str | Path,
        label: str = "",
        *,
        models: Sequence[str] = (),
        groups: Sequence[str] = (),
        favourable: object = 1,
        threshold: float = 0.5,
    ) -> DecisionTable:
        """Read a ``.csv`` or ``.parquet`` file; columns that are not named are guessed from their names.

        Parameters
        ----------
        path : of the file.
        label : column of the outcome.
        models : columns of decisions.
        groups : columns of attributes.
        favourable : the value of outcomes and decisions that people want.
        threshold : a score of at least this is an acceptance, where the file has scores and no decisions.
        """
        from touchstone.decisions.predictions import Predictions

        found = Predictions.read(
            path, truth=label, decisions=models, groups=groups, favourable=favourable, threshold=threshold
        )
        return cls.from_predictions(found)

    def save(self, path: str | Path) -> None:
        """Write a ``.csv`` or ``.parquet`` file that :meth:`read` reads: ``y``, groups, and one column a model."""
        from touchstone.files import write_bytes

        path = Path(path)
        frame = self.frame()
        if path.suffix == ".parquet":
            import io

            buffer = io.BytesIO()
            frame.to_parquet(buffer, index=False)
            write_bytes(path, buffer.getvalue())
        elif path.suffix == ".csv":
            write_bytes(path, frame.to_csv(index=False, lineterminator="\n").encode())
        else:
            raise InputError(f"{path}: expected a name that ends in .csv or .parquet")

    def frame(self) -> pd.DataFrame:
        """The table with ``y``, ``group_…`` and ``decision_…`` columns; no decision is a missing value."""
        columns: dict[str, object] = {"y": self.y.astype(np.int8)}
        for name, group in self.groups.items():
            columns[_prefixed("group", name)] = [group.names[k] for k in group.codes]
        for name, votes in zip(self.models, self.votes, strict=True):
            whole = not (votes < 0).any()
            columns[_prefixed("decision", name)] = votes if whole else pd.Series(votes).astype("Int8").mask(votes < 0)
        return pd.DataFrame(columns)

    @property
    def decisions(self) -> pd.DataFrame:
        """Decisions as 1, 0 and NaN, one column a model."""
        values = self.votes.T.astype(float)
        values[values < 0] = np.nan
        return pd.DataFrame(values, columns=list(self.models))

    def __len__(self) -> int:
        return len(self.y)

    def select(self, models: Sequence[str]) -> DecisionTable:
        """The same cases with fewer models, in the order given."""
        places = []
        for name in models:
            if name not in self.models:
                raise InputError(f"model {name!r}: the table has {', '.join(self.models[:12])}")
            places.append(self.models.index(name))
        return self._like(self.votes[places], np.arange(len(self)), models)

    def rows(self, rows: NDArray[np.intp]) -> DecisionTable:
        """The same models on the cases at the places ``rows``."""
        return self._like(self.votes[:, rows], rows, self.models)

    def _like(self, votes: NDArray[np.int8], rows: NDArray[np.intp], models: Sequence[str]) -> DecisionTable:
        new = object.__new__(DecisionTable)
        new.models, new.votes, new.y = tuple(models), votes, self.y[rows]
        new.groups = {name: Group(group.codes[rows], group.names) for name, group in self.groups.items()}
        new.model_meta = None if self.model_meta is None else self.model_meta.loc[list(models)]
        return new

    def in_focus(self, focus: Focus = "positive", favourable: Favourable = "accept") -> InFocus:
        """Successes on the cases in focus.

        Parameters
        ----------
        focus : cases whose outcome is 1, those whose outcome is 0, or all.
        favourable : what a person wants of a model: to be accepted, to be rejected, or to be judged rightly.

        Raises
        ------
        InputError
            If no case is in focus.
        """
        if focus not in get_args(Focus):
            raise InputError(f"focus {focus!r}: expected one of {', '.join(get_args(Focus))}")
        if favourable not in get_args(Favourable):
            raise InputError(f"favourable {favourable!r}: expected one of {', '.join(get_args(Favourable))}")
        kept = {"positive": self.y, "negative": ~self.y, "all": np.ones_like(self.y)}[focus]
        rows = np.flatnonzero(kept)
        if not len(rows):
            raise InputError(f"focus {focus!r}: no case has the outcome {1 if focus == 'positive' else 0}")
        votes = self.votes if len(rows) == len(self) else self.votes[:, rows]
        truth = self.y[rows]
        flipped = np.where(votes < 0, np.int8(-1), 1 - votes).astype(np.int8) if not truth.all() else votes
        correct = votes if truth.all() else flipped if not truth.any() else np.where(truth, votes, flipped)
        if favourable == "reject":
            success = np.where(votes < 0, np.int8(-1), 1 - votes).astype(np.int8)
        else:
            success = votes if favourable == "accept" else correct
        return InFocus(success, correct, truth, rows)


def fit_threshold(
    scores: ArrayLike, y: ArrayLike, *, criterion: Criterion = "balanced_accuracy", name: str = "scores"
) -> float:
    """The threshold ``t`` of the decision ``score >= t`` that is best on these cases; the lowest of equals.

    It lies halfway between two neighbouring scores, so that nothing depends on how a score was rounded.

    Raises
    ------
    InputError
        If all outcomes are the same, or lengths differ.
    """
    s, truth = np.asarray(scores, dtype=np.float64), _truth(y)
    if criterion not in get_args(Criterion):
        raise InputError(f"criterion {criterion!r}: expected one of {', '.join(get_args(Criterion))}")
    if s.shape != truth.shape:
        raise InputError(f"{name}: {s.size} scores for {truth.size} outcomes; expected as many")
    seen = ~np.isnan(s)
    s, truth = s[seen], truth[seen]
    if truth.all() or not truth.any():
        raise InputError(f"{name}: no threshold can be chosen, for all validation outcomes are the same")
    order = np.argsort(s, kind="stable")
    s, truth = s[order], truth[order]
    positives, negatives = int(truth.sum()), int((~truth).sum())
    # Cut k refuses the k lowest.
    missed, refused = np.append(0, np.cumsum(truth)), np.append(0, np.cumsum(~truth))
    if criterion == "balanced_accuracy":
        worth = (1 - missed / positives + refused / negatives) / 2
    else:
        worth = (positives - missed + refused) / len(s)
    cuts = np.append(True, np.append(s[1:] > s[:-1], True))
    best = int(np.flatnonzero(cuts)[np.argmax(worth[cuts])])
    if best == 0:
        return float(s[0])
    return float((s[best - 1] + s[best]) / 2) if best < len(s) else float(np.nextafter(s[-1], np.inf))


def _votes(decisions: pd.DataFrame | ArrayLike) -> tuple[list[str], NDArray[np.int8]]:
    if not isinstance(decisions, pd.DataFrame):
        array = np.asarray(decisions)
        if array.ndim != 2:
            raise InputError(f"decisions: expected cases by models, got an array of {array.ndim} dimensions")
        decisions = pd.DataFrame(array, columns=[f"model {k + 1}" for k in range(array.shape[1])])
    votes = np.empty((decisions.shape[1], len(decisions)), dtype=np.int8)
    names = [str(name) for name in decisions.columns]
    for m, name in enumerate(names):
        column = decisions.iloc[:, m]
        missing = column.isna().to_numpy()
        values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        wrong = ~missing & ~((values == 0) | (values == 1))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"decisions, model {name!r}, row {row + 1}: {column.iloc[row]!r} is not binary (1, 0 or nothing)"
            )
        votes[m] = np.where(missing, -1, np.nan_to_num(values))
    return names, votes


def _truth(y: ArrayLike) -> NDArray[np.bool_]:
    values = np.asarray(y)
    numbers = pd.to_numeric(pd.Series(values.ravel()), errors="coerce").to_numpy(dtype=float)
    if values.ndim != 1 or not np.isin(numbers, (0.0, 1.0)).all():
        raise InputError("y: expected one outcome a case, each 1 or 0")
    return cast(NDArray[np.bool_], numbers == 1)


def _group(name: str, values: object, cases: int) -> Group:
    column = pd.Series(np.asarray(values))
    if len(column) != cases:
        raise InputError(f"group {name!r}: {len(column)} values for {cases} cases; expected as many")
    codes, names = pd.factorize(column.astype(object).where(column.notna(), "(missing)").astype(str), sort=True)
    return Group(np.asarray(codes, dtype=np.intp), tuple(map(str, names)))


def _prefixed(role: str, name: str) -> str:
    return name if name.startswith(f"{role}_") else f"{role}_{name}"
