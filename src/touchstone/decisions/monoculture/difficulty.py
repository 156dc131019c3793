"""The null of item difficulty: models that agree because a case is easy, and pairs that agree beyond that.

Cases on which as many models succeed are taken as equally hard. Within them each model succeeds with its own chance
(effects of cases and of models on the logit, the Rasch model), and models draw without replacement, so that the number
of successes on a case stays what it is. Mean agreement is then what was observed, whatever the models: it says how much
cases differ, not who copies whom. What the null does not explain is which pairs agree more than others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from touchstone.errors import InputError

__all__ = ["Difficulty", "item_difficulty"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difficulty:
    """Agreement of pairs that the difficulty of cases explains.

    Attributes
    ----------
    expected : agreement of each pair under the null, [models, models].
    excess : observed minus expected.
    chance : success of each model on cases of each number of successes, [models + 1, models].
    """

    expected: Floats
    excess: Floats
    chance: Floats


def item_difficulty(success: NDArray[np.int8], agreement: Floats) -> Difficulty:
    """Fit the null to successes [models, cases] without missing decisions, and compare it with ``agreement``.

    Raises
    ------
    InputError
        If decisions are missing: cases are then not of equal numbers of models.
    """
    if (success < 0).any():
        raise InputError("item difficulty: needs every model's decision on every case")
    models = len(success)
    level = (success > 0).sum(axis=0)
    by_level = np.stack(
        [np.bincount(level, weights=column > 0, minlength=models + 1) for column in success], axis=1
    ).astype(float)
    n = np.bincount(level, minlength=models + 1).astype(float)
    chance = _rasch(by_level, n)
    spread = chance * (1 - chance)
    total = spread.sum(axis=1, keepdims=True)
    # Fixed totals make draws of a case negatively dependent (Hájek's approximation for rejective sampling), scaled so
    # that the covariances add up to what a fixed total asks for.
    own = (spread**2).sum(axis=1, keepdims=True)
    factor = np.divide(total, total**2 - own, out=np.zeros_like(total), where=total**2 - own > 1e-12)
    share = n / n.sum()
    agree = np.einsum("k,km,kn->mn", share, chance, chance, optimize=True)
    agree += np.einsum("k,km,kn->mn", share, 1 - chance, 1 - chance, optimize=True)
    agree -= 2 * np.einsum("k,km,kn->mn", share * factor[:, 0], spread, spread, optimize=True)
    np.fill_diagonal(agree, 1.0)
    return Difficulty(agree, agreement - agree, chance)


def _rasch(by_level: Floats, n: Floats, rounds: int = 200) -> Floats:
    """Chances [levels, models] of the form logit p = a_level + b_model with the observed margins."""
    levels, models = by_level.shape
    inner = np.arange(1, levels - 1)
    inner = inner[n[inner] > 0]
    chance = np.zeros((levels, models))
    chance[-1] = 1.0
    if not len(inner):
        return chance
    wanted = by_level[inner].sum(axis=0)
    weight, target = n[inner], inner.astype(float)
    a, b = np.log(target / (models - target)), np.zeros(models)
    cap = np.clip(wanted / weight.sum(), 1e-9, 1 - 1e-9) * weight.sum()
    for _ in range(rounds):
        p = expit(a[:, None] + b)
        step_b = (cap - weight @ p) / np.maximum(weight @ (p * (1 - p)), 1e-12)
        b += np.clip(step_b, -1, 1)
        p = expit(a[:, None] + b)
        step_a = (target - p.sum(axis=1)) / np.maximum((p * (1 - p)).sum(axis=1), 1e-12)
        a += np.clip(step_a, -1, 1)
        if max(np.abs(step_a).max(), np.abs(step_b).max()) < 1e-9:
            break
    chance[inner] = expit(a[:, None] + b)
    return chance
