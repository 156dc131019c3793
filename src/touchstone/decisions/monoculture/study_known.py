"""Tables whose correlation is known: the measures must find both extremes, and order what lies between."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.decisions.monoculture import figures
from touchstone.decisions.monoculture.correlation import one_factor_table
from touchstone.decisions.monoculture.report import audit, split_half
from touchstone.evidence import Figure, Finding, Measurement, Table

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["KnownSize", "known_truth"]

_RHO = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
_MODELS = 20
# What rises with the correlation, and what falls.
_RISING, _FALLING = ("agreement", "none", "full", "position", "none_ratio", "correlation"), ("ambiguity", "discrepancy")


@dataclass(frozen=True)
class KnownSize:
    """Cases of each table, and bootstrap draws."""

    cases: int
    draws: int


def known_truth(size: KnownSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Twenty models of success rate 0.8 at six correlations."""
    frame = pd.DataFrame(run.map("tables of known correlation", partial(_one, size, run.seed), list(_RHO)))
    steps = np.concatenate([np.diff(frame[name]) for name in _RISING] + [-np.diff(frame[name]) for name in _FALLING])
    zero, one = frame.iloc[0], frame.iloc[-1]
    off = (frame["correlation"] - frame["rho"]).abs()
    findings = [
        Finding.held_to(
            "independence-agreement",
            "Without correlation, mean agreement is the independent baseline's, within three standard errors.",
            Measurement("standard errors from the baseline", float(zero["agreement_errors"]), n=size.cases),
            "<= 3",
            Measurement("independent errors", float(zero["baseline_agreement"])),
        ),
        Finding.held_to(
            "independence-recourse",
            "Without correlation, full recourse is the Poisson-binomial's, within three standard errors.",
            Measurement("standard errors from the baseline", float(zero["full_errors"]), n=size.cases),
            "<= 3",
            Measurement("independent errors", float(zero["baseline_full"])),
        ),
        Finding.held_to(
            "monotone-in-correlation",
            "Every measure moves in one direction as the correlation grows from 0 to 1.",
            Measurement("smallest step in the expected direction", float(steps.min()), n=len(steps)),
            ">= 0",
        ),
        Finding.held_to(
            "monoculture-at-one",
            "At correlation 1 the share without recourse is nearly the monoculture's.",
            Measurement("no recourse over a single model's refusals", float(one["none_ratio"]), n=size.cases),
            ">= 0.8",
        ),
        Finding.held_to(
            "correlation-found",
            "The equivalent correlation is off by at most 0.02.",
            Measurement("largest distance from the correlation that was planted", float(off.max()), n=len(frame)),
            "<= 0.02",
        ),
    ]
    columns = {
        "agreement": "mean agreement",
        "full": "full recourse",
        "none": "no recourse",
        "ambiguity": "ambiguity",
        "correlation": "equivalent correlation",
    }
    picture = figures.lines(
        frame, "rho", columns, "known", "Measures of twenty models over their correlation", "correlation, planted"
    )
    return findings, [Table("known", "Measures at each planted correlation", frame)], [picture]


def _one(size: KnownSize, seed: int, rho: float) -> dict[str, Any]:
    table = one_factor_table(rho, models=_MODELS, cases=size.cases, seed=seed)
    report = audit(table, np.inf, n_boot=size.draws, seed=seed)
    found, beside = report.estimates, report.content["beside"]["independent"]
    names = (*_RISING, *_FALLING, "baseline_agreement", "substantial")
    row = {"rho": rho} | {name: found.value(name) for name in names}
    gap = found.draws["agreement"] - found.draws["baseline_agreement"]
    half = split_half(table, seed=seed).set_index("measure").to_dict(orient="index")
    expected = float(half["full"]["independent"])
    error = float(np.sqrt(max(expected * (1 - expected), 1e-12) / (size.cases / 2)))
    return row | {
        "baseline_full": float(beside["full"]),
        "agreement_errors": float(
            abs(found.value("agreement") - found.value("baseline_agreement")) / max(gap.std(), 1e-9)
        ),
        # Rates from one half of the cases and the histogram from the other share no noise.
        "full_errors": float(abs(float(half["full"]["observed"]) - expected) / error),
    }
