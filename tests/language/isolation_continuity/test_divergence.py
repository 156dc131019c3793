"""Distances: values worked by hand, and what must hold for all distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from scipy.stats import entropy as scipy_entropy

from touchstone.errors import InputError
from touchstone.language.isolation_continuity import divergence

_LOGITS = st.lists(st.floats(-8, 8), min_size=5, max_size=5)
_BITS = st.lists(st.integers(0, 1), min_size=6, max_size=6)


def test_hand_worked_distances() -> None:
    p, q = np.log([0.5, 0.5]), np.log([0.9, 0.1])
    assert divergence.total_variation(p, q) == pytest.approx(0.4)
    assert divergence.largest_gap(p, q) == pytest.approx(0.4)
    assert divergence.kullback_leibler(p, q) == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))
    assert divergence.entropy(p) == pytest.approx(math.log(2))


def test_a_probability_of_zero_stays_finite() -> None:
    sure, other = np.array([0.0, -np.inf]), np.array([-np.inf, 0.0])
    assert divergence.total_variation(sure, other) == pytest.approx(1.0)
    assert np.isfinite(divergence.kullback_leibler(sure, other))
    assert divergence.entropy(sure) == pytest.approx(0.0, abs=1e-12)


@given(_LOGITS, _LOGITS)
def test_inequalities(a: list[float], b: list[float]) -> None:
    p, q = log_softmax(a), log_softmax(b)
    tv = divergence.total_variation(p, q)
    assert 0.0 <= tv <= 1.0
    assert tv == pytest.approx(divergence.total_variation(q, p))
    assert divergence.kullback_leibler(p, q) >= 2 * tv**2 - 1e-9
    assert divergence.largest_gap(p, q) <= tv + 1e-9
    assert divergence.total_variation(p, p) == 0.0
    assert divergence.kullback_leibler(p, q) == pytest.approx(scipy_entropy(np.exp(p), np.exp(q)), abs=1e-9)
    assert divergence.entropy(p) == pytest.approx(scipy_entropy(np.exp(p)), abs=1e-9)


@given(_BITS, _BITS, _BITS)
def test_hamming_is_a_metric(x: list[int], y: list[int], z: list[int]) -> None:
    assert divergence.hamming(x, z) <= divergence.hamming(x, y) + divergence.hamming(y, z) + 1e-12
    assert divergence.hamming(x, y) == divergence.hamming(y, x)
    assert (divergence.hamming(x, y) == 0) == (x == y)


def test_hamming_by_hand_and_bad_input() -> None:
    assert divergence.hamming([0, 0, 0, 1], [0, 1, 0, 1]) == 0.25
    with pytest.raises(InputError, match="equal length, got 2 and 3"):
        divergence.hamming([0, 1], [0, 1, 1])
    with pytest.raises(InputError, match="at least one position"):
        divergence.hamming([], [])


def test_alignment_sees_one_missing_token_where_hamming_cannot() -> None:
    whole = list(range(10))
    assert divergence.aligned_distance(whole, whole[:4] + whole[5:]) == pytest.approx(0.1)
    assert divergence.aligned_distance(whole, whole) == 0.0
    with pytest.raises(InputError, match="at least one token"):
        divergence.aligned_distance([], [])


def test_different_vocabularies_are_refused() -> None:
    with pytest.raises(InputError, match="one vocabulary"):
        divergence.total_variation(np.zeros(2), np.zeros(3))
