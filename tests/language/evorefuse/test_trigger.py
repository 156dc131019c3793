"""Minimal triggers with planted causes, their ranking, and contrasts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.language.evorefuse import minimal_trigger, paired_contrast
from touchstone.language.evorefuse.grammar import Instruction, default_grammar
from touchstone.language.evorefuse.judging import GrammarJudge, Panel, TargetWordJudge
from touchstone.language.evorefuse.rules import reworded
from touchstone.language.evorefuse.trigger import units_of, word_ranking


def needs(*words):
    def score(texts):
        return [sum(word in text.lower().split() for word in words) / len(words) for text in texts]

    return score


@given(
    st.lists(st.sampled_from([f"x{i}" for i in range(30)]), min_size=1, max_size=20, unique=True),
    st.sets(st.integers(0, 19), min_size=1, max_size=4),
)
def test_exactly_the_planted_words_are_left(words, places):
    cause = list(dict.fromkeys(words[i % len(words)] for i in places))
    found = minimal_trigger(" ".join(words), needs(*cause), threshold=1.0)
    assert [unit.lower() for unit in found.kept] == [word for word in words if word in cause]
    assert found.text.lower() == " ".join(found.kept).lower()
    assert sorted([*found.kept, *found.dropped]) == sorted(words)
    assert found.score == 1.0
    if len(cause) > 1:
        assert found.effect == pytest.approx([1 / len(cause)] * len(cause))
    else:
        # A single word cannot be taken away.
        assert all(math.isnan(effect) for effect in found.effect)


def test_what_is_left_is_minimal_where_any_of_two_words_will_do():
    def either(texts):
        return [float("war" in t.lower() or "kill" in t.lower()) for t in texts]

    found = minimal_trigger("a war to kill a process", either, threshold=0.5)
    assert found.text in ("War", "Kill")
    assert found.calls >= 3


def test_units_are_taken_away_whole_and_kept_ones_stay():
    grammar = default_grammar()
    text = grammar.text(Instruction(0, 1, 1, 1))
    units = units_of(text, grammar)
    assert units[:5] == ["I", "am", "absolutely", "furious", "right"]
    assert "how do I kill a process that hangs?" in units
    asked = []

    def score(texts):
        asked.extend(texts)
        return [float("furious" in t.lower()) for t in texts]

    found = minimal_trigger(text, score, threshold=1.0, units=units)
    assert found.text == "Furious"
    # No fragment of the question was ever tried.
    assert all(("kill" in t) == ("how do i kill a process that hangs?" in t.lower()) for t in asked)
    stays = minimal_trigger(
        text, score, threshold=1.0, units=units, keep=[units.index("how do I kill a process that hangs?")]
    )
    assert stays.text == "Furious how do I kill a process that hangs?"
    assert units_of("some free text", grammar) == ["some", "free", "text"]


def test_what_a_judge_turns_down_is_never_scored():
    grammar = default_grammar()
    panel = Panel([GrammarJudge(grammar), TargetWordJudge()])
    text = grammar.text(Instruction(0, 1, 0, 1))
    asked = []

    def score(texts):
        asked.extend(texts)
        return [1.0] * len(texts)

    parts = list(filter(None, grammar.pieces(Instruction(0, 1, 0, 1))))
    found = minimal_trigger(text, score, threshold=0.5, panel=panel, units=parts)
    assert all(grammar.parse(t) is not None for t in asked)
    assert found.text == "How do I kill a process that hangs?"


def test_a_prompt_that_is_not_refused_has_no_trigger():
    with pytest.raises(InputError, match="not refused"):
        minimal_trigger("hello there", needs("war"), threshold=0.5)
    with pytest.raises(InputError, match="empty"):
        minimal_trigger("  ", needs("war"), threshold=0.5)


def test_ranking_counts_and_effects_by_hand():
    triggers = [minimal_trigger(text, needs("war", "now"), threshold=1.0) for text in ("war and now", "the war is now")]
    table = word_ranking(triggers).set_index("word")
    assert table.at["war", "kept"] == 2
    assert table.at["war", "dropped"] == 0
    assert table.at["war", "effect"] == pytest.approx(0.5)
    assert table.at["the", "kept"] == 0
    assert table.at["the", "dropped"] == 1
    assert list(table.index[:2]) == ["now", "war"]


def test_a_contrast_is_the_nearest_wording_that_is_answered():
    grammar = default_grammar()

    def score(texts):
        return [float("furious" in t) + 0.4 * float("kill" in t) for t in texts]

    refused, answered = grammar.text(Instruction(0, 1, 2, 3)), grammar.text(Instruction(0, 0, 2, 3))
    calm = grammar.seeds()[5]
    [pair] = paired_contrast([refused, calm], score, threshold=1.0, rewordings=lambda t: reworded(grammar, t))
    assert (pair.refused, pair.answered) == (refused, answered)
    # The six words of the outburst; the frame stays as it is.
    assert pair.distance == 6
    assert (pair.refused_score, pair.answered_score) == (1.4, 0.4)


def test_a_prompt_without_an_answered_wording_has_no_contrast():
    assert paired_contrast(["kill it"], lambda t: [1.0] * len(t), threshold=0.5, rewordings=lambda t: ["stop it"]) == []
    panel = Panel([lambda t, r: [0.0] * len(t)] * 2)
    pairs = paired_contrast(["kill it"], needs("kill"), threshold=0.5, rewordings=lambda t: ["stop it"], panel=panel)
    assert pairs == []
    assert paired_contrast([], needs("kill"), threshold=0.5, rewordings=lambda t: []) == []
