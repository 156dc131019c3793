"""The file of an evaluation: the reference graph, the targets, and rules of the judge."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from touchstone.errors import InputError
from touchstone.files import read_text
from touchstone.language.knowledge_unlearning_eval.graph import KnowledgeGraph, Triple
from touchstone.language.knowledge_unlearning_eval.judging import Rules

__all__ = ["Case", "read_case"]


@dataclass(frozen=True)
class Case:
    """What an evaluation is about."""

    graph: KnowledgeGraph
    targets: tuple[Triple, ...]
    rules: Rules


def read_case(path: str | Path) -> Case:
    """Read JSON with ``triples`` and ``targets``, lists of [head, relation, tail], and perhaps ``kinds`` and ``rules``.

    ``rules`` holds ``same`` and ``composed``, see :class:`~touchstone.language.knowledge_unlearning_eval.Rules`.
    Targets need not be among the triples; their ends must be.

    Raises
    ------
    InputError
        Naming what is missing or malformed.
    """
    text = read_text(path, "graph")
    try:
        data = json.loads(text)
        triples = [tuple(map(str, row)) for row in data["triples"]]
        targets = tuple(Triple(*map(str, row)) for row in data["targets"])
        rules = data.get("rules", {})
        same = {(str(a), str(b)): float(w) for a, b, w in rules.get("same", [])}
        composed = {(str(a), str(b), str(c)): float(w) for a, b, c, w in rules.get("composed", [])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"graph {path}: expected JSON with triples and targets, each [head, relation, tail] ({error})"
        ) from None
    wrong = next((i for i, row in enumerate(triples, start=1) if len(row) != 3), None)
    if wrong is not None:
        raise InputError(f"graph {path}, triple {wrong}: expected head, relation and tail")
    if not targets:
        raise InputError(f"graph {path}: there are no targets")
    graph = KnowledgeGraph([(a, b, c) for a, b, c in triples], data.get("kinds"))
    for one in targets:
        for end in (one.head, one.tail):
            if end not in graph.entities:
                raise InputError(f"graph {path}: target {' '.join(one)}: {end!r} is in no triple")
    return Case(graph, targets, Rules(same, composed))
