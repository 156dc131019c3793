"""What else must go: the fewest triples without which a target cannot be inferred, and a loop that removes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from touchstone.language.knowledge_unlearning_eval.graph import Triple
from touchstone.language.knowledge_unlearning_eval.judging import Judge
from touchstone.language.knowledge_unlearning_eval.subgraph import Subgraph, SupportingSubgraph

__all__ = ["closed_unlearning", "minimal_leak_set"]

# Sets are tried exactly up to this many combinations, greedily beyond.
_EXACT = 2000


def minimal_leak_set(subgraph: Subgraph, judge: Judge, *, below: float = 3.0) -> list[Triple]:
    """Fewest further triples whose removal, with the target's own, brings the score under ``below``; often none.

    Exact while few combinations are to be tried, greedy (the edge that lowers the score most, then the surest) beyond.
    """
    rest = {one: h for one, h in subgraph.edges.items() if one != subgraph.target}

    def score(without: Sequence[Triple]) -> float:
        kept = {one: h for one, h in rest.items() if one not in without}
        return judge.score(Subgraph(subgraph.target, kept)).score or 0.0

    if score(()) < below:
        return []
    tried = 0
    for size in range(1, len(rest) + 1):
        for some in combinations(rest, size):
            tried += 1
            if tried > _EXACT:
                return _greedy(rest, score, below)
            if score(some) < below:
                return list(some)
    return list(rest)


def closed_unlearning(
    targets: Sequence[Triple],
    forget: Callable[[list[Triple]], SupportingSubgraph],
    judge: Judge,
    *,
    below: float = 3.0,
    rounds: int = 4,
) -> tuple[list[Triple], list[dict[str, float]]]:
    """Unlearn targets, then what they can still be inferred from, until none scores ``below`` or more.

    Parameters
    ----------
    forget : unlearns a list of triples from the model as it was at first, and gives the search on the result.
    rounds : at most.

    Returns
    -------
    What was unlearned in the end, and for each round its number of triples and of targets that could still be inferred.
    """
    gone = list(targets)
    history: list[dict[str, float]] = []
    for number in range(1, rounds + 1):
        search = forget(gone)
        found = [search.extract(target) for target in targets]
        left = [one for one in found if (judge.score(one).score or 0.0) >= below]
        history.append({"round": number, "forgotten": len(gone), "inferable": len(left)})
        more = {leak for one in left for leak in minimal_leak_set(one, judge, below=below)} - set(gone)
        if not more or number == rounds:
            break
        gone += sorted(more)
    return gone, history


def _greedy(rest: dict[Triple, float], score: Callable[[Sequence[Triple]], float], below: float) -> list[Triple]:
    removed: list[Triple] = []
    while score(removed) >= below and len(removed) < len(rest):
        left = [one for one in rest if one not in removed]
        removed.append(min(left, key=lambda one: (score([*removed, one]), rest[one])))
    return removed
