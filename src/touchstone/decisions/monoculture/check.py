"""The check: do the models of a table shut out the same people, or decide people's fate arbitrarily?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import pandas as pd
from pydantic import Field

from touchstone.budget import Cost
from touchstone.decisions.monoculture import figures
from touchstone.decisions.monoculture.measures import Metric
from touchstone.decisions.monoculture.report import AuditReport, audit, deficit_sweep
from touchstone.decisions.monoculture.subsets import greedy_portfolio, recourse_by_size
from touchstone.decisions.monoculture.table import DecisionTable, Favourable, Focus
from touchstone.decisions.monoculture.verdict import NEAR_MONOCULTURE, NEAR_MONOCULTURE_NONE
from touchstone.evidence import Evidence, Figure, Finding, Measurement, Table

if TYPE_CHECKING:
    from touchstone.decisions.predictions import Predictions
    from touchstone.run import Run

__all__ = ["COST", "METRICS", "NEEDS", "Settings", "check", "evidence_parts"]

NEEDS = ("truth",)
"""It also needs decisions, or scores, of at least one model; with one alone agreement is not defined."""

METRICS: dict[str, str] = {
    "no_recourse": "share of the cases in focus that every model refuses, 0 to 1",
    "no_recourse_ratio": "that share over the share that one model refuses on average: 1 is strict monoculture",
    "agreement_position": "mean agreement of pairs from independent errors (0) to strict monoculture (1)",
    "equivalent_correlation": "correlation of errors that would give this recourse, 0 to 1",
    "arbitrary": "share of the cases that between a quarter and three quarters of the models accept, 0 to 1",
    "ambiguity": "share of the cases that some model decides unlike the most accurate one, 0 to 1",
    "discrepancy": "largest share of the cases that one model decides unlike the most accurate one, 0 to 1",
    "group_ratio": "largest ratio between groups of the share without recourse, 1 or more",
}

COST = Cost(seconds=2.0, setting="draws", least=100, most=5000, fixed=1.5)


@dataclass(frozen=True)
class Settings:
    """What a plan can set.

    Attributes
    ----------
    eps : models within this much of the best metric are looked at; the paper's is 0.05.
    focus : ``positive`` (outcome favourable), ``negative`` or ``all`` cases.
    success : what counts: to be accepted (``accept``), rejected (``reject``) or judged rightly (``correct``).
    metric : ``accuracy`` as in the paper, or ``balanced_accuracy``.
    split : share of cases on which models are selected and not measured; 0 uses all for both, as in the paper.
    draws : bootstrap draws.
    """

    eps: Annotated[float, Field(ge=0)] = 0.05
    focus: Focus = "positive"
    success: Favourable = "accept"
    metric: Metric = "accuracy"
    split: Annotated[float, Field(ge=0, lt=1)] = 0.0
    draws: Annotated[int, Field(ge=0)] = 500


def check(predictions: Predictions, settings: Settings, run: Run) -> Evidence:
    """Measure the models within ``eps`` of the best; see the module's text.

    Raises
    ------
    InputError
        If the table has no outcome, or neither decisions nor scores; the message names what lacks.
    """
    predictions.need("truth", who="monoculture")
    table = DecisionTable.from_predictions(predictions)
    findings, tables, figures_ = evidence_parts(table, settings, run)
    word = "model" if len(table.models) == 1 else "models"
    return run.evidence(
        f"Recourse and agreement under {len(table.models)} {word}",
        "monoculture",
        "check",
        findings,
        tables=tables,
        figures=figures_,
    )


def evidence_parts(
    table: DecisionTable, settings: Settings, run: Run
) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Findings, tables and figures of one table."""
    # One unit: all intervals come from the same draws.
    with run.progress.bar("measuring agreement and recourse", 1) as advance:
        report = audit(
            table,
            settings.eps,
            focus=settings.focus,
            favourable=settings.success,
            metric=settings.metric,
            split=settings.split,
            n_boot=settings.draws,
            seed=run.seed,
        )
        advance()
    tables, pictures = _tables(report, settings), _figures(report)
    if len(table.models) > 1:
        sweep = deficit_sweep(table, focus=settings.focus, favourable=settings.success, metric=settings.metric)
        tables.append(Table("sweep", "Every measure by accuracy deficit", sweep))
        pictures.append(figures.sweep(sweep))
    return _findings(report), tables, pictures


