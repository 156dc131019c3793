"""Pictures of attacks at one budget."""

from __future__ import annotations

import numpy as np
import pandas as pd

from touchstone.drawing import axes
from touchstone.evidence import Figure

__all__ = ["early", "survival"]

_STYLES = ["-", "--", ":", "-."]


def survival(frame: pd.DataFrame) -> Figure:
    """Share of guards that hold over token-forwards."""
    fig, ax = axes(height=4.2)
    for i, (name, part) in enumerate(frame.groupby("attack", sort=False)):
        ax.step(
            part["tokens_forward"], part["holds"], _STYLES[i % len(_STYLES)], where="post", label=name,
            linewidth=2.6 if name == "LARGO" else 1.6, color=f"C{i}",
        )  # fmt: skip
    ax.set(
        xlabel="token-forwards (a backward pass counts double)", ylabel="share of guards that hold", ylim=(-0.02, 1.02)
    )
    ax.legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return Figure.draw("survival", "Guards that still hold, by what an attack has spent", fig)


def early(board: pd.DataFrame, checks: int) -> Figure:
    """Share of guards broken within a number of checks."""
    fig, ax = axes(height=0.36 * len(board) + 1.3)
    y = np.arange(len(board))[::-1]
    ax.barh(y, board[f"within_{checks}"], color=["#17508c" if a == "LARGO" else "#b8c4d0" for a in board["attack"]])
    for place, value in zip(y, board[f"within_{checks}"], strict=True):
        ax.text(value + 0.01, place, f"{value:.2f}", va="center")
    ax.set(yticks=y, yticklabels=board["attack"], xlim=(0, 1.12))
    ax.set_xlabel(f"share of guards broken within {checks} texts tried")
    return Figure.draw("early", f"Guards broken within {checks} texts", fig)
