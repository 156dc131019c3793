"""What options carry: deep values and shallow traits, each with phrases in families, and contexts with activities."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from touchstone.errors import InputError
from touchstone.files import read_text

__all__ = ["Attribute", "Attributes", "default_attributes"]


@dataclass(frozen=True)
class Attribute:
    """A value or a pole of a trait.

    Attributes
    ----------
    name : its name, unique among all attributes.
    group : the set of a value, within which values are paired; the dimension of a trait, of which it is one pole.
    families : phrases that complete "An assistant that …", by manner of speaking.
    definition : what an assistant that holds it does.
    """

    name: str
    group: str
    families: tuple[tuple[str, ...], ...]
    definition: str = ""

    @property
    def phrases(self) -> tuple[str, ...]:
        """All phrases."""
        return tuple(phrase for family in self.families for phrase in family)


@dataclass(frozen=True)
class Attributes:
    """A table of deep and shallow attributes: the built-in one, or your own pair of intent and cue.

    Attributes
    ----------
    deep : what should generalise; paired within their sets.
    shallow : what should not; two poles a dimension.
    contexts : activities by context.

    Raises
    ------
    InputError
        If a name or phrase stands twice, a set has one value, a dimension has not two poles, an attribute has fewer
        than two families, or a context has no activity.
    """

    deep: tuple[Attribute, ...]
    shallow: tuple[Attribute, ...]
    contexts: dict[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        names = [a.name for a in (*self.deep, *self.shallow)]
        phrases = [p for a in (*self.deep, *self.shallow) for p in a.phrases]
        for what, items in (("name", names), ("phrase", phrases)):
            twice = next((item for item in items if items.count(item) > 1), None)
            if twice is not None:
                raise InputError(f"attributes: {what} {twice!r} stands twice")
        for attribute in (*self.deep, *self.shallow):
            if len(attribute.families) < 2 or not all(attribute.families):
                raise InputError(f"attribute {attribute.name!r}: expected two or more families, each with a phrase")
            if not all(phrase.strip() for phrase in attribute.phrases):
                raise InputError(f"attribute {attribute.name!r}: has an empty phrase")
        counts = {len(a.families) for a in self.deep}, {len(a.families) for a in self.shallow}
        if any(len(found) > 1 for found in counts):
            raise InputError("attributes: expected the same number of families for all values, and for all traits")
        for group in {a.group for a in self.deep}:
            if sum(a.group == group for a in self.deep) < 2:
                raise InputError(f"set {group!r}: one value; expected two or more, since values are paired in a set")
        for group in {a.group for a in self.shallow}:
            if sum(a.group == group for a in self.shallow) != 2:
                raise InputError(f"dimension {group!r}: expected two poles")
        empty = next((name for name, activities in self.contexts.items() if not activities), None)
        if not self.contexts or empty is not None:
            raise InputError(f"context {empty!r}: no activity" if empty else "contexts: expected at least one")

    @classmethod
    def load(cls, path: str | Path) -> Attributes:
        """Read a TOML file of the form of the built-in ``attributes.toml``; ``contexts`` may be left out."""
        return _parsed(read_text(path, "attributes"), str(path))

    @property
    def value_pairs(self) -> list[tuple[Attribute, Attribute]]:
        """Ordered pairs of values in the same set."""
        return [(a, b) for a in self.deep for b in self.deep if a is not b and a.group == b.group]

    @property
    def trait_pairs(self) -> list[tuple[Attribute, Attribute]]:
        """Both orientations of every dimension."""
        return [(a, b) for a in self.shallow for b in self.shallow if a is not b and a.group == b.group]

    def only(
        self,
        values: Sequence[str] | None = None,
        traits: Sequence[str] | None = None,
        contexts: Sequence[str] | None = None,
    ) -> Attributes:
        """The named values, dimensions and contexts; ``None`` keeps all."""
        _known("value", values, [a.name for a in self.deep])
        _known("trait", traits, [a.group for a in self.shallow])
        _known("context", contexts, list(self.contexts))
        return Attributes(
            tuple(a for a in self.deep if values is None or a.name in values),
            tuple(a for a in self.shallow if traits is None or a.group in traits),
            {name: items for name, items in self.contexts.items() if contexts is None or name in contexts},
        )

    def families(self, deep: Sequence[int], shallow: Sequence[int]) -> Attributes:
        """The same with only the numbered families."""
        return Attributes(
            tuple(replace(a, families=tuple(a.families[i] for i in deep)) for a in self.deep),
            tuple(replace(a, families=tuple(a.families[i] for i in shallow)) for a in self.shallow),
            self.contexts,
        )


@cache
def default_attributes() -> Attributes:
    """Eleven values in two sets (duties and social values), twenty trait dimensions, eight contexts."""
    path = Path(__file__).parent / "attributes.toml"
    return _parsed(path.read_text(encoding="utf-8"), path.name)


def _parsed(text: str, name: str) -> Attributes:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"attributes {name}: not TOML: {error}") from None
    try:
        deep = tuple(_attribute(row, "set", "name") for row in data["deep"])
        shallow = tuple(_attribute(row, "dimension", "pole") for row in data["shallow"])
        contexts = {str(key): tuple(map(str, items)) for key, items in data.get("contexts", {}).items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"attributes {name}: expected [[deep]] with name, set, families and [[shallow]] with pole, dimension, "
            f"families ({type(error).__name__}: {error})"
        ) from None
    return Attributes(deep, shallow, contexts or {"general": ("everyday tasks",)})


def _attribute(row: dict[str, Any], group: str, name: str) -> Attribute:
    families = tuple(tuple(map(str, family)) for family in row["families"])
    return Attribute(str(row[name]), str(row[group]), families, str(row.get("definition", "")))


def _known(what: str, wanted: Sequence[str] | None, there: list[str]) -> None:
    for item in wanted or ():
        if item not in there:
            raise InputError(f"{what} {item!r}: unknown; expected one of {', '.join(dict.fromkeys(there))}")