def _findings(report: AuditReport) -> list[Finding]:
    found = report.estimates.measured
    beside = report.content["beside"]
    ratio = _largest_ratio(report)

    def mono(name: str, title: str) -> Measurement:
        return Measurement(title, float(beside["monoculture"][name]))

    return [
        _held(
            "no-recourse",
            "At most one case in twenty is refused by every model.",
            _named(found["none"], "cases without recourse"),
            "<= 0.05",
            mono("none", "under strict monoculture"),
        ),
        _held(
            "no-recourse-ratio",
            "Clearly fewer cases are refused by every model than by one.",
            _named(found["none_ratio"], "without recourse, over a single model's refusals"),
            f"<= {NEAR_MONOCULTURE_NONE}",
        ),
        _held(
            "agreement-position",
            "The models are not copies of one another.",
            _named(found["position"], "place of mean agreement between both extremes"),
            f"<= {NEAR_MONOCULTURE}",
        ),
        _held(
            "equivalent-correlation",
            "Recourse is what errors with a correlation of at most 0.9 would leave.",
            _named(found.get("correlation", Measurement("correlation", math.nan)), "equivalent correlation of errors"),
            "<= 0.9",
        ),
        _held(
            "arbitrary",
            "For at most one case in five it depends on the model.",
            _named(found["arbitrary"], "cases that a quarter to three quarters of models accept"),
            "<= 0.2",
            Measurement("under independent errors", float(beside["independent"]["arbitrary"])),
        ),
        _held(
            "ambiguity",
            "At most half of the cases are decided unlike the most accurate model by some model.",
            _named(found["ambiguity"], "ambiguity"),
            "<= 0.5",
            Measurement("under independent errors", float(beside["independent"]["ambiguity"])),
        ),
        _held(
            "discrepancy",
            "No model decides more than one case in five unlike the most accurate one.",
            _named(found["discrepancy"], "discrepancy"),
            "<= 0.2",
        ),
        _held(
            "group-ratio",
            "No group is left without recourse more than 1.25 times as often as another."
            if ratio is not None
            else "No group is left without recourse more than 1.25 times as often as another (no groups to compare).",
            ratio or Measurement("largest ratio between groups", math.nan),
            "<= 1.25",
        ),
    ]


def _held(id: str, statement: str, measured: Measurement, limit: str, against: Measurement | None = None) -> Finding:
    """A finding held to its limit; one that could not be measured is not decided rather than failed."""
    if not math.isfinite(measured.value):
        return Finding(id, statement, "undecided", measured, against, limit)
    return Finding.held_to(id, statement, measured, limit, against)


def _named(measured: Measurement, name: str) -> Measurement:
    return Measurement(name, measured.value, measured.unit, measured.low, measured.high, measured.n)


def _largest_ratio(report: AuditReport) -> Measurement | None:
    ratios = [rates.ratio for rates in report.estimates.groups.values() if rates.ratio is not None]
    known = [ratio for ratio in ratios if math.isfinite(ratio.value)]
    return max(known, key=lambda ratio: ratio.value) if known else (ratios[0] if ratios else None)


def _tables(report: AuditReport, settings: Settings) -> list[Table]:
    content, part = report.content, report.table
    beside = content["beside"]
    measures_frame = pd.DataFrame(
        [
            {
                "measure": m.name,
                "value": m.value,
                "low": m.low,
                "high": m.high,
                "independent": beside["independent"].get(name),
                "monoculture": beside["monoculture"].get(name),
            }
            for name, m in report.estimates.measured.items()
        ]
    )
    models = pd.DataFrame(
        {
            "model": content["models"],
            "accuracy": content["accuracy"],
            "success_in_focus": content["tpr"],
            "positive_rate": content["positive_rate"],
        }
    )
    lines = pd.DataFrame({"line": [*content["verdict"]["lines"], *content["flags"]]})
    found = [
        Table("verdict", "What it amounts to", lines),
        Table("measures", "Every measure, and both extremes", measures_frame),
        Table("models", f"Models within {settings.eps:g} of the best", models),
    ]
    groups = [
        {"attribute": name, "group": g, "cases": n, "none": m.value, "low": m.low, "high": m.high}
        for name, rates in report.estimates.groups.items()
        for g, n, m in zip(rates.names, rates.cases, rates.none, strict=True)
    ]
    if groups:
        found.append(Table("groups", "Share without recourse by group", pd.DataFrame(groups)))
    if len(part.models) > 1:
        by_size = recourse_by_size(part, settings.focus, settings.success) if _complete(part) else None
        if by_size is not None:
            found.append(Table("by_size", "Expected recourse of random subsets of each size", by_size))
        portfolio = greedy_portfolio(part, focus=settings.focus, favourable=settings.success)
        found.append(Table("portfolio", "Models in the order that leaves the fewest without recourse", portfolio))
        key = "errors_beyond" if "errors_beyond" in report.pairs else "agreement"
        pairs = report.pairs.sort_values(key, ascending=False).head(200).reset_index(drop=True)
        found.append(Table("pairs", "Pairs that agree beyond what the difficulty of cases explains, first", pairs))
    return found


def _complete(table: DecisionTable) -> bool:
    return not (table.votes < 0).any()


def _figures(report: AuditReport) -> list[Figure]:
    found = [figures.curves(report.curves)]
    for name, rates in report.estimates.groups.items():
        if len(rates.names) > 1:
            found.append(figures.groups(name, rates))
    return found
