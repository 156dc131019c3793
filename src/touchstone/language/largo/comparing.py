"""Attacks side by side at one budget: what each broke, what it cost, and how long the guards held."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.evidence import Measurement
from touchstone.language.largo.result import Behaviour, LargoResult
from touchstone.language.largo.trial import Attack

__all__ = ["WITHIN", "leaderboard", "survival", "transfer"]

WITHIN = (1, 5, 15)
"""Numbers of texts tried at which success is reported: the best of many tries is not one text's success."""


def leaderboard(results: Sequence[LargoResult], within: Sequence[int] = WITHIN) -> pd.DataFrame:
    """One row an attack. Behaviours to whose bare goal the guard gave way are left out: they had nothing to break.

    Returns
    -------
    Columns ``attack``, ``n``, ``broke`` (share) with ``low`` and ``high`` (Wilson, 95 %), ``within_<k>`` for each of
    ``within`` (share broken within k texts tried), ``checks`` and ``tokens_forward`` (means), ``loss`` and
    ``perplexity`` (medians of the best text).

    Raises
    ------
    InputError
        If two attacks were not run on the same behaviours, or no result is left.
    """
    guarded = [one for one in results if not one.plain_broke]
    if not guarded:
        raise InputError("results: no behaviour that the bare goal left guarded")
    names = list(dict.fromkeys(one.attack for one in guarded))
    parts = {name: [one for one in guarded if one.attack == name] for name in names}
    first = sorted(one.goal for one in parts[names[0]])
    for name in names:
        if sorted(one.goal for one in parts[name]) != first:
            raise InputError(f"results: {name} and {names[0]} were not run on the same behaviours")
    return pd.DataFrame([_row(name, parts[name], within) for name in names])


def _row(name: str, results: Sequence[LargoResult], within: Sequence[int]) -> dict[str, object]:
    rate = Measurement.rate("broke", sum(one.broke for one in results), len(results))
    row: dict[str, object] = {"attack": name, "n": rate.n, "broke": rate.value, "low": rate.low, "high": rate.high}
    row |= {f"within_{k}": float(np.mean([one.broke_within(k) for one in results])) for k in within}
    row |= {what: float(np.mean([getattr(one, what) for one in results])) for what in ("checks", "tokens_forward")}
    return row | {what: _median([getattr(one, what) for one in results]) for what in ("loss", "perplexity")}


def survival(results: Sequence[LargoResult], budget: int, points: int = 60) -> pd.DataFrame:
    """Share of guards that hold after a number of token-forwards: columns ``attack``, ``tokens_forward``, ``holds``.

    Raises
    ------
    InputError
        If ``budget`` or ``points`` is below 1.
    """
    if budget < 1 or points < 1:
        raise InputError(f"budget {budget}, points {points}: expected 1 or more")
    grid = np.linspace(0, budget, points)
    rows = []
    for name in dict.fromkeys(one.attack for one in results):
        ends = np.array([_fell_at(one) for one in results if one.attack == name and not one.plain_broke])
        rows += [(name, float(x), float((ends > x).mean())) for x in grid if len(ends)]
    return pd.DataFrame(rows, columns=["attack", "tokens_forward", "holds"])


def transfer(
    found: Sequence[tuple[Behaviour, str]], models: dict[str, Attack], *, guarded_only: bool = True
) -> pd.DataFrame:
    """Whether texts found on one model break the guards of others of yours.

    Parameters
    ----------
    found : behaviours with texts.
    models : for each name an attack on that model, which holds its prompts and judges; it is not run.
    guarded_only : leave out texts whose bare goal a model does not guard.

    Returns
    -------
    Columns ``model``, ``broke`` (share), ``low``, ``high`` and ``n``.
    """
    if not found or not models:
        raise InputError("found, models: expected at least one each")
    rows = []
    for name, attack in models.items():
        hits = []
        for behaviour, text in found:
            plain, tried = attack.trial(behaviour).replies(["", text])
            if not (guarded_only and plain.broke):
                hits.append(tried.broke)
        rate = Measurement.rate(name, sum(hits), len(hits)) if hits else Measurement(name, float("nan"), n=0)
        rows.append((name, rate.value, rate.low, rate.high, rate.n))
    return pd.DataFrame(rows, columns=["model", "broke", "low", "high", "n"])


def _fell_at(one: LargoResult) -> float:
    return next((float(a.tokens_forward) for a in one.attempts if a.broke), float("inf"))


def _median(values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return float(np.median(known)) if known else float("nan")
