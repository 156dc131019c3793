"""Findings that the check and the study share: numbers with their intervals, held to what the theory says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from touchstone.bootstrap import clustered
from touchstone.evidence import Finding, Limit, Measurement, Verdict
from touchstone.language.isolation_continuity.curve import Cells, delta_hat, invariance
from touchstone.language.isolation_continuity.report import Report

__all__ = ["captured", "dead_zone", "delta", "edit_accuracy", "fading", "flip_rate", "invariant", "largest_period"]

_DRAWS = 1000
_SINGLE = Limit("<=", 0.05)
_SPREAD = Limit("<=", 0.15)


def resampled(name: str, rows: pd.DataFrame, statistic: Callable[[Cells], float], *, seed: int) -> Measurement:
    """``statistic`` of a curve's rows with a 95 % interval over its draws; a draw is taken again with all lengths."""
    cells = Cells.of(rows)
    value, draws = statistic(cells), len(cells.tv)
    if draws < 2 or not np.isfinite(value):
        return Measurement(name, value, n=draws)
    rng = np.random.default_rng(seed)
    low, high = np.nanquantile([statistic(cells.drawn(rng)) for _ in range(_DRAWS)], [0.025, 0.975])
    return Measurement(name, value, low=float(low), high=float(high), n=draws)


def late(report: Report) -> pd.DataFrame:
    """Rows of a curve from the length on at which its headline numbers begin."""
    rows = report.rows[report.rows["length"] >= report.settings["from_length"]]
    return report.rows if rows.empty else rows


def delta(report: Report, seed: int, name: str = "delta-hat") -> Finding:
    """The share of a prompt that can change unnoticed."""
    epsilon = float(report.settings["epsilon"])
    measured = resampled("share of tokens", late(report), lambda cells: delta_hat(cells, epsilon), seed=seed)
    return Finding(
        name,
        f"At every length there is a share of the prompt that can change while the next-token distribution moves by at"
        f" most {epsilon:g} (95 % quantile of TV).",
        "holds" if measured.value > 0 else "fails",
        measured,
    )


def fading(
    report: Report,
    seed: int,
    name: str = "single-change",
    what: str = "a constant pattern",
    against: Measurement | None = None,
) -> Finding:
    """A single change is hardly noticed, at the length where it is noticed most."""
    single = late(report)
    single = single[single["wanted"] == 0]
    worst = single.groupby("length")["tv"].mean().idxmax()
    values = single.loc[single["length"] == worst, "tv"].to_numpy()
    measured = clustered(f"mean TV at {worst} tokens, the worst length", values, seed=seed)
    shortest = int(single["length"].min())
    return Finding(
        name,
        f"In {what}, one changed token moves the prediction by a TV of at most {_SINGLE.bound:g} at every length from"
        f" {shortest}.",
        _SINGLE.judge(measured),
        measured,
        against=against,
        limit=str(_SINGLE),
    )


def invariant(
    report: Report,
    seed: int,
    name: str = "invariance",
    what: str = "a constant pattern",
    shares: tuple[float, ...] | None = None,
) -> Finding:
    """At the same share, length does not matter."""
    rows = late(report)
    if shares is not None:
        rows = rows[rows["wanted"].isin((0.0, *shares))]
    lengths = sorted(rows.loc[rows["wanted"] > 0, "length"].unique())
    between = f"lengths from {lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else "two lengths"
    measured = resampled("largest gap in mean TV between lengths", rows, invariance, seed=seed)
    return Finding(
        name,
        f"In {what}, at the same share of changed tokens, mean TV differs by at most {_SPREAD.bound:g} between"
        f" {between}.",
        "undecided" if len(lengths) < 2 else _SPREAD.judge(measured),
        measured,
        limit=str(_SPREAD),
    )


def largest_period(report: Report, name: str = "p-max", what: str = "digits") -> Finding:
    """Some periods are held and not all, which a suffix-match predictor does."""
    tested = int(report.rows["period"].max())
    value, baseline = report.numbers["p_max"], report.numbers["suffix_p_max"]
    verdict: Verdict = "holds" if value < tested == baseline else "undecided"
    n = int((report.rows["period"] > 0).sum())
    return Finding(
        name,
        f"The model holds periodic patterns of {what} only up to some period below {tested}, while matching"
        " suffixes holds all.",
        verdict,
        Measurement("largest period held", value, "tokens", n=n),
        against=Measurement("suffix match", baseline, "tokens", n=n),
        limit=f"< {tested}",
    )


def captured(report: Report, name: str = "captured") -> Finding:
    """Some periodic prompts are continued as the constant one."""
    rows = report.rows
    measured = Measurement.rate("share of periods captured", int(rows["captured"].sum()), len(rows))
    return Finding(
        name,
        f"Some prompts that repeat a period of up to {rows['period'].max()} are continued as if they were constant.",
        "holds" if measured.value > 0 else "undecided",
        measured,
    )


def dead_zone(report: Report, seed: int, name: str = "dead-zone") -> Finding:
    """Share of the positions at which a change does not reach the prediction."""
    means = report.rows.groupby("position")["tv"].mean().to_numpy()
    dead = float(report.settings["dead"])
    measured = Measurement.rate("share of positions", int((means < dead).sum()), len(means))
    return Finding(
        name,
        f"There are positions of the text at which a change moves the prediction by a TV of less than {dead:g}.",
        "holds" if measured.value > 0 else "undecided",
        measured,
    )


def flip_rate(report: Report, name: str = "flip-rate", what: str = "edits") -> Finding:
    """Edits that turn the right answer round turn the model's."""
    limit = Limit(">=", 0.5)
    measured = Measurement.rate("share of edits", int(report.rows["flipped"].sum()), len(report.rows))
    return Finding(
        name,
        f"At least half of the {what} that turn the right answer round also turn the model's answer.",
        limit.judge(measured),
        measured,
        limit=str(limit),
    )


def edit_accuracy(report: Report, seed: int, name: str = "edit-accuracy") -> Finding:
    """Balanced accuracy of the answers, chance being one half."""
    limit = Limit(">", 0.5)
    both = (report.rows["right_before"] + report.rows["right_after"]).to_numpy(dtype=float) / 2
    measured = clustered("balanced accuracy", both, seed=seed)
    return Finding(
        name,
        "The answers to prompts before and after a decisive edit are right more often than chance.",
        limit.judge(measured),
        measured,
        limit=str(limit),
    )
