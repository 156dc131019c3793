"""The test behind a claim: exact and Hoeffding bounds, the threshold, a sequential test and the power of a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from touchstone.errors import InputError

__all__ = ["Plan", "SequentialTest", "exact_bound", "hoeffding_bound", "plan_queries", "threshold"]


def exact_bound(hits: int, queries: int, chance: float) -> float:
    """P[Bin(queries, chance) >= hits], the largest false-positive rate of "at least ``hits``" under a secret draw.

    Parameters
    ----------
    hits : keys that were answered.
    queries : keys that were shown.
    chance : most that an unrelated model hits one key with, 1/k for one of k candidates.
    """
    _counts(hits, queries, chance)
    return float(binom.sf(hits - 1, queries, chance))


def hoeffding_bound(hits: int, queries: int, chance: float) -> float:
    """exp(-2 queries (hits/queries - chance)²), the paper's bound; 1 where the share of hits is not above chance."""
    _counts(hits, queries, chance)
    gap = hits / queries - chance
    return math.exp(-2 * queries * gap * gap) if gap > 0 else 1.0


def threshold(queries: int, chance: float, alpha: float) -> int:
    """Fewest hits whose exact bound is at most ``alpha``.

    Raises
    ------
    InputError
        If not even a hit on every key is enough: show more keys, or use more candidates.
    """
    _counts(0, queries, chance)
    if not 0 < alpha < 1:
        raise InputError(f"alpha {alpha:g}: expected a rate between 0 and 1")
    fewest = int(np.searchsorted(-binom.sf(np.arange(-1, queries), queries, chance), -alpha))
    if fewest > queries:
        needed = math.ceil(math.log(alpha) / math.log(chance))
        raise InputError(f"queries {queries}: too few for alpha {alpha:g} at a chance of {chance:g}; show {needed}")
    return fewest


@dataclass
class SequentialTest:
    """Wald's test of "hits with chance" against "hits with recall": it decides after as few keys as it can.

    The false-positive rate is at most ``alpha`` wherever one stops: the likelihood ratio is a martingale under chance,
    and below chance a supermartingale (Ville's inequality), so that no claim rests on Wald's approximation.

    Parameters
    ----------
    chance : most that an unrelated model hits a key with.
    recall : least that one's own model, changed as it may be, is expected to hit a key with.
    alpha, beta : wanted rates of false claims and, approximately, of missed ones.
    """

    chance: float
    recall: float = 0.6
    alpha: float = 1e-3
    beta: float = 1e-2
    log_ratio: float = 0.0
    shown: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.chance < self.recall < 1:
            raise InputError(f"recall {self.recall:g}: expected a rate above the chance of {self.chance:g} and below 1")
        if not (0 < self.alpha < 1 and 0 < self.beta < 1):
            raise InputError("alpha, beta: expected rates between 0 and 1")

    def show(self, hit: bool) -> str:
        """Count one key; ``"owned"``, ``"not shown"`` or ``"go on"``."""
        top, bottom = (self.recall, self.chance) if hit else (1 - self.recall, 1 - self.chance)
        self.log_ratio += math.log(top / bottom)
        self.shown += 1
        return self.state

    @property
    def state(self) -> str:
        """What can be said after the keys shown so far."""
        if self.log_ratio >= -math.log(self.alpha):
            return "owned"
        return "not shown" if self.log_ratio <= math.log(self.beta) else "go on"


@dataclass(frozen=True)
class Plan:
    """How many keys to show and to embed.

    Attributes
    ----------
    queries, hits : keys to show in one proof and hits that claim ownership.
    embed : keys to embed for all proofs.
    false_positive, power : of one proof, exact.
    """

    queries: int
    hits: int
    embed: int
    false_positive: float
    power: float


def plan_queries(
    *, recall: float, chance: float = 1 / 3, alpha: float = 1e-3, power: float = 0.99, proofs: int = 1, most: int = 2000
) -> Plan:
    """Fewest keys with false-positive rate ``alpha`` and the wanted power.

    Parameters
    ----------
    recall : expected share of hits after what a host may do: fine-tuning, wrappers, sampling.
    chance, alpha : see :func:`threshold`.
    power : wanted chance of claiming what is yours.
    proofs : proofs to be able to give, each with keys of its own, since a key that was shown is spent.
    most : largest number of queries to consider.
    """
    if not chance < recall <= 1:
        raise InputError(f"recall {recall:g}: expected above the chance of {chance:g} and at most 1")
    if not 0 < power < 1 or proofs < 1:
        raise InputError("power, proofs: expected a rate between 0 and 1, and 1 proof or more")
    first = max(1, math.ceil(math.log(alpha) / math.log(chance) - 1e-9))
    for queries in range(first, most + 1):
        hits = threshold(queries, chance, alpha)
        reached = float(binom.sf(hits - 1, queries, recall))
        if reached >= power:
            return Plan(queries, hits, queries * proofs, exact_bound(hits, queries, chance), reached)
    raise InputError(f"power {power:g}: not reached with {most} queries at a recall of {recall:g}")


def _counts(hits: int, queries: int, chance: float) -> None:
    if queries < 1 or not 0 <= hits <= queries:
        raise InputError(f"hits {hits} of {queries} queries: expected 0 <= hits <= queries and queries >= 1")
    if not 0 < chance < 1:
        raise InputError(
            f"chance {chance:g}: expected a rate between 0 and 1; with one candidate every model could hit"
        )
