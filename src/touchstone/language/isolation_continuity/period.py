"""Probe 4: which periodic patterns the model holds, and which pairs of them exclude each other.

The sequence 0^{p−1}1 repeated is at a distance of 1/p from the constant one. Where the two must differ, their prefixes
end alike and are within 1/p, so that a continuous model predicts nearly the same after both: from some p on it cannot
hold both. One pass over a sequence gives all of its predictions; only the second half counts, since the first period
cannot be predicted by anyone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.errors import InputError
from touchstone.language.isolation_continuity.bodies import BINARY, symbol
from touchstone.language.isolation_continuity.reading import next_log_probs
from touchstone.language.isolation_continuity.report import Report
from touchstone.language.isolation_continuity.suffix import suffix_match
from touchstone.run import Run

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["PERIODS", "asymptotic_distance", "learnable_periods", "p_max", "pair_matrix", "periodic"]

PERIODS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_TOGETHER = 4


def periodic(period: int, length: int) -> NDArray[np.int64]:
    """0^{p−1}1 repeated to ``length``, as 0 and 1; period 0 stands for the constant 0."""
    steps = np.arange(length)
    return np.zeros(length, dtype=np.int64) if period == 0 else (steps % period == period - 1).astype(np.int64)


def asymptotic_distance(a: int, b: int) -> float:
    """Share of positions in which the patterns of two periods differ in the limit; 0 stands for the constant."""
    length = math.lcm(*(p for p in (a, b, 1) if p))
    return float((periodic(a, length) != periodic(b, length)).mean())


def learnable_periods(
    model: LanguageModel,
    *,
    periods: Sequence[int] = PERIODS,
    symbols: Sequence[str] = ("0", "1"),
    length: int = 256,
    prompt: str | None = BINARY,
    threshold: float = 0.9,
    seed: int = 0,
    label: str = "learnable periods",
    run: Run | None = None,
) -> Report:
    """Whether the model predicts each period's rare symbol when it is due, and only then (arXiv 2505.10606).

    Parameters
    ----------
    periods : p, each at least 2 and at most half of ``length``, so that the second half holds one that was seen.
    symbols : the common and the rare symbol, single tokens; words such as ``(" no", " yes")`` do as well.
    length : tokens of the body.
    prompt : the instruction in front; ``None`` for none.
    threshold : accuracy on due and on other positions from which a period counts as learnable.

    Returns
    -------
    Report whose ``rows`` hold one period each: ``period``, ``hamming_to_constant`` (1/p), ``due`` (positions),
    ``due_prob`` and ``due_rival_prob`` (mean P of the rare and of the common symbol where the rare one is due),
    ``due_acc``, ``notdue_acc`` (top-1 over the vocabulary), ``false_alarm`` (mean P of the rare symbol where it is not
    due), ``learnable``, and of the suffix-match baseline ``suffix_due_acc``, ``suffix_notdue_acc``. Period 0 is the
    constant pattern. ``numbers``: ``p_max``, ``false_alarm`` (its mean over periods) and ``suffix_p_max``.
    """
    wanted = sorted(set(periods))
    if not wanted or wanted[0] < 2:
        raise InputError("periods: expected whole numbers of 2 or more")
    if wanted[-1] > length // 2:
        raise InputError(f"period {wanted[-1]}: expected at most half of the length {length}")
    ids = [symbol(model, text) for text in symbols]
    if len(ids) != 2 or ids[0] == ids[1]:
        raise InputError(f"symbols {tuple(symbols)}: expected two, different as tokens of {model.source}")
    head = [] if prompt is None else model.encode([prompt])[0]
    every = [0, *wanted]
    items = [every[i : i + _TOGETHER] for i in range(0, len(every), _TOGETHER)]
    unit = partial(_unit, model, head, ids, length, threshold)
    found = [row for part in (run or Run()).map(label, unit, items) for row in part]
    rows = pd.DataFrame([{k: v for k, v in row.items() if k != "rare"} for row in found])
    real = rows[rows["period"] > 0]
    numbers = {
        "p_max": float(p_max(real)),
        "false_alarm": float(real["false_alarm"].mean()),
        "suffix_p_max": float(p_max(real.assign(learnable=real["suffix_learnable"]))),
    }
    settings = {
        "length": length,
        "symbols": list(symbols),
        "threshold": threshold,
        "rare": {str(row["period"]): row["rare"] for row in found},
    }
    return Report("period", model.source, model.decode(head), seed, rows, numbers, settings)


def p_max(rows: pd.DataFrame) -> int:
    """Largest period up to which every measured one is learnable; 0 if the smallest is not."""
    best = 0
    for period, learnable in sorted(zip(rows["period"], rows["learnable"], strict=True)):
        if not learnable:
            break
        best = int(period)
    return best


def pair_matrix(report: Report) -> pd.DataFrame:
    """Every pair of patterns of a report of :func:`learnable_periods`: how far apart, and whether both are held.

    Returns
    -------
    ``a``, ``b`` (periods; 0 is the constant), ``hamming`` (in the limit), ``held_a``, ``held_b``, ``joint``, and
    ``gap``: mean |P(rare | a) − P(rare | b)| where exactly one of them is due and both end in the common symbol. The
    theorem lets it be small; holding both needs it large. NaN where there is no such position.
    """
    rare = {int(p): np.array(values) for p, values in report.settings["rare"].items()}
    held = dict(zip(report.rows["period"], report.rows["learnable"], strict=True))
    length = int(report.settings["length"])
    start = length - len(next(iter(rare.values())))
    rows = []
    for a in sorted(rare):
        for b in sorted(p for p in rare if p > a):
            x, y = periodic(a, length), periodic(b, length)
            apart = (x != y)[start:] & (x[start - 1 : -1] == 0) & (y[start - 1 : -1] == 0)
            gap = float(np.abs(rare[a] - rare[b])[apart].mean()) if apart.any() else float("nan")
            rows.append(
                {"a": a, "b": b, "hamming": asymptotic_distance(a, b)}
                | {"held_a": bool(held[a]), "held_b": bool(held[b]), "joint": bool(held[a] and held[b]), "gap": gap}
            )
    return pd.DataFrame(rows)


def _unit(
    model: LanguageModel, head: list[int], ids: list[int], length: int, threshold: float, periods: Sequence[int]
) -> list[dict[str, Any]]:
    start = length // 2
    bodies = [[ids[bit] for bit in periodic(p, length)] for p in periods]
    after = [len(head) + t - 1 for t in range(start, length)]
    rows = []
    # One at a time where nothing is shared; the vocabulary times half the length is what memory has to hold.
    found = next_log_probs(model, [[*head, *body] for body in bodies], after)
    for period, body, logp in zip(periods, bodies, found, strict=True):
        due = periodic(period, length)[start:].astype(bool)
        top, p = logp.argmax(-1), np.exp(logp[:, ids].astype(float))
        baseline = suffix_match(body, ids)[start:]
        rows.append(
            {"period": int(period), "hamming_to_constant": 1.0 / period if period else 0.0, "due": int(due.sum())}
            | _scores(due, top == ids[1], top == ids[0], p, threshold, "")
            | _scores(due, baseline[:, 1] > 0.5, baseline[:, 0] > 0.5, baseline, threshold, "suffix_")
            | {"rare": [float(value) for value in p[:, 1]]}
        )
    return rows


def _scores(
    due: NDArray[np.bool_],
    says_rare: NDArray[np.bool_],
    says_common: NDArray[np.bool_],
    p: NDArray[np.float64],
    threshold: float,
    prefix: str,
) -> dict[str, Any]:
    # Of the constant pattern nothing is due; it is held if the common symbol is always predicted.
    on_due = float(says_rare[due].mean()) if due.any() else 1.0
    off_due = float(says_common[~due].mean())
    found: dict[str, Any] = {f"{prefix}due_acc": on_due, f"{prefix}notdue_acc": off_due}
    found[f"{prefix}learnable"] = min(on_due, off_due) >= threshold
    if not prefix:
        found["due_prob"] = float(p[due, 1].mean()) if due.any() else 0.0
        found["due_rival_prob"] = float(p[due, 0].mean()) if due.any() else 0.0
        found["false_alarm"] = float(p[~due, 1].mean())
    return found
