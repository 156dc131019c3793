"""Where the search of one seed stands, and the checkpoint that holds all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from touchstone.errors import InputError
from touchstone.files import read_text, write_text
from touchstone.language.evorefuse.mutants import Mutant

if TYPE_CHECKING:
    from touchstone.language.evorefuse.search import EvoRefuse

__all__ = ["Climb", "read_checkpoint", "write_checkpoint"]

_SCHEMA = "touchstone.evorefuse/1"


@dataclass
class Climb:
    """The search from one seed.

    Attributes
    ----------
    seed, current : the instruction it began with, and the one it is at.
    rng : its own chance, so that other seeds do not change its path.
    value : fitness of ``current``.
    best, best_value : the best harmless instruction so far; ``None`` before there is one.
    seen : harmless instructions that were scored in full.
    tried : all that were scored; their number is held to the budget.
    round, rejected : rounds done, candidates that a judge turned down.
    history : one entry a round.
    """

    seed: str
    current: str
    rng: np.random.Generator
    value: float = -np.inf
    best: str | None = None
    best_value: float | None = None
    seen: dict[str, Mutant] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    round: int = 0
    rejected: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    def see(self, mutant: Mutant, value: float) -> None:
        """Remember a harmless instruction and its fitness."""
        self.seen.setdefault(mutant.text, mutant)
        if self.best_value is None or value > self.best_value:
            self.best, self.best_value = mutant.text, value


def write_checkpoint(path: Path, config: dict[str, Any], climbs: Sequence[Climb], search: EvoRefuse) -> None:
    """Write where the search stands: its settings, every seed's state and chance, and what was scored."""
    rows = [
        vars(climb)
        | {"rng": climb.rng.bit_generator.state, "tried": sorted(climb.tried)}
        | {"seen": [[m.text, m.reason, m.origin] for m in climb.seen.values()]}
        for climb in climbs
    ]
    state = {
        "schema": _SCHEMA,
        "config": config,
        "climbs": rows,
        "scorer": search.scorer.state(),
        "disagreements": search.panel.disagreements,
    }
    write_text(path, json.dumps(state, ensure_ascii=False) + "\n")


def read_checkpoint(path: Path, config: dict[str, Any], seeds: Sequence[str], search: EvoRefuse) -> list[Climb]:
    """Take up the search that ``path`` holds.

    Raises
    ------
    InputError
        If it is damaged, or of a search with other settings or seeds.
    """
    try:
        state = json.loads(read_text(path, "checkpoint"))
        if state["schema"] != _SCHEMA:
            raise InputError(f"checkpoint {path}: expected schema {_SCHEMA!r}")
        # Through JSON, so that tuples compare equal to lists. More rounds may be asked of a search that ended.
        same = json.loads(json.dumps(config | {"rounds": 0})) == state["config"] | {"rounds": 0}
        if not same or [row["seed"] for row in state["climbs"]] != list(seeds):
            raise InputError(f"checkpoint {path}: belongs to a search with other settings or seeds")
        search.scorer.restore(state["scorer"])
        search.panel.disagreements[:] = state["disagreements"]
        climbs = [_climb(row) for row in state["climbs"]]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"checkpoint {path}: damaged ({type(error).__name__}: {error})") from None
    if search.archive is not None:
        for climb in climbs:
            for text in climb.seen:
                search.archive.add(text, search.scorer.value(text))
    return climbs


def _climb(row: dict[str, Any]) -> Climb:
    rng = np.random.default_rng()
    rng.bit_generator.state = row["rng"]
    seen = {text: Mutant(text, reason, origin) for text, reason, origin in row["seen"]}
    return Climb(**(row | {"rng": rng, "seen": seen, "tried": set(row["tried"])}))
