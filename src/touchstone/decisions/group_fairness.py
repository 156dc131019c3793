"""Fairness between groups, the room's own check: rates of decisions by group, and the gaps between them.

The measures are the field's: demographic parity, equal opportunity (true-positive rates) and equalized odds
(Hardt, Price and Srebro 2016). A table with outcomes, decisions or scores, and one or more group columns is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from touchstone.budget import Cost
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Figure, Finding, Measurement, Table

if TYPE_CHECKING:
    from touchstone.decisions.predictions import Predictions
    from touchstone.run import Run

__all__ = ["COST", "METRICS", "NEEDS", "SLUG", "Settings", "check", "gaps"]

SLUG = "group-fairness"

NEEDS = ("truth", "groups")
"""It also needs decisions, or scores, of at least one model."""

METRICS: dict[str, str] = {
    "parity_gap": "largest difference between groups of the share of favourable decisions, 0 to 1",
    "tpr_gap": "the same among cases whose outcome is favourable (equal opportunity), 0 to 1",
    "fpr_gap": "the same among the other cases, 0 to 1",
    "equalized_odds_gap": "the larger of the last two, 0 to 1",
    "accuracy_gap": "largest difference between groups of the share of right decisions, 0 to 1",
}

COST = Cost(seconds=1.0, setting="draws", least=200, most=10000, fixed=0.5)

Counts = NDArray[np.int64]

# Called small here; a plan sets its own limit.
_SMALL = 0.05
_RATES = {
    "parity_gap": "the share of favourable decisions",
    "tpr_gap": "favourable decisions where the outcome is favourable",
    "fpr_gap": "favourable decisions where it is not",
    "equalized_odds_gap": "either of these two",
    "accuracy_gap": "the share of right decisions",
}


@dataclass(frozen=True)
class Settings:
    """What a plan can set.

    Attributes
    ----------
    model : column of the model that is looked at; all of them if not given, and findings are about the worst.
    least : groups with fewer cases are left out, and named in the table.
    draws : bootstrap draws of the intervals.
    """

    model: str = ""
    least: Annotated[int, Field(ge=1)] = 30
    draws: Annotated[int, Field(ge=100)] = 2000


def check(predictions: Predictions, settings: Settings, run: Run) -> Evidence:
    """Compare decisions between groups, for every model and every group column; findings are about the largest gaps.

    A gap between several groups is that of the two furthest apart, and above 0 by chance alone: look at its interval.

    Raises
    ------
    InputError
        If the table lacks outcomes, groups, or decisions and scores; or fewer than two groups are large enough.
    """
    predictions.need(*NEEDS, who=SLUG)
    if not predictions.models:
        raise InputError(f"{SLUG} needs decisions or scores, one column a model: name them in the plan")
    models = (settings.model,) if settings.model else predictions.models
    if settings.model and settings.model not in predictions.models:
        raise InputError(f"model {settings.model!r}: expected one of {', '.join(predictions.models)}")
    decided, outcome = predictions.decided(), predictions.outcomes
    rates: list[pd.DataFrame] = []
    compared: dict[tuple[str, str], dict[str, Measurement]] = {}
    for attribute in predictions.groups:
        names, codes = np.unique(predictions.group(attribute), return_inverse=True)
        for model in models:
            counts = _counts(codes, outcome, decided[model].to_numpy(), len(names))
            table = _rates(counts, names).assign(attribute=attribute, model=model)
            large = counts.sum(axis=(1, 2)) >= settings.least
            rates.append(table.assign(compared=large))
            if large.sum() >= 2:
                compared[attribute, model] = _measured(counts[large], settings.draws, run.seed)
    if not compared:
        raise InputError(f"groups: no column has two groups of {settings.least} cases or more")
    table = pd.concat(rates, ignore_index=True)
    order = ["attribute", "model", "group", "cases", "favourable", "tpr", "fpr", "accuracy", "compared"]
    rows = [
        {"attribute": a, "model": m, "gap": name, "value": one.value, "low": one.low, "high": one.high}
        for (a, m), found in compared.items()
        for name, one in found.items()
    ]
    return run.evidence(
        f"Decisions of {len(models)} model{'s' * (len(models) > 1)} by group",
        SLUG,
        "check",
        [_finding(name, compared) for name in METRICS],
        tables=[
            Table("rates", "Decisions by group", table[order]),
            Table("gaps", "Largest difference between groups, by attribute and model", pd.DataFrame(rows)),
        ],
        figures=[_figure(table, next(iter(compared)))],
    )


def gaps(counts: Counts) -> dict[str, NDArray[np.float64]]:
    """Gaps of counts [..., groups, outcome, decision], by metric; NaN where a group lacks cases that a rate needs."""
    total, right = counts.sum(axis=(-2, -1)), counts[..., 0, 0] + counts[..., 1, 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        parity = counts[..., 1].sum(axis=-1) / total
        tpr, fpr = (counts[..., y, 1] / counts[..., y, :].sum(axis=-1) for y in (1, 0))
        accuracy = right / total
    found = {"parity_gap": np.ptp(parity, axis=-1), "tpr_gap": np.ptp(tpr, axis=-1), "fpr_gap": np.ptp(fpr, axis=-1)}
    found["equalized_odds_gap"] = np.maximum(found["tpr_gap"], found["fpr_gap"])
    return found | {"accuracy_gap": np.ptp(accuracy, axis=-1)}


def _counts(codes: NDArray[np.int64], outcome: NDArray[np.bool_], decided: NDArray[np.float64], groups: int) -> Counts:
    """Cases by group, outcome and decision; cases without a decision are left out."""
    there = ~np.isnan(decided)
    cell = (codes[there] * 2 + outcome[there]) * 2 + (decided[there] > 0.5)
    return np.bincount(cell.astype(np.int64), minlength=groups * 4).reshape(groups, 2, 2)


def _rates(counts: Counts, names: NDArray[np.str_]) -> pd.DataFrame:
    total = counts.sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return pd.DataFrame(
            {
                "group": names,
                "cases": total,
                "favourable": counts[:, :, 1].sum(axis=1) / total,
                "tpr": counts[:, 1, 1] / counts[:, 1].sum(axis=1),
                "fpr": counts[:, 0, 1] / counts[:, 0].sum(axis=1),
                "accuracy": (counts[:, 0, 0] + counts[:, 1, 1]) / total,
            }
        )


def _measured(counts: Counts, draws: int, seed: int) -> dict[str, Measurement]:
    """Gaps with percentile intervals. Cells are few: drawing their counts is drawing cases, whatever their number."""
    n = int(counts.sum())
    drawn = np.random.default_rng(seed).multinomial(n, counts.reshape(-1) / n, size=draws).reshape(-1, *counts.shape)
    values, samples = gaps(counts), gaps(drawn)
    found = {}
    for name, value in values.items():
        if math.isnan(float(value)):
            found[name] = Measurement(name.replace("_", " "), math.nan, n=n)
            continue
        low, high = np.nanquantile(samples[name], [0.025, 0.975])
        found[name] = Measurement(name.replace("_", " "), float(value), "", float(low), float(high), n)
    return found


def _finding(name: str, compared: dict[tuple[str, str], dict[str, Measurement]]) -> Finding:
    known = {key: found[name] for key, found in compared.items() if not math.isnan(found[name].value)}
    statement = f"Groups differ by at most {_SMALL:g} in {_RATES[name]}"
    if not known:
        return Finding(
            name.replace("_", "-"),
            f"{statement}. Not known: no two groups have the cases it needs.",
            "undecided",
            Measurement(name, math.nan),
        )
    (attribute, model), worst = max(known.items(), key=lambda item: item[1].value)
    where = f"{statement}. They differ most by {attribute}, decided by {model}."
    # A gap's interval stays above 0 even where there is none, so that it can only be judged small or not small.
    verdict = "holds" if worst.high is not None and worst.high <= _SMALL else "undecided"
    if worst.low is not None and worst.low > _SMALL:
        verdict = "fails"
    return Finding(name.replace("_", "-"), where, verdict, worst, Measurement("called small up to", _SMALL))  # type: ignore[arg-type]


def _figure(table: pd.DataFrame, which: tuple[str, str]) -> Figure:
    from touchstone.drawing import axes

    attribute, model = which
    part = table[(table["attribute"] == attribute) & (table["model"] == model)]
    canvas, plot = axes(6.4, 0.8 + 0.5 * len(part))
    places = np.arange(len(part))
    for i, (name, label) in enumerate((("favourable", "favourable"), ("tpr", "true positives"), ("accuracy", "right"))):
        plot.barh(places + 0.25 * (i - 1), part[name], height=0.23, label=label)
    plot.set_yticks(places, [f"{g} ({n})" for g, n in zip(part["group"], part["cases"], strict=True)])
    plot.invert_yaxis()
    plot.set(xlabel="share of cases", xlim=(0, 1.02), title=f"{model} by {attribute}")
    plot.legend(frameon=False, fontsize=8)
    return Figure.draw("groups", "Decisions by group", canvas)
