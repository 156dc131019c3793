"""The reference graph: triples, who is near whom, and which relations may hold between which kinds of entities."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from touchstone.errors import InputError
from touchstone.files import read_text

__all__ = ["KnowledgeGraph", "Triple"]


class Triple(NamedTuple):
    """``(head, relation, tail)``, as in (Lyon, located_in, France)."""

    head: str
    relation: str
    tail: str


class KnowledgeGraph:
    """Triples with their neighbourhoods.

    Parameters
    ----------
    triples : without repeats; the order does not matter.
    kinds : kind of each entity, by which relations are filtered. Where they are not given they are inferred: entities
        that stand in the same place of the same relation are of one kind.

    Raises
    ------
    InputError
        If there is no triple, or a part of one is empty.
    """

    def __init__(self, triples: Iterable[tuple[str, str, str]], kinds: Mapping[str, str] | None = None) -> None:
        self.triples = tuple(sorted({Triple(*map(str, one)) for one in triples}))
        if not self.triples:
            raise InputError("graph: there are no triples")
        for one in self.triples:
            if not all(part.strip() for part in one):
                raise InputError(f"graph: triple {tuple(one)} has an empty part")
        self.entities = tuple(sorted({end for one in self.triples for end in (one.head, one.tail)}))
        self.relations = tuple(sorted({one.relation for one in self.triples}))
        self._index = {name: i for i, name in enumerate(self.entities)}
        self.kinds = dict(kinds) if kinds is not None else self._inferred()

    @classmethod
    def read(cls, path: str | Path) -> KnowledgeGraph:
        """A ``.tsv`` file (head, relation, tail a line) or a ``.json`` file (``{"triples": [[h, r, t], …]}``)."""
        path = Path(path)
        text = read_text(path, "graph")
        try:
            if path.suffix == ".json":
                data = json.loads(text)
                rows = data["triples"] if isinstance(data, dict) else data
            else:
                rows = [line.split("\t") for line in text.splitlines() if line.strip()]
            wrong = next((i for i, row in enumerate(rows, start=1) if len(row) != 3), None)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"graph {path}: cannot be read ({error})") from None
        if wrong is not None:
            raise InputError(f"graph {path}, triple {wrong}: expected head, relation and tail")
        return cls(tuple(row) for row in rows)

    def __contains__(self, triple: object) -> bool:
        return triple in self._set

    @cached_property
    def _set(self) -> frozenset[Triple]:
        return frozenset(self.triples)

    def neighbours(self, entity: str, k: int) -> tuple[str, ...]:
        """Entities within ``k`` hops, whatever the direction, without the entity itself; sorted."""
        if entity not in self._index:
            raise InputError(f"entity {entity!r}: not in the graph")
        row = self._reach(k)[self._index[entity]]
        return tuple(self.entities[i] for i in sorted(row.indices) if i != self._index[entity])

    def allowed(self, head: str, tail: str) -> tuple[str, ...]:
        """Relations that hold somewhere between entities of these kinds; all of them if a kind is not known."""
        pair = (self.kinds.get(head), self.kinds.get(tail))
        return self.relations if None in pair else tuple(sorted(self._signatures.get(pair, ())))

    @cached_property
    def _signatures(self) -> dict[tuple[str | None, str | None], set[str]]:
        found: dict[tuple[str | None, str | None], set[str]] = {}
        for one in self.triples:
            found.setdefault((self.kinds.get(one.head), self.kinds.get(one.tail)), set()).add(one.relation)
        return found

    def _reach(self, k: int) -> csr_matrix:
        """Which entities are within ``k`` hops of which, as sparse rows; kept for each ``k``."""
        kept: dict[int, csr_matrix] = self.__dict__.setdefault("_reached", {})
        if k not in kept:
            n = len(self.entities)
            ends = [(self._index[one.head], self._index[one.tail]) for one in self.triples]
            rows, columns = np.array(ends).T
            step = csr_matrix(
                (np.ones(2 * len(ends), dtype=bool), (np.r_[rows, columns], np.r_[columns, rows])), (n, n)
            )
            step = (step + csr_matrix(np.eye(n, dtype=bool))).astype(bool)
            found = csr_matrix(np.eye(n, dtype=bool))
            for _ in range(k):
                found = (found @ step).astype(bool)
            kept[k] = found.tocsr()
        return kept[k]

    def _inferred(self) -> dict[str, str]:
        """Kinds by union of the places in which entities stand."""
        parent: dict[str, str] = {}

        def root(name: str) -> str:
            while parent.setdefault(name, name) != name:
                name = parent[name]
            return name

        for one in self.triples:
            for end, place in ((one.head, f"{one.relation}>"), (one.tail, f">{one.relation}")):
                parent[root(f"e:{end}")] = root(f"p:{place}")
        return {name: root(f"e:{name}") for name in self.entities}
