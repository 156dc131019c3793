"""Was it forgotten? The score of each target before and after, and what surface measures say instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from touchstone.bootstrap import clustered, over_items
from touchstone.errors import InputError
from touchstone.evidence import Measurement
from touchstone.language.knowledge_unlearning_eval.graph import KnowledgeGraph, Triple
from touchstone.language.knowledge_unlearning_eval.judging import Judge, Judgement
from touchstone.language.knowledge_unlearning_eval.probing import ANSWERS, TripleProbe
from touchstone.language.knowledge_unlearning_eval.subgraph import Subgraph, SupportingSubgraph

__all__ = ["UnlearningReport", "evaluate_unlearning", "locality_triples", "targets_for_precision", "ues"]


@dataclass(frozen=True)
class UnlearningReport:
    """How far targets were unlearned.

    Attributes
    ----------
    per_target : one row a target: ``target``, ``graph_before``, ``graph_after``, ``instance_before``,
        ``instance_after`` (scores 0 to 5), ``ues_graph``, ``ues_instance``, ``recall`` of the subgraph's edges,
        ``edges_before``, ``edges_after``, and ``p_before``, ``p_after``, the probability of Yes.
    dropped : targets that the model before did not hold (score 0), which say nothing of unlearning.
    unread : targets for which the judge gave no score.
    confusion : answers of neighbouring triples before (rows) and after (columns).
    before, after : the subgraphs.
    seed : of the intervals.
    """

    per_target: pd.DataFrame
    dropped: int
    unread: int
    confusion: pd.DataFrame
    before: list[Subgraph]
    after: list[Subgraph]
    seed: int = 0

    def _mean(self, column: str, name: str) -> Measurement:
        return clustered(name, self.per_target[column].to_numpy(float), seed=self.seed)

    @property
    def ues_graph(self) -> Measurement:
        """Unlearning effect by subgraphs: 1 is wholly gone, 0 no effect, negative easier to infer than before."""
        return self._mean("ues_graph", "UES, subgraph")

    @property
    def ues_instance(self) -> Measurement:
        """The same where each target is asked about alone, as evaluations commonly do."""
        return self._mean("ues_instance", "UES, target alone")

    @property
    def gap(self) -> Measurement:
        """By how much asking about the target alone overestimates, paired by target."""
        difference = self.per_target["ues_instance"] - self.per_target["ues_graph"]
        return clustered("UES, target alone over subgraph", difference.to_numpy(float), seed=self.seed)

    @property
    def overestimation(self) -> Measurement:
        """The gap as a share of the effect seen on targets alone; NaN if there is none."""
        rows = self.per_target[["ues_instance", "ues_graph"]].to_numpy(float).T

        def share(x: np.ndarray) -> float:
            return float((x[0].mean() - x[1].mean()) / x[0].mean()) if x[0].mean() > 0 else float("nan")

        return over_items("overestimation", rows, share, seed=self.seed)

    @property
    def score_drop(self) -> Measurement:
        """Mean fall of the score, not divided by what it was: steadier where that was low."""
        drop = self.per_target["graph_before"] - self.per_target["graph_after"]
        return clustered("fall of the score", drop.to_numpy(float), seed=self.seed)

    @property
    def recall(self) -> Measurement:
        """Share of a subgraph's edges that are still admitted."""
        return self._mean("recall", "edges kept")

    @property
    def probability_drop(self) -> Measurement:
        """A surface measure: share of the target's probability of Yes that is gone."""
        drop = 1 - self.per_target["p_after"] / self.per_target["p_before"].clip(lower=1e-12)
        return clustered("probability gone", drop.to_numpy(float), seed=self.seed)

    @property
    def not_deducible(self) -> Measurement:
        """Deep unlearning's measure: share of targets that no rule derives from what is held, however unsurely."""
        gone = (self.per_target["graph_after"] < 2).sum()
        return Measurement.rate("not deducible", int(gone), len(self.per_target))

    @property
    def hidden(self) -> Measurement:
        """Share of targets that are gone when asked about alone and yet inferable (score 3 or more)."""
        rows = self.per_target
        count = ((rows["instance_after"] == 0) & (rows["graph_after"] >= 3)).sum()
        return Measurement.rate("gone alone, yet inferable", int(count), len(rows))

    @property
    def locality(self) -> Measurement:
        """Share of neighbouring triples whose answer is unchanged."""
        table = self.confusion.to_numpy()
        return Measurement.rate("neighbours unchanged", int(np.trace(table)), int(table.sum()))

    @property
    def other(self) -> Measurement:
        """Share of neighbouring triples that are answered by something else now: a broken model looks unlearned."""
        table = self.confusion
        return Measurement.rate("answers of another form", int(table["Other"].sum()), int(table.to_numpy().sum()))


