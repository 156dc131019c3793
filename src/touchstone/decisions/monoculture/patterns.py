"""Cases with the same decisions and groups, counted once; bootstrap draws are counts over them.

What depends on cases then depends on distinct patterns only. Most statistics need no more of a draw than two sums:
cases by how many models succeeded, and successes of each model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.decisions.monoculture import measures
from touchstone.decisions.monoculture.bits import pack
from touchstone.decisions.monoculture.table import Group, InFocus

__all__ = ["Patterns", "collapse"]

Floats = NDArray[np.float64]
# Counts of draws that are held at a time: 64 million float32 are 256 MB.
_ROOM = 64_000_000


@dataclass(frozen=True)
class Patterns:
    """Distinct rows of (decisions, outcome, groups).

    Attributes
    ----------
    success : of the models on each pattern, [models, patterns].
    correct : as ``success``, for right decisions.
    truth : outcome of each pattern.
    counts : cases of each pattern.
    groups : for each attribute the group of each pattern.
    of_case : pattern of each case in focus.
    """

    success: NDArray[np.int8]
    correct: NDArray[np.int8]
    truth: NDArray[np.bool_]
    counts: NDArray[np.int64]
    groups: Mapping[str, Group]
    of_case: NDArray[np.intp]

    @property
    def cases(self) -> int:
        """Cases in focus."""
        return int(self.counts.sum())

    def draws(self, n: int, seed: int) -> Iterator[NDArray[np.float32]]:
        """``n`` bootstrap draws of all cases, as counts of patterns, in blocks [draws, patterns]."""
        rng = np.random.default_rng(seed)
        patterns = len(self.counts)
        chances = self.counts / self.counts.sum()
        few = patterns * 4 < self.cases
        block = max(1, min(n, _ROOM // patterns))
        for begin in range(0, n, block):
            size = min(block, n - begin)
            drawn = np.empty((size, patterns), dtype=np.float32)
            for k in range(size):
                if few:
                    drawn[k] = rng.multinomial(self.cases, chances)
                else:
                    picked = self.of_case[rng.integers(self.cases, size=self.cases)]
                    drawn[k] = np.bincount(picked, minlength=patterns)
            yield drawn


def collapse(seen: InFocus, groups: Mapping[str, Group]) -> Patterns:
    """Count each distinct row once; ``groups`` are those of the cases in focus."""
    packed = pack(seen.success)
    keys: list[NDArray[np.uint64] | NDArray[np.intp]] = []
    for planes in (packed.bits, packed.present):
        if planes is not None:
            keys += _row_words(planes, packed.cases)
    if not (seen.truth.all() or not seen.truth.any()):
        keys.append(seen.truth.astype(np.intp))
    keys += [group.codes for group in groups.values()]
    codes = np.zeros(packed.cases, dtype=np.int64)
    for key in keys:
        # Joining codes of two factorisations is exact, unlike a hash of the row.
        own, names = pd.factorize(key)
        codes = pd.factorize(codes * len(names) + own)[0].astype(np.int64)
    first = np.full(int(codes.max()) + 1, -1, dtype=np.intp)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return Patterns(
        success=np.ascontiguousarray(seen.success[:, first]),
        correct=np.ascontiguousarray(seen.correct[:, first]),
        truth=seen.truth[first],
        counts=np.bincount(codes).astype(np.int64),
        groups={name: Group(group.codes[first], group.names) for name, group in groups.items()},
        of_case=codes.astype(np.intp),
    )


def _row_words(planes: NDArray[np.uint64], cases: int) -> list[NDArray[np.uint64]]:
    """The bits of each case over all models, 64 models to a word."""
    found = []
    for begin in range(0, len(planes), 64):
        word = np.zeros(cases, dtype=np.uint64)
        for shift, plane in enumerate(planes[begin : begin + 64]):
            column = np.unpackbits(plane.view(np.uint8), bitorder="little", count=cases)
            word |= column.astype(np.uint64) << np.uint64(shift)
        found.append(word)
    return found


@dataclass(frozen=True)
class Sums:
    """What a block of weights adds up to.

    Attributes
    ----------
    by_level : weight of the cases on each recourse level, [draws, levels].
    right, decided : weight of right decisions, and of decisions, of each model, [draws, models].
    differ, shared : weight of the cases on which each model differs from the baseline model, and which both decided.
    agreement : mean agreement of pairs, [draws].
    by_group : for each attribute ``by_level`` within its groups, [draws, groups, levels].
    """

    by_level: Floats
    success: Floats
    right: Floats
    decided: Floats
    differ: Floats
    shared: Floats
    ambiguous: Floats
    agreement: Floats
    by_group: Mapping[str, Floats]


class Summer:
    """Adds up blocks of weights over patterns; what does not depend on the weights is prepared once.

    Parameters
    ----------
    patterns : of one set of models.
    baseline : place of the baseline model ``h0``.
    """

    def __init__(self, patterns: Patterns, baseline: int) -> None:
        self.patterns = patterns
        level = measures.levels(patterns.success)
        self.levels, places = np.unique(level[~np.isnan(level)], return_inverse=True)
        # Patterns that too few models decided stand on a level of their own, which is cut off.
        self._place = np.full(len(level), len(self.levels), dtype=np.intp)
        self._place[~np.isnan(level)] = places
        self._complete = not (patterns.success < 0).any()
        success = patterns.success
        own = success[baseline]
        self._success = (success > 0).astype(np.float32)
        same_as_success = np.array_equal(patterns.correct, success)
        self._right = self._success if same_as_success else (patterns.correct > 0).astype(np.float32)
        self._decided = None if self._complete else (success >= 0).astype(np.float32)
        shared = (success >= 0) & (own >= 0)
        self._differ = ((success != own) & shared).astype(np.float32)
        self._shared = None if self._complete else shared.astype(np.float32)
        self._ambiguous = (self._differ > 0).any(axis=0).astype(np.float32)
        self._agreement, self._centre = self._pair_terms()

    def __call__(self, weights: NDArray[np.float32]) -> Sums:
        """Sums of one block [draws, patterns]."""
        total = weights.sum(axis=1, dtype=np.float64)[:, None]
        whole = np.broadcast_to(total, (len(weights), len(self._success)))
        success = _dot(weights, self._success)
        return Sums(
            by_level=self._by(weights, np.zeros(weights.shape[1], dtype=np.intp), 1)[:, 0],
            success=success,
            right=success if self._right is self._success else _dot(weights, self._right),
            decided=whole if self._decided is None else _dot(weights, self._decided),
            differ=_dot(weights, self._differ),
            shared=whole if self._shared is None else _dot(weights, self._shared),
            ambiguous=_dot(weights, self._ambiguous[None])[:, 0],
            agreement=self._centre + _dot(weights, self._agreement[None])[:, 0] / total[:, 0],
            by_group={
                name: self._by(weights, group.codes, len(group.names)) for name, group in self.patterns.groups.items()
            },
        )

    def _by(self, weights: NDArray[np.float32], codes: NDArray[np.intp], groups: int) -> Floats:
        width = len(self.levels) + 1
        joint = codes * width + self._place
        found = [np.bincount(joint, weights=row, minlength=groups * width) for row in weights]
        stacked: Floats = np.stack(found).astype(float).reshape(len(weights), groups, width)
        return stacked[:, :, :-1]

    def _pair_terms(self) -> tuple[NDArray[np.float32], float]:
        """What each pattern adds to the mean agreement of pairs, and the value it is added to.

        Without missing decisions the mean is one of cases, exactly. With them it is a mean of ratios: a pattern then
        has its influence, the first-order term around the observed value.
        """
        success, m = self.patterns.success, len(self.patterns.success)
        if m < 2:
            return np.full(success.shape[1], np.nan, dtype=np.float32), float("nan")
        won, decided = measures.tally(success)
        if self._complete:
            lost = decided - won
            return ((won * (won - 1) + lost * (lost - 1)) / (m * (m - 1))).astype(np.float32), 0.0
        w = self.patterns.counts.astype(np.float64)
        yes, no, seen = (x.astype(np.float64) for x in (success > 0, success == 0, success >= 0))
        both = (seen * w) @ seen.T
        agree = (yes * w) @ yes.T + (no * w) @ no.T
        known = both > 0
        np.fill_diagonal(known, False)
        share = np.divide(agree, both, out=np.zeros_like(agree), where=known)
        scale = np.divide(w.sum(), both, out=np.zeros_like(both), where=known)
        terms = sum(((scale @ x) * x).sum(axis=0) for x in (yes, no)) - (((scale * share) @ seen) * seen).sum(axis=0)
        return (terms / known.sum()).astype(np.float32), float(share.sum() / known.sum())

    def rates(self, sums: Sums) -> tuple[Floats, Floats]:
        """Rates of success and of right decisions of each model, [draws, models] each."""
        below = np.where(sums.decided > 0, sums.decided, np.nan)
        return sums.success / below, sums.right / below


def _dot(weights: NDArray[np.float32], terms: NDArray[np.float32]) -> Floats:
    """``weights @ terms.T``; in single precision, which is exact for counts up to 16 million."""
    return (weights @ terms.T).astype(np.float64)


def unit_weights(patterns: Patterns) -> NDArray[np.float32]:
    """The observed counts as one block."""
    return patterns.counts.astype(np.float32)[None]
