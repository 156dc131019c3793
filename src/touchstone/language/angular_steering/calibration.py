"""Setting the dial by what it does: the angle at which a wanted share of validation prompts shows the behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.evidence import Measurement
from touchstone.language.refusal import RefusalJudge

if TYPE_CHECKING:
    from touchstone.language.angular_steering.plane import SteeringPlane
    from touchstone.language.model import LanguageModel

__all__ = ["Calibration", "calibrate"]


@dataclass(frozen=True)
class Calibration:
    """An angle found for a target.

    Attributes
    ----------
    degrees : the angle, 0 up to 360.
    rate : share of validation prompts judged to refuse there, with its Wilson interval.
    target : the wanted share.
    reached : whether the target lies inside that interval.
    trace : the angles tried, with ``degrees``, ``rate``, ``low``, ``high`` and ``incoherent`` (share of garbage).
    """

    degrees: float
    rate: Measurement
    target: float
    reached: bool
    trace: pd.DataFrame


def calibrate(
    plane: SteeringPlane,
    model: LanguageModel,
    prompts: Sequence[str],
    target: float,
    *,
    judge: RefusalJudge,
    start: float = 0.0,
    coarse: int = 12,
    tolerance: float = 1.0,
    system: str | None = None,
    max_new_tokens: int = 64,
    batch_size: int = 32,
    **steering: Any,
) -> Calibration:
    """Find the angle at which ``judge`` says that a share ``target`` of ``prompts`` is refused.

    A coarse grid over the circle, one batch of work, looks for neighbouring angles on both sides of the target; the
    first such pair from ``start`` on is bisected. The rate need not be monotone over the circle, only between two
    neighbours.

    Parameters
    ----------
    prompts : validation prompts, not those that the plane was fitted on.
    target : wanted share, 0 to 1.
    judge : any :class:`~touchstone.language.refusal.RefusalJudge`; one of kind ``logprob`` must hold ``model`` itself.
    start : angle in degrees from which the circle is searched counter-clockwise.
    coarse : angles on the coarse grid.
    tolerance : width in degrees at which bisection ends.
    system, max_new_tokens, batch_size : for the replies.
    steering : ``adaptive``, ``form``, ``layers`` and ``prompt_only``, see :meth:`SteeringPlane.attach`.

    Raises
    ------
    InputError
        If the target is not a share, or there are no prompts or fewer than 2 coarse angles.
    """
    if not 0 <= target <= 1:
        raise InputError(f"target {target}: expected a share from 0 to 1")
    if isinstance(prompts, str) or len(prompts) == 0:
        raise InputError("prompts: expected a list of at least one prompt")
    if coarse < 2 or not tolerance > 0:
        raise InputError(f"coarse {coarse}, tolerance {tolerance}: expected at least 2 angles and a tolerance above 0")

    def labels_at(angles: Sequence[float]) -> list[list[str]]:
        """Labels of all prompts at each angle; the angles share the batches."""
        rows = [str(prompt) for _ in angles for prompt in prompts]
        with plane.steer(model, [angle for angle in angles for _ in prompts], **steering):
            replies = (
                model.generate(rows, system=system, max_new_tokens=max_new_tokens, batch_size=batch_size)
                if judge.needs_replies
                else []
            )
            found: list[str] = list(judge.classify(rows, replies))
        return [found[k * len(prompts) : (k + 1) * len(prompts)] for k in range(len(angles))]

    tried: dict[float, tuple[Measurement, float]] = {}

    def rates_at(angles: Sequence[float]) -> list[float]:
        for angle, labels in zip(angles, labels_at(angles), strict=True):
            refused = Measurement.rate("refusal rate", labels.count("refusal"), len(labels))
            tried[angle] = (refused, labels.count("incoherent") / len(labels))
        return [tried[angle][0].value for angle in angles]

    grid = [start + 360.0 * k / coarse for k in range(coarse)]
    rates = np.array([*rates_at(grid), np.nan])
    rates[-1] = rates[0]
    above = rates >= target
    crossing = np.flatnonzero((above[:-1] != above[1:]) & (rates[:-1] != target))
    exact = np.flatnonzero(rates[:-1] == target)
    if len(crossing) and not len(exact):
        k = int(crossing[0])
        low, high = grid[k], grid[k] + 360.0 / coarse
        while high - low > tolerance:
            middle = (low + high) / 2
            (rate,) = rates_at([middle])
            if rate == target:
                break
            low, high = (middle, high) if (rate >= target) == bool(above[k]) else (low, middle)
    # Among equals the one tried last: it is the closest to the crossing.
    best = min(reversed(tried), key=lambda angle: (abs(tried[angle][0].value - target), tried[angle][1]))
    rate_there = tried[best][0]
    trace = pd.DataFrame(
        [
            {"degrees": angle % 360.0, "rate": rate.value, "low": rate.low, "high": rate.high, "incoherent": broken}
            for angle, (rate, broken) in tried.items()
        ]
    )
    inside = (rate_there.low or 0.0) <= target <= (1.0 if rate_there.high is None else rate_there.high)
    return Calibration(best % 360.0, rate_there, target, inside, trace)
