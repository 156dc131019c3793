"""The words of a report: never one without its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from touchstone.decisions.monoculture import measures
from touchstone.decisions.monoculture.bits import pack

if TYPE_CHECKING:
    from touchstone.decisions.monoculture.statistics import Estimates
    from touchstone.decisions.monoculture.table import DecisionTable

__all__ = ["NEAR_INDEPENDENT", "NEAR_MONOCULTURE", "NEAR_MONOCULTURE_NONE", "describe", "flags"]

NEAR_MONOCULTURE, NEAR_MONOCULTURE_NONE, NEAR_INDEPENDENT = 0.95, 0.8, 0.05
"""Position of agreement, and share of the monoculture's value without recourse, from which a set counts as near it."""
_TIMES_RESOLUTION = 10


def describe(estimates: Estimates, models: int, cases: int) -> dict[str, Any]:
    """A verdict with its numbers, a line on arbitrariness and one on exclusion."""
    value, none = estimates.value, estimates.measured["none"]
    if models < 2:
        word = "one model only"
        lines = [
            f"One model is left, so agreement is not defined and recourse is 0 or 1: {value('none'):.1%} have none."
        ]
    else:
        position, ratio = value("position"), value("none_ratio")
        independent = 10 ** value("baseline_none_log10")
        low = none.value if none.low is None else none.low
        high = none.value if none.high is None else none.high
        if position >= NEAR_MONOCULTURE and ratio >= NEAR_MONOCULTURE_NONE:
            word = "near monoculture"
        elif position <= NEAR_INDEPENDENT and low <= independent <= high:
            word = "near strong multiplicity"
        else:
            word = "between"
        lines = [
            f"{word.capitalize()}: agreement {value('agreement'):.3f} is at {position:.2f} of the way from independent "
            f"errors ({value('baseline_agreement'):.3f}) to monoculture; {none.value:.3%} have no recourse, where "
            f"independent errors give {_percent(independent)} and monoculture {value('monoculture_none'):.3%} "
            f"({ratio:.2f} of it)."
        ]
    lines.append(f"Arbitrariness: for {value('arbitrary'):.1%}, between a quarter and three quarters of models accept.")
    lines.append(f"Exclusion: {none.value:.2%} are refused by every model{_range(none.low, none.high)}.")
    for name, rates in estimates.groups.items():
        if rates.ratio is not None and math.isfinite(rates.ratio.value):
            first, last = rates.none[0], rates.none[-1]
            lines.append(
                f"By {name}: {rates.names[0]} {first.value:.2%}, {rates.names[-1]} {last.value:.2%}, "
                f"ratio {rates.ratio.value:.2f}{_range(rates.ratio.low, rates.ratio.high, '.2f')}."
            )
    return {"word": word, "lines": lines, "cases": cases}


def flags(table: DecisionTable, success: NDArray[np.int8], content: Mapping[str, Any]) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = []
    if len(table.models) == 1:
        found.append("one model only: agreement is undefined, recourse is 0 or 1")
    constant = [name for name, rate in zip(table.models, content["positive_rate"], strict=True) if not 0 < rate < 1]
    if constant:
        found.append(_constant(table, success, constant))
    if content["dropped"]:
        found.append(
            f"{content['dropped']} of {content['n']} cases were decided by fewer than "
            f"{measures.LEAST_DECIDED:.0%} of the models and are left out of recourse"
        )
    exponent = content["recourse"]["baseline_none_log10"]
    if len(table.models) > 1 and math.log10(content["n"]) < math.log10(_TIMES_RESOLUTION) - exponent:
        found.append(
            f"below resolution: independent errors leave {_percent(10**exponent)} without recourse, which "
            f"{content['n']} cases cannot tell from none"
        )
    rates = [rate for rate in content["positive_rate"] if 0 < rate < 1]
    if rates and max(rates) < 0.05:
        found.append(
            "all models accept fewer than 5 % of all cases: having no recourse is then their rarity, not agreement"
        )
    return found


def _constant(table: DecisionTable, success: NDArray[np.int8], constant: list[str]) -> str:
    """The flag for models that decide all cases alike, with what the measures are without them."""
    text = f"{', '.join(constant[:5])} decide all cases alike"
    others = [m for m, name in enumerate(table.models) if name not in constant]
    if not others:
        return f"{text}; no other model is left"
    rest = success[others]
    shares = measures.shares(measures.levels(rest))
    text += f"; without them none {shares.none:.3f}, full {shares.full:.3f}"
    if len(others) > 1:
        agree, both = pack(rest).pairs()
        text += f", agreement {np.nanmean(measures.upper(agree / np.maximum(both, 1))):.3f}"
    return text


def _range(low: float | None, high: float | None, form: str = ".2%") -> str:
    if low is None:
        return ""
    if high is None:
        return f" (at least {format(low, form)})"
    return f" ({format(low, form)} to {format(high, form)})"


def _percent(share: float) -> str:
    return f"{share:.1e}" if 0 < share < 1e-5 else f"{share:.3%}"
