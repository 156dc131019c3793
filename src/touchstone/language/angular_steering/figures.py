"""Pictures of a sweep, drawn to be read on a phone: one column, large type, colours that colour-blind readers can
tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.evidence import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

__all__ = ["circle", "organism", "tone", "trade_off"]

# Okabe and Ito's palette; line style and marker repeat what colour says.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", "-.", ":", "-", "--", "-.")


def _panels(count: int, height: float = 2.6) -> tuple[MatplotlibFigure, list[Any]]:
    from matplotlib.figure import Figure as MatplotlibFigure

    figure = MatplotlibFigure(figsize=(5.4, height * count + 0.5), layout="constrained")
    axes = figure.subplots(count, 1, squeeze=False)[:, 0]
    for axis in axes:
        axis.grid(color="0.88", linewidth=0.8)
        axis.set_axisbelow(True)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        axis.tick_params(labelsize=10)
    return figure, list(axes)


def _line(axis: Any, k: int, x: Any, y: Any, label: str, **options: Any) -> None:
    settings = {"color": _COLOURS[k % 7], "linestyle": _LINES[k % 7], "marker": _MARKERS[k % 7], "markersize": 4.5}
    axis.plot(x, y, label=label, linewidth=1.8, **{**settings, **options})


def _around(axis: Any) -> None:
    axis.set_xlim(-6, 366)
    axis.set_xticks(range(0, 361, 60))
    axis.set_xlabel("angle θ (degrees)", fontsize=11)


def _closed(table: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Angles and values with the first repeated at 360°, so that the circle is seen to close."""
    mine = table.sort_values("value")
    x, y = mine["value"].to_numpy(), mine[column].to_numpy()
    return np.append(x, x[:1] + 360.0), np.append(y, y[:1])


def _legend(figure: MatplotlibFigure, axis: Any, columns: int = 2) -> None:
    """One legend above all panels: it is read first."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=10, frameon=False)


def circle(
    name: str,
    title: str,
    panels: Sequence[tuple[str, str, pd.DataFrame, float | None]],
    arms: dict[str, str],
) -> Figure:
    """Quantities over the circle, one panel each.

    Parameters
    ----------
    panels : for each its title, the label of its axis, a table with ``arm``, ``value``, ``mean`` and perhaps ``low``
        and ``high``, and the unsteered value.
    arms : label of each arm that is drawn.
    """
    figure, axes = _panels(len(panels))
    for axis, (heading, label, table, base) in zip(axes, panels, strict=True):
        for k, (arm, words) in enumerate(arms.items()):
            mine = table[table["arm"] == arm]
            if mine.empty:
                continue
            x, y = _closed(mine, "mean")
            _line(axis, k, x, y, words)
            if "low" in mine and mine["low"].notna().all():
                axis.fill_between(
                    x, _closed(mine, "low")[1], _closed(mine, "high")[1], color=_COLOURS[k], alpha=0.12, linewidth=0
                )
        if base is not None:
            axis.axhline(base, color="0.35", linewidth=1.4, linestyle=(0, (2, 2)), label="unsteered")
        axis.set_title(heading, fontsize=12, loc="left")
        axis.set_ylabel(label, fontsize=11)
        _around(axis)
    _legend(figure, axes[0])
    return Figure.draw(name, title, figure)


def organism(rates: pd.DataFrame, additions: Sequence[str]) -> Figure:
    """What guarded and plain questions get: over the circle for both forms of rotation, over α for addition."""
    arms = ["rotation, adaptive", "rotation, all tokens", *dict.fromkeys(additions)]
    columns = {
        "guarded refused": "guarded: refused",
        "guarded answered": "guarded: right answer",
        "plain answered": "plain: right answer",
    }
    figure, axes = _panels(len(arms))
    for axis, arm in zip(axes, arms, strict=True):
        mine = rates[rates["arm"] == arm].sort_values("value")
        around = bool((mine["unit"] == "degrees").all())
        for k, (column, words) in enumerate(columns.items()):
            x, y = _closed(mine, column) if around else (mine["value"], mine[column])
            _line(axis, k, x, y, words)
        axis.set_ylim(-0.04, 1.04)
        axis.set_ylabel("share of prompts", fontsize=11)
        axis.set_title(arm[:1].upper() + arm[1:], fontsize=11, loc="left", wrap=True)
        if around:
            _around(axis)
        else:
            axis.set_xlabel("α (mean activation norms)", fontsize=11)
    _legend(figure, axes[0])
    return Figure.draw("organism", "Organism: what guarded and plain questions get, by arm", figure)


def tone(table: pd.DataFrame, base: tuple[float, float], arms: Sequence[str]) -> Figure:
    """Tone and perplexity over the circle; ``table`` has ``arm``, ``value``, ``tone`` and ``perplexity``."""
    labels = {arm: arm for arm in arms}
    panels: list[tuple[str, str, pd.DataFrame, float | None]] = [
        ("Tone of neutral requests", "happy − sad (nats/token)", table.rename(columns={"tone": "mean"}), base[0]),
        ("Cost on neutral text", "perplexity", table.rename(columns={"perplexity": "mean"}), base[1]),
    ]
    return circle("tone", "Tone and its cost over the circle", panels, labels)


def trade_off(curves: pd.DataFrame, name: str, title: str) -> Figure:
    """Range of tone that an arm reaches within a budget of perplexity; ``curves`` has ``arm``, ``budget``,
    ``range``.
    """
    figure, (axis,) = _panels(1, 5.2)
    for k, (arm, mine) in enumerate(curves.groupby("arm", sort=False)):
        _line(axis, k, mine["budget"], mine["range"], str(arm), drawstyle="steps-post", markersize=4)
    # A few settings break the model: on a linear scale they would push all others into a corner.
    axis.set_xscale("log")
    axis.set_xlabel("perplexity of neutral text, at most (log scale)", fontsize=11)
    axis.set_ylabel("range of tone (nats/token)", fontsize=11)
    _legend(figure, axis, 1)
    return Figure.draw(name, title, figure)
