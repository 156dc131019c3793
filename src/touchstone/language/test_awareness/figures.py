"""Pictures of the check and the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.evidence import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

    from touchstone.language.test_awareness.survey import Survey

__all__ = ["doses", "layers", "organism_layers", "shifts"]

# Okabe and Ito's colours, told apart by readers who see few.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", "-.", ":", "-", "--", "-.")


def layers(found: Survey) -> Figure:
    """Accuracy by layer of the probe, with what words and shuffled labels give."""
    table = found.by_pair.layers
    figure, (axis,) = _panels(1)
    _line(axis, 0, table["layer"], table["accuracy"], "probe, unseen pairs")
    _line(axis, 1, table["layer"], found.by_cue.layers["accuracy"], "probe, unseen cues")
    _line(axis, 2, table["layer"], table["shuffled_accuracy"], "shuffled labels")
    axis.axhline(found.words.mean(), color=_COLOURS[3], linewidth=1.6, linestyle=":", label="words that are pooled")
    axis.axhline(
        found.all_words.mean(), color=_COLOURS[5], linewidth=1.6, linestyle="--", label="all words, unseen cues"
    )
    axis.set_xlabel("layer (0 is the embedding)", fontsize=11)
    axis.set_ylabel("accuracy", fontsize=11)
    axis.set_ylim(0.35, 1.03)
    _legend(axis)
    return Figure.draw("layers", "Where made-up requests are told from real-looking ones", figure)


def shifts(found: Survey) -> Figure:
    """Change of the answer in every arm: the random directions as dots, the edit over them."""
    table = found.arms.shifts()
    mine = table[table["kind"].isin(["edit", "residual"])].sort_values("strength")
    kinds = {"random": "random directions", "same_rows": "same rows, random", "shuffled": "shuffled labels"}
    figure, (axis,) = _panels(1, 3.4)
    places = {strength: i for i, strength in enumerate(mine["strength"])}
    for k, (kind, label) in enumerate(kinds.items()):
        rows = table[table["kind"] == kind]
        if rows.empty:
            continue
        x = rows["strength"].map(places) + 0.16 * (k - 1)
        axis.scatter(x, rows["shift"], s=26, color=_COLOURS[k + 1], marker=_MARKERS[k + 1], alpha=0.75, label=label)
    for strength, place in places.items():
        band = found.arms.verdict(strength)
        axis.fill_between([place - 0.38, place + 0.38], band.low, band.high, color="0.85", linewidth=0, zorder=0)
    middles = [places[s] for s in mine["strength"]]
    error = [mine["shift"] - mine["low"], mine["high"] - mine["shift"]]
    axis.errorbar(
        middles, mine["shift"], error, fmt="o", color=_COLOURS[0], markersize=8, capsize=4, label="probe's direction"
    )
    axis.axhline(0, color="0.35", linewidth=1.0)
    axis.set_xticks(list(places.values()), [f"{s:+g}" for s in places])
    axis.set_xlim(-0.6, len(places) - 0.4)
    axis.set_xlabel("strength", fontsize=11)
    axis.set_ylabel("change of log p(test) − log p(real), nats", fontsize=10)
    _legend(axis)
    return Figure.draw(
        "shifts", "What the edit does to the answer, against random directions (grey: their range)", figure
    )


def organism_layers(reports: Mapping[str, pd.DataFrame]) -> Figure:
    """Accuracy by layer of the probe of each organism."""
    figure, (axis,) = _panels(1)
    for k, (name, table) in enumerate(reports.items()):
        _line(axis, k, table["layer"], table["test_accuracy"], f"variant {name.upper()}")
        _line(axis, k + 3, table["layer"], table["shuffled_accuracy"], f"variant {name.upper()}, shuffled labels")
    axis.axhline(0.82, color="0.35", linewidth=1.2, linestyle=(0, (2, 2)), label="wanted: 0.82")
    axis.set_xticks(sorted(next(iter(reports.values()))["layer"]))
    axis.set_xlabel("layer (0 is the embedding)", fontsize=11)
    axis.set_ylabel("accuracy on held-out traces", fontsize=11)
    _legend(axis)
    return Figure.draw("organism-layers", "Organism: accuracy of the probe by layer", figure)


def doses(
    name: str,
    title: str,
    panels: Mapping[str, pd.DataFrame],
    arms: Sequence[tuple[str, str]],
    random: str,
    unit: str,
) -> Figure:
    """P(execute) of guarded prompts over the strength, one panel a variant.

    Parameters
    ----------
    panels : for each variant a table with ``kind``, ``strength`` and ``executes``.
    arms : kind and label of each curve.
    random : kind of the random directions, drawn as dots.
    unit : label of the axis.
    """
    figure, axes = _panels(len(panels))
    for axis, (variant, table) in zip(axes, panels.items(), strict=True):
        base = float(table[table["kind"] == "base"]["executes"].iloc[0])
        for k, (kind, label) in enumerate(arms):
            rows = table[table["kind"] == kind].sort_values("strength")
            x = np.append(rows["strength"].to_numpy(), 0.0)
            order = np.argsort(x)
            _line(axis, k, x[order], np.append(rows["executes"].to_numpy(), base)[order], label)
        rows = table[table["kind"] == random]
        axis.scatter(rows["strength"], rows["executes"], s=24, color="0.45", marker="x", label="random directions")
        axis.set_ylim(0, 1)
        axis.set_title(f"variant {variant.upper()}", fontsize=12, loc="left")
        axis.set_ylabel("P(execute | guarded, fake)", fontsize=10)
    axes[-1].set_xlabel(unit, fontsize=11)
    _legend(axes[-1])
    return Figure.draw(name, title, figure)


def _panels(count: int, height: float = 2.8) -> tuple[MatplotlibFigure, list[Any]]:
    from matplotlib.figure import Figure as MatplotlibFigure

    figure = MatplotlibFigure(figsize=(5.6, height * count + 0.6), layout="constrained")
    axes = figure.subplots(count, 1, squeeze=False)[:, 0]
    for axis in axes:
        axis.grid(color="0.88", linewidth=0.8)
        axis.set_axisbelow(True)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        axis.tick_params(labelsize=10)
    return figure, list(axes)


def _line(axis: Any, k: int, x: Any, y: Any, label: str) -> None:
    axis.plot(
        x,
        y,
        label=label,
        color=_COLOURS[k % 7],
        linestyle=_LINES[k % 7],
        marker=_MARKERS[k % 7],
        markersize=4,
        linewidth=1.7,
    )


def _legend(axis: Any) -> None:
    axis.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
