"""One pass against many: the predictions must be the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.isolation_continuity import divergence
from touchstone.language.isolation_continuity.edits import last_log_probs
from touchstone.language.isolation_continuity.reading import next_log_probs

_IDS = [int(i) for i in np.random.default_rng(0).integers(7, 40, size=48)]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2", "qwen3"])
def test_one_pass_equals_a_pass_for_each_length(make_tiny: Callable[..., LanguageModel], kind: str) -> None:
    model = make_tiny(kind)
    at_once = next_log_probs(model, [_IDS], [4, 20, 47])[0]
    for j, n in enumerate((5, 21, 48)):
        alone = next_log_probs(model, [_IDS[:n]], [n - 1])[0, 0]
        assert np.abs(alone - at_once[j]).max() < 1e-4
        assert np.exp(alone).sum() == pytest.approx(1.0, abs=1e-4)


def test_rows_that_share_a_head_equal_rows_alone(model: LanguageModel) -> None:
    # 40 tokens in common: more than it takes to read the head once.
    other = [*_IDS[:40], *_IDS[:8]]
    together = next_log_probs(model, [_IDS, other], [40, 47])
    for i, row in enumerate((_IDS, other)):
        assert np.abs(next_log_probs(model, [row], [40, 47])[0] - together[i]).max() < 1e-4


def test_some_columns_are_those_of_all(model: LanguageModel) -> None:
    every = next_log_probs(model, [_IDS], [3, 9])
    assert np.array_equal(next_log_probs(model, [_IDS], [3, 9], columns=[8, 11]), every[..., [8, 11]])


def test_prompts_of_any_length_in_a_batch_equal_them_alone(model: LanguageModel) -> None:
    prompts = [_IDS[:5], _IDS[:30], _IDS[3:9]]
    found = last_log_probs(model, prompts)
    for prompt, row in zip(prompts, found, strict=True):
        assert np.abs(next_log_probs(model, [prompt], [len(prompt) - 1])[0, 0] - row).max() < 1e-4


def test_a_constant_prompt_without_a_head_does_not_depend_on_its_length(model: LanguageModel) -> None:
    """All attention averages are the same vector: degeneracy, which is why a head is needed."""
    found = next_log_probs(model, [[9] * 64], [3, 15, 63])[0]
    assert divergence.total_variation(found[:1], found).max() < 1e-5
    with_head = next_log_probs(model, [[8, 12, *[9] * 62]], [3, 15, 63])[0]
    assert divergence.total_variation(with_head[:1], with_head).max() > 1e-3


@pytest.mark.parametrize(
    ("rows", "after", "message"),
    [
        ([], [0], "at least one sequence"),
        ([[1, 2], [1, 2, 3]], [0], "equal length"),
        ([[1, 2]], [2], "positions from 0 to 1"),
        ([[1, 2, 3]], [1, 0], "ascending"),
        ([[1] * 129], [0], "reads at most 128"),
    ],
)
def test_bad_input(model: LanguageModel, rows: list[list[int]], after: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        next_log_probs(model, rows, after)
