"""Pictures of the frontier, of what routers reach for their calls, and of the risk against its bound."""

from __future__ import annotations

import numpy as np
import pandas as pd

from touchstone.drawing import axes
from touchstone.evidence import Figure

__all__ = ["accuracy_over_calls", "deferral", "frontier", "risk_against_alpha", "trade_off"]

_OWN, _OTHER = "#17508c", "#b3541e"
_STYLES = {
    "arbitrage": ("o-", _OWN, "Conformal Arbitrage"),
    "random": ("--", "#666666", "random, same cost"),
    "margin": ("s-", _OTHER, "margin, free Guardian"),
    "confidence": ("^:", "#3f7f4f", "confidence"),
    "entropy": ("v:", "#8a6d1f", "entropy"),
    "learned": ("d:", "#7a4a8c", "learned"),
}


def accuracy_over_calls(frame: pd.DataFrame, title: str) -> Figure:
    """Mean accuracy of each router over its share of calls; columns ``router``, ``alpha``, ``calls``, ``accuracy``."""
    fig, ax = axes(6.6, 4.0)
    for name, (style, colour, label) in _STYLES.items():
        part = frame[frame["router"] == name].sort_values("calls")
        if len(part):
            width = 2.2 if name == "arbitrage" else 1.2
            ax.plot(part["calls"], part["accuracy"], style, color=colour, lw=width, ms=5, label=label)
    own = frame[frame["router"] == "arbitrage"]
    for alpha, calls, accuracy in own[["alpha", "calls", "accuracy"]].to_numpy(dtype=float):
        ax.annotate(f"α = {alpha:g}", (calls, accuracy), textcoords="offset points", xytext=(8, -6), fontsize=8)
    ax.set(xlabel="share of queries for which the Guardian is called", ylabel="accuracy")
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    return Figure.draw("accuracy", title, fig)


def trade_off(frame: pd.DataFrame) -> Figure:
    """Help over safety, means over repetitions, with the straight line of random mixtures."""
    fig, ax = axes(6.0, 4.0)
    means = frame.groupby("alpha").mean().sort_index()
    first = means.iloc[0]
    ends = np.array([[first["primary_safe"], first["primary_help"]], [first["guardian_safe"], first["guardian_help"]]])
    ax.plot(ends[:, 0], ends[:, 1], "--", color="#666666", label="mixtures of the two at random")
    ax.plot(means["safe"], means["help"], "o-", color=_OWN, lw=2.2, label="Conformal Arbitrage")
    for alpha, row in means.iterrows():
        ax.annotate(f"α = {alpha:g}", (row["safe"], row["help"]), textcoords="offset points", xytext=(6, 4), fontsize=8)
    for (x, y), name, place in zip(ends, ("Primary", "Guardian"), ((8, -3), (-8, -4)), strict=True):
        ax.plot(x, y, "s", color=_OTHER, ms=7)
        side = "left" if place[0] > 0 else "right"
        ax.annotate(name, (x, y), textcoords="offset points", xytext=place, ha=side, fontsize=9)
    ax.set(xlabel="safety, mean 1 − harm of the answer that is returned", ylabel="help")
    ax.legend(frameon=False, fontsize=8, loc="lower left")
    return Figure.draw("trade-off", "Help and safety at each allowed risk", fig)


def risk_against_alpha(parts: dict[str, pd.DataFrame]) -> Figure:
    """Mean test risk of the candidates over alpha with 95 % intervals; columns ``alpha``, ``risk``, ``half``."""
    fig, ax = axes(5.0, 4.0)
    top = 0.0
    for k, (name, frame) in enumerate(parts.items()):
        # Shifted a little, so that intervals at one alpha stand side by side.
        shift = 0.002 * (k - (len(parts) - 1) / 2)
        ax.errorbar(
            frame["alpha"] + shift, frame["risk"], yerr=frame["half"], fmt="os^Dv"[k % 5], ms=4, capsize=2, label=name
        )
        top = max(top, float(frame["alpha"].max()), float(frame["risk"].max()))
    ax.plot([0, 1.08 * top], [0, 1.08 * top], "--", color="#444444", lw=1, label="the bound")
    ax.set(xlabel="allowed risk α", ylabel="mean risk on test queries", xlim=(0, 1.08 * top), ylim=(0, 1.08 * top))
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    return Figure.draw("risk", "Candidate risk on test queries against the bound", fig)


def frontier(frame: pd.DataFrame, unit: str) -> Figure:
    """Guardrail value, or else the risk, over the cost of a query for many alphas; columns of :func:`traced`."""
    fig, ax = axes(6.4, 4.0)
    part = frame.dropna(subset=["lam"]).sort_values("cost")
    tested = "guard" in part
    what = ("guard", "mean guardrail value of what is returned") if tested else ("risk", "candidate risk")
    ax.plot(part["cost"], part[what[0]], "o-", color=_OWN, lw=2.2, label="Conformal Arbitrage")
    if tested:
        ends = part.attrs["ends"] if "ends" in part.attrs else frame.attrs["ends"]
        ax.plot([e[0] for e in ends], [e[1] for e in ends], "s--", color="#666666", label="mixtures at random")
    # Above the curve where it rises, and below where it falls; thresholds that are the same are one point.
    place, side = ((-6, 5), "right") if tested else ((6, 4), "left")
    shown = part.drop_duplicates("lam")
    for alpha, x, y in shown[["alpha", "cost", what[0]]].to_numpy(dtype=float)[:: max(1, len(shown) // 8)]:
        ax.annotate(f"α = {alpha:g}", (x, y), textcoords="offset points", xytext=place, ha=side, fontsize=8)
    ax.margins(x=0.14)
    ax.set(xlabel=f"cost of a query{f', {unit}' if unit else ''}", ylabel=what[1])
    ax.legend(frameon=False, fontsize=8, loc="lower right" if tested else "upper right")
    return Figure.draw("frontier", "What each allowed risk costs", fig)


def deferral(frame: pd.DataFrame, alpha: float) -> Figure:
    """Risk over the share of cases that are handed on; columns of the check's frontier."""
    fig, ax = axes(5.6, 3.6)
    for name, style, colour, label in (
        ("candidate_risk", "o-", _OWN, "kept and wrong"),
        ("realised_risk", "s:", _OTHER, "wrong in the end"),
    ):
        ax.plot(frame["deferred"], frame[name], style, color=colour, ms=4, label=label)
    ax.axhline(alpha, color="#444444", lw=1, ls="--", label=f"α = {alpha:g}")
    ax.set(xlabel="share of cases handed on", ylabel="share of cases", ylim=(0, None))
    ax.legend(frameon=False, fontsize=8)
    return Figure.draw("deferral", "What handing on cases buys", fig)
