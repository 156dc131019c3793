"""How much of a true text another holds: ROUGE-L, exact match, length; and whether single values are in it."""

from __future__ import annotations

import re

__all__ = ["has_value", "lcs_length", "rouge_l", "words"]

_WORD = re.compile(r"[a-z0-9]+")


def words(text: str) -> list[str]:
    """Lower-case runs of letters and digits, as the ``rouge_score`` package splits text without its stemmer."""
    return _WORD.findall(text.lower())


def lcs_length(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence, by bit-parallel dynamic programming (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for i, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << i
    full = (1 << len(a)) - 1
    row = full
    for word in b:
        matched = row & places.get(word, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(a) - row.bit_count()


def rouge_l(truth: str, text: str) -> tuple[float, float]:
    """ROUGE-L recall and F1 of ``text`` against ``truth``; 0 where either is empty."""
    a, b = words(truth), words(text)
    if not a or not b:
        return 0.0, 0.0
    common = lcs_length(a, b)
    return common / len(a), 2 * common / (len(a) + len(b))


def has_value(value: str, text: str) -> bool:
    """Whether a value, as whole words, is in a text."""
    return f" {' '.join(words(value))} " in f" {' '.join(words(text))} "
