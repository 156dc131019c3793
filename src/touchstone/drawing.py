"""One look for the pictures of Evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["axes"]


def axes(width: float = 6.4, height: float = 3.4) -> tuple[Figure, Any]:
    """A canvas of that many inches with one plot: a light grid behind, no frame at the top and the right."""
    from matplotlib.figure import Figure as Canvas

    fig = Canvas(figsize=(width, height), layout="constrained")
    ax = fig.add_subplot()
    ax.grid(True, color="#dddddd")
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return fig, ax
