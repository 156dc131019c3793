"""An alarm for a running router: has the traffic left what it was calibrated on, or does it lose more than promised?

Both alarms add up evidence like a gambler who may start anew at every query (a Shiryaev–Roberts statistic of e-values):
without drift it takes ``false_alarm_every`` queries or more, on average, until one goes off, however long it runs.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from touchstone.decisions.conformal_arbitrage.bounds import conditional_level
from touchstone.errors import InputError

__all__ = ["DriftAlarm"]

# Bets on conformal p-values and how readily money moves between them: the Simple Jumper, Vovk 2021.
_BETS = np.array([-1.0, 0.0, 1.0])
_JUMP = 0.01
# Bets on losses, as shares of the largest bet that cannot ruin.
_STAKES = np.array([0.1, 0.25, 0.5, 0.75])
# Chance that a calibration set drawn without any drift has a risk above the level that the losses are held against.
_DELTA = 0.05
# Margins that new ones are ranked among; with so many, one more changes no rank that matters.
_KEPT = 100_000


class DriftAlarm:
    """Watches the Primary's margins, which need no label, and losses, where answers are looked at afterwards.

    Parameters
    ----------
    margins : of calibration queries, how far the Primary's second option is below its first.
    alpha, B, n : of the calibration; losses are held against the level that the risk of a drawn calibration set stays
        below with probability 0.95, for alpha itself is kept on average only.
    false_alarm_every : queries from one false alarm to the next, on average at least; 10,000 by default.
    seed : breaks ties among ranks.

    Attributes
    ----------
    margin_alarm, risk_alarm : whether each has gone off; both stay on until :meth:`reset`.
    queries, losses : number of each seen.
    level : what mean losses are held against.

    Raises
    ------
    InputError
        If ``false_alarm_every`` is below 2.
    """

    def __init__(
        self,
        margins: Sequence[float] | NDArray[np.float64],
        *,
        alpha: float,
        B: float = 1.0,
        n: int,
        false_alarm_every: int = 10_000,
        seed: int = 0,
    ) -> None:
        if false_alarm_every < 2:
            raise InputError(f"false_alarm_every: expected 2 or more, got {false_alarm_every!r}")
        self.false_alarm_every = false_alarm_every
        self.level = B * conditional_level(alpha / B, n, _DELTA)
        self._bound = B
        self._reference = sorted(map(float, margins))
        self._rng = np.random.default_rng([seed, 21])
        self.queries = self.losses = 0
        self.reset()

    def reset(self) -> None:
        """Forget the evidence, not the margins that were seen."""
        self.margin_alarm = self.risk_alarm = False
        self._capital = np.zeros(len(_BETS))
        self._wealth = np.zeros(len(_STAKES))

    @property
    def margin_evidence(self) -> float:
        """Evidence that margins have changed; the alarm goes off at ``false_alarm_every``."""
        return float(self._capital.sum())

    @property
    def risk_evidence(self) -> float:
        """Evidence that losses are above the level; the alarm goes off at ``false_alarm_every``."""
        return float(self._wealth.mean())

    def see(self, margin: float) -> bool:
        """Take in the margin of a query; true once the alarm is on.

        A margin is ranked among those of the calibration and those seen before: as long as all are exchangeable, ranks
        are independent and uniform.
        """
        self.queries += 1
        above = len(self._reference) - bisect.bisect_right(self._reference, margin)
        same = len(self._reference) - above - bisect.bisect_left(self._reference, margin)
        p = (above + self._rng.random() * (same + 1)) / (len(self._reference) + 1)
        if len(self._reference) < _KEPT:
            bisect.insort(self._reference, margin)
        total = self._capital.sum()
        moved = (1 - _JUMP) * self._capital + _JUMP * total / len(_BETS) + 1 / len(_BETS)
        # Once off, evidence no longer matters; its growth is held so that it stays a number.
        self._capital = np.minimum(moved * (1 + _BETS * (p - 0.5)), 1e300)
        self.margin_alarm = self.margin_alarm or self.margin_evidence >= self.false_alarm_every
        return self.margin_alarm

    def lose(self, loss: float) -> bool:
        """Take in the loss of an answer that was looked at afterwards; true once the alarm is on.

        Raises
        ------
        InputError
            If the loss lies outside [0, B].
        """
        if not 0 <= loss <= self._bound:
            raise InputError(f"loss {loss!r}: expected a number in [0, {self._bound:g}]")
        self.losses += 1
        level = self.level / self._bound
        grown = (self._wealth + 1) * (1 + _STAKES * (loss / self._bound / level - 1))
        self._wealth = np.minimum(grown, 1e300)
        self.risk_alarm = self.risk_alarm or self.risk_evidence >= self.false_alarm_every
        return self.risk_alarm

    def summary(self) -> dict[str, float | int | bool]:
        """What it has seen, as plain values."""
        return {
            "margin_alarm": self.margin_alarm,
            "risk_alarm": self.risk_alarm,
            "margin_evidence": self.margin_evidence,
            "risk_evidence": self.risk_evidence,
            "threshold": self.false_alarm_every,
            "queries": self.queries,
            "losses": self.losses,
        }
