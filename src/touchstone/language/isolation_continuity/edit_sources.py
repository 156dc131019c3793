"""Edits to probe with: Python functions that one mark breaks, and short texts that one word or digit decides.

Whether a function is valid is not a matter of opinion: ``ast.parse`` says so. The functions are those of the standard
library that runs the probe, so nothing is downloaded.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import tokenize
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from touchstone.errors import InputError
from touchstone.files import read_text
from touchstone.language.isolation_continuity.edits import DecisiveEdit

__all__ = ["SYNTAX_KINDS", "TEXT_KINDS", "breaks", "read_edits", "stdlib_functions", "syntax_edits", "text_edits"]

SYNTAX_KINDS = ("drop bracket", "double bracket", "drop colon", "drop quote", "dedent")
TEXT_KINDS = ("last value", "negation", "digit")

_MODULES = ("textwrap", "bisect", "heapq", "statistics", "colorsys", "fnmatch", "glob", "shlex", "posixpath", "string",
            "calendar", "copy", "random", "difflib", "inspect", "keyword", "linecache", "operator", "pprint",
            "quopri", "reprlib", "shutil", "stat", "tokenize", "traceback", "types", "warnings", "base64")  # fmt: skip
_COMPOUND = ("def", "if", "for", "while", "else", "elif", "try", "except", "finally", "with", "class")
_QUESTION = "Is this valid Python? Answer Yes or No."
# Edits lie in this share of the tokens, so that the end of the prompt stays.
_EARLY = 0.8


@cache
def stdlib_functions(least: int = 150, most: int = 2600) -> tuple[str, ...]:
    """Sources of top-level functions of the standard library, of ``least`` to ``most`` characters, shortest first."""
    found = []
    for name in _MODULES:
        text = inspect.getsource(importlib.import_module(name))
        # Line feeds only, as the parser counts: a form feed does not end a line.
        lines = text.split("\n")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                if least <= len(source) <= most and _valid(source):
                    found.append(source)
    return tuple(sorted(found, key=lambda source: (len(source), source)))


def breaks(source: str, kind: str, rng: np.random.Generator) -> str | None:
    """``source`` with one edit of a kind that makes ``ast.parse`` fail; ``None`` if no place for it does.

    Raises
    ------
    InputError
        If the kind is unknown or ``source`` is not valid to begin with.
    """
    if kind not in SYNTAX_KINDS:
        raise InputError(f"kind {kind!r}: expected one of {', '.join(SYNTAX_KINDS)}")
    if not _valid(source):
        raise InputError("source: expected valid Python to break")
    places = _places(source, kind)
    for i in rng.permutation(len(places)):
        start, end, new = places[int(i)]
        edited = source[:start] + new + source[end:]
        if not _valid(edited):
            return edited
    return None


def syntax_edits(
    *, functions: int = 30, kinds: Sequence[str] = SYNTAX_KINDS, per_function: int = 1, most: int = 2600, seed: int = 0
) -> list[DecisiveEdit]:
    """Functions spread evenly over lengths, each with ``per_function`` edits of kinds taken in turn."""
    sources = stdlib_functions(most=most)
    picked = np.unique(np.linspace(0, len(sources) - 1, functions).round().astype(int))
    rng = np.random.default_rng(seed)
    found = []
    for i, index in enumerate(picked):
        source, made = sources[index], 0
        for step in range(len(kinds)):
            kind = kinds[(i + step) % len(kinds)]
            edited = breaks(source, kind, rng) if made < per_function else None
            if edited is not None:
                made += 1
                found.append(DecisiveEdit(kind, _ask(source), _ask(edited), "Yes", "No"))
    return found


def text_edits(
    *, kinds: Sequence[str] = TEXT_KINDS, lines: Sequence[int] = (2, 8, 24), each: int = 4, seed: int = 0
) -> list[DecisiveEdit]:
    """Short texts that one word or digit decides, with ``lines`` lines of other matter around it."""
    makers: dict[str, Callable[[int, np.random.Generator], DecisiveEdit]] = {
        "last value": _last_value,
        "negation": _negation,
        "digit": _digit,
    }
    unknown = [kind for kind in kinds if kind not in makers]
    if unknown:
        raise InputError(f"kind {unknown[0]!r}: expected one of {', '.join(TEXT_KINDS)}")
    rng = np.random.default_rng(seed)
    return [makers[kind](n, rng) for kind in kinds for n in lines for _ in range(each)]


def read_edits(path: str | Path) -> list[DecisiveEdit]:
    """Edits from a JSON list of objects with the fields of :class:`DecisiveEdit`.

    Raises
    ------
    InputError
        If the file is missing, not such a list, or an object lacks a field or has an unknown one.
    """
    try:
        records = json.loads(read_text(path, "edits"))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"edits {path}: not JSON ({error})") from None
    if not isinstance(records, list) or not records:
        raise InputError(f"edits {path}: expected a list of at least one object")
    found = []
    for i, record in enumerate(records):
        if not isinstance(record, dict) or not all(isinstance(value, str) for value in record.values()):
            raise InputError(f"edits {path}: item {i} is not an object of texts")
        try:
            found.append(DecisiveEdit(**record))
        except TypeError as error:
            raise InputError(f"edits {path}: item {i}: {str(error).rpartition('__init__() ')[2]}") from None
    return found


def _ask(source: str) -> str:
    return f"{source}\n\n{_QUESTION}"


def _valid(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _places(source: str, kind: str) -> list[tuple[int, int, str]]:
    """Replacements (start, end, new text) of a kind in the first four fifths of the tokens."""
    lines = source.splitlines(keepends=True)
    starts = np.concatenate([[0], np.cumsum([len(line) for line in lines])])
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    early = tokens[: int(len(tokens) * _EARLY)]

    def at(place: tuple[int, int]) -> int:
        return int(starts[place[0] - 1]) + place[1]

    spans = [(token, at(token.start), at(token.end)) for token in early if token.start[0] <= len(lines)]
    if kind == "drop bracket":
        return [(a, b, "") for token, a, b in spans if token.string in (")", "]", "}")]
    if kind == "double bracket":
        return [(a, b, token.string * 2) for token, a, b in spans if token.string in (")", "]", "}")]
    if kind == "drop colon":
        return [(a, b, "") for token, a, b in spans if token.string == ":" and _ends_header(token)]
    if kind == "drop quote":
        return [(b - 1, b, "") for token, _, b in spans if token.type == tokenize.STRING]
    return [
        (int(starts[row]), int(starts[row]) + 2, "")
        for row in sorted({token.start[0] - 1 for token, _, _ in spans})
        if lines[row].startswith("  ") and lines[row].strip()
    ]


def _ends_header(token: tokenize.TokenInfo) -> bool:
    words = token.line.split()
    return bool(words) and words[0].rstrip(":") in _COMPOUND and not token.line[token.end[1] :].strip()


_KEYS = ("lamp", "door", "roof", "fence", "chair", "table", "boat", "cup", "coat", "flag", "wall", "box")
_COLOURS = ("red", "blue", "green", "white", "black", "yellow")
_FACTS = (
    "The baker opens at six.",
    "The river is low this week.",
    "A new bench stands under the lime tree.",
    "The bus to the lake leaves at noon.",
    "The library has lent out all of its maps.",
    "Somebody left a bicycle at the fountain.",
    "The choir sings on Thursday.",
    "The clock on the tower is slow.",
)


def _last_value(lines: int, rng: np.random.Generator) -> DecisiveEdit:
    key, first, second = _KEYS[0], *(str(c) for c in rng.choice(_COLOURS, size=2, replace=False))
    others = [f"{rng.choice(_KEYS[1:])} = {rng.choice(_COLOURS)}" for _ in range(lines)]
    middle = len(others) // 2

    def text(value: str) -> str:
        listed = [f"{key} = {first}", *others[:middle], f"{key} = {value}", *others[middle:]]
        body = "\n".join(listed)
        return f"Each line sets a colour; the last one counts.\n{body}\nWhat colour is the {key}? Answer with one word."

    answers = first.capitalize(), second.capitalize()
    return DecisiveEdit("last value", text(first), text(second), *answers, f"{key} = {first}", f"{key} = {second}")


def _negation(lines: int, rng: np.random.Generator) -> DecisiveEdit:
    others = [str(rng.choice(_FACTS)) for _ in range(lines)]
    middle = len(others) // 2
    yes, no = "The gate is locked tonight.", "The gate is not locked tonight."

    def text(fact: str) -> str:
        body = "\n".join([*others[:middle], fact, *others[middle:]])
        return f"{body}\nIs the gate locked tonight? Answer Yes or No."

    return DecisiveEdit("negation", text(yes), text(no), "Yes", "No", yes, no)


def _digit(lines: int, rng: np.random.Generator) -> DecisiveEdit:
    rows = [f"{rng.choice(_KEYS[1:])} {rng.integers(10, 99)}" for _ in range(lines)]
    middle, unit = len(rows) // 2, int(rng.integers(10))
    high, low = f"lamp 8{unit}", f"lamp 2{unit}"

    def text(row: str) -> str:
        body = "\n".join(["item count", *rows[:middle], row, *rows[middle:]])
        return f"{body}\nIs the count of the lamp above 50? Answer Yes or No."

    return DecisiveEdit("digit", text(high), text(low), "Yes", "No", high, low)
