"""Losses with a price for abstaining, and the rule k* that is best for each of them: predict or say nothing.

For a probability p of the outcome 1 the expected loss of predicting t is ``kappa_pred(p, t) = p mu l(1, t) +
(1 - p) lam l(0, t)`` and that of abstaining ``kappa_abs(p) = nu (p a_plus + (1 - p) a_minus)``. The least of the first
over t is concave in p and the second is affine, so k* abstains on one interval of p, which no data can move.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from touchstone.decisions.selective_omniprediction.interval import (
    Envelope,
    chow_interval,
    concave_interval,
    quadratic_interval,
)
from touchstone.errors import InputError

__all__ = ["KINDS", "ChowLoss", "Kind", "Outcome", "labels", "probabilities"]

Floats = NDArray[np.float64]
Kind = Literal["l1", "l2", "cost01", "logistic"]
Loss = Callable[[int, Floats], ArrayLike]
KINDS = ("l1", "l2", "cost01", "logistic")
_ACTIONS = 1001


@dataclass(frozen=True)
class Outcome:
    """What a rule cost on data.

    Attributes
    ----------
    total : mean loss over all rows; ``share * selective + (1 - share) * abstain`` of the fields below.
    predicted_share : rows with a prediction, often called coverage.
    selective_loss : mean loss over rows with a prediction; NaN if there is none.
    abstain_cost : mean price of abstaining over the other rows; NaN if there is none.
    n : number of rows.
    """

    total: float
    predicted_share: float
    selective_loss: float
    abstain_cost: float
    n: int


@dataclass(frozen=True)
class ChowLoss:
    """A loss for binary outcomes with a price for abstaining: Chow's loss, with weights.

    Parameters
    ----------
    kind : ``"l1"`` ``|y - t|``, ``"l2"`` ``(y - t)^2``, ``"cost01"`` (``c1`` for a missed 1, ``c0`` for a missed 0),
        ``"logistic"`` ``log(1 + exp(-+t))`` of a score t, or a function ``loss(y, actions)`` that is bounded.
    a_plus, a_minus : price of abstaining where the outcome is 1, and where it is 0; at least 0.
    weights : of errors on outcome 0 (lam), on outcome 1 (mu) and of abstaining (nu); only their ratio matters.
    c0, c1 : costs of ``"cost01"``.
    clip : scores of ``"logistic"`` stay within ``+-log(1 / clip)``, which bounds the loss.
    actions : predictions to choose from where ``kind`` is a function; 1,001 values from 0 to 1 if ``None``.

    Raises
    ------
    InputError
        If a price, weight or cost is negative or not finite, or the kind is unknown.
    """

    kind: Kind | Loss = "l1"
    a_plus: float = 0.1
    a_minus: float = 0.1
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    c0: float = 1.0
    c1: float = 1.0
    clip: float = 1e-6
    actions: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not callable(self.kind) and self.kind not in KINDS:
            raise InputError(f"kind {self.kind!r}: expected {', '.join(KINDS)} or a function of outcome and actions")
        if len(self.weights) != 3:
            raise InputError(f"weights {self.weights}: expected three, of errors on 0, errors on 1 and abstaining")
        numbers = {"a_plus": self.a_plus, "a_minus": self.a_minus, "c0": self.c0, "c1": self.c1}
        numbers |= dict(zip(("weights[0]", "weights[1]", "weights[2]"), self.weights, strict=True))
        for name, value in numbers.items():
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} {value}: expected a number of at least 0")
        if not 0 < self.clip < 0.5:
            raise InputError(f"clip {self.clip}: expected a number between 0 and 0.5")

    @classmethod
    def fully_reliable(cls, eps: float) -> ChowLoss:
        """The loss whose k* is the fully reliable rule: 1 from ``1 - eps / 2``, 0 up to ``eps / 2``, else nothing."""
        if not 0 < eps < 1:
            raise InputError(f"eps {eps}: expected a number between 0 and 1")
        return cls("l1", 1.0, 1.0, (1 / 3, 1 / 3, eps / 6))

    def abstention_interval(self) -> tuple[float, float] | None:
        """The probabilities strictly between which k* abstains; ``None`` if it never does."""
        if self._bounds is None:
            return None
        return max(self._bounds[0], 0.0), min(self._bounds[1], 1.0)

    def predict(self, p: ArrayLike) -> Floats:
        """The best prediction for each probability where abstaining is not allowed, [rows]."""
        return self._best(probabilities(p))

    def kappa_pred(self, p: ArrayLike) -> Floats:
        """Expected loss of the best prediction, [rows]."""
        p = probabilities(p)
        lam, mu, _ = self.weights
        plus, minus = self._losses(self._best(p))
        return p * mu * minus + (1 - p) * lam * plus

    def kappa_abs(self, p: ArrayLike) -> Floats:
        """Expected price of abstaining, [rows]."""
        p = probabilities(p)
        return self.weights[2] * (p * self.a_plus + (1 - p) * self.a_minus)

    def decide(self, p: ArrayLike) -> Floats:
        """k*: the best prediction for each probability, NaN where abstaining costs less; ties predict.

        Raises
        ------
        InputError
            If a value is not a probability.
        """
        p = probabilities(p)
        decided = self._best(p)
        if self._bounds is not None:
            low, high = self._bounds
            decided[(p > low) & (p < high)] = np.nan
        return decided

    def costs(self, decision: ArrayLike, y: ArrayLike) -> Floats:
        """Loss of each row, [rows]; a decision that is NaN abstains."""
        decision, y = np.asarray(decision, dtype=float), labels(y)
        if decision.shape != y.shape:
            raise InputError(f"decision: has {decision.size} rows, y has {y.size}")
        lam, mu, nu = self.weights
        silent = np.isnan(decision)
        plus, minus = self._losses(np.where(silent, 0.0, decision))
        spoken = np.where(y == 1, mu * minus, lam * plus)
        return np.where(silent, nu * np.where(y == 1, self.a_plus, self.a_minus), spoken)

    def evaluate(self, decision: ArrayLike, y: ArrayLike) -> Outcome:
        """What decisions cost against outcomes of 0 and 1.

        Raises
        ------
        InputError
            If lengths differ or an outcome is neither 0 nor 1.
        """
        cost = self.costs(decision, y)
        silent = np.isnan(np.asarray(decision, dtype=float))
        share = float(1 - silent.mean())
        return Outcome(
            total=float(cost.mean()),
            predicted_share=share,
            selective_loss=float(cost[~silent].mean()) if share > 0 else math.nan,
            abstain_cost=float(cost[silent].mean()) if share < 1 else math.nan,
            n=len(cost),
        )

    def _best(self, p: Floats) -> Floats:
        lam, mu, _ = self.weights
        if self.kind == "l1":
            return (p * mu >= (1 - p) * lam).astype(float)
        if self.kind == "cost01":
            return (p * mu * self.c1 >= (1 - p) * lam * self.c0).astype(float)
        one, zero = p * mu, (1 - p) * lam
        if self.kind == "l2":
            if lam == mu > 0:
                return p.copy()
            both = one + zero
            return np.where(both > 0, one / np.where(both > 0, both, 1.0), p)
        if self.kind == "logistic":
            bound = math.log(1 / self.clip)
            with np.errstate(divide="ignore", invalid="ignore"):
                score = np.log(one) - np.log(zero)
            return np.clip(np.nan_to_num(score, nan=0.0, posinf=bound, neginf=-bound), -bound, bound)
        return self._envelope.best(p)

    def _losses(self, t: Floats) -> tuple[Floats, Floats]:
        """Loss of predictions where the outcome is 0, and where it is 1."""
        if self.kind == "l1":
            return np.abs(t), np.abs(1 - t)
        if self.kind == "cost01":
            return self.c0 * np.abs(t), self.c1 * np.abs(1 - t)
        if self.kind == "l2":
            return t * t, (1 - t) ** 2
        if self.kind == "logistic":
            bound = math.log(1 / self.clip)
            t = np.clip(t, -bound, bound)
            return np.logaddexp(0, t), np.logaddexp(0, -t)
        return self._own(0, t), self._own(1, t)

    def _own(self, y: int, t: Floats) -> Floats:
        assert callable(self.kind)
        found = np.asarray(self.kind(y, t), dtype=float)
        if found.shape != t.shape or not np.isfinite(found).all() or (found < 0).any():
            raise InputError(f"kind: the function gives no finite loss of at least 0 for each action (outcome {y})")
        return found

    @cached_property
    def _envelope(self) -> Envelope:
        actions = np.linspace(0, 1, _ACTIONS) if self.actions is None else np.asarray(self.actions, dtype=float)
        if actions.ndim != 1 or len(actions) == 0 or not np.isfinite(actions).all():
            raise InputError("actions: expected at least one finite number")
        lam, mu, _ = self.weights
        return Envelope(actions, lam * self._own(0, actions), mu * self._own(1, actions))

    @cached_property
    def _bounds(self) -> tuple[float, float] | None:
        """Ends of the interval; an end is outside of [0, 1] where the rule abstains at 0, or at 1, itself."""
        lam, mu, nu = self.weights
        silent = (nu * self.a_minus, nu * self.a_plus)
        if self.kind == "l1":
            return chow_interval(lam, mu, silent)
        if self.kind == "cost01":
            return chow_interval(lam * self.c0, mu * self.c1, silent)
        if self.kind == "l2":
            return quadratic_interval(lam, mu, silent)

        def difference(p: float) -> float:
            at = np.array([p])
            return float(self.kappa_pred(at)[0] - self.kappa_abs(at)[0])

        return concave_interval(difference)


def probabilities(p: ArrayLike) -> Floats:
    """``p`` as an array, [rows]; raises :class:`InputError` unless all are between 0 and 1."""
    found = np.array(p, dtype=float)
    if found.ndim != 1:
        raise InputError(f"scores: expected one probability a row, got shape {found.shape}")
    # NaN compares as false with both ends.
    if found.size and not (found.min() >= 0 and found.max() <= 1):
        row = int(np.flatnonzero(~((found >= 0) & (found <= 1)))[0])
        raise InputError(f"scores: row {row} has {found[row]}, expected a probability between 0 and 1")
    return found


def labels(y: ArrayLike) -> NDArray[np.int8]:
    """``y`` as an array of 0 and 1, [rows]; raises :class:`InputError` on anything else."""
    found = np.asarray(y)
    if found.ndim != 1:
        raise InputError(f"y: expected one outcome a row, got shape {found.shape}")
    if not np.isin(found, (0, 1)).all():
        raise InputError(f"y: expected outcomes of 0 and 1, got {found[~np.isin(found, (0, 1))][0]!r}")
    return found.astype(np.int8)
