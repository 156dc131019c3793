"""Where a quote stands in a text: without regard to case and to how white space is laid out."""

from __future__ import annotations

import re

__all__ = ["find_quote", "sentences"]

_SENTENCE = re.compile(r"[^.!?\n]*[^.!?\n\s][^.!?\n]*[.!?]*")


def find_quote(quote: str, text: str) -> tuple[int, int] | None:
    """Characters ``[start, end)`` of the first place where ``quote`` stands in ``text``; ``None`` if it does not.

    Case does not matter, and any run of white space is as good as any other, so that a quote may run over a line's end.
    """
    wanted, _ = _flattened(quote.strip())
    if not wanted:
        return None
    flat, places = _flattened(text)
    at = flat.find(wanted)
    if at < 0:
        return None
    return places[at], places[at + len(wanted) - 1] + 1


def sentences(text: str) -> list[str]:
    """The sentences of a text, each without the white space around it."""
    return [found.strip() for found in _SENTENCE.findall(text)]


def _flattened(text: str) -> tuple[str, list[int]]:
    """The text in lower case with single spaces, and the place in ``text`` of each of its characters.

    Lower case can be longer than what it comes from ("İ" becomes two characters), so places are kept one by one.
    """
    pieces: list[str] = []
    places: list[int] = []
    for i, character in enumerate(text):
        if character.isspace():
            if pieces and pieces[-1] == " ":
                continue
            lower = " "
        else:
            lower = character.lower()
        for part in lower:
            pieces.append(part)
            places.append(i)
    return "".join(pieces), places
