"""Beyond the paper: how often the bounds of a certified threshold are broken, where risks are known."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.decisions.selective_omniprediction.certifying import certified_threshold
from touchstone.evidence import Figure, Finding, Measurement, Table

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["certificates"]

_EPS, _GROUP_EPS, _DELTA = 0.1, 0.15, 0.1
_ROWS, _GROUP_SHARE = 1000, 0.3
# Scores are too sure: the truth lies this much closer to one half, and still closer in the group.
_SHRINK, _GROUP_SHRINK = 0.75, 0.6
_PIECES = 10


def certificates(count: int, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Thresholds from fresh rows of scores that are too sure, above all in a group; risks are integrals."""
    pieces = [(run.seed * 1000 + k, count // _PIECES) for k in range(_PIECES)]
    rows = pd.DataFrame(chain.from_iterable(run.map("certificates", partial(_one), pieces)))
    broken = (rows["error"] > _EPS) | (rows["group_error"] > _GROUP_EPS)
    plain = _risks(_EPS)
    finding = Finding.held_to(
        "certified-threshold",
        f"With scores that are too sure, certified bounds ({_EPS:g} of all cases, {_GROUP_EPS:g} of a group) are "
        f"broken in at most {_DELTA:g} of the repetitions, as promised.",
        Measurement.rate("repetitions with a broken bound", int(broken.sum()), len(rows)),
        f"<= {_DELTA:g}",
        Measurement("error over its bound where eps itself is the threshold", plain[0] / _EPS),
    )
    return [finding], [Table("certificates", "Certified thresholds and their true errors", rows)], []


def _one(piece: tuple[int, int]) -> list[dict[str, float]]:
    seed, count = piece
    rng = np.random.default_rng([seed, 11])
    found = []
    for _ in range(count):
        p, group = rng.random(_ROWS), rng.random(_ROWS) < _GROUP_SHARE
        y = (rng.random(_ROWS) < np.where(group, _truth(p, _GROUP_SHRINK), _truth(p, _SHRINK))).astype(int)
        threshold = certified_threshold(p, y, _EPS, group[:, None], group_eps=_GROUP_EPS, delta=_DELTA)
        error, group_error = _risks(threshold)
        found.append({"threshold": threshold, "error": error, "group_error": group_error})
    return found


def _truth(p: NDArray[np.float64], shrink: float) -> NDArray[np.float64]:
    return 0.5 + shrink * (p - 0.5)


def _risks(threshold: float) -> tuple[float, float]:
    """Share of wrong decisions among all cases, and in the group, of a score that is uniform on [0, 1]."""

    def risk(shrink: float) -> float:
        # Both ends alike: the integral over p up to the threshold of the probability of the outcome 1.
        return 2 * ((1 - shrink) / 2 * threshold + shrink * threshold**2 / 2)

    inside = risk(_GROUP_SHRINK)
    return _GROUP_SHARE * inside + (1 - _GROUP_SHARE) * risk(_SHRINK), inside
