"""Pictures of an audit: curves between their extremes, groups, and measures over the accuracy deficit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from touchstone.decisions.monoculture.measures import Curve
from touchstone.decisions.monoculture.statistics import GroupRates
from touchstone.drawing import axes
from touchstone.evidence import Figure

__all__ = ["curves", "groups", "lines", "sweep"]

_OBSERVED, _INDEPENDENT, _MONOCULTURE = "#17508c", "#b3541e", "#666666"


def curves(found: Mapping[str, Curve], name: str = "curves", title: str = "") -> Figure:
    """Agreement of pairs and recourse of cases, beside independent errors and strict monoculture."""
    from matplotlib.figure import Figure as Canvas

    fig = Canvas(figsize=(4.6 * len(found), 3.6), layout="constrained")
    for k, (what, curve) in enumerate(found.items()):
        ax = fig.add_subplot(1, len(found), k + 1)
        ax.grid(True, color="#dddddd")
        ax.spines[["top", "right"]].set_visible(False)
        style: dict[str, Any] = {"drawstyle": "steps-post" if what == "recourse" else "default"}
        most = "strict monoculture" if what == "recourse" else "most that these rates allow"
        ax.plot(curve.x, curve.monoculture, color=_MONOCULTURE, ls="--", label=most, **style)
        ax.plot(curve.x, curve.independent, color=_INDEPENDENT, ls=":", lw=2, label="independent errors", **style)
        ax.plot(curve.x, curve.y, color=_OBSERVED, lw=2.2, label="observed", **style)
        if what == "recourse":
            ax.set(xlabel="share of models that accept", ylabel="share of people accepted by at most that")
            ax.set_ylim(-0.02, 1.02)
        else:
            ax.set(xlabel="quantile of pairs", ylabel="agreement of the pair", xlim=(0, 1))
            ax.set_ylim(top=1.01)
        ax.legend(frameon=False, fontsize=8)
    return Figure.draw(name, title or "Agreement of pairs, and recourse of people, between both extremes", fig)


def groups(name: str, rates: GroupRates) -> Figure:
    """Share without recourse in each group of an attribute."""
    fig, ax = axes(6.0, 0.42 * len(rates.names) + 1.1)
    y = np.arange(len(rates.names))[::-1]
    value = np.array([m.value for m in rates.none])
    low = np.array([m.value if m.low is None else m.low for m in rates.none])
    high = np.array([m.value if m.high is None else m.high for m in rates.none])
    ax.errorbar(value, y, xerr=[value - low, high - value], fmt="o", color=_OBSERVED, capsize=3)
    ax.set(yticks=y, xlabel="share refused by every model", xlim=(0, None), ylim=(-0.6, len(y) - 0.4))
    ax.set_yticklabels([f"{g} (n = {n})" for g, n in zip(rates.names, rates.cases, strict=True)])
    return Figure.draw(f"groups-{_slug(name)}", f"Who has no recourse, by {name}", fig)


def sweep(frame: pd.DataFrame) -> Figure:
    """Measures over the accuracy deficit that is allowed."""
    fig, ax = axes(6.4, 3.8)
    shown = {
        "agreement": ("mean agreement", "o-"),
        "baseline_agreement": ("agreement, independent errors", ":"),
        "full": ("full recourse", "s-"),
        "ambiguity": ("ambiguity", "^-"),
        "discrepancy": ("discrepancy", "v-"),
        "none": ("no recourse", "D-"),
    }
    for key, (label, style) in shown.items():
        ax.plot(frame["eps"], frame[key], style, ms=4, label=label)
    ax.set(xlabel="accuracy deficit that is allowed, ε", ylabel="share", ylim=(-0.02, 1.02))
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return Figure.draw("sweep", "Measures over the accuracy deficit that is allowed", fig)


def lines(frame: pd.DataFrame, x: str, columns: Mapping[str, str], name: str, title: str, xlabel: str) -> Figure:
    """Columns of a table over one of them."""
    fig, ax = axes(6.0, 3.6)
    for mark, (key, label) in zip("os^vDP", columns.items(), strict=False):
        ax.plot(frame[x], frame[key], f"{mark}-", ms=5, label=label)
    ax.set(xlabel=xlabel, ylim=(-0.02, 1.02))
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return Figure.draw(name, title, fig)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
