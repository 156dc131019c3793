"""The check: how many cases must a second model or a person look at so that the first one's misses stay within alpha?

A case has two options, the favourable outcome and the other. The first model is the Primary; the second column of
scores is the Guardian, and a person who is never wrong where there is none. That is abstention with a promise: cases
whose score is near the threshold are handed on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from touchstone.budget import Cost
from touchstone.decisions.conformal_arbitrage import figures
from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage
from touchstone.decisions.conformal_arbitrage.bounds import conditional_level
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Finding, Measurement, Table, Verdict

if TYPE_CHECKING:
    from touchstone.decisions.predictions import Predictions
    from touchstone.run import Run

__all__ = ["COST", "METRICS", "NEEDS", "Settings", "check"]

NEEDS = ("truth", "scores")

METRICS: dict[str, str] = {
    "deferral_rate": "share of cases that the second model or a person must look at, 0 to 1",
    "candidate_risk": "share of cases that are kept and decided wrongly, on halves that were not calibrated on, 0 to 1",
    "realised_risk": "share of cases that are decided wrongly in the end, the second model's errors included, 0 to 1",
    "accuracy_gain": "accuracy less that of random routing with as many calls",
    "order_risk": "that first share when calibrated on the first half of the table's rows and used on the second",
    "group_risk": "the same in the group where it is largest, 0 to 1",
}

COST = Cost(seconds=1.5, setting="splits", least=4, most=400, fixed=0.8)

Floats = NDArray[np.float64]
# Groups with fewer cases say nothing.
_LEAST_GROUP = 30


@dataclass(frozen=True)
class Settings:
    """What a plan can set.

    Attributes
    ----------
    alpha : share of cases that may be kept and decided wrongly.
    primary : column of scores of the first model; the first one if not given.
    guardian : column of the second; the second one if not given, ``"person"`` for a person who is never wrong.
    splits : random halves, each used to calibrate and to test.
    """

    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    primary: str = ""
    guardian: str = ""
    splits: Annotated[int, Field(ge=1)] = 40


def check(predictions: Predictions, settings: Settings, run: Run) -> Evidence:
    """Check one table; see the module's text. Its limits are the keys of :data:`METRICS`.

    Raises
    ------
    InputError
        If the table lacks outcomes or scores, a named column is none of its scores, or it is too short for alpha.
    """
    predictions.need("truth", "scores", who="conformal-arbitrage")
    first, second = _columns(predictions, settings)
    used = [name for name in (first, second) if name]
    scores = predictions.frame[used].apply(pd.to_numeric).to_numpy(dtype=float)
    whole = np.isfinite(scores).all(axis=1)
    scores, truth = scores[whole], predictions.outcomes[whole]
    if (len(truth) // 2 + 1) * settings.alpha < 1:
        needed = 2 * (math.ceil(1 / settings.alpha - 1e-9) - 1)
        raise InputError(f"alpha {settings.alpha:g}: needs at least {needed} cases with scores, there are {len(truth)}")
    # Mirrored at the threshold, so that the larger option is the model's decision.
    options = np.stack([scores, 2 * predictions.threshold - scores], axis=2)
    right = np.stack([truth, ~truth], axis=1).astype(float)
    guardian = options[:, 1] if second else right
    scene = (options[:, 0], guardian, right)
    units = run.map("random halves", partial(_halves, scene, settings.alpha, run.seed), list(range(settings.splits)))
    cases = {name: np.mean([unit[name] for unit in units], axis=0) for name in units[0]}
    order = _used(scene, settings.alpha, np.arange(len(truth) // 2), np.arange(len(truth) // 2, len(truth)))
    groups = _groups(predictions, whole, cases["missed"], cases["deferred"])
    frontier = _frontier(scene, run.seed)
    who = second or "a person who is never wrong"
    return run.evidence(
        f"Cases to hand from {first} to {who}",
        "conformal-arbitrage",
        "check",
        _findings(cases, order["missed"], groups, settings.alpha, who),
        tables=[
            Table("frontier", "What each alpha asks for, on a half that was not calibrated on", frontier),
            *([Table("groups", "Cases that are kept and decided wrongly, by group", groups)] if len(groups) else []),
        ],
        figures=[figures.deferral(frontier, settings.alpha)],
    )


def _columns(predictions: Predictions, settings: Settings) -> tuple[str, str]:
    """The first model's column and the second's; the latter empty for a person."""
    for name, wanted in (("primary", settings.primary), ("guardian", settings.guardian)):
        if wanted and wanted not in predictions.scores and not (name == "guardian" and wanted == "person"):
            known = ", ".join(predictions.scores)
            raise InputError(f"{name} {wanted!r}: is no column of scores; the table has {known}")
    # The only column, if it is named as the guardian, is refused below.
    free = [name for name in predictions.scores if name != settings.guardian] or list(predictions.scores)
    first = settings.primary or free[0]
    if settings.guardian == "person":
        return first, ""
    others = [name for name in predictions.scores if name != first]
    second = settings.guardian or (others[0] if others else "")
    if second == first:
        raise InputError(f"guardian {second!r}: is the primary; expected another column of scores, or 'person'")
    return first, second


def _halves(scene: tuple[Floats, Floats, Floats], alpha: float, seed: int, split: int) -> dict[str, list[float]]:
    """Every case once among those that are tested: each half is calibrated on and the other tested."""
    order = np.random.default_rng([seed, split, 41]).permutation(len(scene[0]))
    middle = len(order) // 2
    found: dict[str, Floats] = {}
    for known, test in ((order[:middle], order[middle:]), (order[middle:], order[:middle])):
        for name, values in _used(scene, alpha, known, test).items():
            found.setdefault(name, np.zeros(len(order)))[test] = values
    return {name: values.tolist() for name, values in found.items()}


def _used(scene: tuple[Floats, Floats, Floats], alpha: float, known: Any, test: Any) -> dict[str, Floats]:
    """Calibrated on some cases and used on others: of each whether it was handed on, missed and wrong, and the gain."""
    primary, guardian, right = scene
    router = ConformalArbitrage(alpha).calibrate(primary[known], right[known])
    made = router.decide(primary[test], guardian[test])
    rows = np.arange(len(test))
    own = right[test][rows, made.choice]
    alone, other = (right[test][rows, x[test].argmax(axis=1)] for x in (primary, guardian))
    share = made.deferred.mean()
    return {
        "deferred": made.deferred.astype(float),
        "missed": 1 - (right[test] * made.candidates).sum(axis=1),
        "wrong": 1 - own,
        "alone": 1 - alone,
        "gain": own - (share * other + (1 - share) * alone),
    }


def _frontier(scene: tuple[Floats, Floats, Floats], seed: int) -> pd.DataFrame:
    order = np.random.default_rng([seed, 42]).permutation(len(scene[0]))
    known, test = order[: len(order) // 2], order[len(order) // 2 :]
    error = float((scene[2][np.arange(len(order)), scene[0].argmax(axis=1)] == 0).mean())
    rows = []
    for alpha in np.linspace(error, 0, 13)[1:-1]:
        if (len(known) + 1) * alpha >= 1:
            found = _used(scene, float(alpha), known, test)
            rows.append((alpha, *(float(found[name].mean()) for name in ("deferred", "missed", "wrong"))))
    return pd.DataFrame(rows, columns=["alpha", "deferred", "candidate_risk", "realised_risk"])


def _groups(predictions: Predictions, whole: NDArray[np.bool_], missed: Floats, deferred: Floats) -> pd.DataFrame:
    parts = []
    for attribute in predictions.groups:
        names = predictions.group(attribute)[whole]
        for name in np.unique(names):
            inside = names == name
            if inside.sum() >= _LEAST_GROUP:
                risk = Measurement.mean("risk", missed[inside])
                row = (attribute, str(name), int(inside.sum()), risk.value, risk.low, risk.high)
                parts.append((*row, float(deferred[inside].mean())))
    return pd.DataFrame(parts, columns=["attribute", "group", "cases", "risk", "low", "high", "deferred"])


def _findings(cases: dict[str, Floats], ordered: Floats, groups: pd.DataFrame, alpha: float, who: str) -> list[Finding]:
    deferral = Measurement.mean("cases handed on", cases["deferred"])
    gain = Measurement.mean("accuracy less that of random routing", cases["gain"])
    # Of one set that was drawn the risk may lie above alpha without any change; only beyond this it speaks of one.
    level = conditional_level(alpha, len(cases["missed"]) // 2, 0.05)
    order = Measurement.rate("kept and wrong, second half of the rows", int(ordered.sum()), len(ordered))
    alone = Measurement.mean("wrong without anyone else", cases["alone"])
    found = [
        Finding.held_to("deferral-rate", f"At most half of the cases must go to {who}.", deferral, "<= 0.5"),
        _within(
            "candidate-risk",
            "Cases that are kept and decided wrongly stay within alpha, on average over calibration sets.",
            Measurement.mean("kept and wrong", cases["missed"]),
            alpha,
            alone,
        ),
        _within(
            "realised-risk",
            f"So do all that are decided wrongly in the end, the errors of {who} included.",
            Measurement.mean("wrong in the end", cases["wrong"]),
            alpha,
            alone,
        ),
        Finding.held_to("accuracy-gain", "Handing on is worth more than at random.", gain, "> 0"),
        _within(
            "order-risk",
            "It stays as low from earlier rows to later ones as a single calibration allows.",
            order,
            level,
        ),
    ]
    statement = "In no group is the share twice alpha or more"
    if not len(groups):
        none = Measurement("kept and wrong, largest group", math.nan)
        return [*found, Finding("group-risk", f"{statement} (no groups to compare).", "undecided", none)]
    worst = groups.iloc[int(groups["risk"].to_numpy().argmax())]
    largest = Measurement(
        f"kept and wrong, {worst['attribute']} {worst['group']}",
        float(worst["risk"]),
        "",
        float(worst["low"]),
        float(worst["high"]),
        int(worst["cases"]),
    )
    return [*found, _within("group-risk", f"{statement}.", largest, 2 * alpha)]


def _within(id: str, statement: str, measured: Measurement, most: float, against: Measurement | None = None) -> Finding:
    """A mean that calibration brings just below its bound: it fails where its whole interval is above."""
    low, high = measured.low or 0.0, measured.high if measured.high is not None else measured.value
    verdict: Verdict = "fails" if low > most else "holds" if high <= most else "undecided"
    return Finding(id, statement, verdict, measured, against, f"<= {most:g}")
