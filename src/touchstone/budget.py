"""A time budget for an audit: how much each check may measure, and which no longer fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["Budget", "Cost", "slowness"]

# Eight greedy replies of sixteen tokens by the embedded model on two idle cores.
_PROBE = [
    f"Write one sentence about {what}." for what in ("sand", "tea", "rain", "ink", "bees", "maps", "salt", "wool")
]
_PROBE_TOKENS = 16
_PROBE_SECONDS = 3.0


@dataclass(frozen=True)
class Cost:
    """What a check costs, and the setting with which the cost grows in proportion.

    Attributes
    ----------
    seconds : at default settings, on the embedded model and two idle cores.
    setting : name of the setting, a whole number.
    least, most : bounds within which a budget may choose it: fewer would say nothing, more is not there.
    fixed : seconds of ``seconds`` that do not depend on it.
    """

    seconds: float
    setting: str
    least: int
    most: int
    fixed: float = 0.0


@dataclass
class Budget:
    """Seconds that are left, shared among the checks that are left in proportion to what they cost.

    Attributes
    ----------
    seconds : of the whole audit.
    slowness : how many times slower than the embedded model on two idle cores; corrected by every check that ends.
    clock : seconds that never go back.
    """

    seconds: float
    slowness: float = 1.0
    clock: Callable[[], float] = time.monotonic
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.clock() + self.seconds

    @property
    def left(self) -> float:
        """Seconds until the end; negative after it."""
        return self._end - self.clock()

    def fit(self, settings: Any, named: Sequence[str], cost: Cost | None, later: Sequence[Cost | None]) -> Any | None:
        """Settings with which a check fits, ``None`` if not even the smallest does.

        Parameters
        ----------
        settings : the check's settings, with those that the plan names.
        named : settings that the plan names; they stay as they are.
        cost : of this check; ``None`` is taken as unknown, and the check runs as it is while any time is left.
        later : costs of the checks after it.
        """
        if self.left <= 0:
            return None
        if cost is None:
            return settings
        default = _default(settings, cost)
        growing = (cost.seconds - cost.fixed) * self.slowness / default
        fixed = cost.fixed * self.slowness
        if cost.setting in named:
            return settings if fixed + growing * getattr(settings, cost.setting) <= self.left else None
        whole = sum(c.seconds for c in (cost, *later) if c is not None)
        share = self.left * cost.seconds / whole
        wanted = int((share - fixed) / growing)
        if wanted < cost.least:
            return (
                replace(settings, **{cost.setting: cost.least}) if fixed + growing * cost.least <= self.left else None
            )
        return replace(settings, **{cost.setting: min(wanted, max(cost.most, default))})

    def learn(self, settings: Any, cost: Cost | None, seconds: float) -> None:
        """Correct the slowness by what a check took with ``settings``."""
        if cost is None:
            return
        share = getattr(settings, cost.setting) / _default(settings, cost)
        expected = cost.fixed + (cost.seconds - cost.fixed) * share
        self.slowness = (self.slowness * seconds / expected) ** 0.5


def _default(settings: Any, cost: Cost) -> int:
    return int(getattr(type(settings)(), cost.setting))


def slowness(subject: Any) -> float:
    """How many times slower ``subject`` writes a few short replies than the embedded model on two idle cores."""
    subject.generate(_PROBE[:1], max_new_tokens=2)
    start = time.perf_counter()
    subject.generate(_PROBE, max_new_tokens=_PROBE_TOKENS)
    return max((time.perf_counter() - start) / _PROBE_SECONDS, 0.02)
