"""Scores of options as arrays: queries with fewer options than the widest are padded under a mask, and checked once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError

__all__ = ["NORMALISATIONS", "Normalise", "Options", "digest", "gaps", "normalised", "padded", "table"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = Floats | Sequence[Sequence[float]] | Sequence[Floats]
Normalise = Literal["none", "softmax", "minmax", "rank"]
NORMALISATIONS: tuple[Normalise, ...] = ("none", "softmax", "minmax", "rank")


@dataclass(frozen=True)
class Options:
    """Primary scores of the options of many queries.

    Attributes
    ----------
    scores : [queries, options], whatever stands where there is no option.
    mask : where there is an option, bool of the same shape.
    """

    scores: Floats
    mask: Bools

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of options of each query."""
        return self.mask.sum(axis=1)


def table(rows: Rows, what: str, mask: Bools | None = None) -> Options:
    """Checked scores [queries, options], from an array or a list with one row of scores a query.

    Raises
    ------
    InputError
        If there is no query, a query has no option, or a score is not finite; it names the row.
    """
    scores, own = padded(rows, what)
    if mask is not None:
        given = np.asarray(mask)
        if given.shape != scores.shape or given.dtype != bool:
            raise InputError(f"mask: expected booleans of shape {scores.shape}, got {given.dtype} {given.shape}")
        own = own & given
    if not len(scores):
        raise InputError(f"{what}: expected at least one query, got none")
    empty = ~own.any(axis=1)
    if empty.any():
        raise InputError(f"{what}, row {_first(empty)}: no options; expected at least one")
    wrong = own & ~np.isfinite(scores)
    if wrong.any():
        raise InputError(f"{what}, row {_first(wrong.any(axis=1))}: expected finite scores")
    return Options(scores, own)


def padded(rows: Rows, what: str) -> tuple[Floats, Bools]:
    """Rows of numbers as one array [queries, widest], and where there is a number."""
    try:
        if isinstance(rows, np.ndarray) and rows.dtype != object:
            scores = np.asarray(rows, dtype=np.float64)
            if scores.ndim != 2:
                raise InputError(f"{what}: expected an array [queries, options], got shape {scores.shape}")
            return scores, np.ones(scores.shape, dtype=bool)
        parts = [np.asarray(row, dtype=np.float64) for row in rows]
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what}: expected numbers, one row of them a query") from None
    if any(part.ndim != 1 for part in parts):
        raise InputError(f"{what}: expected one row of numbers a query")
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    scores = np.zeros(mask.shape)
    if parts:
        scores[mask] = np.concatenate(parts)
    return scores, mask


def matched(rows: Rows, what: str, options: Options, *, low: float = -np.inf, high: float = np.inf) -> Floats:
    """Numbers for the same options: same shape, finite, inside [low, high]; 0 where there is no option.

    Raises
    ------
    InputError
        If they are not; it names up to five rows.
    """
    values, own = padded(rows, what)
    if values.shape != options.scores.shape or (options.mask & ~own).any():
        raise InputError(f"{what}: expected a number for each option of the scores, shape {options.scores.shape}")
    with np.errstate(invalid="ignore"):
        wrong = options.mask & ~((values >= low) & (values <= high) & np.isfinite(values))
    if wrong.any():
        rows_wrong = np.flatnonzero(wrong.any(axis=1)) + 1
        named = ", ".join(map(str, rows_wrong[:5])) + (", …" if len(rows_wrong) > 5 else "")
        span = f"finite numbers in [{low:g}, {high:g}]" if np.isfinite(high) else "finite numbers"
        raise InputError(f"{what}, row {named}: expected {span}")
    return values if options.mask.all() else np.where(options.mask, values, 0.0)


def normalised(options: Options, how: Normalise) -> Options:
    """Primary scores on a scale that queries share.

    ``"softmax"`` : exp(p) over their sum; ``"minmax"`` : 0 the lowest, 1 the highest; ``"rank"`` : the same of
    ranks, ties sharing their mean; ``"none"`` : as they are. A query whose scores are all equal gets equal scores.
    """
    if how not in NORMALISATIONS:
        raise InputError(f"normalise {how!r}: expected one of {', '.join(NORMALISATIONS)}")
    if how == "none":
        return options
    scores, mask = options.scores, options.mask
    if how == "rank":
        from scipy.stats import rankdata

        # What is no option ranks above all, so that ranks of options do not see it.
        scores = rankdata(np.where(mask, scores, np.inf), axis=1)
    top = np.where(mask, scores, -np.inf).max(axis=1, keepdims=True)
    if how == "softmax":
        odds = np.where(mask, np.exp(np.where(mask, scores - top, 0.0)), 0.0)
        return Options(odds / odds.sum(axis=1, keepdims=True), mask)
    low = np.where(mask, scores, np.inf).min(axis=1, keepdims=True)
    span = top - low
    found = np.where(mask & (span > 0), (scores - low) / np.where(span > 0, span, 1.0), 0.0)
    return Options(found, mask)


def gaps(options: Options) -> Floats:
    """How far each option is below its query's best, [queries, options]; infinite where there is no option."""
    scores = options.scores if options.mask.all() else np.where(options.mask, options.scores, -np.inf)
    # Over few columns, whole columns at a time are several times faster than numpy's reduction of rows.
    return reduce(np.maximum, scores.T)[:, None] - scores


def digest(options: Options, *more: Floats) -> str:
    """Sixteen hexadecimal digits that tell one set of scores, in their order, from another."""
    found = hashlib.sha256(repr(options.scores.shape).encode())
    whole = bool(options.mask.all())
    for array in (options.scores, *more):
        found.update(np.ascontiguousarray(array if whole else np.where(options.mask, array, 0.0)).data)
    found.update(b"" if whole else np.packbits(options.mask).data)
    return found.hexdigest()[:16]


def _first(wrong: Any) -> int:
    """Number of the first row where ``wrong`` is true, counted from 1."""
    return int(np.flatnonzero(wrong)[0]) + 1
