"""The defender's margin: how far the model's own activations must be turned before a refusal flips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.language.angular_steering.arms import Rotation
from touchstone.language.angular_steering.sweeping import Contrast, fingerprint
from touchstone.run import Run

if TYPE_CHECKING:
    from touchstone.language.angular_steering.plane import Layers, SteeringPlane
    from touchstone.language.model import LanguageModel

__all__ = ["margins"]


def margins(
    plane: SteeringPlane,
    model: LanguageModel,
    prompts: Sequence[str],
    contrast: Contrast,
    *,
    layers: Mapping[str, Layers] | None = None,
    step: float = 30.0,
    tolerance: float = 4.0,
    system: str | None = None,
    batch_size: int = 32,
    run: Run | None = None,
) -> pd.DataFrame:
    """Smallest rotation off the model's natural angle that flips the sign of ``contrast``, for each prompt and layer
    set.

    Activations are rotated by φ without a gate: φ = 0 is the model as it is, so |φ| measures a departure from its
    natural angle. Both directions are searched outwards in steps until the sign has changed, and the step in which it
    did is bisected. What flips and flips back between two steps is not seen.

    Parameters
    ----------
    prompts : for instance those that the model refuses.
    contrast : refusals against answers; its sign is the verdict.
    layers : named layer sets, see :meth:`SteeringPlane.points`; all layers if not given.
    step, tolerance : width in degrees of the search's steps and of the bracket at its end.
    run : carries out one unit of work for each layer set and batch of prompts.

    Returns
    -------
    One row a prompt and layer set: ``layers``, ``prompt`` (index), ``natural`` (the contrast at φ = 0), ``margin``
    (degrees; NaN if nothing within 180° flips it), ``direction`` (the sign of φ; 0 if it does not flip).
    """
    if isinstance(prompts, str) or len(prompts) == 0:
        raise InputError("prompts: expected a list of at least one prompt")
    if not (0 < step <= 180 and tolerance > 0):
        raise InputError(f"step {step}, tolerance {tolerance}: expected a step up to 180 and a tolerance above 0")
    sets: dict[str, Any] = dict(layers or {"all": "all"})
    size = max(1, batch_size // 2)
    items = [[name, i, min(i + size, len(prompts))] for name in sets for i in range(0, len(prompts), size)]
    work = partial(_block, plane, model, tuple(prompts), contrast, sets, step, tolerance, system, batch_size)
    mark = fingerprint((model.source, plane, tuple(prompts), contrast, repr(sets), step, tolerance, system, batch_size))
    records: list[dict[str, Any]] = []
    for part in (run or Run()).map(f"margin [{mark}]", work, items):
        records += part
    frame = pd.DataFrame(records)
    frame["margin"] = frame["margin"].astype(float)
    return frame


def _block(
    plane: SteeringPlane,
    model: LanguageModel,
    prompts: tuple[str, ...],
    contrast: Contrast,
    sets: dict[str, Any],
    step: float,
    tolerance: float,
    system: str | None,
    batch_size: int,
    item: list[Any],
) -> list[dict[str, Any]]:
    """Margins of a few prompts in one layer set; every round is one batch with an angle a row."""
    name, first, last = item
    chosen = prompts[first:last]
    arm = Rotation(plane, adaptive=False, form="rotate", layers=sets[name])

    def score(rows: Sequence[int], angles: Sequence[float]) -> np.ndarray:
        with model.edited(arm.edits(model, angles), by_row=True):
            return contrast.score(model, [chosen[i] for i in rows], system=system, batch_size=batch_size)

    count = len(chosen)
    natural = score(range(count), [0.0] * count)
    # For each prompt and direction the bracket (kept, flipped]; flipped is NaN until a flip is seen.
    kept, flipped = np.zeros((count, 2)), np.full((count, 2), np.nan)
    signs = (1.0, -1.0)

    def search(pairs: list[tuple[int, int]], angles: np.ndarray) -> None:
        found = score([i for i, _ in pairs], [signs[s] * angle for (_, s), angle in zip(pairs, angles, strict=True)])
        for (i, s), angle, value in zip(pairs, angles, found, strict=True):
            if (value > 0) != (natural[i] > 0):
                flipped[i, s] = angle
            else:
                kept[i, s] = angle

    for k in range(1, math.ceil(180.0 / step) + 1):
        # A prompt whose one side has flipped need not be turned further on the other.
        pairs = [(i, s) for i in range(count) for s in (0, 1) if np.isnan(flipped[i]).all()]
        if not pairs:
            break
        search(pairs, np.full(len(pairs), min(180.0, k * step)))
    while True:
        pairs = [(i, s) for i in range(count) for s in (0, 1) if flipped[i, s] - kept[i, s] > tolerance]
        if not pairs:
            break
        search(pairs, np.array([(flipped[i, s] + kept[i, s]) / 2 for i, s in pairs]))
    records = []
    for i in range(count):
        record = {"layers": name, "prompt": first + i, "natural": float(natural[i]), "margin": None, "direction": 0}
        if not np.isnan(flipped[i]).all():
            s = int(np.nanargmin(flipped[i]))
            record |= {"margin": float(flipped[i, s]), "direction": int(signs[s])}
        records.append(record)
    return records
