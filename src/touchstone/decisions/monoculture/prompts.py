"""Rows of a table as multiple-choice questions, in ninety styles that differ in minor aspects only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from touchstone.decisions.monoculture.schema import Schema
from touchstone.errors import InputError

__all__ = ["CONNECTORS", "Format", "Granularity", "PromptStyle", "TabularPrompter", "all_styles", "one_at_a_time"]

Format = Literal["bullet", "comma", "text"]
Granularity = Literal["original", "coarse"]
CONNECTORS = (" is ", " = ", ": ")
_ORDERS = ("default", "reverse", "random 1", "random 2", "random 3")
_KEYS = ("A", "B")


@dataclass(frozen=True)
class PromptStyle:
    """How a row is written.

    Attributes
    ----------
    order : columns as they follow each other; a fixed list that belongs into what is saved, never drawn again.
    format : a bullet list, a comma-separated list or running text.
    connector : between a feature's name and its value.
    granularity : values as they are, or in broad classes.
    order_name : what the order is called.
    """

    order: tuple[str, ...]
    format: Format = "bullet"
    connector: str = " is "
    granularity: Granularity = "original"
    order_name: str = "default"

    def __post_init__(self) -> None:
        if self.format not in get_args(Format):
            raise InputError(f"format {self.format!r}: expected one of {', '.join(get_args(Format))}")
        if self.granularity not in get_args(Granularity):
            raise InputError(f"granularity {self.granularity!r}: expected one of {', '.join(get_args(Granularity))}")

    @property
    def name(self) -> str:
        """A short name, unique among :func:`all_styles`."""
        mark = {" is ": "is", " = ": "eq", ": ": "colon"}.get(self.connector, self.connector.strip() or "space")
        return f"{self.order_name.replace(' ', '')}-{self.format}-{mark}-{self.granularity}"


def all_styles(columns: Sequence[str]) -> list[PromptStyle]:
    """All ninety styles: 5 orders, 3 formats, 3 connectors, 2 granularities; the default style first."""
    orders = _orders(tuple(columns))
    return [
        PromptStyle(orders[order], form, connector, granularity, order)
        for order, form, connector, granularity in product(_ORDERS, get_args(Format), CONNECTORS, get_args(Granularity))
    ]


def one_at_a_time(columns: Sequence[str]) -> list[PromptStyle]:
    """The default style, and those that differ from it in one aspect: ten in all."""
    styles = all_styles(columns)
    default = styles[0]

    def changes(style: PromptStyle) -> int:
        return sum(
            getattr(style, aspect) != getattr(default, aspect)
            for aspect in ("order_name", "format", "connector", "granularity")
        )

    return [style for style in styles if changes(style) <= 1]


def _orders(columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    found = {"default": columns, "reverse": columns[::-1]}
    for name in _ORDERS[2:]:
        # Sorted by a hash of the place: the same on every machine, whatever a random generator may become.
        places = sorted(range(len(columns)), key=partial(_hashed, name))
        found[name] = tuple(columns[i] for i in places)
    return found


def _hashed(name: str, place: int) -> bytes:
    return hashlib.sha256(f"{name}: {place}".encode()).digest()


@dataclass(frozen=True)
class TabularPrompter:
    """Writes rows as questions with two lettered answers, ending in ``Answer:``.

    Attributes
    ----------
    schema : words for columns and values, the question and its choices.
    examples : solved rows that stand in front of every question, the same for all; see :meth:`with_examples`.
    outcomes : of the examples.
    """

    schema: Schema
    examples: pd.DataFrame | None = None
    outcomes: tuple[int, ...] = ()

    def with_examples(self, frame: pd.DataFrame, y: ArrayLike, n: int = 10, seed: int = 0) -> TabularPrompter:
        """The same with ``n`` solved rows of ``frame``, half of each outcome (the paper: 10), in random order.

        Raises
        ------
        InputError
            If there are too few rows of an outcome.
        """
        truth = np.asarray(y).astype(int)
        rng = np.random.default_rng(seed)
        picked: list[int] = []
        for outcome, size in ((1, n // 2), (0, n - n // 2)):
            rows = np.flatnonzero(truth == outcome)
            if len(rows) < size:
                raise InputError(f"examples {n}: {len(rows)} rows have the outcome {outcome}, expected {size}")
            picked += rng.choice(rows, size, replace=False).tolist()
        order = rng.permutation(picked)
        return TabularPrompter(self.schema, frame.iloc[order], tuple(truth[order].tolist()))

    def prompts(self, frame: pd.DataFrame, style: PromptStyle | None = None, *, flipped: bool = False) -> list[str]:
        """One prompt a row.

        Parameters
        ----------
        frame : with the schema's columns.
        style : the default style if not given.
        flipped : puts the answer of outcome 1 first. ``A`` is then the favourable answer's key.

        Raises
        ------
        InputError
            If a column is missing.
        """
        style = style or PromptStyle(tuple(self.schema.names))
        missing = [name for name in style.order if name not in frame.columns]
        if missing:
            raise InputError(f"column {missing[0]!r}: the table has {', '.join(map(str, frame.columns[:12]))}")
        question = self._question(flipped)
        head = ""
        if self.examples is not None:
            solved = zip(self._descriptions(self.examples, style), self.outcomes, strict=True)
            head = "".join(f"{text}\n{question} {_KEYS[outcome != flipped]}\n\n" for text, outcome in solved)
        return [f"{head}{text}\n{question}" for text in self._descriptions(frame, style)]

    @staticmethod
    def keys(flipped: bool = False) -> tuple[str, str]:
        """Keys of the answers of outcomes 0 and 1."""
        return (_KEYS[1], _KEYS[0]) if flipped else _KEYS

    def _question(self, flipped: bool) -> str:
        first, second = self.schema.choices[::-1] if flipped else self.schema.choices
        return f"Question: {self.schema.question}\nA. {first}\nB. {second}\nAnswer:"

    def _descriptions(self, frame: pd.DataFrame, style: PromptStyle) -> list[str]:
        columns = {column.name: column for column in self.schema.columns}
        coarse = style.granularity == "coarse"
        words: list[NDArray[np.object_]] = []
        for name in style.order:
            column, values = columns[name], frame[name]
            # Values repeat: each is put into words once.
            codes, different = pd.factorize(values.astype(object), use_na_sentinel=False)
            said = [f"{column.label}{style.connector}{column.word(value, coarse)}" for value in different]
            words.append(np.array(said, dtype=object)[codes])
        rows = zip(*words, strict=True)
        if style.format == "bullet":
            return ["Information:\n" + "\n".join(f"- {feature}" for feature in row) for row in rows]
        if style.format == "comma":
            return ["Information:\n" + ", ".join(row) for row in rows]
        return ["Information:\n" + " ".join(f"The {feature}." for feature in row) for row in rows]
