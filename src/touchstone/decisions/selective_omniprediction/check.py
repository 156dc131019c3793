"""The check: are probabilities calibrated in every group, and what can a rule that may abstain do with them?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from touchstone.budget import Cost
from touchstone.decisions.selective_omniprediction import figures
from touchstone.decisions.selective_omniprediction.auditing import EVERYONE, Audit, audit
from touchstone.decisions.selective_omniprediction.groups import intersections
from touchstone.decisions.selective_omniprediction.losses import ChowLoss
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Figure, Finding, Limit, Measurement, Table, finite

if TYPE_CHECKING:
    from touchstone.decisions.predictions import Predictions
    from touchstone.run import Run

__all__ = ["COST", "METRICS", "NEEDS", "Settings", "check"]

NEEDS = ("truth", "scores")
"""Groups are optional; without them what is said about groups stays undecided."""

METRICS: dict[str, str] = {
    "calibration_error": "distance of probabilities from the shares that came true (ECE), 0 to 1",
    "group_calibration_error": "the largest calibration error within a group, 0 to 1",
    "multicalibration_error": "the largest violation in a group, weighted by its share of all cases, 0 to 1",
    "multiaccuracy_gap": "the largest bias of a group, weighted by its share of all cases, 0 to 1",
    "wrong_decisions": "share of the cases that the rule which may abstain decides wrongly, 0 to 1",
    "group_wrong_decisions": "the largest share of a group's cases that it decides wrongly, 0 to 1",
    "abstention": "share of the cases for which it says nothing, 0 to 1",
    "group_abstention": "the largest share of a group's cases for which it says nothing, 0 to 1",
    "selective_error": "share of wrong decisions among the cases that it decides, 0 to 1",
    "loss_ratio": "what the best rule loses on these probabilities, over what it loses on recalibrated ones",
}

COST = Cost(seconds=3.0, setting="draws", least=100, most=2000, fixed=1.5)
_FOLDS = 5
# Metric: what the audit calls it, and whether it is the worst group's.
_FROM_AUDIT = {
    "calibration_error": ("ece", False),
    "group_calibration_error": ("ece", True),
    "multicalibration_error": ("multicalibration", True),
    "multiaccuracy_gap": ("multiaccuracy_gap", True),
    "wrong_decisions": ("error", False),
    "group_wrong_decisions": ("error", True),
    "abstention": ("abstention", False),
    "group_abstention": ("abstention", True),
    "selective_error": ("selective_error", False),
}
_WORDS = {
    "ece": "calibration error",
    "multicalibration": "multicalibration violation",
    "multiaccuracy_gap": "bias",
    "error": "decided wrongly",
    "abstention": "without a decision",
    "selective_error": "wrong among the decided",
}


@dataclass(frozen=True)
class Settings:
    """What a plan can set.

    Attributes
    ----------
    eps : the rule says 0 up to this probability, 1 from one less this on, and nothing between.
    loss : ``l1``, ``l2`` or ``logistic``: the loss for which ``loss_ratio`` takes the best rule.
    a_plus, a_minus : its price of abstaining where the outcome is favourable, and where it is not.
    depth : attributes that are combined into groups at most.
    smallest : cases of the smallest group that is looked at.
    bins : level sets of equal width.
    draws : bootstrap draws.
    model : the column of scores that findings are about, beside the first other one; the worst one if empty.
    """

    eps: Annotated[float, Field(gt=0, lt=0.5)] = 0.1
    loss: Literal["l1", "l2", "logistic"] = "l1"
    a_plus: Annotated[float, Field(ge=0)] = 0.1
    a_minus: Annotated[float, Field(ge=0)] = 0.1
    depth: Annotated[int, Field(ge=1)] = 2
    smallest: Annotated[int, Field(ge=1)] = 50
    bins: Annotated[int, Field(ge=1)] = 10
    draws: Annotated[int, Field(ge=2)] = 500
    model: str = ""


def check(predictions: Predictions, settings: Settings, run: Run) -> Evidence:
    """Measure every column of scores; a finding is about the model with the largest value, or the one that is named.

    Raises
    ------
    InputError
        If the table has no outcome or no scores, or a case has no score; the message names what lacks.
    """
    predictions.need("truth", "scores", who="selective-omniprediction")
    if settings.model and settings.model not in predictions.scores:
        raise InputError(f"model {settings.model!r}: not a column of scores; they are {', '.join(predictions.scores)}")
    y = predictions.outcomes.astype(np.int8)
    scores = {name: _complete(predictions, name) for name in predictions.scores}
    groups = _groups(predictions, settings)
    measured = run.map("auditing probabilities", partial(_measure, scores, y, groups, settings, run.seed), list(scores))
    models = {m["model"]: m for m in measured}
    return run.evidence(
        f"Calibration and abstention of {len(models)} {'model' if len(models) == 1 else 'models'}",
        "selective-omniprediction",
        "check",
        _findings(models, settings),
        tables=_tables(models),
        figures=_figures(models, settings),
    )


def _complete(predictions: Predictions, name: str) -> NDArray[np.float64]:
    values = pd.to_numeric(predictions.frame[name]).to_numpy(dtype=float)
    if np.isnan(values).any():
        raise InputError(f"column {name!r}, row {int(np.flatnonzero(np.isnan(values))[0]) + 1}: has no score")
    return values


def _groups(predictions: Predictions, settings: Settings) -> pd.DataFrame:
    if not predictions.groups:
        return pd.DataFrame(index=predictions.frame.index)
    return intersections(predictions.frame[list(predictions.groups)], settings.depth, settings.smallest)


def _measure(
    scores: dict[str, NDArray[np.float64]],
    y: NDArray[np.int8],
    groups: pd.DataFrame,
    settings: Settings,
    seed: int,
    name: str,
) -> dict[str, Any]:
    """Everything about one model, as JSON can hold it."""
    h = scores[name]
    found = audit(h, y, groups, eps=settings.eps, n_boot=settings.draws, bins=settings.bins, seed=seed)
    metrics = {
        metric: _plain(_from_audit(found, what, of_group=of_group), name)
        for metric, (what, of_group) in _FROM_AUDIT.items()
    }
    metrics["loss_ratio"] = _plain(_loss_ratio(h, y, settings, seed), name)
    chance = found.frame.set_index("group")["ece_if_calibrated"]
    return {
        "model": name,
        "metrics": metrics,
        "chance": float(chance[EVERYONE]),
        "groups": finite(found.frame.to_dict("records")),
        "curve": _curve(h, y, settings.bins),
    }


def _from_audit(found: Audit, what: str, *, of_group: bool) -> Measurement:
    if not of_group:
        return found.measurement(what, name=_WORDS[what])
    if len(found.frame) == 1:
        return Measurement("no group to look at", math.nan)
    return found.worst(what, _WORDS[what])


def _plain(m: Measurement, model: str) -> dict[str, Any]:
    return finite({"name": m.name, "value": m.value, "low": m.low, "high": m.high, "n": m.n, "model": model})


def _loss_ratio(h: NDArray[np.float64], y: NDArray[np.int8], settings: Settings, seed: int) -> Measurement:
    """Loss of k* on the scores over its loss on scores recalibrated on other cases, with its interval over cases."""
    from sklearn.isotonic import IsotonicRegression
    from sklearn.model_selection import KFold

    name = "loss over that on recalibrated probabilities"
    if len(y) < 2 * _FOLDS:
        return Measurement(name, math.nan, n=len(y))
    better = np.empty(len(h))
    for fit, rest in KFold(_FOLDS, shuffle=True, random_state=seed).split(h):
        better[rest] = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(h[fit], y[fit]).predict(h[rest])
    loss = ChowLoss(settings.loss, settings.a_plus, settings.a_minus)
    costs = np.stack([loss.costs(loss.decide(p), y) for p in (h, better)])
    if costs[1].sum() == 0:
        return Measurement(name, 1.0 if costs[0].sum() == 0 else math.nan, n=len(y))
    rng = np.random.default_rng([seed, 2])
    drawn = np.stack([costs[:, rng.integers(len(y), size=len(y))].sum(axis=1) for _ in range(settings.draws)])
    drawn = drawn[drawn[:, 1] > 0]
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return Measurement(name, float(costs[0].sum() / costs[1].sum()), "times", float(low), float(high), len(y))


def _curve(h: NDArray[np.float64], y: NDArray[np.int8], bins: int) -> list[dict[str, float]]:
    level = np.minimum((h * bins).astype(int), bins - 1)
    return [
        {
            "probability": float(h[level == b].mean()),
            "outcome": float(y[level == b].mean()),
            "n": int((level == b).sum()),
        }
        for b in range(bins)
        if (level == b).any()
    ]


def _findings(models: dict[str, dict[str, Any]], settings: Settings) -> list[Finding]:
    eps = settings.eps
    shown = [models[settings.model]] if settings.model else list(models.values())
    chance = max(shown, key=lambda m: m["metrics"]["calibration_error"]["value"])["chance"]
    limits = {
        "calibration_error": ("Probabilities are within 0.05 of what comes true.", "<= 0.05"),
        "group_calibration_error": ("In every group they are within 0.1.", "<= 0.1"),
        "multicalibration_error": ("In no group are they off by more than 0.03 of all cases.", "<= 0.03"),
        "multiaccuracy_gap": ("No group's mean is off by more than 0.02 of all cases.", "<= 0.02"),
        "wrong_decisions": (
            f"Deciding up to {eps:g} and from {1 - eps:g} on, at most a share {eps:g} is decided wrongly.",
            f"<= {eps:g}",
        ),
        "group_wrong_decisions": ("In no group is twice that share decided wrongly.", f"<= {2 * eps:g}"),
        "abstention": ("At least half of the cases are decided.", "<= 0.5"),
        "group_abstention": ("In every group at least a quarter of the cases are decided.", "<= 0.75"),
        "selective_error": (
            f"Among the cases that are decided, at most a share {2 * eps:g} is decided wrongly.",
            f"<= {2 * eps:g}",
        ),
        "loss_ratio": (
            f"The best rule for the {settings.loss} loss loses at most 1.05 times what it would on recalibrated "
            "probabilities.",
            "<= 1.05",
        ),
    }
    found = []
    for metric, (statement, limit) in limits.items():
        measured, against = _shown(models, metric, settings.model)
        known = math.isfinite(measured.value)
        if metric == "calibration_error" and against is None:
            against = Measurement("by chance, if calibrated", chance)
        verdict = Limit.parse(limit).judge(measured) if known else "undecided"
        found.append(Finding(metric.replace("_", "-"), statement, verdict, measured, against, limit))
    return found


def _shown(models: dict[str, dict[str, Any]], metric: str, named: str) -> tuple[Measurement, Measurement | None]:
    """What a finding is about, and what stands beside it."""
    every = {name: model["metrics"][metric] for name, model in models.items()}
    if named:
        others = [name for name in every if name != named]
        return _measurement(every[named]), _measurement(every[others[0]], others[0]) if others else None
    known = {name: m for name, m in every.items() if m["value"] is not None}
    if not known:
        return _measurement(next(iter(every.values()))), None
    worst = max(known, key=lambda name: known[name]["value"])
    return _measurement(known[worst], worst if len(models) > 1 else ""), None


def _measurement(m: dict[str, Any], model: str = "") -> Measurement:
    value = math.nan if m["value"] is None else m["value"]
    return Measurement(f"{m['name']}, {model}" if model else m["name"], value, "", m["low"], m["high"], m["n"])


def _tables(models: dict[str, dict[str, Any]]) -> list[Table]:
    rows = [
        {"model": name, "metric": metric, **{k: m[k] for k in ("name", "value", "low", "high", "n")}}
        for name, model in models.items()
        for metric, m in model["metrics"].items()
    ]
    groups = [{"model": name} | row for name, model in models.items() for row in model["groups"]]
    curves = [{"model": name} | row for name, model in models.items() for row in model["curve"]]
    return [
        Table("models", "Every metric of every model", pd.DataFrame(rows)),
        Table("groups", "Calibration, abstention and errors of every group", pd.DataFrame(groups)),
        Table("reliability", "Probabilities and what came true, by level set", pd.DataFrame(curves)),
    ]


def _figures(models: dict[str, dict[str, Any]], settings: Settings) -> list[Figure]:
    shown = [models[settings.model]] if settings.model else list(models.values())
    worst = max(shown, key=lambda m: m["metrics"]["wrong_decisions"]["value"])
    groups = pd.DataFrame(worst["groups"]).head(24)
    curves = {name: pd.DataFrame(model["curve"]) for name, model in models.items()}
    return [figures.reliability(curves), figures.selective(groups, settings.eps)]
