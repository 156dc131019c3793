"""Judges: how well does a subgraph support a target, on the paper's scale from 0 to 5?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from touchstone.errors import InputError
from touchstone.files import read_text
from touchstone.language.knowledge_unlearning_eval.graph import Triple
from touchstone.language.knowledge_unlearning_eval.subgraph import Subgraph

__all__ = ["ChatJudge", "Judge", "Judgement", "RuleJudge", "Rules", "judge_agreement", "parse_score"]

# Entropy of three equal options: no belief at all.
_NO_BELIEF = float(np.log2(3))
_STEPS = (0.05, 0.25, 0.55, 0.8)


@dataclass(frozen=True)
class Judgement:
    """A score from 0 to 5, or ``None`` where the judge gave none, and why."""

    score: float | None
    reasoning: str = ""


class Judge(Protocol):
    """Scores how well what is in a subgraph implies its target."""

    def score(self, subgraph: Subgraph) -> Judgement: ...


@dataclass(frozen=True)
class Rules:
    """What implies what.

    Attributes
    ----------
    same : ``(r, s)`` -> strength with which r between the same two entities means s.
    composed : ``(r1, r2, s)`` -> strength with which a -r1-> b -r2-> c means a -s-> c.
    """

    same: dict[tuple[str, str], float] = field(default_factory=dict)
    composed: dict[tuple[str, str, str], float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Rules:
        """JSON with ``same``: [[r, s, strength], …] and ``composed``: [[r1, r2, s, strength], …]."""
        try:
            data = json.loads(read_text(path, "rules"))
            return cls(
                {(str(a), str(b)): float(w) for a, b, w in data.get("same", [])},
                {(str(a), str(b), str(c)): float(w) for a, b, c, w in data.get("composed", [])},
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"rules {path}: expected lists 'same' and 'composed' ({error})") from None

    def __post_init__(self) -> None:
        for strength in (*self.same.values(), *self.composed.values()):
            if not 0 <= strength <= 1:
                raise InputError(f"rules: strength {strength}; expected a number from 0 to 1")


@dataclass(frozen=True)
class RuleJudge:
    """Offline and deterministic: paths whose relations imply the target's by given rules, combined by noisy-or.

    An edge of H bits counts g(H) = 1 - H / log2 3, at least 0. Paths are reduced by composing neighbouring relations.
    Lowering an entropy never lowers the score, and removing an edge never raises it.
    """

    rules: Rules
    max_len: int = 3

    def score(self, subgraph: Subgraph) -> Judgement:
        """0 without a path; 1 if there are paths and no rule; 2, 3, 4, 5 from z = 0.05, 0.25, 0.55, 0.8 on."""
        target = subgraph.target
        strengths, paths = [], 0
        for path in simple_paths(subgraph, self.max_len):
            paths += 1
            belief = float(np.prod([max(0.0, 1 - subgraph.edges[one] / _NO_BELIEF) for one in path]))
            means = self._means([one.relation for one in path]).get(target.relation, 0.0)
            if means:
                strengths.append((belief * means, path))
        if not paths:
            return Judgement(0.0, "no path from subject to object")
        z = 1 - float(np.prod([1 - c for c, _ in strengths])) if strengths else 0.0
        level = 1 + sum(z >= step for step in _STEPS)
        best = sorted(strengths, key=lambda one: -one[0])[:3]
        told = "; ".join(
            f"{' -> '.join(f'{e.head} {e.relation} {e.tail}' for e in path)} ({c:.2f})" for c, path in best
        )
        return Judgement(
            float(level), f"z = {z:.2f}; {told}" if told else "paths, but no rule that makes them the target"
        )

    def _means(self, relations: list[str]) -> dict[str, float]:
        """Relations that a chain amounts to, with the largest strength over all ways to compose it."""
        if len(relations) == 1:
            found = {relations[0]: 1.0}
        else:
            found = {}
            for cut in range(1, len(relations)):
                for a, p in self._means(relations[:cut]).items():
                    for b, q in self._means(relations[cut:]).items():
                        for (r1, r2, s), w in self.rules.composed.items():
                            if (r1, r2) == (a, b):
                                found[s] = max(found.get(s, 0.0), p * q * w)
        for (r, s), w in self.rules.same.items():
            if r in found:
                found[s] = max(found.get(s, 0.0), found[r] * w)
        return found


_SCALE = """\
5: the direct relation with low entropy; or with moderate entropy and at least one chain; or with high entropy and
several chains; or several chains of two or three steps with low entropy.
4: the direct relation alone with moderate entropy; or with rather high entropy and one or two chains; or with high
entropy and many; or chains of two or three steps with moderate entropy and no direct relation.
3: the direct relation with high entropy; or one to three chains with high entropy.
2: no direct relation; several chains with high entropy, none fully right.
1: hardly any support, with errors. 0: none.
Example: Rome capital_of Italy (0.08) and Italy located_in Europe (0.12) for the target Rome located_in Europe: 5."""


@dataclass(frozen=True)
class ChatJudge:
    """A language model as judge, behind any function from a prompt to a reply.

    Parameters
    ----------
    complete : local model, remote endpoint or a person; called once a round, not at all for an empty subgraph.
    rounds : scores are averaged over so many.
    tries : replies without a score are asked for again so often; then that round gives ``None``, never 0.
    anonymise : entities are shown as E1, E2, …, so that a judge cannot use what it knows of the world.
    """

    complete: Callable[[str], str]
    rounds: int = 1
    tries: int = 3
    anonymise: bool = False

    def score(self, subgraph: Subgraph) -> Judgement:
        """The mean of the rounds' scores; ``None`` if none could be read."""
        if not subgraph.edges:
            return Judgement(0.0, "no edge")
        prompt, scores, last = self.prompt(subgraph), [], ""
        for _ in range(self.rounds):
            for _ in range(self.tries):
                last = self.complete(prompt)
                found = parse_score(last)
                if found is not None:
                    scores.append(found)
                    break
        return Judgement(float(np.mean(scores)) if scores else None, last)

    def prompt(self, subgraph: Subgraph) -> str:
        """What the judge is asked."""
        names = {}
        if self.anonymise:
            ends = [e for one in (subgraph.target, *subgraph.edges) for e in (one.head, one.tail)]
            names = {name: f"E{i + 1}" for i, name in enumerate(dict.fromkeys(ends))}

        def line(one: Triple) -> str:
            return f"({names.get(one.head, one.head)}, {one.relation}, {names.get(one.tail, one.tail)})"

        facts = "\n".join(f"{line(one)}  entropy {h:.2f}" for one, h in subgraph.edges.items())
        return (
            "Say how surely the target follows from the facts below. Use these facts alone and take them as true. Each "
            "has an entropy: up to 0.25 very confident, up to 0.5 confident, up to 0.75 less confident, up to 1 not "
            "confident. A direct path is one edge from subject to object with the same or nearly the same relation. A "
            "support path is a directed chain of several edges that implies the target.\n"
            f"Scale:\n{_SCALE}\n\nFacts:\n{facts}\n\nTarget: {line(subgraph.target)}\n\n"
            "Count direct and support paths with their entropies, reason briefly, then end with a line\n"
            "Final Confidence Score: <0-5>"
        )


