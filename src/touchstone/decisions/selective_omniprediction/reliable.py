"""Reliable learning: two forests, each almost never wrong in one direction, that speak only where they agree."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.ensemble import RandomForestClassifier
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from touchstone.decisions.selective_omniprediction.selective import ABSTAIN, _binary_tags, as_sets
from touchstone.errors import InputError

__all__ = ["WEIGHTS", "FullyReliableClassifier"]

WEIGHTS = (1, 5, 10, 25, 50, 75, 150, 200)
"""The paper's class weights."""
_HARDLY_ANY = 0.01


class FullyReliableClassifier(BaseEstimator):
    """Says 0, 1 or nothing: the label on which a positively and a negatively reliable forest agree.

    The positively reliable forest makes almost no false positives, since errors on the class 0 weigh ``weight`` times
    as much in its fit; the negatively reliable one mirrors it. With a weight of 1 both are the same, and all rows are
    decided.

    Parameters
    ----------
    weight : of errors on the class that is protected; the paper tries 1 to 200.
    n_estimators, min_samples_leaf : of both forests. With pruned trees and extreme weights they never agree.
    random_state : of both forests, which share it.

    Attributes
    ----------
    classes_ : the two labels; decisions are places among them.
    positive_, negative_ : the forests.
    """

    def __init__(
        self, weight: float = 25, *, n_estimators: int = 60, min_samples_leaf: int = 1, random_state: Any = 0
    ) -> None:
        self.weight = weight
        self.n_estimators = n_estimators
        self.min_samples_leaf = min_samples_leaf
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        return _binary_tags(super().__sklearn_tags__())

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Fit both forests."""
        if not self.weight >= 1:
            raise InputError(f"weight {self.weight}: expected at least 1")
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        if (kind := type_of_target(y, input_name="y")) != "binary":
            raise InputError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y: expected labels of two classes, all are of one class {self.classes_[0]!r}")
        # One number for both, or a weight of 1 would not make them the same.
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.positive_, self.negative_ = (
            RandomForestClassifier(
                self.n_estimators,
                min_samples_leaf=self.min_samples_leaf,
                class_weight={protected: float(self.weight), 1 - protected: 1.0},
                random_state=seed,
            ).fit(X, codes)
            for protected in (0, 1)
        )
        return self

    def predict(self, X: Any) -> NDArray[np.int8]:
        """0, 1, or -1 where the forests differ, [rows]; warns if hardly any row is decided."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        one, other = self.positive_.predict(X), self.negative_.predict(X)
        found = np.where(one == other, one, ABSTAIN).astype(np.int8)
        share = float((found != ABSTAIN).mean())
        if share < _HARDLY_ANY:
            warnings.warn(
                f"weight {self.weight:g}: only {share:.1%} of the rows are decided; lower it, or let trees grow fully",
                stacklevel=2,
            )
        return found

    def predict_set(self, X: Any) -> NDArray[np.bool_]:
        """Which labels remain possible, [rows, 2]: one of them, or both where the forests differ."""
        return as_sets(self.predict(X))
