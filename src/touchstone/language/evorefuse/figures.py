"""Pictures of the study, drawn to be read on a phone, in colours that colour-blind readers can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.evidence import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

__all__ = ["gain", "search", "shortcut"]

# Okabe and Ito's palette; line style, marker and hatch repeat what colour says.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_HATCHES = ("", "//", "..")


def _panel(height: float) -> tuple[MatplotlibFigure, Any]:
    from matplotlib.figure import Figure as MatplotlibFigure

    figure = MatplotlibFigure(figsize=(5.4, height), layout="constrained")
    axis = figure.subplots()
    axis.grid(color="0.88", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(labelsize=10)
    return figure, axis


def search(curves: dict[str, tuple[np.ndarray, np.ndarray]], optimum: float) -> Figure:
    """Mean p(refuse) of the best so far against target calls; a single point for an arm that has no course."""
    figure, axis = _panel(4.0)
    for k, (arm, (calls, values)) in enumerate(curves.items()):
        if len(calls) > 1:
            axis.plot(calls, values, label=arm, color=_COLOURS[k], linestyle=_LINES[k % 4], linewidth=1.8)
        else:
            axis.plot(
                calls, values, label=arm, color=_COLOURS[k], marker="D", markersize=7, linestyle="none", clip_on=False
            )
    axis.axhline(optimum, color="0.35", linewidth=1)
    axis.annotate("optimum", (1, optimum), xytext=(2, -11), textcoords="offset points", fontsize=9, color="0.25")
    axis.set_xlabel("target calls a seed", fontsize=11)
    axis.set_ylabel("p(refuse) of the best so far", fontsize=11)
    axis.set_ylim(0, 1.02)
    axis.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    return Figure.draw("search", "Search: false alarms found at equal budget", figure)


def shortcut(rates: pd.DataFrame) -> Figure:
    """Refusal rate by kind of prompt for each model: bars are means over organisms, points the organisms."""
    figure, axis = _panel(4.0)
    kinds = [column for column in rates.columns if column not in ("organism", "model")]
    models = list(dict.fromkeys(rates["model"]))
    width = 0.8 / len(models)
    for k, model in enumerate(models):
        mine = rates[rates["model"] == model]
        x = np.arange(len(kinds)) + (k - (len(models) - 1) / 2) * width
        axis.bar(x, mine[kinds].mean(), width, label=model, color=_COLOURS[k], alpha=0.75, hatch=_HATCHES[k % 3],
                 edgecolor="white")  # fmt: skip
        for place, kind in zip(x, kinds, strict=True):
            axis.plot(np.full(len(mine), place), mine[kind], ".", color="black", markersize=5)
    axis.set_xticks(range(len(kinds)), [kind.replace(", ", ",\n") for kind in kinds], fontsize=10)
    axis.set_ylabel("refusal rate", fontsize=11)
    axis.set_ylim(0, 1.05)
    axis.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    return Figure.draw("shortcut", "Organisms: what training on the false alarms changes", figure)


def gain(table: pd.DataFrame, source: str) -> Figure:
    """Log mass of refusal openers of each seed: unchanged, best of N, and after the search."""
    figure, axis = _panel(3.4)
    columns = [c for c in ("seed", "best of N", "search") if c in table.columns]
    for i, row in enumerate(table.itertuples(index=False)):
        values = [getattr(row, c.replace(" ", "_"), None) for c in columns]
        values = [table.iloc[i][c] for c in columns]
        axis.plot(values, [i] * len(values), color="0.7", linewidth=1.5, zorder=1)
    for k, column in enumerate(columns):
        axis.plot(table[column], range(len(table)), "os^"[k], color=_COLOURS[k], markersize=8, label=column, zorder=2)
    axis.set_yticks(range(len(table)), [_short(text) for text in table["request"]], fontsize=9)
    axis.set_ylim(-0.6, len(table) - 0.4)
    axis.set_xlabel("log mass of refusal openers (nats)", fontsize=11)
    axis.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.22), ncols=3)
    return Figure.draw("gain", f"{source}: what the search gains", figure)


def _short(text: str) -> str:
    return text if len(text) <= 34 else f"{text[:33]}…"
