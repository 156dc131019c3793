"""The comparison: every arm on every task, with paired statistics, one denominator for all, and a verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.evidence import Measurement
from touchstone.language.test_awareness.arms import Arm
from touchstone.language.test_awareness.outcomes import Scorer, Task, frame_of
from touchstone.language.test_awareness.significance import Band, band, holm, paired_p
from touchstone.run import Run

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["AwarenessStudy", "Comparison", "fingerprint"]


@dataclass(frozen=True)
class Comparison:
    """Outcomes of every arm on every task.

    Attributes
    ----------
    outcomes : one row an arm and task: ``arm``, ``kind``, ``strength``, ``alpha``, ``task``, ``group``, ``side``,
        ``value`` (NaN where not known).
    arms : the arms, the untouched model first.
    """

    outcomes: pd.DataFrame
    arms: tuple[Arm, ...]

    def of(self, arm: str, side: str | None = None) -> pd.Series:
        """Outcomes of an arm by task, those not known left out."""
        rows = self.outcomes[self.outcomes["arm"] == arm]
        if rows.empty:
            raise InputError(f"arm {arm!r}: not in this comparison; it has {', '.join(a.name for a in self.arms)}")
        if side is not None:
            rows = rows[rows["side"] == side]
        found: pd.Series = rows.set_index("task")["value"].dropna()
        return found

    def rates(self) -> pd.DataFrame:
        """Means by arm and side, with one rule for all arms: over outcomes that are known.

        ``unknown`` counts the others, and ``mean_of_all`` takes them for 0, since published tables mix both rules.
        """
        records = []
        keys = ["arm", "kind", "strength", "side"]
        for key, rows in self.outcomes.groupby(keys, sort=False):
            known = rows["value"].dropna().to_numpy()
            found = _interval(known)
            records.append(
                dict(zip(keys, key, strict=True))
                | {
                    "mean": found.value,
                    "low": found.low,
                    "high": found.high,
                    "n": len(known),
                    "unknown": len(rows) - len(known),
                    "mean_of_all": float(known.sum() / len(rows)),
                }
            )
        return pd.DataFrame(records)

    def shifts(self) -> pd.DataFrame:
        """Each arm against the untouched model on the same tasks, by side: mean change, interval, flips and p (Holm
        over all)."""
        records = []
        for arm in self.arms[1:]:
            for side in self._sides():
                change = self.change(arm.name, side)
                found = _mean_of("change", change)
                records.append(
                    {
                        "arm": arm.name,
                        "kind": arm.kind,
                        "strength": arm.strength,
                        "side": side,
                        "shift": found.value,
                        "low": found.low,
                        "high": found.high,
                        "n": len(change),
                        "fell": int((change < 0).sum()),
                        "rose": int((change > 0).sum()),
                        "p": paired_p(change),
                    }
                )
        table = pd.DataFrame(records)
        table["holm_p"] = holm(table["p"].to_list())
        return table

    def differences(self) -> pd.DataFrame:
        """Difference in differences by arm: (arm − untouched) on real tasks minus the same on hypothetical ones, by
        pair."""
        records = []
        for arm in self.arms[1:]:
            found = _mean_of("difference in differences", self._by_pair(arm.name))
            records.append({"arm": arm.name, "kind": arm.kind, "strength": arm.strength, "difference": found.value,
                            "low": found.low, "high": found.high, "pairs": found.n})  # fmt: skip
        return pd.DataFrame(records)

    def cue_gap(self, arm: str = "base") -> Measurement:
        """Mean difference hypothetical − real within pairs."""
        real, made_up = self._grouped(arm, "real"), self._grouped(arm, "hypothetical")
        joined = pd.concat([real, made_up], axis=1, keys=["real", "hypothetical"]).dropna()
        return _mean_of("hypothetical − real", (joined["hypothetical"] - joined["real"]).to_numpy())

    def verdict(self, strength: float, *, kind: str | None = None, side: str | None = None) -> Band:
        """Where the direction's shift at ``strength`` lies among those of the random directions.

        Parameters
        ----------
        strength : signed.
        kind : kind of the arm in question; the direction itself if ``None``.
        side : tasks of one side only.
        """
        kinds = (kind,) if kind else ("edit", "residual")
        chosen = [arm for arm in self.arms if arm.kind in kinds and arm.strength == strength]
        if len(chosen) != 1:
            raise InputError(f"strength {strength:+g}: {len(chosen)} arms of kind {' or '.join(kinds)}; expected one")
        others = [arm for arm in self.arms if arm.kind == "random" and arm.strength == strength]
        shifts = [float(self.change(arm.name, side).mean()) for arm in others]
        return band(float(self.change(chosen[0].name, side).mean()), shifts)

    def resolved(self, side: str | None = None) -> bool:
        """Whether the direction's shift is outside the random band at every strength."""
        strengths = {arm.strength for arm in self.arms if arm.kind in ("edit", "residual")}
        return all(self.verdict(strength, side=side).resolved for strength in strengths)

    def _sides(self) -> list[str]:
        return list(dict.fromkeys(self.outcomes["side"]))

    def change(self, arm: str, side: str | None = None) -> np.ndarray:
        """An arm's outcomes minus the untouched model's, on tasks known in both."""
        base, here = self.of(self.arms[0].name, side), self.of(arm, side)
        joined = pd.concat([base, here], axis=1, keys=["base", "arm"]).dropna()
        if joined.empty:
            raise InputError(f"arm {arm!r}: no task whose outcome is known in it and without it")
        found: np.ndarray = (joined["arm"] - joined["base"]).to_numpy()
        return found

    def _grouped(self, arm: str, side: str) -> pd.Series:
        rows = self.outcomes[(self.outcomes["arm"] == arm) & (self.outcomes["side"] == side)]
        found: pd.Series = rows.dropna(subset=["value"]).groupby("group")["value"].mean()
        return found

    def _by_pair(self, arm: str) -> np.ndarray:
        change = {
            side: self._grouped(arm, side) - self._grouped(self.arms[0].name, side) for side in ("real", "hypothetical")
        }
        joined = pd.DataFrame(change).dropna()
        found: np.ndarray = (joined["real"] - joined["hypothetical"]).to_numpy()
        return found


