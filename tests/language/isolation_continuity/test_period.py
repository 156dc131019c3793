"""Periods, pairs, the suffix-match baseline and basins."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.isolation_continuity import basin as basins
from touchstone.language.isolation_continuity.basin import attractor_basin, built_in_patterns, captures
from touchstone.language.isolation_continuity.period import (
    asymptotic_distance,
    learnable_periods,
    p_max,
    pair_matrix,
    periodic,
)
from touchstone.language.isolation_continuity.suffix import suffix_match


def _longest_suffix(sequence: list[int], t: int) -> list[float]:
    """The definition, spelt out: what followed the longest suffix of sequence[:t] that occurred before."""
    for size in range(t - 1, -1, -1):
        suffix = sequence[t - size : t]
        after = [sequence[j] for j in range(size, t) if sequence[j - size : j] == suffix]
        if after:
            return [Counter(after)[s] / len(after) for s in (0, 1)]
    return [0.5, 0.5]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=24))
def test_suffix_match_is_its_definition(sequence: list[int]) -> None:
    found = suffix_match(sequence, (0, 1))
    for t in range(len(sequence)):
        assert found[t] == pytest.approx(_longest_suffix(sequence, t))


@pytest.mark.parametrize("period", [2, 3, 7, 16])
def test_suffix_match_holds_every_period_once_seen_twice(period: int) -> None:
    sequence = periodic(period, 5 * period).tolist()
    found = suffix_match(sequence, (0, 1)).argmax(1)
    assert (found[2 * period :] == sequence[2 * period :]).all()
    with pytest.raises(InputError, match="only tokens of symbols"):
        suffix_match([0, 2], (0, 1))


def test_distances_by_hand() -> None:
    assert periodic(3, 7).tolist() == [0, 0, 1, 0, 0, 1, 0]
    assert periodic(0, 3).tolist() == [0, 0, 0]
    assert asymptotic_distance(0, 8) == 1 / 8
    # 01 and 0001 differ at the second of every four.
    assert asymptotic_distance(2, 4) == 1 / 4
    # 01 and 001 over six: 010101 against 001001.
    assert asymptotic_distance(2, 3) == pytest.approx(3 / 6)
    assert asymptotic_distance(5, 5) == 0


def test_p_max_stops_at_the_first_that_is_not_held() -> None:
    import pandas as pd

    rows = pd.DataFrame({"period": [8, 2, 4, 16], "learnable": [False, True, True, True]})
    assert p_max(rows) == 4
    assert p_max(rows.assign(learnable=False)) == 0


def test_periods_of_a_random_network(model: LanguageModel) -> None:
    options = {"periods": (2, 4, 8), "symbols": ("w1", "w2"), "length": 64, "prompt": "w5"}
    report = learnable_periods(model, **options)  # type: ignore[arg-type]
    rows = report.rows.set_index("period")
    assert rows.loc[8, "hamming_to_constant"] == 1 / 8
    assert rows.loc[[2, 4, 8], "due"].tolist() == [16, 8, 4]
    assert report.numbers["suffix_p_max"] == 8
    assert report.numbers["p_max"] == 0
    pairs = pair_matrix(report).set_index(["a", "b"])
    assert len(pairs) == 6
    assert pairs.loc[(0, 8), "hamming"] == 1 / 8
    assert pairs["gap"].dropna().between(0, 1).all()
    # Where 01 and 0001 demand different symbols and end alike there is a place; with themselves none is asked for.
    rare = {int(p): np.array(v) for p, v in report.settings["rare"].items()}
    apart = [t for t in range(32) if (t % 8) == 7]
    assert pairs.loc[(0, 8), "gap"] == pytest.approx(np.abs(rare[0] - rare[8])[apart].mean())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"periods": (1, 2)}, "2 or more"),
        ({"periods": (40,), "length": 64}, "at most half"),
        ({"symbols": ("w1",)}, "expected two"),
        ({"symbols": ("w1", "w1")}, "different as tokens"),
        ({"symbols": ("w1", "w1 w2")}, "single token"),
    ],
)
def test_bad_input(model: LanguageModel, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        learnable_periods(model, **({"symbols": ("w1", "w2"), "periods": (2,), "length": 64} | options))


def test_captures_agree_with_generation(real_model: LanguageModel) -> None:
    """A greedy continuation, written token by token, is the constant or the period's exactly where the report says."""
    report = captures(real_model, periods=(3, 8), length=24)
    zero, one = real_model.encode_continuation("0")[0], real_model.encode_continuation("1")[0]
    head = real_model.encode(["Continue the binary sequence."])[0]
    for row in report.rows.itertuples():
        p = int(row.period)
        ids = head + [one if (t - 24) % p == 0 else zero for t in range(24)]
        written = []
        for _ in range(2 * p):
            token = int(basins.next_log_probs(real_model, [ids + written], [len(ids) + len(written) - 1]).argmax())
            written.append(token)
            if token not in (zero, one):
                break
        assert row.captured == (written == [zero] * 2 * p)
        assert row.followed == (written == [one if t % p == 0 else zero for t in range(2 * p)])
        assert row.fraction == pytest.approx(1 / p)


def test_uncorrupted_patterns_are_continued(real_model: LanguageModel) -> None:
    chosen = built_in_patterns(real_model, length=64)
    report = attractor_basin(real_model, [chosen[0], chosen[4]], fractions=(0.4,), draws=2)
    rows = report.rows.set_index(["pattern", "fraction"])
    assert (rows.xs(0.0, level="fraction")["captured"] == 1).all()
    assert rows.loc[("0…", 0.4), "captured"] < 1
    assert report.numbers["patterns_continued"] == 2
    with pytest.raises(InputError, match="at least one of each"):
        attractor_basin(real_model, [], draws=2)
    with pytest.raises(InputError, match="expected a body of at least 64"):
        basins.Pattern(chosen[0].body, 64, 999)
