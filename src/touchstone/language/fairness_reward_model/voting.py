"""The vote: chains weigh as much as their fairness says, w_k = exp(R_k/τ) / Σ_j exp(R_j/τ)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from touchstone.errors import InputError
from touchstone.language.fairness_reward_model.chains import Chain

__all__ = ["Aggregate", "Ballots", "Decision", "FairVote", "Result", "aggregate", "softmax_weights"]

Aggregate = Literal["mean", "log_mean", "min", "last", "product"]
_TIE = 1e-12
_LEAST = 1e-6


def aggregate(steps: Sequence[float], how: Aggregate = "mean") -> float:
    """A chain's score from its steps' scores in [0, 1].

    Parameters
    ----------
    steps : scores; NaN comes back for none.
    how : ``"mean"`` (the paper), ``"log_mean"`` (the official code's default, there without the clip at 1e-6 that keeps
        a score of 0 from becoming the best), ``"min"``, ``"last"`` or ``"product"``.

    Raises
    ------
    InputError
        If a score is outside [0, 1].
    """
    scores = np.asarray(steps, dtype=float)
    if scores.size == 0:
        return math.nan
    if not ((scores >= 0) & (scores <= 1)).all():
        raise InputError("scores: expected numbers in [0, 1]")
    match how:
        case "mean":
            return float(scores.mean())
        case "log_mean":
            return float(np.log(np.maximum(scores, _LEAST)).mean())
        case "min":
            return float(scores.min())
        case "last":
            return float(scores[-1])
        case "product":
            return float(scores.prod())
    raise InputError(f"aggregate {how!r}: expected mean, log_mean, min, last or product")


def softmax_weights(scores: ArrayLike, tau: float, valid: ArrayLike | None = None) -> NDArray[np.float64]:
    """Weights of chains [..., N] that sum to 1 over the valid ones; 0 for the others, and for all where none is valid.

    Raises
    ------
    InputError
        If ``tau`` is not above 0; infinity weighs all alike.
    """
    if not tau > 0:
        raise InputError(f"tau {tau}: expected a number above 0, or infinity for a plain vote")
    values = np.asarray(scores, dtype=float)
    able = np.isfinite(values) if valid is None else np.asarray(valid, dtype=bool) & np.isfinite(values)
    top = np.max(np.where(able, values, -np.inf), axis=-1, keepdims=True)
    shifted = np.where(able, values - np.where(np.isfinite(top), top, 0.0), 0.0)
    weights = np.where(able, np.exp(shifted / tau), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)


@dataclass(frozen=True)
class Decision:
    """What chains decided on one case.

    Attributes
    ----------
    answer : with the largest share; ``None`` if no chain has an answer.
    share : its share of the weight.
    weights : of all chains; 0 for those without an answer.
    n_valid : chains with an answer.
    tie : whether another answer has the same share; the first in sorted order was taken.
    """

    answer: str | None
    share: float
    weights: tuple[float, ...]
    n_valid: int
    tie: bool


@dataclass(frozen=True)
class Result:
    """Decisions on many cases as arrays: ``answer`` (place among the labels; −1 for none), ``share``, ``tie``."""

    answer: NDArray[np.int64]
    share: NDArray[np.float64]
    tie: NDArray[np.bool_]


@dataclass(frozen=True)
class Ballots:
    """Answers and scores of many cases' chains, [cases, N].

    Attributes
    ----------
    labels : the answers there are, sorted.
    answers : place of each chain's answer among the labels; −1 where there is none.
    scores : of each chain; NaN where there is none.
    """

    labels: tuple[str, ...]
    answers: NDArray[np.int64]
    scores: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.answers.ndim != 2 or self.answers.shape != self.scores.shape:
            raise InputError(f"answers {self.answers.shape}, scores {self.scores.shape}: expected both [cases, N]")
        if self.answers.size and (self.answers.max() >= len(self.labels) or self.answers.min() < -1):
            raise InputError(f"answers: expected places from -1 to {len(self.labels) - 1}")
        if tuple(sorted(self.labels)) != tuple(self.labels):
            raise InputError("labels: expected in sorted order")

    @classmethod
    def of(cls, cases: Sequence[Sequence[Chain]], scores: Sequence[Sequence[float]]) -> Ballots:
        """Ballots of cases with any numbers of chains."""
        if len(cases) != len(scores) or any(len(a) != len(b) for a, b in zip(cases, scores, strict=False)):
            raise InputError("scores: expected one for every chain of every case")
        labels = sorted({chain.answer for chains in cases for chain in chains if chain.answer is not None})
        places = {label: i for i, label in enumerate(labels)}
        width = max((len(chains) for chains in cases), default=0)
        answers = np.full((len(cases), width), -1, dtype=np.int64)
        values = np.full((len(cases), width), np.nan)
        for i, (chains, row) in enumerate(zip(cases, scores, strict=True)):
            answers[i, : len(chains)] = [-1 if c.answer is None else places[c.answer] for c in chains]
            values[i, : len(chains)] = row
        return cls(tuple(labels), answers, values)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Chains that vote, [cases, N]."""
        return self.answers >= 0

    def vote(self, tau: float) -> Result:
        """The weighted vote on every case; chains without an answer have no part in it."""
        if not tau > 0:
            raise InputError(f"tau {tau}: expected a number above 0, or infinity for a plain vote")
        scores = np.zeros_like(self.scores) if math.isinf(tau) else self.scores
        return self._counted(softmax_weights(scores, tau, self.valid))

    def best(self) -> Result:
        """The answer of each case's fairest chain (best-of-N); the first of several."""
        scores = np.where(self.valid & np.isfinite(self.scores), self.scores, -np.inf)
        place = scores.argmax(axis=1)
        answer = np.where(np.isfinite(scores.max(axis=1)), self.answers[np.arange(len(place)), place], -1)
        return Result(answer, np.ones(len(place)), np.zeros(len(place), dtype=bool))

    def first(self) -> Result:
        """The answer of each case's first chain (CoT@1)."""
        return Result(self.answers[:, 0].copy(), np.ones(len(self.answers)), np.zeros(len(self.answers), dtype=bool))

    def keeping(self, kept: NDArray[np.bool_]) -> Ballots:
        """The same with only the chains that are kept."""
        return Ballots(self.labels, np.where(kept, self.answers, -1), self.scores)

    def _counted(self, weights: NDArray[np.float64]) -> Result:
        shares = np.stack([(weights * (self.answers == a)).sum(axis=1) for a in range(len(self.labels))], axis=1)
        top = shares.max(axis=1)
        equal = shares >= top[:, None] - _TIE
        known = top > 0
        return Result(np.where(known, equal.argmax(axis=1), -1), top, known & (equal.sum(axis=1) > 1))