@dataclass(frozen=True)
class AwarenessStudy:
    """Runs every arm on every task.

    Parameters
    ----------
    model : the model, untouched.
    arms : what to compare, the untouched model first; see :func:`~touchstone.language.test_awareness.arms.build_arms`.
    tasks : what to measure it on.
    scorer : how outcomes are scored.
    name : name of the step in the progress bar.
    arms_per_unit : arms that are one unit of work.
    """

    model: LanguageModel
    arms: Sequence[Arm]
    tasks: Sequence[Task]
    scorer: Scorer
    name: str = "arms"
    arms_per_unit: int = 4

    def run(self, run: Run | None = None) -> Comparison:
        """Measure all arms; raises :class:`InputError` if there is no untouched arm, or a name or task stands twice."""
        arms, tasks = tuple(self.arms), tuple(self.tasks)
        if not arms or arms[0].kind != "base":
            raise InputError("arms: expected the untouched model first")
        for what, names in (("arm", [arm.name for arm in arms]), ("task", [task.id for task in tasks])):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise InputError(f"{what} {sorted(twice)[0]!r}: stands twice")
        if not tasks:
            raise InputError("tasks: expected at least one")
        units = [
            list(range(i, min(i + self.arms_per_unit, len(arms)))) for i in range(0, len(arms), self.arms_per_unit)
        ]
        label = f"{self.name} [{fingerprint(self.model.source, arms, tasks, self.scorer)}]"
        work = partial(_measured, self.model, arms, tasks, self.scorer)
        frames = []
        for part in (run or Run()).map(label, work, units):
            for item in part:
                arm = arms[item["arm"]]
                frame = frame_of(tasks, item["values"])
                frame.insert(0, "arm", arm.name)
                frame.insert(1, "kind", arm.kind)
                frame.insert(2, "strength", arm.strength)
                frame.insert(3, "alpha", item["alpha"])
                frames.append(frame)
        return Comparison(pd.concat(frames, ignore_index=True), arms)


def _measured(
    model: LanguageModel, arms: tuple[Arm, ...], tasks: tuple[Task, ...], scorer: Scorer, unit: Sequence[int]
) -> list[dict[str, Any]]:
    """One unit of work: some arms on all tasks."""
    found = []
    for i in unit:
        with arms[i].on(model) as done:
            values = scorer(model, tasks, arms[i].system)
        found.append({"arm": i, "alpha": done["alpha"], "values": list(values)})
    return found


def fingerprint(*parts: Any) -> str:
    """Short fingerprint of what is worked on: a journal must not hand out the results of other work."""
    state = hashlib.sha256()
    for part in parts:
        _feed(state, part)
    return state.hexdigest()[:8]


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        state.update(str(value.shape).encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, list | tuple):
        state.update(f"[{len(value)}".encode())
        for item in value:
            _feed(state, item)
    elif value is None or isinstance(value, str | int | float | bool):
        state.update(repr(value).encode() + b";")
    else:
        # Of an object its kind and its settings; its repr would hold an address.
        state.update(f"{type(value).__qualname__}{getattr(value, '__qualname__', '')}".encode())
        for key, item in sorted(getattr(value, "__dict__", {}).items()):
            if item is None or isinstance(item, str | int | float | bool | tuple | np.ndarray):
                state.update(key.encode())
                _feed(state, item)


def _interval(values: np.ndarray) -> Measurement:
    if len(values) == 0:
        return Measurement("mean", float("nan"), n=0)
    if np.isin(values, (0, 1)).all():
        return Measurement.rate("rate", int(values.sum()), len(values))
    return Measurement.mean("mean", values)


def _mean_of(name: str, values: np.ndarray) -> Measurement:
    return Measurement(name, float("nan"), n=0) if len(values) == 0 else Measurement.mean(name, values)
