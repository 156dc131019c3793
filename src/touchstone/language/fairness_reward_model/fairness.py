"""Fairness of decisions between groups: rates, gaps, their intervals, and the frontier over the vote's temperature."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from touchstone.errors import InputError
from touchstone.evidence import Measurement
from touchstone.language.fairness_reward_model.voting import Ballots

__all__ = ["GroupFairness", "choose_tau", "gaps", "group_fairness_report", "paired_p", "tau_sweep"]

_DRAWS = 1000
GAPS = ("tpr_gap", "fpr_gap", "eodds_sum", "eodds_max", "parity_gap")


@dataclass(frozen=True)
class GroupFairness:
    """Rates by group, and gaps between groups.

    Attributes
    ----------
    groups : one row a group: ``group``, ``n``, ``accuracy``, ``positive_rate``, ``tpr``, ``fpr``.
    accuracy : over all cases.
    tpr_gap : largest difference of true-positive rates (equal opportunity).
    fpr_gap : largest difference of false-positive rates.
    eodds_sum : their sum, the paper's equalized-odds gap.
    eodds_max : the larger of both, fairlearn's ``equalized_odds_difference``.
    parity_gap : largest difference of positive rates; a model that always says the same has all gaps 0, and shows here
        and in ``positive_rate``.
    """

    groups: pd.DataFrame
    accuracy: Measurement
    tpr_gap: Measurement
    fpr_gap: Measurement
    eodds_sum: Measurement
    eodds_max: Measurement
    parity_gap: Measurement


def group_fairness_report(
    y_true: ArrayLike, y_pred: ArrayLike, group: ArrayLike, *, positive: object = 1, seed: int = 0
) -> GroupFairness:
    """Compare decisions between groups; intervals by 1,000 bootstrap draws of cases.

    Parameters
    ----------
    y_true, y_pred, group : one entry a case; a prediction that is ``None`` counts as wrong and not positive.
    positive : the label whose rates are compared.
    seed : of the bootstrap.

    Raises
    ------
    InputError
        If lengths differ, there are no cases or fewer than two groups.

    Warns
    -----
    UserWarning
        Naming a group that has no positives or no negatives: its gap is NaN, never 0.
    """
    truth, said, of = (np.asarray(values, dtype=object) for values in (y_true, y_pred, group))
    if not len(truth) == len(said) == len(of) or len(truth) == 0:
        raise InputError(f"y_true {len(truth)}, y_pred {len(said)}, group {len(of)}: expected equal lengths above 0")
    names = sorted({str(name) for name in of})
    if len(names) < 2:
        raise InputError(f"group: all cases are of {names[0]!r}; expected two groups or more")
    codes = np.array([names.index(str(name)) for name in of])
    y, p, right = truth == positive, said == positive, truth == said
    rows = []
    for g, name in enumerate(names):
        here = codes == g
        if not y[here].any() or y[here].all():
            kind = "positives" if not y[here].any() else "negatives"
            warnings.warn(f"group {name!r} has no {kind}: the gap of that rate is not known", stacklevel=2)
        rows.append((name, int(here.sum()), right[here].mean(), p[here].mean(), *_rates(y[here], p[here])))
    table = pd.DataFrame(rows, columns=["group", "n", "accuracy", "positive_rate", "tpr", "fpr"])
    rng = np.random.default_rng(seed)
    picks = rng.integers(len(y), size=(_DRAWS, len(y)))
    value = _measured(y[None], p[None], codes[None], len(names))
    drawn = _measured(y[picks], p[picks], codes[picks], len(names))
    found = {name: _interval(name, float(value[name][0]), drawn[name], len(y)) for name in GAPS}
    accuracy = _interval("accuracy", float(right.mean()), right[picks].mean(axis=1), len(y))
    return GroupFairness(table, accuracy, **found)


def gaps(y_true: NDArray[np.bool_], y_pred: NDArray[np.bool_], group: NDArray[np.int64]) -> dict[str, float]:
    """Gaps of binary decisions without intervals; ``group`` are codes from 0."""
    found = _measured(y_true[None], y_pred[None], group[None], int(group.max()) + 1)
    return {name: float(values[0]) for name, values in found.items()}


def paired_p(
    y_true: NDArray[np.bool_],
    ours: NDArray[np.bool_],
    theirs: NDArray[np.bool_],
    group: NDArray[np.int64],
    *,
    gap: str = "eodds_sum",
    seed: int = 0,
) -> float:
    """Share of 1,000 paired bootstrap draws of cases in which our gap is not smaller than theirs (one-sided p)."""
    picks = np.random.default_rng(seed).integers(len(y_true), size=(_DRAWS, len(y_true)))
    n = int(group.max()) + 1
    a, b = (_measured(y_true[picks], said[picks], group[picks], n)[gap] for said in (ours, theirs))
    return float((1 + (a >= b).sum()) / (1 + len(picks)))


def tau_sweep(
    ballots: Ballots,
    y_true: Sequence[str],
    group: Sequence[str],
    *,
    positive: str,
    taus: Sequence[float] = (math.inf, 0.8, 0.4, 0.2, 0.05, 0.01),
    seed: int = 0,
) -> pd.DataFrame:
    """Accuracy and gaps of the vote at each temperature: the accuracy–fairness frontier.

    Returns
    -------
    One row a temperature: ``tau``, ``accuracy``, and each gap, all with ``_low`` and ``_high`` (95 %); ``ties`` and
    ``undecided`` cases; ``efficient``: no other row has both a higher accuracy and a smaller equalized-odds gap.
    """
    rows = []
    labels = np.array([*ballots.labels, None], dtype=object)
    for tau in taus:
        result = ballots.vote(tau)
        report = group_fairness_report(y_true, labels[result.answer], group, positive=positive, seed=seed)
        row: dict[str, float] = {"tau": tau}
        for name in ("accuracy", *GAPS):
            one: Measurement = getattr(report, name)
            row |= {name: one.value, f"{name}_low": one.low or 0.0, f"{name}_high": one.high or 0.0}
        rows.append(row | {"ties": int(result.tie.sum()), "undecided": int((result.answer < 0).sum())})
    frame = pd.DataFrame(rows)
    better = (frame["accuracy"].to_numpy()[None] > frame["accuracy"].to_numpy()[:, None]) & (
        frame["eodds_sum"].to_numpy()[None] < frame["eodds_sum"].to_numpy()[:, None]
    )
    frame["efficient"] = np.logical_not(better.any(axis=1))
    return frame


def choose_tau(
    ballots: Ballots,
    y_true: Sequence[str],
    group: Sequence[str],
    *,
    positive: str,
    most_loss: float = 0.02,
    delta: float = 0.1,
    taus: Sequence[float] = (0.8, 0.4, 0.2, 0.1, 0.05, 0.02, 0.01),
) -> float:
    """The temperature of smallest equalized-odds gap whose accuracy is surely at most a little below a plain vote's.

    Learn then test (arXiv 2110.01052): temperatures are tested from the mildest down, each by a paired bound on its
    loss of accuracy at level ``delta``; the first that cannot be certified ends the list, so that the whole choice is
    wrong with probability ``delta`` at most.

    Parameters
    ----------
    ballots, y_true, group, positive : a labelled validation set, other than the one the result is reported on.
    most_loss : of accuracy against the plain vote.
    delta : probability of certifying a temperature that loses more.
    taus : from the mildest to the sharpest.

    Returns
    -------
    A temperature; infinity (the plain vote) if none can be certified.
    """
    if not 0 < delta < 1 or not 0 <= most_loss < 1 or list(taus) != sorted(taus, reverse=True):
        raise InputError("most_loss, delta, taus: expected in [0, 1), in (0, 1), and from the largest to the smallest")
    labels = np.array([*ballots.labels, None], dtype=object)
    truth = np.asarray(y_true, dtype=object)
    codes = np.unique(np.asarray(group, dtype=str), return_inverse=True)[1]
    plain = labels[ballots.vote(math.inf).answer]
    base = (plain == truth).astype(float)
    allowed = {math.inf: gaps(truth == positive, plain == positive, codes)["eodds_sum"]}
    for tau in taus:
        said = labels[ballots.vote(tau).answer]
        loss = base - (said == truth)
        # Differences lie in [-1, 1]: an empirical Bernstein bound (arXiv 0907.3740) on their mean.
        n, log = len(loss), math.log(2 / delta)
        bound = loss.mean() + math.sqrt(2 * loss.var(ddof=1) * log / n) + 14 * log / (3 * (n - 1)) if n > 1 else 1.0
        if bound > most_loss:
            break
        allowed[tau] = gaps(truth == positive, said == positive, codes)["eodds_sum"]
    return min(allowed, key=lambda tau: (allowed[tau], -tau))


def _rates(y: NDArray[np.bool_], p: NDArray[np.bool_]) -> tuple[float, float]:
    tpr = float(p[y].mean()) if y.any() else math.nan
    return tpr, float(p[~y].mean()) if (~y).any() else math.nan


def _measured(
    y: NDArray[np.bool_], p: NDArray[np.bool_], group: NDArray[np.int64], groups: int
) -> dict[str, NDArray[np.float64]]:
    """Gaps of many samples of cases at once, [draws, cases] each."""
    tprs, fprs, rates = [], [], []
    for g in range(groups):
        here = group == g
        tprs.append(_ratio((here & y & p).sum(axis=1), (here & y).sum(axis=1)))
        fprs.append(_ratio((here & ~y & p).sum(axis=1), (here & ~y).sum(axis=1)))
        rates.append(_ratio((here & p).sum(axis=1), here.sum(axis=1)))
    tpr, fpr, rate = (np.ptp(np.stack(values), axis=0) for values in (tprs, fprs, rates))
    both = {"eodds_sum": tpr + fpr, "eodds_max": np.maximum(tpr, fpr)}
    return {"tpr_gap": tpr, "fpr_gap": fpr, **both, "parity_gap": rate}


def _ratio(above: NDArray[np.int64], below: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)


def _interval(name: str, value: float, drawn: NDArray[np.float64], n: int) -> Measurement:
    words = name.replace("_", " ")
    if math.isnan(value):
        return Measurement(words, value, n=n)
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Measurement(words, value, "", float(low), float(high), n)
