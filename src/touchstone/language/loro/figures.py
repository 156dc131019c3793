"""Pictures of what is stolen and of what low rank gives away."""

from __future__ import annotations

import numpy as np
import pandas as pd

from touchstone.drawing import axes
from touchstone.evidence import Figure

__all__ = ["law", "stolen"]


def stolen(means: pd.DataFrame, victim: float) -> Figure:
    """Accuracy of what is rebuilt, by way of hiding."""
    fig, ax = axes(6.4, 0.36 * len(means) + 1.2)
    y = np.arange(len(means))[::-1]
    best = means[["undone", "tuned"]].max(axis=1).to_numpy(dtype=float)
    ours = [name.startswith(("LoRO", "Hadamard")) for name in means["defence"]]
    ax.barh(y, best, color=["#17508c" if mine else "#b8c4d0" for mine in ours])
    for place, value in zip(y, best, strict=True):
        ax.text(value + 0.008, place, f"{value:.2f}", va="center", fontsize=8)
    ax.axvline(victim, color="#b3541e", lw=1.5, ls="--", label="the private network")
    ax.set(yticks=y, yticklabels=means["defence"], xlim=(0, 1.05))
    ax.set_xlabel("accuracy of what the attacker rebuilds")
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return Figure.draw("stolen", "What is stolen with public weights and a tenth of the private data", fig)


def law(frame: pd.DataFrame) -> Figure:
    """Measured error of the spectral attack over the predicted one."""
    fig, ax = axes(5.0, 4.0)
    for k, (width, part) in enumerate(frame.groupby("width")):
        ax.plot(part["predicted"], part["measured"], "os^Dv"[k % 5], ms=8, label=f"width {width}")
    top = 1.1 * float(frame[["predicted", "measured"]].to_numpy().max())
    ax.plot([0, top], [0, top], "--", color="#444444", lw=1)
    ax.set(xlabel="predicted relative error", ylabel="measured relative error", xlim=(0, top), ylim=(0, top))
    ax.legend(frameon=False)
    return Figure.draw("law", "How well an attacker finds the private update behind a mask of low rank", fig)
