"""What low rank gives away: a mask of rank r is the dominant part of the difference to public weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError

__all__ = ["apparent_rank", "pooled_attack", "predicted_error", "rank_for", "spectral_attack"]


def predicted_error(n: int, m: int, rank: int) -> float:
    """Relative error of the update that the spectral attack finds, if the update is white: √(r/n + r/m − r²/(nm)).

    Truncating the mask takes that share of the update with it; the rest is found.
    """
    if not 0 <= rank <= min(n, m):
        raise InputError(f"rank {rank}: expected 0 to {min(n, m)}")
    return math.sqrt(rank / n + rank / m - rank * rank / (n * m))


def rank_for(n: int, m: int, error: float) -> int:
    """Smallest rank of a mask at which the attack's error reaches ``error``; the rank of W itself for 1.

    Raises
    ------
    InputError
        If ``error`` is not in (0, 1].
    """
    if not 0 < error <= 1:
        raise InputError(f"error {error}: expected a number in (0, 1]")
    ranks = np.arange(min(n, m) + 1)
    reached = np.sqrt(ranks / n + ranks / m - ranks**2 / (n * m)) >= error - 1e-12
    return int(reached.argmax())


def apparent_rank(singular: NDArray[np.float64]) -> int:
    """Where singular values fall most: the largest ratio of one to the next among the upper half."""
    values = np.asarray(singular, dtype=float)
    upper = max(1, len(values) // 2)
    ratios = values[:upper] / np.maximum(values[1 : upper + 1], 1e-30) if len(values) > 1 else np.ones(1)
    return int(ratios.argmax()) + 1


def spectral_attack(
    observed: NDArray[np.float64], public: NDArray[np.float64], rank: int | None = None
) -> tuple[NDArray[np.float64], int]:
    """The private weights as far as rank gives them away: Ŵ = W_pub + (E − SVD_r(E)), E = W′ − W_pub.

    Parameters
    ----------
    observed, public : W′ and W_pub, [n, m].
    rank : of the mask; estimated from the gap of the singular values if ``None``.

    Returns
    -------
    Ŵ and the rank that was taken away.
    """
    if observed.shape != public.shape:
        raise InputError(f"public {public.shape}: expected the shape of the observed weights, {observed.shape}")
    gap = observed - public
    u, s, vt = np.linalg.svd(gap, full_matrices=False)
    taken = apparent_rank(s) if rank is None else rank
    return public + gap - (u[:, :taken] * s[:taken]) @ vt[:taken], taken


def pooled_attack(
    observed: Mapping[str, NDArray[np.float64]],
    public: Mapping[str, NDArray[np.float64]],
    names: Sequence[str],
    *,
    rank: int,
) -> dict[str, NDArray[np.float64]]:
    """The same on layers of one output width that share factors: their masks' rows lie in one space of ``rank``.

    Stacked, the layers tell that space better than each by itself; each layer loses only what lies in it.
    """
    gaps = {name: observed[name] - public[name] for name in names}
    stacked = np.concatenate([gaps[name] for name in names], axis=0)
    _, _, vt = np.linalg.svd(stacked, full_matrices=False)
    space = vt[:rank]
    return {name: public[name] + gap - (gap @ space.T) @ space for name, gap in gaps.items()}
