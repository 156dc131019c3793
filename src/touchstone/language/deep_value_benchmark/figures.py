"""Pictures of rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from touchstone.drawing import axes
from touchstone.evidence import Figure, Measurement

__all__ = ["confounding", "probes", "rates"]


def rates(name: str, title: str, measured: Sequence[Measurement]) -> Figure:
    """Rates with their intervals against one half."""
    fig, ax = axes(height=0.45 * len(measured) + 1.2)
    y = np.arange(len(measured))[::-1]
    for place, one in zip(y, measured, strict=True):
        if one.low is not None and one.high is not None:
            ax.plot([one.low, one.high], [place, place], color="#17508c", linewidth=2)
        ax.plot(one.value, place, "o", color="#17508c")
    ax.axvline(0.5, color="#444444", linewidth=1, linestyle="--")
    ax.set(yticks=y, yticklabels=[one.name for one in measured], xlim=(0, 1), ylim=(-0.6, len(measured) - 0.4))
    ax.set_xlabel("share that took the value's option")
    return Figure.draw(name, title, fig)


def confounding(curve: pd.DataFrame, crosses: float) -> Figure:
    """The rate over the correlation of value and trait in the examples."""
    fig, ax = axes(height=3.4)
    ax.fill_between(curve["correlation"], curve["low"], curve["high"], color="#17508c", alpha=0.2, linewidth=0)
    ax.plot(curve["correlation"], curve["rate"], "o-", color="#17508c")
    ax.axhline(0.5, color="#444444", linewidth=1, linestyle="--")
    if np.isfinite(crosses):
        ax.plot(crosses, 0.5, "s", color="#d55e00")
        ax.annotate(f"ρ = {crosses:.2f}", (crosses, 0.5), textcoords="offset points", xytext=(8, 8))
    ax.set(xlabel="correlation ρ of value and trait in the examples", ylabel="value rate", ylim=(0, 1))
    return Figure.draw("confounding", "The value wins once enough examples go against the trait", fig)


def probes(frame: pd.DataFrame) -> Figure:
    """Accuracy of probes for values and traits by block."""
    fig, ax = axes(height=3.4)
    for kind, style in (("value", "o-"), ("trait", "s--")):
        part = frame[frame["kind"] == kind]
        spread = [part["accuracy"] - part["low"], part["high"] - part["accuracy"]]
        ax.errorbar(part["block"], part["accuracy"], yerr=spread, fmt=style, capsize=3, label=kind)
    ax.axhline(0.5, color="#444444", linewidth=1, linestyle="--")
    ax.set(xlabel="block", ylabel="accuracy in pairs, unseen phrases", ylim=(0.3, 1))
    ax.legend(frameon=False)
    return Figure.draw("probes", "Values and traits can be read from the model's states", fig)
