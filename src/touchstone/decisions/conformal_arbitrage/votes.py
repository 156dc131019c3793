"""Free text as options: replies that say the same are one option, and its score is its share of the replies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from touchstone.decisions.conformal_arbitrage.parties import Messages

__all__ = ["VOTES", "Sampler", "gathered"]

VOTES = "votes"
"""How such scores are made, for the saved router."""

_EDGES = re.compile(r"^[\W_]+|[\W_]+$")


@runtime_checkable
class Sampler(Protocol):
    """A party that can write replies."""

    name: str

    def sample(self, prompt: Messages, count: int, options: dict[str, Any]) -> tuple[list[str], int]:
        """``count`` replies, and the tokens they took."""


def gathered(texts: Sequence[str]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Distinct replies, the most frequent first, and their shares.

    Replies are the same if they are up to case, spaces, and punctuation at their ends; the first one stands for all.
    """
    kept: dict[str, list[str]] = {}
    for text in texts:
        key = _EDGES.sub("", " ".join(text.split())).casefold()
        if key:
            kept.setdefault(key, []).append(text.strip())
    order = sorted(kept.values(), key=len, reverse=True)
    total = sum(map(len, order))
    return tuple(same[0] for same in order), tuple(len(same) / total for same in order)
