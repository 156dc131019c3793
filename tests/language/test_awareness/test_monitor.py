"""Monitoring: what is ranked first, and which tokens are blamed."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.language import LanguageModel, test_awareness
from touchstone.language.test_awareness.monitoring import monitor
from touchstone.language.test_awareness.probe import AwarenessProbe

ITEMS = ["w1 w2 w3", "w1 w9 w3", "w4 w5", "w9 w9 w9"]


@pytest.fixture
def probe(random_model: LanguageModel) -> AwarenessProbe:
    """A probe, at the embedding, of the word w9: what drives a score is then known."""
    rng = np.random.default_rng(0)
    word = random_model.embedding.weight.detach()[random_model.encode_continuation("w9")[0]].numpy()
    x = rng.normal(size=(120, 1, 32)).astype(np.float32)
    y = np.tile([0, 1], 60)
    x[y == 1, 0] += 3 * word / np.linalg.norm(word)
    return AwarenessProbe("mean_difference", layer=0).fit(x, y, np.arange(120), source=random_model.source)


def test_the_item_with_the_word_comes_first_and_the_word_is_named(
    random_model: LanguageModel, probe: AwarenessProbe
) -> None:
    table = monitor(random_model, probe, ITEMS, words=1)
    assert table["text"].iloc[0] == "w9 w9 w9"
    assert table["score"].is_monotonic_decreasing
    drivers = dict(zip(table["text"], table["drivers"], strict=True))
    assert drivers["w1 w9 w3"].startswith("w9 (+")
    assert dict(zip(table["text"], table["tokens"], strict=True))["w4 w5"] == 2
    assert table["z"].mean() == pytest.approx(0.0, abs=1e-6)


def test_scores_are_means_of_the_probes_discriminants(random_model: LanguageModel, probe: AwarenessProbe) -> None:
    table = monitor(random_model, probe, ITEMS).sort_values("item")
    rows = random_model.activations(ITEMS, ["embedding"], positions="mean")
    expected = probe.decision_function(next(iter(rows.values())).numpy())
    assert table["score"].to_numpy() == pytest.approx(expected, abs=1e-4)


def test_a_reference_sets_the_scale(random_model: LanguageModel, probe: AwarenessProbe) -> None:
    own = monitor(random_model, probe, ITEMS)
    other = monitor(random_model, probe, ITEMS, reference=["w20 w21", "w22"])
    assert other["score"].to_numpy() == pytest.approx(own["score"].to_numpy(), abs=1e-5)
    assert len(other) == 4
    assert other["z"].iloc[0] != pytest.approx(own["z"].iloc[0])


def test_only_the_items_own_tokens_count_in_a_chat(make_tiny, probe: AwarenessProbe) -> None:
    model = make_tiny(chat=True)
    table = monitor(model, probe, ["w9"])
    assert table["tokens"].tolist() == [1]


@pytest.mark.parametrize(("items", "message"), [([], "at least one"), ("w1", "at least one"), ([" "], "no token")])
def test_wrong_items_are_named(items, message: str, random_model: LanguageModel, probe: AwarenessProbe) -> None:
    with pytest.raises(InputError, match=message):
        monitor(random_model, probe, items)


def test_a_probe_of_another_model_is_named(random_model: LanguageModel, probe: AwarenessProbe) -> None:
    probe.direction_ = probe.direction_[:5]
    with pytest.raises(InputError, match="probe of width 5"):
        monitor(random_model, probe, ITEMS)


def test_public_names_are_not_hidden_by_modules_of_the_same_name() -> None:
    for name in test_awareness.__all__:
        found = getattr(test_awareness, name)
        assert callable(found)
        assert not isinstance(found, ModuleType)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        test_awareness.absent  # noqa: B018
