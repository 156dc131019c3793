"""A quality-diversity archive: the best instruction of every cell, in place of one winner a seed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import pandas as pd

from touchstone.language.evorefuse.grammar import Grammar

__all__ = ["Archive", "grammar_cells"]


@dataclass
class Archive:
    """Keeps the fittest text of every cell (MAP-Elites, arXiv 1504.04909).

    Parameters
    ----------
    cell : what a text is like, such as ``("violent", "fiction", "cooking")``; ``None`` for a text that has no place.
    axes : names of the cell's parts.
    """

    cell: Callable[[str], tuple[Hashable, ...] | None]
    axes: tuple[str, ...] = ("words", "frame", "topic")
    elites: dict[tuple[Hashable, ...], tuple[str, float]] = field(default_factory=dict)

    def add(self, text: str, fitness: float) -> bool:
        """Whether the text is now the elite of its cell."""
        place = self.cell(text)
        if place is None or (place in self.elites and self.elites[place][1] >= fitness):
            return False
        self.elites[place] = (text, fitness)
        return True

    def best(self, at_least: float = float("-inf")) -> list[str]:
        """Elites, fittest first, whose fitness is at least ``at_least``."""
        ranked = sorted(self.elites.values(), key=lambda elite: (-elite[1], elite[0]))
        return [text for text, fitness in ranked if fitness >= at_least]

    def table(self) -> pd.DataFrame:
        """One row a cell: its parts, the elite and its fitness; fittest first."""
        rows = [
            {**dict(zip(self.axes, map(str, place), strict=True)), "instruction": text, "fitness": fitness}
            for place, (text, fitness) in self.elites.items()
        ]
        frame = pd.DataFrame(rows, columns=[*self.axes, "instruction", "fitness"])
        return frame.sort_values(["fitness", "instruction"], ascending=[False, True], ignore_index=True)


def grammar_cells(grammar: Grammar) -> Callable[[str], tuple[Hashable, ...] | None]:
    """Cells of word family × frame × topic for sentences of a grammar; ``none`` where a sentence has no such part."""

    def cell(text: str) -> tuple[Hashable, ...] | None:
        at = grammar.parse(text)
        if at is None:
            return None
        action = grammar.actions[at.action]
        return action.kind, grammar.frames[at.frame].kind or "none", action.topic

    return cell
