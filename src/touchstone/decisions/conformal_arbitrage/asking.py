"""Calls of a Guardian that is a function: only where it is needed, each distinct question once, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError

__all__ = ["Guardian", "ask"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Guardian = Callable[[int, NDArray[np.int64]], Sequence[float] | Floats]
"""Given the place of a query and the places of its candidates, the Guardian's score of each candidate."""


def ask(
    guardian: Guardian, shown: Bools, keys: Sequence[Hashable] | None = None, workers: int = 1
) -> tuple[Floats, int]:
    """Scores of a function for the options ``shown`` [queries, options], and the number of calls it took."""
    if keys is not None and len(keys) != len(shown):
        raise InputError(f"keys: expected one for each of {len(shown)} queries, got {len(keys)}")
    rows = np.flatnonzero(shown.any(axis=1))
    places = {int(i): np.flatnonzero(shown[i]) for i in rows}
    first: dict[Hashable, int] = {}
    for i in places:
        first.setdefault(i if keys is None else (keys[i], places[i].tobytes()), i)

    def one(i: int) -> Floats:
        found = np.asarray(guardian(i, places[i]), dtype=float)
        name = i if keys is None else keys[i]
        if found.shape != places[i].shape:
            raise InputError(f"guardian: {found.size} scores for the {len(places[i])} candidates of query {name!r}")
        if not np.isfinite(found).all():
            raise InputError(f"guardian: a score of query {name!r} is not finite")
        return found

    todo = list(first.values())
    if workers > 1:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(workers) as pool:
            answers = dict(zip(todo, pool.map(one, todo), strict=True))
    else:
        answers = {i: one(i) for i in todo}
    scores = np.zeros(shown.shape)
    for i in places:
        scores[i, places[i]] = answers[first[i if keys is None else (keys[i], places[i].tobytes())]]
    return scores, len(todo)
