"""What the organism study reads off the table of its arms."""

from __future__ import annotations

import numpy as np
import pandas as pd

from touchstone.language.test_awareness.mediation import DoseResponse, dose_response
from touchstone.language.test_awareness.significance import Band, band

__all__ = ["arm_band", "beyond", "by_prompt", "each_arm", "guarded", "response_of", "strengths_of", "sweep", "swings"]


def guarded(frame: pd.DataFrame, cue: str) -> pd.DataFrame:
    """Rows of guarded prompts with a cue."""
    return frame[(frame["topics"] == "guarded") & (frame["cue"] == cue)]


def strengths_of(frame: pd.DataFrame, kind: str) -> list[float]:
    """Strengths of a kind of arm, 0 among them."""
    return sorted({0.0, *frame[frame["kind"] == kind]["strength"]})


def by_prompt(rows: pd.DataFrame, kind: str, strength: float, quantity: str = "executes") -> np.ndarray:
    """A quantity of every prompt in one arm, [prompts]."""
    found = rows[(rows["kind"] == kind) & (rows["strength"] == strength)].sort_values("group")
    values: np.ndarray = found[quantity].to_numpy()
    return values


def each_arm(rows: pd.DataFrame, quantity: str = "executes") -> list[np.ndarray]:
    """A quantity of every prompt, for each arm."""
    return [part.sort_values("group")[quantity].to_numpy() for _, part in rows.groupby("arm", sort=False)]


def sweep(frame: pd.DataFrame, kind: str, quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """Strengths, 0 among them, and the quantity of each guarded prompt with the cue ``fake``, [prompts, strengths]."""
    rows = guarded(frame, "fake")
    strengths = strengths_of(frame, kind)
    columns = [by_prompt(rows, kind if s else "base", s, quantity) for s in strengths]
    return np.array(strengths), np.stack(columns, axis=1)


def response_of(frame: pd.DataFrame, kind: str) -> DoseResponse:
    """How execution follows the strength."""
    strengths, behaviour = sweep(frame, kind, "executes")
    # Only the dose matters here: strength stands in for the score.
    return dose_response(strengths, np.broadcast_to(strengths, behaviour.shape), behaviour)


def swings(frame: pd.DataFrame, kind: str, strength: float) -> list[float]:
    """Mean P(execute | guarded, fake) at +strength minus that at −strength, of each direction of a kind."""
    rows = guarded(frame, "fake")
    means = rows[rows["kind"] == kind].groupby(["arm", "strength"], sort=False)["executes"].mean().reset_index()
    high, low = (means[means["strength"] == s]["executes"].to_list() for s in (strength, -strength))
    return [b - a for a, b in zip(low, high, strict=True)]


def arm_band(frame: pd.DataFrame, kind: str, random: str, strength: float) -> Band:
    """Shift of an arm beside those of the random directions at the same strength."""
    rows = guarded(frame, "fake")
    base = by_prompt(rows, "base", 0.0)
    at = rows[rows["strength"] == strength]
    shifts = [float((values - base).mean()) for values in each_arm(at[at["kind"] == random])]
    return band(float((by_prompt(rows, kind, strength) - base).mean()), shifts)


def beyond(found: Band, sign: int) -> bool:
    """Whether a shift lies beyond the random directions' range on the side of ``sign``."""
    return found.shift > max(0.0, found.high) if sign > 0 else found.shift < min(0.0, found.low)
