"""Pictures of the check and the study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.evidence import Figure
from touchstone.language.isolation_continuity.curve import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

__all__ = ["curve", "edits", "periods", "profile", "recall"]

# Okabe and Ito's colours, told apart by readers who see few.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def curve(panels: Mapping[str, pd.DataFrame], name: str = "curve") -> Figure:
    """Mean TV over the share of changed tokens, a line a length, one panel a curve; single changes are hollow."""
    figure, axes = _panels(len(panels))
    for axis, (heading, rows) in zip(axes, panels.items(), strict=True):
        table = summary(rows)
        for k, (length, part) in enumerate(table.groupby("length")):
            line = part.sort_values("fraction")
            axis.plot(line["fraction"], line["tv_mean"], color=_COLOURS[k], marker=_MARKERS[k], label=f"N = {length}")
            single = line[line["wanted"] == 0]
            axis.plot(
                single["fraction"], single["tv_mean"], _MARKERS[k], color=_COLOURS[k], markerfacecolor="white", zorder=3
            )
        axis.set_xscale("log")
        axis.set_ylim(0, max(0.05, 1.08 * float(table["tv_mean"].max())))
        axis.set_title(heading, fontsize=12, loc="left")
        axis.set_ylabel("mean TV", fontsize=11)
        axis.legend(fontsize=9, frameon=False)
    axes[-1].set_xlabel("share of the body that changed (hollow: one token)", fontsize=11)
    return Figure.draw(name, "How far the prediction moves with the share of changed tokens", figure)


def periods(panels: Mapping[str, pd.DataFrame]) -> Figure:
    """P of the rare symbol where it is due and where it is not, over the period."""
    figure, axes = _panels(len(panels))
    for axis, (heading, table) in zip(axes, panels.items(), strict=True):
        rows = table[table["period"] > 0]
        for k, (column, label) in enumerate(
            (
                ("due_prob", "P(rare | due)"),
                ("due_rival_prob", "P(common | due)"),
                ("false_alarm", "P(rare | not due)"),
                ("due_acc", "accuracy where due"),
            )
        ):
            style = "--" if column == "due_acc" else "-"
            axis.plot(
                rows["period"], rows[column], style, color=_COLOURS[k], marker=_MARKERS[k], markersize=5, label=label
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(rows["period"], [str(p) for p in rows["period"]], fontsize=8)
        axis.minorticks_off()
        axis.set_ylim(-0.03, 1.05)
        axis.set_title(heading, fontsize=12, loc="left")
        if axis is axes[0]:
            axis.legend(fontsize=9, frameon=False, loc="center left")
    axes[-1].set_xlabel("period p (distance to the constant pattern is 1/p)", fontsize=11)
    return Figure.draw("periods", "Which periods the model holds", figure)


def profile(panels: Mapping[str, pd.DataFrame]) -> Figure:
    """TV of one change over its position."""
    figure, axes = _panels(1)
    for k, (heading, rows) in enumerate(panels.items()):
        means = rows.groupby("position")["tv"].mean()
        axes[0].plot(means.index, means, color=_COLOURS[k], marker=_MARKERS[k], markersize=4, label=heading)
    axes[0].axhline(0.01, color="0.35", linewidth=1.0, linestyle=":", label="dead below")
    axes[0].set_yscale("log")
    axes[0].set_xlabel("position of the changed token", fontsize=11)
    axes[0].set_ylabel("TV", fontsize=11)
    axes[0].legend(fontsize=9, frameon=False)
    return Figure.draw("profile", "Where a single change still reaches the prediction", figure)


def edits(rows: pd.DataFrame) -> Figure:
    """|change of the answer| over the prompt's length, by kind of edit."""
    figure, axes = _panels(1, 3.6)
    for k, (kind, part) in enumerate(rows.groupby("kind", sort=False)):
        axes[0].scatter(
            part["tokens"],
            np.maximum(part["delta"].abs(), 1e-5),
            s=26,
            color=_COLOURS[k % 7],
            marker=_MARKERS[(k + k // 7) % 7],
            alpha=0.8,
            label=str(kind),
        )
    axes[0].set_xscale("log")
    axes[0].set_yscale("log")
    axes[0].set_xlabel("tokens of the prompt", fontsize=11)
    axes[0].set_ylabel("|change of P(answer)|", fontsize=11)
    axes[0].legend(fontsize=8, frameon=False, ncols=2)
    return Figure.draw("edits", "How far an edit that turns the right answer moves the model's", figure)


def recall(table: pd.DataFrame, trained: int) -> Figure:
    """TV between 0…0| and 10…0|, and accuracy on random strings, over the number of bits, by architecture."""
    figure, axes = _panels(2)
    for k, (name, rows) in enumerate(table.groupby("network", sort=False)):
        options: dict[str, Any] = {"color": _COLOURS[k % 7], "marker": _MARKERS[k % 7], "markersize": 4}
        axes[0].plot(rows["bits"], rows["tv"], label=str(name), **options)
        axes[1].plot(rows["bits"], rows["hits"] / rows["rows"], **options)
    for axis, label in zip(axes, ("TV, 0…0| against 10…0|", "accuracy, random strings"), strict=True):
        axis.axvline(trained, color="0.35", linewidth=1.0, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_ylim(-0.03, 1.05)
        axis.set_ylabel(label, fontsize=11)
    axes[0].legend(fontsize=9, frameon=False)
    axes[1].set_xlabel("bits (dotted: longest in training)", fontsize=11)
    return Figure.draw("recall", "First-bit recall: the constant prompt captures its neighbour", figure)


def _panels(count: int, height: float = 3.0) -> tuple[MatplotlibFigure, list[Any]]:
    from matplotlib.figure import Figure as MatplotlibFigure

    figure = MatplotlibFigure(figsize=(6.0, height * count + 0.4), layout="constrained")
    axes = figure.subplots(count, 1, squeeze=False)[:, 0]
    for axis in axes:
        axis.grid(color="0.88", linewidth=0.8)
        axis.set_axisbelow(True)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        axis.tick_params(labelsize=10)
    return figure, list(axes)
