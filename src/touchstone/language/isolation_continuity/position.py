"""Probe 2: where in the prompt a single change still reaches the prediction, and where it is ignored."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.language.isolation_continuity import divergence
from touchstone.language.isolation_continuity.bodies import Body
from touchstone.language.isolation_continuity.reading import next_log_probs
from touchstone.language.isolation_continuity.report import Report
from touchstone.run import Run

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["position_profile"]

_TOGETHER = 8


def position_profile(
    model: LanguageModel,
    body: Body,
    *,
    length: int = 128,
    points: int = 24,
    draws: int = 1,
    dead: float = 0.01,
    seed: int = 0,
    label: str = "position profile",
    run: Run | None = None,
) -> Report:
    """TV of the next-token distribution after one change at position j (arXiv 2505.10606).

    Neighbouring positions are read together, so that what lies in front of them is read once.

    Parameters
    ----------
    length : tokens of the body, N.
    points : positions, evenly spread over what may change.
    draws : different replacements at each position.
    dead : TV below which a position counts as dead.

    Returns
    -------
    Report with ``rows`` of ``position``, ``from_end`` (share of the body behind it), ``draw``, ``tv``, ``top1_same``;
    ``numbers``: ``recency`` (mean TV in the last tenth over mean TV in the first half) and ``dead_zone`` (share of
    positions whose mean TV is below ``dead``).
    """
    if length > len(body.ids):
        raise InputError(f"length {length}: the body {body.name!r} has {len(body.ids)} tokens")
    if length - body.guard < 10 or points < 10 or draws < 1:
        raise InputError("length, points, draws: expected at least 10 tokens that may change, 10 points and 1 draw")
    places = np.unique(np.linspace(0, length - body.guard - 1, points).round().astype(int)).tolist()
    items = [places[i : i + _TOGETHER] for i in range(0, len(places), _TOGETHER)]
    found = (run or Run()).map(label, partial(_unit, model, body, length, draws, seed), items)
    rows = pd.DataFrame([row for part in found for row in part])
    means = rows.groupby("position")["tv"].mean()
    where = means.index.to_numpy() / length
    early = float(means[where < 0.5].mean())
    late = means[where >= 0.9]
    # With a long guard, nothing in the last tenth may change: then the last positions that may.
    recent = float(late.mean() if len(late) else means.iloc[-1])
    numbers = {
        "recency": recent / early if early > 0 else float("nan"),
        "dead_zone": float((means < dead).mean()),
    }
    settings = {"body": body.name, "length": length, "draws": draws, "dead": dead}
    return Report("position", model.source, model.decode(body.head), seed, rows, numbers, settings)


def _unit(
    model: LanguageModel, body: Body, length: int, draws: int, seed: int, places: list[int]
) -> list[dict[str, float]]:
    base = [*body.head, *body.ids[:length]]
    keys = [(j, d) for j in places for d in range(draws)]
    edited = [body.edited(length, [j], np.random.default_rng([seed, j, d])) for j, d in keys]
    found = next_log_probs(model, [base, *edited], [len(base) - 1])[:, 0]
    tv = divergence.total_variation(found[0], found[1:])
    same = found[1:].argmax(-1) == found[0].argmax()
    return [
        {"position": j, "from_end": 1 - (j + 1) / length, "draw": d, "tv": float(tv[i]), "top1_same": float(same[i])}
        for i, (j, d) in enumerate(keys)
    ]
