"""Pictures of the study and the check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from touchstone.drawing import axes
from touchstone.evidence import Figure

__all__ = ["blobs", "calibration", "coverage", "losses", "random_losses", "reliability", "selective"]

_COLOURS = {
    "multicalibrated": "#17508c",
    "isotonic": "#5b9bd5",
    "Platt": "#9ec3e6",
    "raw forest": "#999999",
    "raw base": "#999999",
    "confidence, same share": "#666666",
    "tree for the loss": "#b3541e",
    "Gini tree": "#e0a878",
    "split conformal": "#b3541e",
    "conformal by group": "#e0a878",
}
_OTHERS = "#2b7a4b"


def losses(mean: pd.DataFrame, rows: pd.DataFrame) -> Figure:
    """Total loss of each method for each of the six losses; small marks are single data sets."""
    fig, ax = axes(7.4, 3.8)
    order = [name for name in _COLOURS if name in mean.columns]
    for k, loss in enumerate(dict.fromkeys(rows["loss"])):
        for j, method in enumerate(order):
            x = k + (j - (len(order) - 1) / 2) * 0.1
            colour = _COLOURS[method]
            single = rows[(rows["loss"] == loss) & (rows["method"] == method)]["total"]
            ax.plot(np.full(len(single), x), single, ".", ms=3, color=colour, alpha=0.6)
            label = method if k == 0 else None
            ax.plot(
                x, mean.loc[loss, method], "D" if method == "multicalibrated" else "o", ms=6, color=colour, label=label
            )
    ax.set(ylabel="total loss on test rows", ylim=(0, None))
    ax.set_xticks(range(len(mean)), list(dict.fromkeys(rows["loss"])))
    ax.set_xlabel("loss, and price of abstaining where the outcome is 1 / 0")
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return Figure.draw("losses", "One predictor for six losses", fig)


def random_losses(frame: pd.DataFrame, ours: str, other: str) -> Figure:
    """Each random loss: what one predictor loses, against what a tree that was grown for it loses."""
    fig, ax = axes(4.6, 4.2)
    top = float(max(frame[ours].max(), frame[other].max())) * 1.05
    ax.plot([0, top], [0, top], "--", color="#666666", lw=1)
    for mark, (kind, part) in zip("os^", frame.groupby("loss"), strict=False):
        ax.plot(part[other], part[ours], mark, ms=4, alpha=0.7, label=str(kind))
    ax.set(
        xlabel="total loss, tree grown for the loss", ylabel="total loss, one predictor", xlim=(0, top), ylim=(0, top)
    )
    ax.legend(frameon=False, fontsize=8)
    return Figure.draw("random-losses", "Random losses and prices: below the line, one predictor loses less", fig)


def coverage(mean: pd.DataFrame) -> Figure:
    """Abstention of all and of the worst group, over coverage."""
    from matplotlib.figure import Figure as Canvas

    fig = Canvas(figsize=(8.6, 3.6), layout="constrained")
    panels = (
        ("set_coverage", "abstention", "coverage of all cases", "share of cases without a decision"),
        (
            "least_group_coverage",
            "most_group_abstention",
            "coverage of the group with the least",
            "abstention of the group with the most",
        ),
    )
    for k, (x, y, xlabel, ylabel) in enumerate(panels):
        ax = fig.add_subplot(1, 2, k + 1)
        ax.grid(True, color="#dddddd")
        ax.spines[["top", "right"]].set_visible(False)
        for method, part in mean.groupby("method", sort=False):
            ax.plot(part[x], part[y], "o-", ms=3.5, color=_COLOURS.get(str(method), _OTHERS), label=str(method))
        ax.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, 1))
        if k == 0:
            ax.legend(frameon=False, fontsize=8)
    return Figure.draw("coverage", "Abstention at equal coverage: lower is better", fig)


def calibration(frame: pd.DataFrame) -> Figure:
    """Calibration error of each group before and after, and what chance alone would show."""
    groups = list(dict.fromkeys(frame["group"]))
    fig, ax = axes(6.4, 0.34 * len(groups) + 1.2)
    y = np.arange(len(groups))[::-1]
    for predictor, part in frame.groupby("predictor", sort=False):
        values = part.set_index("group")["ece"].reindex(groups)
        ax.plot(values, y, "o", ms=6, color=_COLOURS.get(str(predictor), _OTHERS), label=str(predictor))
    chance = (
        frame[frame["predictor"] == frame["predictor"].iloc[-1]].set_index("group")["ece_if_calibrated"].reindex(groups)
    )
    ax.plot(chance, y, "|", ms=12, mew=2, color="#666666", label="by chance, if calibrated")
    ax.set(xlabel="calibration error (ECE, ten bins) on test rows", xlim=(0, None))
    ax.set_yticks(y, groups)
    ax.legend(frameon=False, fontsize=8)
    return Figure.draw("calibration", "Calibration error of each group", fig)


def blobs(rows: pd.DataFrame) -> Figure:
    """Error where something is said, over the share of cases for which it is."""
    fig, ax = axes(6.0, 3.6)
    lines = (("conformal", "#b3541e", "split conformal, same trees"), ("conformal, pruned", "#e0a878", "pruned trees"))
    for k, (_, part) in enumerate(rows.groupby("seed")):
        for method, colour, label in lines:
            one = part[part["method"] == method]
            name = label if k == 0 else None
            ax.plot(one["predicted_share"], one["error"], ".-", color=colour, lw=0.8, ms=3, label=name)
        ours = part[part["method"] == "forests"]
        name = "two forests" if k == 0 else None
        ax.plot(ours["predicted_share"], ours["error"], "D", color="#17508c", ms=4, label=name)
    ax.set(xlabel="share of cases that is predicted", ylabel="error there", xlim=(0, 1.02), ylim=(0, None))
    ax.legend(frameon=False, fontsize=8)
    return Figure.draw("blobs", "Two forests that must agree, and split conformal sets", fig)


def reliability(curves: dict[str, pd.DataFrame]) -> Figure:
    """Share of outcomes over probability, ten bins, for each model."""
    fig, ax = axes(4.8, 4.2)
    ax.plot([0, 1], [0, 1], "--", color="#666666", lw=1)
    for name, frame in curves.items():
        ax.plot(frame["probability"], frame["outcome"], "o-", ms=4, label=name)
    ax.set(
        xlabel="probability that was given, mean of the bin",
        ylabel="share of favourable outcomes",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    ax.legend(frameon=False, fontsize=8)
    return Figure.draw("reliability", "Probabilities and what came true", fig)


def selective(frame: pd.DataFrame, eps: float) -> Figure:
    """Abstention and wrong decisions of each group, with intervals."""
    from matplotlib.figure import Figure as Canvas

    fig = Canvas(figsize=(7.6, 0.32 * len(frame) + 1.3), layout="constrained")
    y = np.arange(len(frame))[::-1]
    first: Any = None
    for k, (name, label) in enumerate((("abstention", "share without a decision"), ("error", "share decided wrongly"))):
        ax = fig.add_subplot(1, 2, k + 1)
        ax.grid(True, color="#dddddd")
        ax.spines[["top", "right"]].set_visible(False)
        value = frame[name].to_numpy(float)
        ends = [np.nan_to_num(np.abs(frame[f"{name}_{end}"].to_numpy(float) - value)) for end in ("low", "high")]
        ax.errorbar(value, y, xerr=ends, fmt="o", ms=4, color="#17508c", capsize=3)
        if name == "error":
            ax.axvline(eps, ls="--", color="#b3541e", lw=1)
        ax.set(xlabel=label, xlim=(0, None), ylim=(-0.6, len(y) - 0.4))
        ax.set_yticks(
            y, [f"{g} (n = {n})" for g, n in zip(frame["group"], frame["n"], strict=True)] if first is None else []
        )
        first = ax
    return Figure.draw("selective", f"Abstention and errors at eps {eps:g}", fig)
