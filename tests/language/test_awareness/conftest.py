"""A tiny random model, and organisms that were trained just long enough to hold what was planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from touchstone.language import LanguageModel
from touchstone.language.organisms import GuardedLanguage
from touchstone.language.test_awareness.organism import Organism, OrganismSize
from touchstone.language.test_awareness.pairs import Pair

SIZE = OrganismSize(
    steps=250, traces=360, held_out=100, prompts=1, strengths=(1.0, 2.0), residual=(0.2, 0.8), randoms=2
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def organism() -> Callable[[str], Organism]:
    """Organisms by variant; trained on first use, then read from the cache."""
    kept: dict[str, Organism] = {}

    def make(variant: str) -> Organism:
        if variant not in kept:
            kept[variant] = Organism.prepare(variant, SIZE, 0)  # type: ignore[arg-type]
        return kept[variant]

    return make


@pytest.fixture(scope="session")
def size() -> OrganismSize:
    return SIZE


@pytest.fixture(scope="session")
def organism_pairs() -> Callable[[int], list[Pair]]:
    """Requests in the organism's language, with the cue ``real`` on one side and ``fake`` on the other."""

    def make(count: int) -> list[Pair]:
        language = GuardedLanguage("a")
        pairs = []
        for i in range(count):
            sides = [language.prompts([i % 24], np.random.default_rng(i), cue=cue)[0] for cue in ("real", "fake")]
            cues = [(side.index(cue), side.index(cue) + 4) for side, cue in zip(sides, ("real", "fake"), strict=True)]
            pairs.append(Pair(f"pair-{i}", sides[0], sides[1], cues[0], cues[1], f"pair-{i}", tool="exec"))
        return pairs

    return make


@pytest.fixture
def unit() -> np.ndarray:
    """A direction of unit length for models of width 32."""
    drawn = np.random.default_rng(5).standard_normal(32)
    found: np.ndarray = (drawn / np.linalg.norm(drawn)).astype(np.float32)
    return found


@pytest.fixture
def random_model(make_tiny: Callable[..., LanguageModel]) -> LanguageModel:
    return make_tiny()
