"""Rules on top of one calibrated predictor: k* for any loss, and the selective classifier that is fair to groups."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

from touchstone.decisions.selective_omniprediction.certifying import certified_threshold
from touchstone.decisions.selective_omniprediction.groups import membership
from touchstone.decisions.selective_omniprediction.losses import ChowLoss, Outcome, probabilities
from touchstone.errors import InputError

__all__ = ["ABSTAIN", "MultigroupSelectiveClassifier", "SelectiveOmnipredictor", "as_sets", "threshold_decision"]

ABSTAIN = -1
"""The decision of a selective classifier that says nothing; its others are 0 and 1, places among ``classes_``."""
Decisions = NDArray[np.int8]


class SelectiveOmnipredictor:
    """One predictor, and for each loss the best rule on top of it, found without data.

    Parameters
    ----------
    predictor : fitted, with ``predict_proba``; multicalibrated if the guarantee is wanted.
    """

    def __init__(self, predictor: Any) -> None:
        if not hasattr(predictor, "predict_proba"):
            raise InputError(f"predictor {predictor!r}: expected a fitted estimator with predict_proba")
        self.predictor = predictor

    def scores(self, X: Any, groups: Any = None) -> NDArray[np.float64]:
        """Probability of the second class of each row, [rows]."""
        return _scores(self.predictor, X, groups)

    def decide(self, X: Any, loss: ChowLoss, groups: Any = None) -> NDArray[np.float64]:
        """The loss's k* on these rows: predictions, NaN where it abstains, [rows]."""
        return loss.decide(self.scores(X, groups))

    def evaluate(self, X: Any, y: ArrayLike, losses: Mapping[str, ChowLoss], groups: Any = None) -> dict[str, Outcome]:
        """What each loss's k* costs on rows with outcomes of 0 and 1; the predictor is asked once."""
        h = self.scores(X, groups)
        return {name: loss.evaluate(loss.decide(h), y) for name, loss in losses.items()}


