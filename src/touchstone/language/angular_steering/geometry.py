"""From activations to a plane: candidate directions, the choice of the feature axis, the second axis. Pure functions.

Everything is computed in float64: candidates are differences of nearly equal means, and where there is no difference
the result must be zero and not rounding noise.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError

__all__ = ["Second", "Select", "candidates_of", "feature_axis", "kept_points", "mean_cosines", "second_axis"]

Select = Literal["max_sim", "max_norm", "mean", "random"]
Second = Literal["pca", "random"]
Array = NDArray[np.float64]

# Candidates shorter than this share of the median length carry no direction.
_ZERO = 1e-6
# Two axes closer than this (as a sine) span no plane.
_PARALLEL = 1e-4


def candidates_of(positive: Array, negative: Array) -> Array:
    """One candidate direction a point, [M, d]: the difference of the classes' mean directions, not of unit length.

    Parameters
    ----------
    positive, negative : activations [M, samples, d].
    """
    return _mean_direction(positive) - _mean_direction(negative)


def _mean_direction(activations: Array) -> Array:
    mean = _unit(np.asarray(activations, dtype=np.float64)).mean(axis=1)
    return _unit(mean)


def _unit(vectors: Array) -> Array:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)


def kept_points(candidates: Array) -> NDArray[np.bool_]:
    """Which points [M] have a direction at all.

    At the first norm of block 0 the last prompt token is a template token, the same for every prompt, so that the
    candidate is zero there. Its cosine with the others would be 0/0, and one NaN makes every mean cosine NaN.

    Raises
    ------
    InputError
        If no point has one.
    """
    length = np.linalg.norm(candidates, axis=1)
    kept: NDArray[np.bool_] = length > max(_ZERO * float(np.median(length)), 1e-12)
    if not kept.any():
        raise InputError("positive, negative: the model's activations do not differ between the two lists at any point")
    return kept


def mean_cosines(candidates: Array) -> Array:
    """Mean cosine of each point's candidate with all kept ones (itself included), [M]; NaN at dropped points."""
    kept = kept_points(candidates)
    directions = _unit(candidates[kept])
    found = np.full(len(candidates), np.nan)
    found[kept] = (directions @ directions.T).mean(axis=1)
    return found


def feature_axis(
    candidates: Array, select: Select | str = "max_sim", rng: np.random.Generator | None = None
) -> tuple[Array, int | None]:
    """The first axis b1, a unit vector [d], and the point that it was taken from, if it was taken from one.

    ``max_sim`` (the paper's) takes the candidate most similar to all others on average, ``max_norm`` the longest one,
    ``mean`` the mean of all directions, ``random`` is a control.
    """
    kept = np.flatnonzero(kept_points(candidates))
    if select == "max_sim":
        point = int(np.nanargmax(mean_cosines(candidates)))
    elif select == "max_norm":
        point = int(kept[np.argmax(np.linalg.norm(candidates[kept], axis=1))])
    elif select == "mean":
        total = _unit(candidates[kept]).mean(axis=0)
        if np.linalg.norm(total) < _ZERO:
            raise InputError("select 'mean': the directions of all points cancel out; use 'max_sim'")
        return _unit(total), None
    elif select == "random":
        return random_unit(candidates.shape[1], rng), None
    else:
        raise InputError(f"select {select!r}: expected 'max_sim', 'max_norm', 'mean' or 'random'")
    return _unit(candidates[point]), point


def principal_components(candidates: Array) -> tuple[Array, Array]:
    """Components [k, d] of the centred kept candidates and their shares of the variance [k], largest first."""
    rows = candidates[kept_points(candidates)]
    _, singular, components = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    total = float((singular**2).sum())
    share = singular**2 / total if total > 0 else np.zeros_like(singular)
    return components, share


def second_axis(
    candidates: Array, b1: Array, second: Second | str | Array = "pca", rng: np.random.Generator | None = None
) -> Array:
    """The second axis b2: a unit vector [d] orthogonal to ``b1``.

    ``pca`` (the paper's) orthogonalises the candidates' first principal component. That is often nearly the feature
    itself (a cosine of -0.85 on SmolLM2), so the next component is taken if nothing is left of it. Its sign is
    arbitrary in an SVD and mirrors the circle: it is fixed so that the candidates of the last quarter of points lie on
    its positive side on average. ``random`` is a control; a vector is orthogonalised and keeps its side.
    """
    if isinstance(second, str) and second == "random":
        return random_unit(candidates.shape[1], rng, orthogonal_to=b1)
    if not isinstance(second, str):
        vector = np.asarray(second, dtype=np.float64).ravel()
        if vector.shape != b1.shape:
            raise InputError(f"second: a vector of {len(vector)} numbers; expected {len(b1)}, the model's width")
        if not np.isfinite(vector).all():
            raise InputError("second: expected finite numbers")
        b2 = _orthogonal(_unit(vector), b1)
        if b2 is None:
            raise InputError("second: the vector is parallel to the feature axis; the two span no plane")
        return b2
    if second != "pca":
        raise InputError(f"second {second!r}: expected 'pca', 'random' or a vector")
    components, share = principal_components(candidates)
    # Components without variance are noise: with k points there are at most k - 1 real ones.
    for component in components[share > 1e-12][:2]:
        b2 = _orthogonal(component, b1)
        if b2 is not None:
            rows = candidates[kept_points(candidates)]
            late = rows[-math.ceil(len(rows) / 4) :]
            return b2 if float((late @ b2).mean()) >= 0 else -b2
    raise InputError("second 'pca': the candidates span no second direction; use second='random' or give a vector")


def random_unit(width: int, rng: np.random.Generator | None, orthogonal_to: Array | None = None) -> Array:
    """A random unit vector, orthogonal to another if one is given."""
    vector = _unit((rng or np.random.default_rng(0)).standard_normal(width))
    found = vector if orthogonal_to is None else _orthogonal(vector, orthogonal_to)
    if found is None:
        raise InputError(f"width {width}: there is no second direction")
    return found


def _orthogonal(vector: Array, axis: Array) -> Array | None:
    rest = vector - (vector @ axis) * axis
    if np.linalg.norm(rest) < _PARALLEL:
        return None
    # Twice, since the first pass leaves a rounding error that grows as the rest gets short.
    rest = _unit(rest)
    return _unit(rest - (rest @ axis) * axis)