def parse_score(text: str) -> float | None:
    """The last ``Final Confidence Score: n`` of a reply, 0 to 5; ``None`` if there is none."""
    found = re.findall(r"Final Confidence Score:\s*\**\s*([0-5](?:\.\d+)?)(?![\d.]*\d)", text)
    return float(found[-1]) if found and float(found[-1]) <= 5 else None


def judge_agreement(judge: Sequence[float], labels: Sequence[float]) -> dict[str, float]:
    """Spearman's correlation, mean absolute difference and quadratic kappa of a judge against labels."""
    from scipy.stats import spearmanr
    from sklearn.metrics import cohen_kappa_score

    a, b = np.asarray(judge, dtype=float), np.asarray(labels, dtype=float)
    if len(a) != len(b) or len(a) < 2:
        raise InputError(f"judge, labels: {len(a)} and {len(b)} scores; expected as many, two or more")
    rounded = [np.rint(x).astype(int) for x in (a, b)]
    constant = len(set(a)) == 1 or len(set(b)) == 1
    return {
        "spearman": float("nan") if constant else float(spearmanr(a, b).statistic),
        "mean_absolute_difference": float(np.abs(a - b).mean()),
        "quadratic_kappa": float(cohen_kappa_score(*rounded, weights="quadratic", labels=list(range(6)))),
    }


def simple_paths(subgraph: Subgraph, max_len: int) -> Iterator[tuple[Triple, ...]]:
    """Paths without repeated entities from the target's head to its tail, of at most ``max_len`` edges."""
    ahead: dict[str, list[Triple]] = {}
    for one in subgraph.edges:
        ahead.setdefault(one.head, []).append(one)

    def walk(at: str, path: tuple[Triple, ...], seen: frozenset[str]) -> Iterator[tuple[Triple, ...]]:
        for one in ahead.get(at, ()):
            if one.tail == subgraph.target.tail:
                yield (*path, one)
            elif one.tail not in seen and len(path) + 1 < max_len:
                yield from walk(one.tail, (*path, one), seen | {one.tail})

    return walk(subgraph.target.head, (), frozenset({subgraph.target.head}))
