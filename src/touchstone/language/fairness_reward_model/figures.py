"""Pictures of the frontier between accuracy and fairness, and of matched pairs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from touchstone.drawing import axes
from touchstone.evidence import Figure

__all__ = ["frontier", "pairs", "transfer"]


def frontier(frame: pd.DataFrame) -> Figure:
    """Accuracy over the equalized-odds gap of every arm; the weighted vote as a line over its temperatures."""
    fig, ax = axes(6.6, 4.6)
    line = frame[frame["tau"].notna()].sort_values("eodds_sum", ascending=False)
    ax.plot(line["eodds_sum"], line["accuracy"], "o-", color="#17508c", lw=2.2, label="fairness-weighted vote")
    # The mildest temperatures lie close together.
    places = {float("inf"): (6, -4), 0.8: (-8, -13), 0.4: (6, 3)}
    for tau, gap, accuracy in line[["tau", "eodds_sum", "accuracy"]].to_numpy(dtype=float):
        name, at = "majority" if np.isinf(tau) else f"τ = {tau:g}", places.get(float(tau), (5, 6))
        ax.annotate(name, (gap, accuracy), textcoords="offset points", xytext=at, fontsize=8)
    ax.margins(x=0.14)
    marks = "s^Dvx*P<>hdp"
    for mark, row in zip(marks, frame[frame["tau"].isna()].itertuples(), strict=False):
        ax.plot(row.eodds_sum, row.accuracy, mark, color="#666666", ms=7, label=row.arm)
    ax.set(xlabel="equalized-odds gap, TPR gap + FPR gap (left is fairer)", ylabel="accuracy")
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1.0))
    return Figure.draw("frontier", "Accuracy and fairness of each way to decide, means over seeds", fig)


def transfer(frame: pd.DataFrame) -> Figure:
    """Equalized-odds gap over a plain vote's, by what the reward model learnt from and where it is used."""
    fig, ax = axes(5.6, 3.2)
    tasks = list(dict.fromkeys(frame["task"]))
    sources = list(dict.fromkeys(frame["learnt_from"]))
    for k, task in enumerate(tasks):
        part = frame[frame["task"] == task].set_index("learnt_from").loc[sources]
        ax.bar(np.arange(len(sources)) + (k - 0.5) * 0.36, part["eodds_ratio"], 0.34, label=task, color=f"C{k}")
    ax.axhline(1.0, color="#444444", lw=1, ls="--")
    ax.set(ylabel="gap over the majority's", ylim=(0, 1.15))
    ax.set_xticks(range(len(sources)), [f"learnt from\n{name}" for name in sources])
    ax.legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.22))
    return Figure.draw("transfer", "A reward model learnt on one kind of bias, used on others (1: a plain vote)", fig)


def pairs(rows: pd.DataFrame) -> Figure:
    """Log-odds of a yes about the two people of each pair."""
    fig, ax = axes(6.2, 0.32 * len(rows) + 1.4)
    y = np.arange(len(rows))[::-1]
    ax.hlines(y, rows["first_log_odds"], rows["second_log_odds"], color="#b8c4d0", lw=2)
    ax.plot(rows["first_log_odds"], y, "o", color="#17508c", label="first person")
    ax.plot(rows["second_log_odds"], y, "D", color="#b3541e", label="second person")
    ax.axvline(0, color="#444444", lw=1, ls="--")
    ax.set(yticks=y, xlabel="log-odds of yes over no, nats, mean over chains")
    ax.set_yticklabels([f"{row.attribute}, rule says {'yes' if row.rule else 'no'}" for row in rows.itertuples()])
    ax.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return Figure.draw("pairs", "Two people who differ in one attribute", fig)
