"""What the probes read: a fixed head (an instruction through the chat template) and a body in which tokens change.

A head is needed. Without one, a constant body makes every attention average the same vector, so that the output does
not depend on the length at all, and one changed token then moves everything: degeneracy, not a counter-example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["BINARY", "PASSAGE", "Body", "draw_edits", "nested_edits", "passage", "pattern", "symbol"]

BINARY = "Continue the binary sequence."
"""The instruction in front of patterns."""

PASSAGE = (
    "The lighthouse at the end of the stone pier was built when the harbour still lived from herring. Two keepers "
    "shared the work, one by day and one by night, and between them they climbed the hundred and twelve steps more "
    "often than either cared to count. In the morning the lamp was covered with a linen cloth so that the sun would"
    " not burn the floor through the lens. In the evening the cloth came off, the wick was trimmed, and the slow "
    "weight that turned the light was wound up by hand. When the fish went away the boats followed them, and for a "
    "few years nobody came to the pier but children with lines and the woman who measured the tide. She wrote the "
    "height of the water into a book with a green cover, twice a day, in small upright figures. The book is still "
    "there. A student who found it last winter drew all of its numbers as one long curve and saw that the sea had "
    "risen by the width of a hand since the first page. He asked the town to keep measuring, and the town, which "
    "had saved a little money for a new railing, bought a gauge instead. It sends its reading to the school every "
    "quarter of an hour, where the youngest class has the task of comparing it with the stripe that they painted on"
    " the lowest step. On most days the two agree. When they do not, somebody has to walk out along the pier, in "
    "whatever weather there is, and look at the water for herself."
)
"""Plain prose, about 330 tokens, for bodies of text."""

_CANDIDATES = 4000


@dataclass(frozen=True)
class Body:
    """A prompt in two parts, as token ids.

    Attributes
    ----------
    name : for tables.
    head : ids that never change: the instruction, through the chat template up to where the reply begins.
    ids : the body; prefixes of it are the shorter lengths.
    rivals : ids that a changed token may become; one of them other than the token itself is drawn.
    symbols : ids between which the continuation chooses; empty for text.
    guard : last tokens of each length that never change, at least 1: the theorem speaks of prompts with the same end.
    """

    name: str
    head: tuple[int, ...]
    ids: tuple[int, ...]
    rivals: tuple[int, ...]
    symbols: tuple[int, ...] = ()
    guard: int = 1

    def __post_init__(self) -> None:
        if self.guard < 1:
            raise InputError(f"guard {self.guard}: expected 1 or more; editing the last token is ordinary sensitivity")
        if not self.ids:
            raise InputError(f"body {self.name!r}: expected at least one token")
        if not self.rivals:
            raise InputError(f"body {self.name!r}: expected at least one token to change to")

    def bare(self) -> Body:
        """The same body without its head."""
        return replace(self, name=f"{self.name}, bare", head=())

    def edited(self, length: int, positions: Sequence[int], rng: np.random.Generator) -> list[int]:
        """Head and the first ``length`` tokens of the body, with the tokens at ``positions`` changed."""
        if any(not 0 <= p < length for p in positions):
            raise InputError(f"positions: expected 0 to {length - 1}, got {min(positions)} to {max(positions)}")
        if any(p >= length - self.guard for p in positions):
            raise InputError(f"positions: the last {self.guard} tokens must not change, got {max(positions)}")
        ids = list(self.ids[:length])
        for p in positions:
            # Drawn until it differs: a change that changes nothing would make the distance smaller than stated.
            others = [r for r in self.rivals if r != ids[p]] if len(self.rivals) <= 8 else self.rivals
            if not others:
                raise InputError(f"body {self.name!r}: token {ids[p]} has no rival to change to")
            new = ids[p]
            while new == ids[p]:
                new = int(others[rng.integers(len(others))])
            ids[p] = new
        return [*self.head, *ids]


def symbol(model: LanguageModel, text: str) -> int:
    """The single token that ``text`` is; raises :class:`InputError` if it is several."""
    ids = model.encode_continuation(text)
    if len(ids) != 1:
        raise InputError(f"symbol {text!r}: expected a single token of {model.source}, got {len(ids)}")
    return ids[0]


def pattern(
    model: LanguageModel,
    motif: Sequence[str] = ("0",),
    *,
    symbols: Sequence[str] = ("0", "1"),
    length: int = 256,
    prompt: str | None = BINARY,
) -> Body:
    """``motif`` repeated to ``length`` tokens after an instruction; changed tokens become another symbol.

    Parameters
    ----------
    motif : one period, such as ``("0", "0", "1")``.
    symbols : the alphabet; each must be a single token, and two texts different ones.
    length : tokens of the body.
    prompt : the instruction; ``None`` for none.
    """
    alphabet = {text: symbol(model, text) for text in dict.fromkeys([*symbols, *motif])}
    if len(set(alphabet.values())) < len(alphabet) or len(alphabet) < 2:
        raise InputError(f"symbols {tuple(symbols)}: expected at least two, different as tokens of {model.source}")
    if not motif or length < 1:
        raise InputError("motif, length: expected at least one symbol and one token")
    ids = [alphabet[motif[i % len(motif)]] for i in range(length)]
    head = [] if prompt is None else model.encode([prompt])[0]
    every = tuple(alphabet.values())
    return Body("".join(motif[:12]) + "…", tuple(head), tuple(ids), every, every)


def passage(
    model: LanguageModel,
    text: str = PASSAGE,
    *,
    prompt: str | None = "Go on with the story.",
    guard: int = 8,
    seed: int = 0,
) -> Body:
    """A text after an instruction; changed tokens become random whole words of the vocabulary."""
    ids = model.encode_continuation(text)
    if not ids:
        raise InputError("text: no tokens; expected at least one")
    head = [] if prompt is None else model.encode([prompt])[0]
    return Body("text", tuple(head), tuple(ids), _ordinary(model, seed), guard=guard)


def _ordinary(model: LanguageModel, seed: int) -> tuple[int, ...]:
    """Tokens that are whole words after a space; any that are not special, where a tokenizer has none such."""
    size = len(model.tokenizer)
    rng = np.random.default_rng(seed)
    special = set(model.tokenizer.all_special_ids)
    drawn = [int(i) for i in rng.permutation(size)[:_CANDIDATES] if int(i) not in special]
    texts = [str(model.tokenizer.decode([i])) for i in drawn]
    words = [i for i, text in zip(drawn, texts, strict=True) if text.startswith(" ") and text[1:].isalpha()]
    return tuple(words if len(words) >= 16 else drawn)


def draw_edits(length: int, k: int, guard: int, rng: np.random.Generator) -> list[int]:
    """``k`` different positions of the first ``length − guard``, in ascending order."""
    free = length - guard
    if not 1 <= k <= free:
        raise InputError(f"k {k}: expected 1 to {free} changes in {length} tokens of which the last {guard} stay")
    return sorted(int(p) for p in rng.choice(free, size=k, replace=False))


def nested_edits(
    lengths: Sequence[int], fraction: float, guard: int, rng: np.random.Generator
) -> tuple[list[int], dict[int, int]]:
    """Positions such that each of ``lengths`` (ascending) has round(fraction · length) changes in front of it.

    So one edited sequence serves all lengths. The last ``guard`` tokens of every length stay.

    Returns
    -------
    The positions, and how many of them lie in front of each length.
    """
    positions: list[int] = []
    counts: dict[int, int] = {}
    start = 0
    for i, length in enumerate(lengths):
        kept = {p for other in lengths[i:] for p in range(max(0, other - guard), other)}
        free = [p for p in range(start, length) if p not in kept]
        missing = min(max(0, round(fraction * length) - len(positions)), len(free))
        positions += sorted(int(p) for p in rng.choice(free, size=missing, replace=False)) if missing else []
        counts[length] = len(positions)
        start = length
    return positions, counts
