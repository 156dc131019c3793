"""A scikit-learn classifier whose probabilities are right on average inside every level set of every group."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from touchstone.decisions.selective_omniprediction.calibrating import (
    Halves,
    Mode,
    Part,
    Recipe,
    Update,
    calibrate,
    level_sets,
    replay,
)
from touchstone.decisions.selective_omniprediction.groups import SMALLEST, Membership, membership
from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.decisions.selective_omniprediction.auditing import Audit

__all__ = ["Groups", "MulticalibratedClassifier", "Recalibration"]

Floats = NDArray[np.float64]
Groups = Sequence[str | int] | Callable[[Any], Any] | None
Recalibration = Literal["isotonic", "histogram"] | None
# The paper's discretised tolerance, and a finer one for groups, whose correlations weigh by their share of all rows.
_TOL, _TOL_GROUPS = 1e-3, 2e-4


class MulticalibratedClassifier(ClassifierMixin, BaseEstimator):
    """Binary classifier with multicalibrated probabilities, from features or on top of any base model.

    A part of the rows fits the base, if it is not fitted yet. Of the others, one half finds a concept that correlates
    with the residual, and the other half accepts or rejects it, round by round.

    Parameters
    ----------
    base : where the probabilities begin: ``None`` for the base rate, an estimator with ``predict_proba`` (cloned and
        fitted on ``base_share`` of the rows; wrapped in ``sklearn.frozen.FrozenEstimator``, it is used as it is), or
        the name or number of the column of X that holds a model's probabilities.
    groups : columns of X that are indicators of groups, or a function from X to indicators [rows, groups]; they may
        overlap. ``fit`` and ``predict_proba`` also take indicators directly.
    concept : ``None`` for histogram trees of ``max_depth``, ``min_samples_leaf`` and ``bins``, or a
        ``DecisionTreeRegressor`` whose exact splits take their place.
    max_depth, min_samples_leaf, bins : of the trees; the paper's depth is 3. Leaves are smaller where rows are few.
    disc : width of level sets (paper: 0.1).
    step : share of a concept that is added in a round, or ``"line"`` for a line search (paper: 0.01, which hardly
        moves a poor base; from 0.5 on it oscillates).
    tol : least correlation with the held-out residual of a concept that is accepted; ``None`` is 1e-3, and 2e-4
        with groups.
    max_iter : rounds at most (paper: 200, and 150 with groups).
    mode : ``"multicalibration"``, or ``"calibrated_multiaccuracy"``: concepts see no level sets and all is recalibrated
        after each round, which is cheaper and enough for :class:`MultigroupSelectiveClassifier`.
    update : ``"joint"``, one tree on features and h, or ``"per_bin"``, one tree a level set.
    recalibrate : a last step: ``"isotonic"``, ``"histogram"`` or ``None``. On halves that are redrawn it sees the rows
        that the concepts have seen, and adds error in the study; on ``"fixed"`` halves it has the held-out one.
    base_share, held_out : share of rows for the base, and share of the others that accept and reject.
    halves : ``"redrawn"`` divides the rows anew in each round, so that all of them find concepts; ``"fixed"`` keeps the
        held-out rows away from all concepts, at the price of half the data.
    patience : rejections in a row after which the fit ends.
    min_group : smaller groups are left out, with a warning.
    search : ``"lazy"`` looks at groups in the order of their last correlations, ``"full"`` at all in each round.
    random_state : of the division of rows.

    Attributes
    ----------
    classes_ : the two labels; probabilities are of the second.
    group_names_ : names of the groups.
    steps_ : updates in order, replayed by ``predict_proba``.
    history_ : one row a round: group, correlations, whether accepted, mean squared errors.
    n_iter_ : rounds, at least 1.
    knots_ : the last recalibration as a piecewise linear function [2, knots], or ``None``.

    References
    ----------
    Casacuberta, Kanade: Selective Omniprediction and Fair Abstention, NeurIPS 2025.
    """

    def __init__(
        self,
        base: Any = None,
        *,
        groups: Groups = None,
        concept: Any = None,
        max_depth: int = 3,
        min_samples_leaf: int = 20,
        bins: int = 32,
        disc: float = 0.1,
        step: float | Literal["line"] = 0.1,
        tol: float | None = None,
        max_iter: int = 200,
        mode: Mode = "multicalibration",
        update: Update = "joint",
        recalibrate: Recalibration = None,
        base_share: float = 2 / 3,
        held_out: float = 0.5,
        halves: Halves = "redrawn",
        patience: int = 3,
        min_group: int = SMALLEST,
        search: Literal["lazy", "full"] = "lazy",
        random_state: Any = 0,
    ) -> None:
        self.base = base
        self.groups = groups
        self.concept = concept
        self.max_depth = max_depth
        self.min_samples_leaf = min_samples_leaf
        self.bins = bins
        self.disc = disc
        self.step = step
        self.tol = tol
        self.max_iter = max_iter
        self.mode = mode
        self.update = update
        self.recalibrate = recalibrate
        self.base_share = base_share
        self.held_out = held_out
        self.halves = halves
        self.patience = patience
        self.min_group = min_group
        self.search = search
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        groups: ArrayLike | pd.DataFrame | None = None,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> Self:
        """Fit base, concepts and recalibration.

        Parameters
        ----------
        X : features, [rows, features], numbers.
        y : labels of two kinds, [rows].
        groups : indicators [rows, groups], if they are not columns of X.
        progress : called with 1 after each round.

        Raises
        ------
        InputError, ValueError
            If lengths differ, labels are not of two kinds, or a parameter is out of its range.
        """
        self._check_parameters()
        given = X
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        if (kind := type_of_target(y, input_name="y")) != "binary":
            raise InputError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y: expected labels of two classes, all are of one class {self.classes_[0]!r}")
        outcome = codes.astype(float)
        self.group_names_, inside = self._membership(given, X, groups)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        self.digest_ = _digest(X, codes)
        rest = self._fit_base(given, X, y, codes, rng)
        held, fit = _divide(codes, rest, self.held_out, rng)
        self.prior_ = float(outcome[fit].mean())
        part = self._part(given, X, inside, rest, outcome)
        self._warn_of_small_groups(part.groups)
        recipe = self._recipe(len(fit), grouped=bool(self.group_names_))
        fits = np.isin(rest, fit)
        self.steps_, log = calibrate(part, fits, recipe, rng=rng, progress=progress)
        names = [*self.group_names_, "everyone"]
        self.history_ = pd.DataFrame([row | {"group": names[row["group"]]} for row in log])
        self.n_iter_ = max(1, len(log))
        used = np.isin(rest, held) if self.halves == "fixed" else np.ones(len(rest), dtype=bool)
        self.knots_ = self._recalibration(part.h[used], part.y[used])
        return self

    def predict_proba(self, X: Any, groups: ArrayLike | pd.DataFrame | None = None) -> Floats:
        """Probabilities of both classes, [rows, 2].

        Parameters
        ----------
        X : features, as in the fit.
        groups : indicators, as in the fit.
        """
        check_is_fitted(self)
        given = X
        X = validate_data(self, X, reset=False)
        names, inside = self._membership(given, X, groups)
        if len(names) != len(self.group_names_) or (isinstance(groups, pd.DataFrame) and names != self.group_names_):
            raise InputError(f"groups: fitted with {list(self.group_names_)}, got {list(names)}")
        part = self._part(given, X, inside, np.arange(len(X)), np.zeros(len(X)))
        replay(self.steps_, part)
        h = part.h if self.knots_ is None else np.interp(part.h, *self.knots_)
        return np.column_stack([1 - h, h])

    def predict(self, X: Any, groups: ArrayLike | pd.DataFrame | None = None) -> NDArray[Any]:
        """The more probable label of each row, without abstaining, [rows]."""
        likely = self.predict_proba(X, groups)[:, 1] >= 0.5
        return self.classes_[likely.astype(int)]

    def audit(self, X: Any, y: ArrayLike, groups: ArrayLike | pd.DataFrame | None = None, **options: Any) -> Audit:
        """:func:`audit` of this classifier on fresh rows; warns if they are the rows of the fit."""
        from touchstone.decisions.selective_omniprediction.auditing import audit

        given = X
        h = self.predict_proba(X, groups)[:, 1]
        X = validate_data(self, X, reset=False)
        codes = self._codes(y)
        if _digest(X, codes) == self.digest_:
            warnings.warn("audited on the rows of the fit: errors there are smaller than on new rows", stacklevel=2)
        names, inside = self._membership(given, X, groups)
        return audit(h, codes, pd.DataFrame(inside, columns=list(names)), **options)

    def save(self, path: str | Path) -> Path:
        """Write steps and recalibration as arrays with a JSON record; a base that is an estimator is not part of it."""
        from touchstone.decisions.selective_omniprediction.saving import save

        check_is_fitted(self)
        return save(self, path)

    @classmethod
    def load(cls, path: str | Path, base: Any = None) -> Self:
        """Read what :meth:`save` wrote; ``base`` is the fitted estimator, where the fit had one."""
        from touchstone.decisions.selective_omniprediction.saving import load

        return load(cls, path, base)

    def _codes(self, y: ArrayLike) -> NDArray[np.int8]:
        found = np.asarray(y)
        if not np.isin(found, self.classes_).all():
            raise InputError(f"y: expected labels {self.classes_[0]!r} and {self.classes_[1]!r}")
        return (found == self.classes_[1]).astype(np.int8)

    def _check_parameters(self) -> None:
        allowed = {
            "mode": ("multicalibration", "calibrated_multiaccuracy"),
            "update": ("joint", "per_bin"),
            "recalibrate": ("isotonic", "histogram", None),
            "halves": ("redrawn", "fixed"),
            "search": ("lazy", "full"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise InputError(f"{name} {getattr(self, name)!r}: expected one of {', '.join(map(repr, values))}")
        for name in ("disc", "base_share", "held_out"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise InputError(f"{name} {value}: expected a number between 0 and 1")
        if self.step != "line" and not (isinstance(self.step, int | float) and 0 < self.step <= 1):
            raise InputError(f"step {self.step!r}: expected a number above 0 and up to 1, or 'line'")
        for name in ("max_depth", "min_samples_leaf", "patience", "min_group"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: expected at least 1")
        if not 2 <= self.bins <= 256:
            raise InputError(f"bins {self.bins}: expected 2 to 256")

    def _recipe(self, rows: int, *, grouped: bool) -> Recipe:
        tol = self.tol if self.tol is not None else _TOL_GROUPS if grouped else _TOL
        return Recipe(
            disc=self.disc,
            step=self.step,
            tol=tol,
            max_iter=self.max_iter,
            mode=self.mode,
            update=self.update,
            max_depth=self.max_depth,
            min_leaf=max(1, min(self.min_samples_leaf, rows // 10)),
            bins=self.bins,
            patience=self.patience,
            smallest_group=self.min_group,
            halves=self.halves,
            held_out=self.held_out,
            search=self.search,
            concept=self.concept,
        )

    def _membership(self, given: Any, X: Floats, groups: Any) -> tuple[tuple[str, ...], Membership]:
        if groups is not None:
            return membership(groups, len(X))
        if callable(self.groups):
            return membership(self.groups(given), len(X))
        if self.groups is None:
            return (), np.zeros((len(X), 0), dtype=bool)
        places = [self._place(column) for column in self.groups]
        return membership(pd.DataFrame({str(c): X[:, p] for c, p in zip(self.groups, places, strict=True)}), len(X))

    def _place(self, column: str | int) -> int:
        """Number of a column of X that was named or numbered."""
        if isinstance(column, str):
            names = list(getattr(self, "feature_names_in_", ()))
            if column not in names:
                raise InputError(f"column {column!r}: X has no column of this name")
            return names.index(column)
        if not 0 <= column < self.n_features_in_:
            raise InputError(f"column {column}: X has columns 0 to {self.n_features_in_ - 1}")
        return int(column)

    def _fit_base(self, given: Any, X: Floats, y: Any, codes: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Fit the base if it needs it; the rows that are left for calibration."""
        every = np.arange(len(codes))
        if self.base is None or isinstance(self.base, str | int):
            self.base_ = None
            return every
        if not hasattr(self.base, "predict_proba"):
            raise InputError(f"base {self.base!r}: expected an estimator with predict_proba, a column of X, or None")
        from sklearn.frozen import FrozenEstimator

        if isinstance(self.base, FrozenEstimator):
            self.base_ = self.base
            return every
        mine, rest = _divide(codes, every, self.base_share, rng)
        self.base_ = clone(self.base).fit(_rows(given, X, mine), y[mine])
        return rest

    def _start(self, given: Any, X: Floats, rows: NDArray[Any]) -> Floats:
        if self.base_ is not None:
            places = np.flatnonzero(np.asarray(self.base_.classes_) == self.classes_[1])
            if not len(places):
                raise InputError(f"base: its classes {self.base_.classes_} do not hold {self.classes_[1]!r}")
            return np.array(self.base_.predict_proba(_rows(given, X, rows))[:, places[0]], dtype=float)
        if self.base is None:
            return np.full(len(rows), self.prior_)
        h = np.array(X[rows, self._place(self.base)], dtype=float)
        if len(h) and not (h.min() >= 0 and h.max() <= 1):
            raise InputError(f"base column {self.base!r}: expected probabilities between 0 and 1")
        return h

    def _part(self, given: Any, X: Floats, inside: Membership, rows: NDArray[Any], outcome: Floats) -> Part:
        every = len(rows) == len(X) and (rows == np.arange(len(X))).all()
        columns = [np.ascontiguousarray(X[:, f] if every else X[rows, f], dtype=float) for f in range(X.shape[1])]
        if self.concept is not None:
            # Trees of scikit-learn see single precision.
            columns = [column.astype(np.float32).astype(float) for column in columns]
        return Part(columns, outcome[rows], inside[rows], self._start(given, X, rows))

    def _warn_of_small_groups(self, inside: Membership) -> None:
        small = [
            name
            for name, n in zip(self.group_names_, inside.sum(axis=0), strict=True)
            if n * (1 - self.held_out) < self.min_group
        ]
        if small:
            warnings.warn(
                f"groups with fewer than {self.min_group} rows of the fit are left out: {', '.join(small)}",
                stacklevel=3,
            )

    def _recalibration(self, h: Floats, y: Floats) -> Floats | None:
        if self.recalibrate is None:
            return None
        if self.recalibrate == "isotonic":
            from sklearn.isotonic import IsotonicRegression

            fitted = IsotonicRegression(y_min=0, y_max=1).fit(h, y)
            return np.vstack([fitted.X_thresholds_, fitted.y_thresholds_])
        ends = np.array([*level_sets(self.disc), 1.0])
        place = np.clip(np.searchsorted(ends, h, side="right") - 1, 0, len(ends) - 2)
        counts = np.bincount(place, minlength=len(ends) - 1)
        sums = np.bincount(place, y, minlength=len(ends) - 1)
        middle = (ends[1:] + ends[:-1]) / 2
        means = np.where(counts >= 20, sums / np.maximum(counts, 1), middle)
        # Flat inside a level set, and as good as a jump between two.
        low = np.nextafter(ends[1:-1], 0)
        return np.vstack(
            [np.concatenate([[0.0], np.ravel(np.column_stack([low, ends[1:-1]])), [1.0]]), means.repeat(2)]
        )


def _divide(
    codes: NDArray[Any], rows: NDArray[Any], share: float, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]]:
    """A random ``share`` of ``rows`` and the others, with both labels in proportion; neither part is without one."""
    first, second = [], []
    for label in (0, 1):
        mine = rng.permutation(rows[codes[rows] == label])
        count = min(max(1, math.floor(share * len(mine) + 0.5)), max(1, len(mine) - 1))
        if len(mine) < 2:
            # One row of a label is on both sides rather than on one.
            first.append(mine)
            second.append(mine)
            continue
        first.append(mine[:count])
        second.append(mine[count:])
    return np.sort(np.concatenate(first)), np.sort(np.concatenate(second))


def _rows(given: Any, X: Floats, rows: NDArray[Any]) -> Any:
    """Rows of X for the base, with column names where it has them."""
    return given.iloc[rows] if isinstance(given, pd.DataFrame) else X[rows]


def _digest(X: Floats, codes: NDArray[Any]) -> str:
    found = hashlib.sha256(np.ascontiguousarray(X, dtype=float).tobytes())
    found.update(np.ascontiguousarray(codes, dtype=np.int8).tobytes())
    return found.hexdigest()
