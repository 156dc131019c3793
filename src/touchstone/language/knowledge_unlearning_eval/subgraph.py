"""The supporting subgraph: what a model holds on the way from a target's subject to its object (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from touchstone.errors import InputError
from touchstone.language.knowledge_unlearning_eval.graph import KnowledgeGraph, Triple
from touchstone.language.knowledge_unlearning_eval.probing import TripleProbe

__all__ = ["Subgraph", "SupportingSubgraph", "prune"]


@dataclass(frozen=True)
class Subgraph:
    """Triples that a model admits on paths from a target's head to its tail.

    Attributes
    ----------
    target : the triple in question; it is among ``edges`` if the model still holds it.
    edges : entropy in bits of each admitted triple.
    probes : questions that were asked for it.
    capped : whether the budget of questions ended the search.
    """

    target: Triple
    edges: dict[Triple, float] = field(default_factory=dict)
    probes: int = 0
    capped: bool = False

    @property
    def direct(self) -> float | None:
        """Entropy of the target itself, if it is admitted."""
        return self.edges.get(self.target)


class SupportingSubgraph:
    """Extracts subgraphs by asking about all pairs near a target.

    Parameters
    ----------
    graph : the reference: it says who is near whom and which relations fit which kinds.
    probe : of the model in question.
    k : hops of the neighbourhood.
    max_len : longest path from head to tail, in edges.
    u_star : most bits of doubt of an admitted triple; the paper's is 1.
    max_queries : questions for one target; where more are needed, neighbours are drawn by ``seed``.
    pruning : ``"paths"`` keeps an edge iff it lies on a walk of at most ``max_len`` edges; ``"official"`` is the
        official code's single pass, in sorted order, whose result there depends on the order of a set.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        probe: TripleProbe,
        *,
        k: int = 3,
        max_len: int = 3,
        u_star: float = 1.0,
        max_queries: int = 5000,
        pruning: Literal["paths", "official"] = "paths",
        seed: int = 0,
    ) -> None:
        if k < 1 or max_len < 1 or max_queries < 1 or not u_star > 0:
            raise InputError("k, max_len, max_queries, u_star: expected at least 1, and u_star above 0")
        if pruning not in ("paths", "official"):
            raise InputError(f"pruning {pruning!r}: expected 'paths' or 'official'")
        self.graph, self.probe = graph, probe
        self.k, self.max_len, self.u_star, self.max_queries = k, max_len, u_star, max_queries
        self.pruning, self.seed = pruning, seed

    def cost(self, target: Triple) -> int:
        """Questions that a target needs at most: those of all pairs of its neighbourhood."""
        near = self._near(target)
        pairs = [(target.head, v) for v in near] + [(v, target.tail) for v in (*near, target.head)]
        pairs += [(v, w) for v in near for w in self._around(v, target)]
        return sum(len(self.graph.allowed(a, b)) for a, b in pairs)

    def extract(self, target: Triple) -> Subgraph:
        """What supports ``target``.

        Raises
        ------
        InputError
            If an end of the target is not in the graph.
        """
        asked = _Asked(self)
        s, _, o = target
        first = asked.reached([(s, v) for v in self._near(target)])
        second = asked.reached(
            [(v, w) for v in first for w in self._around(v, target) if w not in first and w not in (s, o)]
        )
        asked.reached([(v, o) for v in sorted({*first, *second, s} - {o})])
        # The target itself, whatever the kinds say of it.
        asked.ask([target])
        edges = prune(asked.admitted, s, o, self.max_len, official=self.pruning == "official")
        return Subgraph(target, edges, asked.number, asked.capped)

    def _near(self, target: Triple) -> tuple[str, ...]:
        return tuple(v for v in self.graph.neighbours(target.head, self.k) if v not in (target.head, target.tail))

    def _around(self, v: str, target: Triple) -> tuple[str, ...]:
        return tuple(w for w in self.graph.neighbours(v, self.k) if w not in (target.head, target.tail, v))


class _Asked:
    """What one extraction has asked so far."""

    def __init__(self, search: SupportingSubgraph) -> None:
        self._search = search
        self.admitted: dict[Triple, float] = {}
        self.number, self.capped = 0, False

    def reached(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Ask all relations that fit each ordered pair; the second ends of pairs of which any was admitted."""
        graph = self._search.graph
        triples = [Triple(a, r, b) for a, b in dict.fromkeys(pairs) for r in graph.allowed(a, b)]
        return sorted({one.tail for one in self.ask(triples)})

    def ask(self, triples: Sequence[Triple]) -> list[Triple]:
        left = self._search.max_queries - self.number
        if len(triples) > left:
            self.capped = True
            chosen = np.random.default_rng(self._search.seed).permutation(len(triples))[: max(left, 0)]
            triples = [triples[i] for i in sorted(chosen)]
        if not triples:
            return []
        self.number += len(triples)
        probes = self._search.probe.score(triples)
        yes = probes.admitted(self._search.u_star)
        found = [one for one, good in zip(triples, yes, strict=True) if good]
        self.admitted.update({one: float(h) for one, h, good in zip(triples, probes.entropy, yes, strict=True) if good})
        return found


def prune(
    edges: dict[Triple, float], head: str, tail: str, max_len: int, *, official: bool = False
) -> dict[Triple, float]:
    """Edges on a path from ``head`` to ``tail`` of at most ``max_len`` edges; sorted, whatever their order was."""
    if official:
        good, kept = {tail}, {}
        for one in sorted(edges):
            if one.tail in good:
                good.add(one.head)
                kept[one] = edges[one]
        return kept
    ahead = _distances(head, ((one.head, one.tail) for one in edges))
    behind = _distances(tail, ((one.tail, one.head) for one in edges))
    far = float("inf")
    return {
        one: edges[one]
        for one in sorted(edges)
        if ahead.get(one.head, far) + 1 + behind.get(one.tail, far) <= max_len
    }  # fmt: skip


def _distances(start: str, steps: Iterable[tuple[str, str]]) -> dict[str, int]:
    ahead: dict[str, list[str]] = {}
    for a, b in steps:
        ahead.setdefault(a, []).append(b)
    found, edge = {start: 0}, [start]
    while edge:
        edge = [b for a in edge for b in ahead.get(a, ()) if found.setdefault(b, found[a] + 1) == found[a] + 1]
        edge = list(dict.fromkeys(edge))
    return found
