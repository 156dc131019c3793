"""Tables of predictions: roles named and guessed, decisions of scores, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from touchstone.decisions import Predictions
from touchstone.errors import InputError


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "id": [1, 2, 3, 4],
            "Outcome": [1, 0, 1, 0],
            "risk_a": [0.9, 0.2, None, 0.5],
            "model b score": [0.1, 0.2, 0.3, 0.4],
            "y_pred": [1, 0, 1, 1],
            "sex": ["f", "m", None, "f"],
            "income": [10.0, 20.0, 30.0, 40.0],
        }
    )


def test_roles_are_guessed_from_names_and_named_ones_stay(frame, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = Predictions.read(tmp_path / "t.csv")
    assert (found.truth, found.scores, found.decisions) == ("Outcome", ("risk_a", "model b score"), ("y_pred",))
    assert found.groups == ("sex",)
    assert set(found.guessed) == {"truth", "scores", "decisions", "groups"}
    named = Predictions.read(tmp_path / "t.csv", scores=["risk_a"], decisions=["y_pred"], truth="Outcome")
    assert named.scores == ("risk_a",)
    assert named.guessed == ("groups",)
    frame.to_parquet(tmp_path / "t.parquet")
    assert Predictions.read(tmp_path / "t.parquet").truth == "Outcome"


def test_decisions_are_those_of_the_table_or_of_scores(frame):
    by_score = Predictions(frame, truth="Outcome", scores=("risk_a",))
    np.testing.assert_array_equal(by_score.decided()["risk_a"], [1, 0, np.nan, 1])
    assert by_score.models == ("risk_a",)
    strict = Predictions(frame, scores=("risk_a",), threshold=0.6)
    np.testing.assert_array_equal(strict.decided()["risk_a"], [1, 0, np.nan, 0])
    given = Predictions(frame, scores=("risk_a",), decisions=("y_pred",))
    assert given.models == ("y_pred",)
    np.testing.assert_array_equal(given.decided()["y_pred"], [1, 0, 1, 1])
    words = pd.DataFrame({"y": ["yes", "no"], "said": ["no", None]})
    table = Predictions(words, truth="y", decisions=("said",), favourable="yes")
    assert table.outcomes.tolist() == [True, False]
    np.testing.assert_array_equal(table.decided()["said"], [0, np.nan])
    assert Predictions(frame, groups=("sex",)).group("sex").tolist() == ["f", "m", "(missing)", "f"]
    flags = pd.DataFrame({"y": [True, False], "p": [0.1, 0.2]})
    assert Predictions(flags, truth="y", favourable="1").outcomes.tolist() == [True, False]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"truth": "nope"}, "column 'nope': the table has no such column"),
        ({"truth": "sex"}, "column 'sex', row 3: no outcome"),
        ({"truth": "Outcome", "favourable": 7}, "no row has the favourable value 7"),
        ({"scores": ("income",)}, "column 'income', row 1: expected a probability"),
        ({"scores": ("sex",)}, "column 'sex', row 1: expected a probability"),
        ({"scores": ("risk_a",), "decisions": ("risk_a",)}, "has two roles"),
    ],
)
def test_columns_that_do_not_fit_are_named(frame, change, match):
    with pytest.raises(InputError, match=match):
        Predictions(frame, **change)


def test_files_and_lacks_are_one_error(frame, tmp_path):
    with pytest.raises(InputError, match=r"expected a \.csv or \.parquet"):
        Predictions.read(tmp_path / "t.xlsx")
    with pytest.raises(InputError, match="no such file"):
        Predictions.read(tmp_path / "t.csv")
    (tmp_path / "t.parquet").write_bytes(b"x")
    with pytest.raises(InputError, match="cannot be read as a table"):
        Predictions.read(tmp_path / "t.parquet")
    (tmp_path / "e.csv").write_text("y,p\n")
    with pytest.raises(InputError, match="has no rows"):
        Predictions.read(tmp_path / "e.csv")
    with pytest.raises(InputError, match=r"monoculture needs truth .*name its column"):
        Predictions(frame).need("truth", who="monoculture")