def ues(before: float, after: float) -> float:
    """(before - after) / before; NaN where nothing was there before."""
    return (before - after) / before if before > 0 else float("nan")


def evaluate_unlearning(
    before: TripleProbe,
    after: TripleProbe,
    targets: Sequence[Triple],
    graph: KnowledgeGraph,
    judge: Judge,
    *,
    k: int = 3,
    max_len: int = 3,
    u_star: float = 1.0,
    max_queries: int = 5000,
    loc_triples: int = 2000,
    known: Sequence[Subgraph] | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> UnlearningReport:
    """Compare what supports each target before and after unlearning.

    Parameters
    ----------
    before, after : probes of the two models, with the same temperature.
    known : subgraphs of the model before, if they were extracted already.
    progress : called with the number of targets just finished.

    Raises
    ------
    InputError
        If there is no target, an end is not in the graph, or the model before holds none of them.
    """
    if not targets:
        raise InputError("targets: there are none")
    options = {"k": k, "max_len": max_len, "u_star": u_star, "max_queries": max_queries, "seed": seed}
    first, second = (SupportingSubgraph(graph, one, **options) for one in (before, after))  # type: ignore[arg-type]
    old, new, rows, dropped, unread = [], [], [], 0, 0
    for i, target in enumerate(targets):
        was = known[i] if known is not None else first.extract(target)
        now = second.extract(target)
        scores = [judge.score(one).score for one in (was, now)]
        alone = [_alone(judge, one, u_star).score for one in (was, now)]
        if progress is not None:
            progress(1)
        if None in scores or None in alone:
            unread += 1
            continue
        (a, b), (c, d) = ([float(x or 0.0) for x in pair] for pair in (scores, alone))
        if a == 0 or c == 0:
            dropped += 1
            continue
        old.append(was)
        new.append(now)
        kept = len(was.edges.keys() & now.edges.keys()) / len(was.edges)
        p = [float(one.score([target]).options[0, 0]) for one in (before, after)]
        rows.append((" ".join(target), a, b, c, d, ues(a, b), ues(c, d), kept, len(was.edges), len(now.edges), *p))
    if not rows:
        raise InputError(f"targets: the model before holds none of the {len(targets)} (or no judge could be read)")
    columns = ["target", "graph_before", "graph_after", "instance_before", "instance_after", "ues_graph",
               "ues_instance", "recall", "edges_before", "edges_after", "p_before", "p_after"]  # fmt: skip
    support = {one for sub in old for one in sub.edges} | set(targets)
    near = locality_triples(graph, targets, support, loc_triples, seed)
    table = np.zeros((4, 4), dtype=int)
    if near:
        np.add.at(table, (before.score(near).answer, after.score(near).answer), 1)
    confusion = pd.DataFrame(table, index=list(ANSWERS), columns=list(ANSWERS))
    return UnlearningReport(pd.DataFrame(rows, columns=columns), dropped, unread, confusion, old, new, seed)


def locality_triples(
    graph: KnowledgeGraph, targets: Sequence[Triple], support: set[Triple], most: int, seed: int = 0
) -> list[Triple]:
    """Triples within three hops of the targets' ends that support none of them, ``most`` at most, drawn by ``seed``."""
    near = {name for one in targets for end in (one.head, one.tail) for name in (end, *graph.neighbours(end, 2))}
    found = [one for one in graph.triples if one not in support and (one.head in near or one.tail in near)]
    if len(found) > most:
        chosen = np.random.default_rng(seed).permutation(len(found))[:most]
        found = [found[i] for i in sorted(chosen)]
    return found


def targets_for_precision(report: UnlearningReport, half_width: float = 0.05) -> int:
    """How many targets would bound UES to within ``half_width`` at 95 %, from the spread seen in a report."""
    if not half_width > 0:
        raise InputError(f"half_width {half_width}: expected more than 0")
    spread = float(report.per_target["ues_graph"].std(ddof=1)) if len(report.per_target) > 1 else float("nan")
    return int(np.ceil((1.96 * spread / half_width) ** 2)) if spread == spread else 0


def _alone(judge: Judge, subgraph: Subgraph, u_star: float) -> Judgement:
    """Score of the target as its own whole subgraph, with its own confidence."""
    h = subgraph.direct
    edges = {subgraph.target: h} if h is not None and h <= u_star else {}
    return judge.score(Subgraph(subgraph.target, edges))