class FairVote:
    """A vote in which fair chains weigh more.

    Parameters
    ----------
    tau : temperature; infinity is a plain majority, near 0 the fairest chain decides alone. The paper's 0.2 is for
        Llama chains, 0.01 for Mistral's.
    aggregate : how a chain's score comes from its steps', see :func:`aggregate`.

    Examples
    --------
    >>> FairVote(tau=0.2).decide(chains, scores=[0.5, 0.5, 0.9]).answer
    """

    def __init__(self, tau: float = 0.2, aggregate: Aggregate = "mean") -> None:
        if not tau > 0:
            raise InputError(f"tau {tau}: expected a number above 0, or infinity for a plain vote")
        if aggregate not in ("mean", "log_mean", "min", "last", "product"):
            raise InputError(f"aggregate {aggregate!r}: expected mean, log_mean, min, last or product")
        self.tau, self.aggregate = tau, aggregate

    def decide(self, chains: Sequence[Chain], scores: Sequence[float]) -> Decision:
        """Decide one case; ``scores`` has one for each chain, in [0, 1] unless they are logarithms."""
        return self.decide_many([chains], [scores])[0]

    def decide_many(self, cases: Sequence[Sequence[Chain]], scores: Sequence[Sequence[float]]) -> list[Decision]:
        """Decide many cases in one matrix operation.

        Raises
        ------
        InputError
            If a case has not one score for each chain, or a score is outside [0, 1] (above 0 for ``log_mean``).
        """
        ballots = Ballots.of(cases, scores)
        known = ballots.scores[np.isfinite(ballots.scores)]
        low, high = (-math.inf, 0.0) if self.aggregate == "log_mean" else (0.0, 1.0)
        if known.size and not ((known >= low) & (known <= high)).all():
            raise InputError(f"scores: expected numbers in [{low:g}, {high:g}]")
        if not ballots.labels:
            return [Decision(None, 0.0, (0.0,) * len(chains), 0, False) for chains in cases]
        result = ballots.vote(self.tau)
        flat = np.zeros_like(ballots.scores) if math.isinf(self.tau) else ballots.scores
        weights = softmax_weights(flat, self.tau, ballots.valid)
        return [
            Decision(
                None if result.answer[i] < 0 else ballots.labels[result.answer[i]],
                float(result.share[i]),
                tuple(float(w) for w in weights[i, : len(chains)]),
                int(ballots.valid[i].sum()),
                bool(result.tie[i]),
            )
            for i, chains in enumerate(cases)
        ]
