"""The study: does asking about a target alone overestimate unlearning, and by how much, on an invented world?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from touchstone.bootstrap import clustered, sign
from touchstone.drawing import axes
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Figure, Finding, Measurement, Table, Verdict
from touchstone.language.knowledge_unlearning_eval.calibrating import corruptions, fit_temperature
from touchstone.language.knowledge_unlearning_eval.evaluation import (
    UnlearningReport,
    evaluate_unlearning,
    locality_triples,
)
from touchstone.language.knowledge_unlearning_eval.graph import Triple
from touchstone.language.knowledge_unlearning_eval.judging import RuleJudge, Rules, judge_agreement
from touchstone.language.knowledge_unlearning_eval.leaks import closed_unlearning, minimal_leak_set
from touchstone.language.knowledge_unlearning_eval.probing import TripleProbe
from touchstone.language.knowledge_unlearning_eval.subgraph import Subgraph, SupportingSubgraph
from touchstone.language.knowledge_unlearning_eval.world import (
    WORLD_RULES,
    World,
    examples_of,
    learn,
    make_world,
)
from touchstone.language.unlearning import METHODS, Objective, Training, epochs

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["study"]

_LOCALITY = 0.8
_THRESHOLDS = (1.0, 0.75, 0.5, 0.25)
_HOPS = 2
_MEASURES = (
    "ues_instance", "ues_graph", "probability_drop", "not_deducible", "recall", "locality", "other", "hidden",
)  # fmt: skip
# One that leaves much to be inferred, for the threshold and the closed loop.
_MILD = ("npo+kl", 3e-4)


@dataclass(frozen=True)
class Size:
    """Of the world, its training, and the unlearning runs: method and rate."""

    world: dict[str, int]
    epochs: int
    runs: tuple[tuple[str, float], ...]
    neighbours: int


_RUNS = (
    ("ga", 1e-4), ("ga", 3e-4), ("rl", 1e-4), ("rl", 3e-4), ("npo", 1e-4), ("npo", 3e-4), ("ga+gd", 3e-4),
    ("npo+kl", 3e-4), ("neggrad+", 3e-4), ("scrub", 3e-4),
)  # fmt: skip
_SIZES = {
    "smoke": Size({"countries": 3, "companies": 8, "persons": 20, "targets": 12}, 40, _RUNS[:3], 100),
    "cpu": Size({"targets": 60}, 60, _RUNS, 600),
    "gpu": Size({"countries": 40, "companies": 400, "persons": 3000, "targets": 300}, 60, _RUNS, 2000),
}


def study(scale: Literal["smoke", "cpu", "gpu"], run: Run) -> Evidence:
    """Re-measure the claims of arXiv 2506.05735 with the rule judge.

    Parameters
    ----------
    scale : ``"smoke"`` (seconds), ``"cpu"`` (minutes) or ``"gpu"`` (a larger world; not a large language model).
    run : seed, device, engine and progress.
    """
    if scale not in _SIZES:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    size = _SIZES[scale]
    world = make_world(run.seed, **size.world)
    with run.progress.bar("teaching the world", size.epochs) as advance:
        model = learn(world, epochs=size.epochs, seed=run.seed, progress=advance)
    probe = TripleProbe(model, "plain")
    held = probe.score(list(world.targets)).admitted(1.0)
    # What the model never held cannot be unlearned.
    world = replace(world, targets=tuple(one for one, yes in zip(world.targets, held, strict=True) if yes))
    search = SupportingSubgraph(world.graph, probe, k=_HOPS)
    known = [search.extract(target) for target in world.targets]
    rows = run.map("unlearning", partial(_row, world, model, size, known, run.seed), list(size.runs))
    table = pd.DataFrame([{k: v for k, v in row.items() if k != "targets"} for row in rows])
    details = pd.DataFrame([one for row in rows for one in row["targets"]])
    thresholds = pd.DataFrame(run.map("thresholds", partial(_threshold, world, model, size, run.seed), [*_THRESHOLDS]))
    [closed] = run.map("closing the graph", partial(_closed, world, model, size, run.seed), [10])
    real = run.map("real facts", partial(_real, size, run.seed), [60] if scale != "smoke" else [])
    findings = [
        *_overestimation(table, details, run.seed),
        _lower_threshold(thresholds),
        *_calibration(world, model, run.seed),
        _judges(known, details, run.seed),
        *_leaks(known, closed),
        *_real_facts(real, run.seed),
    ]
    return run.evidence(
        "Unlearned, or only unspoken? Re-measured on an invented world",
        "knowledge-unlearning-eval",
        "study",
        findings,
        tables=[
            Table("methods", "Unlearning effect: target alone, subgraph; edges kept; neighbours unchanged", table),
            Table("targets", "Scores of each target", details),
            Table("thresholds", "Effect by the threshold of doubt, bits", thresholds),
            Table("closed", "Unlearning what targets can be inferred from, round by round", pd.DataFrame(closed)),
        ],
        figures=[_figure(table)],
        scale=scale,
        device=str(model.device),
    )


def _unlearned(
    world: World, model: LanguageModel, size: Size, method: str, lr: float, forget: list[Any], seed: int
) -> tuple[TripleProbe, int]:
    """The last epoch whose neighbours are unchanged to 0.8, else the one with most unchanged; and its number."""
    before = TripleProbe(model, "plain")
    near = locality_triples(world.graph, world.targets, set(forget), size.neighbours, seed)
    answers = before.score(near).answer
    kept = [one for one in world.graph.triples if one not in set(forget)]
    # β = 0.999 does nothing in ten epochs of so few examples; the spec's own run takes 0.9.
    objective = Objective(retain_ce=0.9, forget_ce=-0.1) if method == "neggrad+" else METHODS[method]
    best, most, number = None, -1.0, 0
    data = {"forget": examples_of(model, forget), "retain": examples_of(model, kept)}
    training = Training(epochs=10, lr=lr, batch_size=8, seed=seed)
    for epoch in epochs(model, objective, training=training, **data):  # type: ignore[arg-type]
        same = float((TripleProbe(epoch.model, "plain").score(near).answer == answers).mean())
        if same >= _LOCALITY or same > most:
            best, most, number = epoch.copy(), max(same, most), epoch.number
        if same < _LOCALITY:
            break
    assert best is not None
    return TripleProbe(best, "plain"), number


def _row(
    world: World, model: LanguageModel, size: Size, known: list[Subgraph], seed: int, which: tuple[str, float]
) -> dict[str, Any]:
    method, lr = which
    after, number = _unlearned(world, model, size, method, lr, [*world.targets], seed)
    report = _report(world, model, after, size, seed, known=known)
    row: dict[str, Any] = {"method": method, "lr": lr, "epochs": number}
    for name in (
        "ues_instance",
        "ues_graph",
        "probability_drop",
        "not_deducible",
        "recall",
        "locality",
        "other",
        "hidden",
    ):
        row[name] = getattr(report, name).value
    shown = ["target", "graph_before", "graph_after", "instance_before", "instance_after", "ues_graph", "ues_instance"]
    targets = report.per_target[shown].to_dict("records")
    return row | {"dropped": report.dropped, "targets": [{"method": method, "lr": lr, **one} for one in targets]}


def _report(
    world: World, model: LanguageModel, after: TripleProbe, size: Size, seed: int, **options: Any
) -> UnlearningReport:
    return evaluate_unlearning(
        TripleProbe(model, "plain"), after, world.targets, world.graph, RuleJudge(WORLD_RULES), k=_HOPS,
        loc_triples=size.neighbours, seed=seed, **options,
    )  # fmt: skip


def _threshold(world: World, model: LanguageModel, size: Size, seed: int, u_star: float) -> dict[str, float]:
    after, _ = _unlearned(world, model, size, *_MILD, list(world.targets), seed)
    report = _report(world, model, after, size, seed, u_star=u_star)
    return {"u_star": u_star, "ues_graph": report.ues_graph.value, "ues_instance": report.ues_instance.value}


def _closed(world: World, model: LanguageModel, size: Size, seed: int, most: int) -> list[dict[str, float]]:
    some = list(world.targets)[:most]

    def forget(triples: list[Triple]) -> SupportingSubgraph:
        after, _number = _unlearned(world, model, size, *_MILD, triples, seed)
        return SupportingSubgraph(world.graph, after, k=_HOPS)

    _gone, history = closed_unlearning(some, forget, RuleJudge(WORLD_RULES), rounds=3)
    return [{key: float(value) for key, value in row.items()} for row in history]


def _real(size: Size, seed: int, training: int) -> dict[str, Any]:
    """The same on facts about countries."""
    from touchstone.language.knowledge_unlearning_eval.countries import COUNTRY_RULES, countries

    world = countries(seed)
    model = learn(world, epochs=training, seed=seed)
    probe = TripleProbe(model, "plain")
    held = probe.score(list(world.targets)).admitted(1.0)
    world = replace(world, targets=tuple(one for one, yes in zip(world.targets, held, strict=True) if yes))
    after, number = _unlearned(world, model, size, *_MILD, [*world.targets], seed)
    report = evaluate_unlearning(
        probe, after, world.targets, world.graph, RuleJudge(COUNTRY_RULES), k=_HOPS, loc_triples=size.neighbours,
        max_queries=1500, seed=seed,
    )  # fmt: skip
    columns = {name: report.per_target[name].tolist() for name in ("ues_instance", "ues_graph")}
    return {"epochs": number, "locality": report.locality.value, **columns}


def _real_facts(real: list[dict[str, Any]], seed: int) -> list[Finding]:
    found = []
    for one in real:
        alone, graph = (np.asarray(one[name], dtype=float) for name in ("ues_instance", "ues_graph"))
        gap = clustered("UES, target alone over subgraph", alone - graph, seed=seed)
        text = f"So it is on real facts about countries (NPO+KL, neighbours unchanged {one['locality']:.2f})."
        found.append(Finding("real-facts", text, sign(gap), gap, Measurement("UES of targets alone", alone.mean())))
    return found


def _overestimation(table: pd.DataFrame, details: pd.DataFrame, seed: int) -> list[Finding]:
    shown = table[table["ues_instance"] > 0.01]
    above = int((shown["ues_graph"] <= shown["ues_instance"] + 1e-9).sum())
    details = details.assign(run=details["method"] + " " + details["lr"].astype(str))
    wide = details.assign(gap=details["ues_instance"] - details["ues_graph"]).pivot(
        index="target", columns="run", values="gap"
    )
    keys = [f"{row.method} {row.lr}" for row in shown.itertuples()]
    gap = wide[keys].to_numpy(float).mean(axis=1)
    measured = clustered("UES, target alone over subgraph, mean over methods", gap, seed=seed)
    drop = ((shown["ues_instance"] - shown["ues_graph"]) / shown["ues_instance"]).mean()
    hidden = float(shown["hidden"].max()) if len(shown) else 0.0
    per_run = len(wide)
    return [
        Finding("overestimated-everywhere", "In every run with an effect, the effect seen by subgraphs is at most that "
                "seen by asking about targets alone.", "holds" if above == len(shown) else "fails",
                Measurement.rate("runs", above, len(shown))),
        Finding("overestimation", f"Asking about targets alone overestimates (mean relative drop {drop:.2f}).",
                sign(measured), measured, Measurement("UES of targets alone", float(shown["ues_instance"].mean()))),
        Finding("relative-drop", "The mean relative drop is at least 5 %.", "holds" if drop >= 0.05 else "fails",
                Measurement("relative drop", float(drop), n=len(shown))),
        Finding("gone-yet-inferable", "In some run, targets that are gone when asked about alone are inferable.",
                "holds" if hidden > 0 else "fails",
                Measurement.rate("largest share of targets", round(hidden * per_run), per_run)),
    ]  # fmt: skip


def _lower_threshold(thresholds: pd.DataFrame) -> Finding:
    ordered = thresholds.sort_values("u_star", ascending=False)["ues_graph"].to_numpy(float)
    rising = bool(np.all(np.diff(ordered) >= -0.02))
    return Finding(
        "threshold",
        "The effect rises, or stays within 0.02, as the threshold of doubt falls from 1 to 0.25 bits.",
        "holds" if rising else "fails",
        Measurement("UES at 0.25 bits", float(ordered[-1])),
        Measurement("at 1 bit", float(ordered[0])),
    )


def _calibration(world: World, model: LanguageModel, seed: int) -> list[Finding]:
    true = list(world.graph.triples)[:300]
    false = corruptions(world.graph, 300, seed)
    plain = TripleProbe(model, "plain")
    first = fit_temperature(plain, true, false)
    factor = 3.0
    sharp = TripleProbe(model, "plain")
    sharp._kept = {one: np.r_[row[:9] * factor, row[9]] for one, row in plain._kept.items()}
    second = fit_temperature(sharp, true, false)
    ratio = second.temperature / first.temperature
    # Triples that are told apart without an error ask for T = 0: there is nothing to recover then.
    bounded = min(first.temperature, second.temperature) < 0.01
    verdict: Verdict = "undecided" if bounded else "holds" if abs(ratio / factor - 1) <= 0.05 else "fails"
    return [
        Finding("temperature", "Logits times 3 give a fitted temperature 3 times as large, to 5 %.",
                verdict, Measurement("ratio", ratio, "times")),
        Finding("calibration", "Calibration lowers the expected calibration error of the sharpened logits.",
                "holds" if second.ece_after < second.ece_before else "fails",
                Measurement("ECE after", second.ece_after, n=second.n),
                Measurement("before", second.ece_before, n=second.n)),
    ]  # fmt: skip


def _judges(known: list[Subgraph], details: pd.DataFrame, seed: int) -> Finding:
    """A second judge whose rules are a little off, on subgraphs of many strengths."""
    rng = np.random.default_rng([seed, 5])
    first = RuleJudge(WORLD_RULES)
    moved = {key: float(np.clip(w + rng.uniform(-0.1, 0.1), 0, 1)) for key, w in WORLD_RULES.composed.items()}
    second = RuleJudge(Rules(WORLD_RULES.same, moved))
    some = []
    for one in known:
        for share in (0.1, 0.3, 0.6):
            edges = {e: float(rng.uniform(0, 1.4)) for e in one.edges if rng.random() < share}
            some.append(replace(one, edges=edges))
    scores = [[judge.score(one).score or 0.0 for one in some] for judge in (first, second)]
    found = judge_agreement(*scores)
    return Finding(
        "judges",
        "A rule judge and one whose weights are off by up to 0.1 rank subgraphs alike (Spearman at least 0.8).",
        "holds" if found["spearman"] >= 0.8 else "fails",
        Measurement("Spearman", found["spearman"], n=len(some)),
        Measurement("mean absolute difference", found["mean_absolute_difference"], "points"),
    )


def _leaks(known: list[Subgraph], closed: list[dict[str, float]]) -> list[Finding]:
    judge = RuleJudge(WORLD_RULES)
    some = sorted(known, key=lambda one: len(one.edges))[:15]
    sizes: list[int] = []
    safe = 0
    for one in some:
        leak = minimal_leak_set(one, judge)
        sizes.append(len(leak))
        rest = {e: h for e, h in one.edges.items() if e != one.target and e not in leak}
        safe += (judge.score(Subgraph(one.target, rest)).score or 0.0) < 3
    first, last = closed[0]["inferable"], closed[-1]["inferable"]
    return [
        Finding("leak-set", f"Without its leak set (mean size {np.mean(sizes):.1f}) no target can be inferred.",
                "holds" if safe == len(some) else "fails", Measurement.rate("targets", int(safe), len(some))),
        Finding("closed-unlearning", "Unlearning the leak sets too leaves fewer targets inferable than unlearning the "
                "targets alone.", "holds" if last < first else "undecided" if first == 0 else "fails",
                Measurement("inferable after the last round", last, n=10), Measurement("after the first", first, n=10)),
    ]  # fmt: skip


def _figure(table: pd.DataFrame) -> Figure:
    canvas, plot = axes(6.8, 0.9 + 0.36 * len(table))
    places = np.arange(len(table))
    plot.barh(places - 0.2, table["ues_instance"], height=0.36, label="target alone")
    plot.barh(places + 0.2, table["ues_graph"], height=0.36, label="supporting subgraph")
    plot.set_yticks(places, [f"{row.method} {row.lr:g}" for row in table.itertuples()])
    plot.invert_yaxis()
    plot.set(xlabel="unlearning effect score (1: gone, 0: no effect)")
    plot.legend(frameon=False)
    return Figure.draw("effect", "Unlearning effect, seen two ways", canvas)
