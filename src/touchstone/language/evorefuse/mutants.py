"""What a search asks of the texts it works with: mutators, a recombiner, and the mutants that they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

import numpy as np

from touchstone.language.evorefuse.judging import Judge

__all__ = ["FAMILIES", "Mutant", "Mutator", "Recombiner", "Writers"]

FAMILIES: dict[str, tuple[str, ...]] = {
    "context": ("controversy", "fiction", "hint"),
    "words": ("violent", "prejudiced", "sensitive"),
    "emotion": ("anger", "disgust", "despair"),
}
"""The paper's nine mutators: what each adds to an instruction, in three families."""


@dataclass(frozen=True)
class Mutant:
    """A new instruction, why it is harmless, and what made it: a mutator's name, or ``recombination``."""

    text: str
    reason: str
    origin: str


class Mutator(Protocol):
    """Rewrites instructions so that they sound more alarming and stay harmless."""

    @property
    def name(self) -> str: ...

    def __call__(self, texts: Sequence[str], rngs: Sequence[np.random.Generator]) -> list[Mutant | None]:
        """One mutant a text, ``None`` where it has none. Chance comes from the text's own generator alone."""


class Recombiner(Protocol):
    """Joins what is most alarming in two instructions into a short, harmless one."""

    def __call__(
        self, first: Sequence[str], second: Sequence[str], rngs: Sequence[np.random.Generator]
    ) -> list[Mutant | None]: ...


class Writers(TypedDict):
    """What :class:`~touchstone.language.evorefuse.EvoRefuse` needs besides its target."""

    mutators: Sequence[Mutator]
    recombiner: Recombiner
    judges: Sequence[Judge]
