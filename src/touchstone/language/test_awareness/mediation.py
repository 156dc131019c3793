"""Dose and response: how behaviour follows the strength of an edit, and how much of that goes through the probe's
score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.evidence import Measurement

__all__ = ["DoseResponse", "dose_response", "split_effect"]

_DRAWS = 2000


@dataclass(frozen=True)
class DoseResponse:
    """What a dose does.

    Attributes
    ----------
    curve : one row a strength: mean ``score`` and ``behaviour``.
    monotone : Spearman's correlation of strength and mean behaviour.
    span : behaviour at the largest strength minus that at the smallest.
    per_unit : change of behaviour per unit of the probe's score.
    mediated : share of the total effect that goes through the score: of the effect of strength, what is lost when the
        score is held fixed (product of coefficients). Below 0 or above 1 where the score works against the rest.
    """

    curve: pd.DataFrame
    monotone: float
    span: Measurement
    per_unit: Measurement
    mediated: Measurement


def dose_response(strength: np.ndarray, score: np.ndarray, behaviour: np.ndarray, *, seed: int = 0) -> DoseResponse:
    """Fit behaviour on score and strength within items, with intervals from drawing items anew.

    Parameters
    ----------
    strength : [S], signed strengths.
    score : the probe's score of each item at each strength, [items, S].
    behaviour : the same for the behaviour.
    seed : of the drawing.

    Notes
    -----
    The estimate is causal for the strength, which is set, and an association for the score: whatever else the edit
    moves along with the score counts as the score's.
    """
    from scipy.stats import spearmanr

    strength, score, behaviour = (np.asarray(array, dtype=float) for array in (strength, score, behaviour))
    if score.shape != behaviour.shape or score.ndim != 2 or score.shape[1] != len(strength) or len(strength) < 3:
        raise InputError(
            f"dose response: score {score.shape} and behaviour {behaviour.shape}; expected [items, {len(strength)}], "
            "with three strengths or more"
        )
    if not (np.isfinite(score).all() and np.isfinite(behaviour).all()):
        raise InputError("dose response: score and behaviour must be known for every item and strength")
    ends = behaviour[:, strength.argmax()] - behaviour[:, strength.argmin()]
    rng = np.random.default_rng(seed)
    items = len(score)
    drawn = np.array([_slopes(strength, score[i], behaviour[i]) for i in rng.integers(items, size=(_DRAWS, items))])
    slope, share = _slopes(strength, score, behaviour)
    curve = pd.DataFrame({"strength": strength, "score": score.mean(axis=0), "behaviour": behaviour.mean(axis=0)})
    means = behaviour.mean(axis=0)
    return DoseResponse(
        curve.sort_values("strength", ignore_index=True),
        0.0 if np.ptp(means) == 0 else float(spearmanr(strength, means).statistic),
        Measurement.mean("change of behaviour over the sweep", ends),
        _measured("change of behaviour per unit of probe score", slope, drawn[:, 0], items),
        _measured("share of the effect through the probe's score", share, drawn[:, 1], items),
    )


def split_effect(
    aware: np.ndarray, given_aware: np.ndarray, given_normal: np.ndarray, base: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split changes of P(execute) into what goes through the word that is said and what does not.

    P = P(aware)·P(exec | aware) + P(normal)·P(exec | normal), so with the untouched model at place ``base`` the
    change is Δp·(a₀ − n₀), by saying "aware" more often, plus p·Δa + (1 − p)·Δn, by acting otherwise on what was said.

    Parameters
    ----------
    aware, given_aware, given_normal : p, a and n, [items, S].
    base : index of the untouched model among the S arms.

    Returns
    -------
    Both parts, [items, S]; they sum to the change of P.
    """
    p, a, n = (np.asarray(array, dtype=float) for array in (aware, given_aware, given_normal))
    a0, n0, p0 = a[:, [base]], n[:, [base]], p[:, [base]]
    return (p - p0) * (a0 - n0), p * (a - a0) + (1 - p) * (n - n0)


def _slopes(strength: np.ndarray, score: np.ndarray, behaviour: np.ndarray) -> tuple[float, float]:
    """Slope of behaviour on score, and the mediated share, on what is left within items."""
    s = np.broadcast_to(strength - strength.mean(), score.shape)
    m = score - score.mean(axis=1, keepdims=True)
    y = behaviour - behaviour.mean(axis=1, keepdims=True)
    ss, mm, sm = float((s * s).sum()), float((m * m).sum()), float((s * m).sum())
    sy, my = float((s * y).sum()), float((m * y).sum())
    slope = my / mm if mm > 0 else 0.0
    total = sy / ss
    determinant = ss * mm - sm * sm
    # Where score and strength move as one, all goes through the score and no more can be said.
    if determinant <= 1e-12 * ss * mm or total == 0:
        return slope, 1.0 if mm > 0 and total != 0 else 0.0
    given_strength = (my * ss - sy * sm) / determinant
    return slope, (sm / ss) * given_strength / total


def _measured(name: str, value: float, drawn: np.ndarray, n: int) -> Measurement:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Measurement(name, value, low=float(low), high=float(high), n=n)
