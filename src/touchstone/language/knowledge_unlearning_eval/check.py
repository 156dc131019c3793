"""The audit's check: can unlearned facts still be inferred from what the model kept?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from touchstone.bootstrap import sign
from touchstone.budget import Cost
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Finding, Table

if TYPE_CHECKING:
    from touchstone.language.knowledge_unlearning_eval.files import Case
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["COST", "METRICS", "NEEDS", "NEEDS_BEFORE", "NEEDS_SETTING", "Settings", "check"]

NEEDS = "local"
"""It reads the likeliest tokens of thousands of questions."""

NEEDS_BEFORE = True
NEEDS_SETTING = "graph"

METRICS: dict[str, str] = {
    "ues_graph": "unlearning effect by supporting subgraphs; 1 gone, 0 no effect, negative easier to infer",
    "ues_instance": "unlearning effect by asking about each target alone",
    "hidden": "share of targets that are gone when asked about alone, and yet inferable, 0 to 1",
    "edges_kept": "share of the supporting triples that the model still holds, 0 to 1",
    "locality": "share of neighbouring triples whose answer is unchanged, 0 to 1",
    "other_answers": "share of neighbouring triples that are answered neither Yes, No nor Unknown now, 0 to 1",
}

COST = Cost(seconds=60.0, setting="targets", least=4, most=500, fixed=3.0)


@dataclass(frozen=True)
class Settings:
    """What a plan can set.

    Attributes
    ----------
    graph : JSON file with ``triples``, ``targets`` and, for the rule judge, ``rules``.
    template : how a triple is asked: ``complete``, ``relation``, ``plain`` or a text.
    targets : at most; drawn by the seed if there are more.
    k, max_len, u_star, max_queries : of the subgraphs.
    mode : entropy over the ``top5`` tokens or the ``three`` options.
    calibrate : fit the temperature on the model before, with true and corrupted triples of the graph.
    neighbours : triples for the locality.
    """

    graph: str = ""
    template: str = "complete"
    targets: Annotated[int, Field(ge=1)] = 20
    k: Annotated[int, Field(ge=1)] = 2
    max_len: Annotated[int, Field(ge=1)] = 3
    u_star: Annotated[float, Field(gt=0)] = 1.0
    max_queries: Annotated[int, Field(ge=1)] = 1000
    mode: Literal["top5", "three"] = "top5"
    calibrate: bool = True
    neighbours: Annotated[int, Field(ge=0)] = 200


def check(model: LanguageModel, settings: Settings, run: Run, *, before: LanguageModel) -> Evidence:
    """Check ``model``, the one after unlearning, against ``before``. Its limits are the keys of :data:`METRICS`.

    Raises
    ------
    InputError
        If no graph is given, it cannot be read, or the model before holds none of the targets.
    """
    from touchstone.language.knowledge_unlearning_eval.files import read_case

    if not settings.graph:
        raise InputError("knowledge-unlearning-eval needs the setting graph: a JSON file with triples and targets")
    case = read_case(settings.graph)
    [found] = run.map(
        "asking about targets and neighbours", partial(_measure, model, before, case, settings), [run.seed]
    )
    named = {one.id: one for one in (_finding(key, found) for key in METRICS)}
    return run.evidence(
        f"Knowledge unlearned in {model.source}",
        "knowledge-unlearning-eval",
        "check",
        list(named.values()),
        tables=[
            Table("targets", "Scores of each target", pd.DataFrame(found["targets"])),
            Table("leaks", "What else would have to go, by target", pd.DataFrame(found["leaks"])),
            Table(
                "confusion",
                "Answers of neighbouring triples, before (rows) and after",
                pd.DataFrame(found["confusion"]),
            ),
        ],
        device=str(model.device),
    )


def _measure(model: LanguageModel, before: LanguageModel, case: Case, settings: Settings, seed: int) -> dict[str, Any]:
    from touchstone.language.knowledge_unlearning_eval.calibrating import corruptions, fit_temperature
    from touchstone.language.knowledge_unlearning_eval.evaluation import evaluate_unlearning
    from touchstone.language.knowledge_unlearning_eval.judging import RuleJudge
    from touchstone.language.knowledge_unlearning_eval.leaks import minimal_leak_set
    from touchstone.language.knowledge_unlearning_eval.probing import TripleProbe

    first = TripleProbe(before, settings.template, mode=settings.mode, batch_size=64)
    if settings.calibrate:
        rng = np.random.default_rng(seed)
        true = [case.graph.triples[i] for i in rng.permutation(len(case.graph.triples))[:60]]
        false = corruptions(case.graph, 60, seed)
        if false:
            fit_temperature(first, true, false)
    second = TripleProbe(model, settings.template, first.temperature, settings.mode, 64)
    order = np.random.default_rng(seed).permutation(len(case.targets))[: settings.targets]
    judge = RuleJudge(case.rules, settings.max_len)
    report = evaluate_unlearning(
        first, second, [case.targets[i] for i in sorted(order)], case.graph, judge, k=settings.k,
        max_len=settings.max_len, u_star=settings.u_star, max_queries=settings.max_queries,
        loc_triples=settings.neighbours, seed=seed,
    )  # fmt: skip
    leaks = [
        {"target": " ".join(one.target), "leak": "; ".join(" ".join(e) for e in minimal_leak_set(one, judge))}
        for one in report.after
    ]
    measured = {
        "ues_graph": report.ues_graph, "ues_instance": report.ues_instance, "hidden": report.hidden,
        "edges_kept": report.recall, "locality": report.locality, "other_answers": report.other,
    }  # fmt: skip
    table = report.confusion.reset_index(names="before").to_dict("records")
    return {
        "measured": {key: [one.value, one.low, one.high, one.n] for key, one in measured.items()},
        "targets": report.per_target.to_dict("records"),
        "leaks": leaks,
        "confusion": [{str(k): v for k, v in row.items()} for row in table],
        "dropped": report.dropped,
    }


_SAYS = {
    "ues_graph": "Targets are harder to infer than before.",
    "ues_instance": "Asked about alone, targets are held less than before.",
    "hidden": "No target is gone when asked about alone and yet inferable.",
    "edges_kept": "What supports the targets is still held.",
    "locality": "At least four in five neighbouring triples are answered as before.",
    "other_answers": "The model still answers in the form that was asked for.",
}


def _finding(key: str, found: dict[str, Any]) -> Finding:
    from touchstone.evidence import Measurement, Verdict

    value, low, high, n = found["measured"][key]
    one = Measurement(METRICS[key].split(";")[0].split(",")[0], value, "", low, high, n)
    verdict: Verdict
    if key == "hidden":
        verdict = "holds" if value == 0 else "fails"
    elif key == "locality":
        verdict = "holds" if value >= 0.8 else "fails"
    elif key == "other_answers":
        verdict = "holds" if value <= 0.05 else "fails"
    else:
        verdict = sign(one)
    text = _SAYS[key] + (f" ({found['dropped']} targets were not held before.)" if found["dropped"] else "")
    return Finding(key.replace("_", "-"), text, verdict, one)