class MultigroupSelectiveClassifier(BaseEstimator):
    """Says 0, 1 or nothing, with few errors, and abstains in no group more than the best rule for that group need.

    It says 0 where the probability is at most ``eps``, 1 from ``1 - eps`` on, and nothing between. If the predictor is
    calibrated and multiaccurate, at most a share ``eps`` of all rows is decided wrongly, and a group g's set of labels
    holds the truth for at least ``1 - eps / Pr[g]`` of its rows. With a finite sample that is an approximation;
    :meth:`certify` finds a threshold that holds with a confidence.

    It is not a classifier of scikit-learn, for what it says need not be one of the classes.

    Parameters
    ----------
    eps : share of wrong decisions that is allowed, between 0 and 0.5.
    estimator : with ``predict_proba``; a :class:`MulticalibratedClassifier` if ``None``. Wrapped in
        ``sklearn.frozen.FrozenEstimator``, a fitted one is used as it is.

    Attributes
    ----------
    classes_ : the two labels; decisions are places among them.
    estimator_ : the fitted predictor.
    threshold_ : ``eps``, or what :meth:`certify` found.
    """

    def __init__(self, eps: float = 0.1, estimator: Any = None) -> None:
        self.eps = eps
        self.estimator = estimator

    def __sklearn_tags__(self) -> Any:
        return _binary_tags(super().__sklearn_tags__())

    def fit(self, X: Any, y: ArrayLike, groups: ArrayLike | pd.DataFrame | None = None) -> Self:
        """Fit the predictor; see :meth:`MulticalibratedClassifier.fit`."""
        from touchstone.decisions.selective_omniprediction.multicalibrated import MulticalibratedClassifier

        if not 0 < self.eps < 0.5:
            raise InputError(f"eps {self.eps}: expected a number between 0 and 0.5")
        validate_data(self, X, y)
        if isinstance(self.estimator, FrozenEstimator):
            self.estimator_ = self.estimator.estimator
        else:
            predictor = MulticalibratedClassifier() if self.estimator is None else clone(self.estimator)
            if groups is not None and not has_fit_parameter(predictor, "groups"):
                raise InputError(f"groups: {type(predictor).__name__} takes none; give a MulticalibratedClassifier")
            self.estimator_ = predictor.fit(X, y) if groups is None else predictor.fit(X, y, groups=groups)
        self.classes_ = np.asarray(self.estimator_.classes_)
        if len(self.classes_) != 2:
            raise InputError(f"y: expected labels of two classes, got {len(self.classes_)}")
        self.threshold_ = float(self.eps)
        return self

    def scores(self, X: Any, groups: Any = None) -> NDArray[np.float64]:
        """Probability of the second class of each row, [rows]."""
        check_is_fitted(self)
        validate_data(self, X, reset=False)
        return _scores(self.estimator_, X, groups)

    def predict(self, X: Any, groups: Any = None) -> Decisions:
        """0, 1, or -1 for nothing, [rows]."""
        return threshold_decision(self.scores(X, groups), self.threshold_)

    def predict_set(self, X: Any, groups: Any = None) -> NDArray[np.bool_]:
        """Which labels remain possible, [rows, 2]: one of them, or both where nothing is said."""
        return as_sets(self.predict(X, groups))

    def certify(
        self,
        X: Any,
        y: ArrayLike,
        groups: ArrayLike | pd.DataFrame | None = None,
        *,
        group_eps: float | None = None,
        delta: float = 0.05,
        bounded: ArrayLike | pd.DataFrame | None = None,
    ) -> float:
        """Set the largest threshold whose errors are bounded with confidence ``1 - delta``; returns it.

        Parameters
        ----------
        X, y : rows that the fit has not seen.
        groups : indicators that the predictor needs.
        group_eps : share of a group's rows that may be decided wrongly; ``None`` bounds no group.
        delta : probability with which a bound may fail.
        bounded : indicators of the groups that are bounded, if others than ``groups``.

        Raises
        ------
        InputError
            If so few rows can certify nothing.
        """
        truth = self._codes(y)
        h = self.scores(X, groups)
        watched = bounded if bounded is not None else groups
        if group_eps is None:
            watched = None
        elif watched is None:
            raise InputError("group_eps: needs groups or bounded, indicators of the groups")
        names, inside = membership(watched, len(truth))
        self.threshold_ = certified_threshold(
            h, truth, self.eps, pd.DataFrame(inside, columns=list(names)), group_eps=group_eps, delta=delta
        )
        return self.threshold_

    def _codes(self, y: ArrayLike) -> NDArray[np.int8]:
        check_is_fitted(self)
        found = np.asarray(y)
        if not np.isin(found, self.classes_).all():
            raise InputError(f"y: expected labels {self.classes_[0]!r} and {self.classes_[1]!r}")
        return (found == self.classes_[1]).astype(np.int8)


def threshold_decision(p: ArrayLike, eps: float) -> Decisions:
    """1 where the probability is at least ``1 - eps``, 0 where it is at most ``eps``, -1 between, [rows]."""
    p = probabilities(p)
    return np.where(p >= 1 - eps, 1, np.where(p <= eps, 0, ABSTAIN)).astype(np.int8)


def as_sets(decision: ArrayLike) -> NDArray[np.bool_]:
    """Sets of labels [rows, 2] of decisions 0, 1 and -1: the label that was said, both where nothing was."""
    said = np.asarray(decision)
    return np.column_stack([said != 1, said != 0])


def _scores(predictor: Any, X: Any, groups: Any) -> NDArray[np.float64]:
    if groups is not None and "groups" not in signature(predictor.predict_proba).parameters:
        raise InputError(f"groups: {type(predictor).__name__} takes none; give a MulticalibratedClassifier")
    found = predictor.predict_proba(X) if groups is None else predictor.predict_proba(X, groups=groups)
    return np.asarray(found, dtype=float)[:, 1]


def _binary_tags(tags: Any) -> Any:
    """Tags of an estimator that needs labels of two kinds and whose answers need not be one of them."""
    from sklearn.utils import ClassifierTags

    tags.target_tags.required = True
    tags.classifier_tags = ClassifierTags(multi_class=False)
    return tags
