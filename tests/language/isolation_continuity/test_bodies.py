"""Bodies and the changes drawn in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.isolation_continuity.bodies import Body, draw_edits, nested_edits, passage, pattern
from touchstone.language.isolation_continuity.divergence import hamming


@given(st.floats(0.02, 0.6), st.integers(1, 4), st.integers(0, 10_000))
def test_every_prefix_holds_its_share_of_changes_and_keeps_its_end(fraction: float, guard: int, seed: int) -> None:
    lengths = [16, 64, 100]
    positions, counts = nested_edits(lengths, fraction, guard, np.random.default_rng(seed))
    assert positions == sorted(set(positions))
    for n in lengths:
        assert counts[n] == sum(p < n for p in positions)
        assert abs(counts[n] - fraction * n) <= 1
        assert not any(n - guard <= p < n for p in positions)


@given(st.integers(5, 40), st.integers(0, 10_000))
def test_as_many_tokens_change_as_asked(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    body = Body("toy", (5, 6), tuple([0, 1, 2] * 20), (0, 1, 2))
    edited = body.edited(60, draw_edits(60, k, body.guard, rng), rng)
    assert edited[:2] == [5, 6]
    assert hamming(edited[2:], body.ids) == pytest.approx(k / 60)
    assert edited[-1] == body.ids[-1]


def test_edits_in_a_text_change_every_chosen_token(model: LanguageModel) -> None:
    body = passage(model, " ".join(f"w{i % 20}" for i in range(40)), prompt=None, guard=8)
    edited = body.edited(40, list(range(32)), np.random.default_rng(0))
    assert all(a != b for a, b in zip(edited[:32], body.ids, strict=False))
    assert edited[32:] == list(body.ids[32:])


def test_a_pattern_repeats_its_motif(model: LanguageModel) -> None:
    body = pattern(model, ["w1", "w1", "w2"], symbols=("w1", "w2"), length=7, prompt="w3 w4")
    one, two = model.encode_continuation("w1 w2")
    assert body.ids == (one, one, two, one, one, two, one)
    assert body.head == tuple(model.encode(["w3 w4"])[0])
    assert body.bare().head == ()


def test_bad_input(model: LanguageModel) -> None:
    rng = np.random.default_rng(0)
    body = Body("toy", (), (0, 1, 0, 1), (0, 1))
    with pytest.raises(InputError, match="last 1 tokens must not change"):
        body.edited(4, [3], rng)
    with pytest.raises(InputError, match="expected 0 to 3"):
        body.edited(4, [4], rng)
    with pytest.raises(InputError, match="guard 0"):
        Body("toy", (), (0,), (1,), guard=0)
    with pytest.raises(InputError, match="has no rival"):
        Body("toy", (), (0, 0, 0), (0,)).edited(3, [0], rng)
    with pytest.raises(InputError, match="expected 1 to 3 changes"):
        draw_edits(4, 4, 1, rng)
    with pytest.raises(InputError, match="symbol 'w1 w2': expected a single token"):
        pattern(model, ["w1 w2"], symbols=("w1", "w2"))
    with pytest.raises(InputError, match="different as tokens"):
        pattern(model, ["unknown"], symbols=("unknown", "elsewhere"))
    with pytest.raises(InputError, match="at least one symbol"):
        pattern(model, [], symbols=("w1", "w2"))
