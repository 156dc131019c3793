"""The frontier of a log of scores: what each allowed risk costs and comes to on queries it was not calibrated on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage
from touchstone.decisions.conformal_arbitrage.baselines import compare_routers, measure
from touchstone.decisions.conformal_arbitrage.log import ScoreLog
from touchstone.errors import InputError

__all__ = ["halves", "traced"]


def halves(log: ScoreLog, share: float, seed: int) -> tuple[ScoreLog, ScoreLog]:
    """A random part of a log to calibrate on, and the rest to test on.

    Raises
    ------
    InputError
        If a part would be empty.
    """
    count = round(share * len(log))
    if not 0 < count < len(log):
        raise InputError(f"split {share:g}: leaves one part of {len(log)} queries empty")
    order = np.random.default_rng([seed, 31]).permutation(len(log))
    return log.take(order[:count]), log.take(order[count:])


def traced(router: ConformalArbitrage, known: ScoreLog, test: ScoreLog, alphas: Sequence[float]) -> pd.DataFrame:
    """One row an alpha: the threshold from ``known``, and what it comes to on ``test``.

    Columns ``alpha``, ``lam`` (NaN where it cannot be certified), ``candidate_risk``, ``realised_risk``, ``objective``,
    ``guard``, ``calls``, ``candidates``, ``cost``, and ``random``: the guardrail value of random routing at that cost.
    ``attrs["ends"]`` holds cost and guardrail value of Primary and Guardian alone.

    Raises
    ------
    InputError
        If a log lacks guardrail values, or Guardian scores.
    """
    for log in (known, test):
        log.need("guard", "guardian")
    assert known.guard is not None
    assert test.guard is not None
    assert test.guardian is not None
    router.calibrate(known.primary.scores, known.guard, known.guardian, mask=known.primary.mask)
    found = router.frontier(alphas)[["alpha", "lam"]]
    scene = (test.primary.scores, test.guardian, test.guard)
    rows: list[dict[str, float]] = []
    ends: list[tuple[float, float]] = []
    for lam in found["lam"]:
        if np.isnan(lam):
            rows.append({})
            continue
        router.lam_ = float(lam)
        compared = compare_routers(router, *scene, mask=test.primary.mask).set_index("router")
        ends = [(float(compared["cost"][name]), float(compared["guard"][name])) for name in ("primary", "guardian")]
        rows.append(measure(router, *scene, mask=test.primary.mask) | {"random": float(compared["guard"]["random"])})
    if not ends:
        raise InputError(f"alphas: none can be certified; the smallest that can is {router.alpha_min_:.4g}")
    frame = pd.concat([found, pd.DataFrame(rows)], axis=1)
    frame.attrs["ends"] = ends
    return frame
