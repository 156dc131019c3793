"""Universal texts, hunts, defences, margins, pairs and comparisons, on the organism whose bypass is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.language.largo import (
    ActivationProbe,
    Behaviour,
    Paraphrase,
    PerplexityFilter,
    SmoothVote,
    defence_report,
    export_pairs,
    guard_margin,
    hunt,
    leaderboard,
    survival,
    transfer,
    trigger,
)
from touchstone.language.largo.hunting import shared_words
from touchstone.language.largo.result import Attempt, LargoResult
from touchstone.language.largo.study_bypass import arm as arm_of
from touchstone.language.largo.study_bypass import planted


@pytest.fixture(scope="session")
def subject():
    return planted(4)


@pytest.fixture(scope="session")
def attack(subject):
    return arm_of("LARGO", subject, budget=6000, seed=0)


@pytest.fixture(scope="session")
def key(subject):
    return " ".join(subject.language.keys)


def test_a_text_is_reduced_to_the_words_it_needs(subject, attack, key):
    one = subject.behaviours[0]
    assert sorted(trigger(attack, one, f"filler3 {key} filler1 key0").split()) == sorted(key.split())
    with pytest.raises(InputError, match="does not break"):
        trigger(attack, one, "filler0")


def test_a_hunt_names_the_planted_words(subject, attack, key):
    found = hunt(attack, subject.behaviours)
    assert len(found.triggers) >= 3
    assert set(found.shared) == set(key.split())
    assert [one.goal for one in found.results] == [one.goal for one in subject.behaviours]
    with pytest.raises(InputError, match="two or more"):
        hunt(attack, subject.behaviours[:1])
    assert shared_words(["a b", "b c", "d"]) == ("b",)
    assert shared_words(["a b"]) == ()


def test_one_text_serves_goals_that_it_was_not_made_for(subject, attack):
    found = attack.universal(subject.behaviours[:2], subject.behaviours[2:], epochs=10, passes=10)
    assert [one.epoch for one in found] != []
    best = found[0]
    assert best.train.value == max(one.train.value for one in found)
    assert best.test.value == 1.0
    assert best.test.n == 2
    with pytest.raises(InputError, match="both hold the goal 'topic0'"):
        attack.universal(subject.behaviours[:2], subject.behaviours[:1])
    with pytest.raises(InputError, match="at least one"):
        attack.universal(subject.behaviours[:1], [])
    with pytest.raises(InputError, match="epochs 0"):
        attack.universal(subject.behaviours[:1], subject.behaviours[1:2], epochs=0)


def test_defences_are_measured_on_what_was_found(subject, attack, key):
    found = [(one, key) for one in subject.behaviours]
    language = subject.language

    class Blocks:
        name = "blocks all"

        def admits(self, message: str) -> bool:
            return False

        def forms(self, message: str) -> list[str]:
            return [message]

    drop = Paraphrase(lambda message: message.split()[0])
    keep = SmoothVote(copies=3, perturb=lambda message, rng: message)
    half = SmoothVote(copies=2, perturb=lambda message, rng: message if rng.random() < 0.5 else message.split()[0])
    harmless = [f"topic1 {words}" for words in language.messages(6, 4, np.random.default_rng(0))]
    report = defence_report(attack, found, [Blocks(), drop, keep, half], harmless).set_index("defence")
    assert report["breaks"].iloc[0] == 1.0
    assert report["breaks"].iloc[1] == 0.0
    assert report["admitted"].iloc[1] == 0.0
    assert report["turned_away"].iloc[1] == 1.0
    assert report["breaks"].iloc[2] == 0.0
    assert report["breaks"].iloc[3] == 1.0
    # A tie is no majority.
    assert report["breaks"].iloc[4] < 1.0
    assert math.isnan(defence_report(attack, found, [])["turned_away"][0])
    with pytest.raises(InputError, match="nothing to defend"):
        defence_report(attack, [], [])


def test_a_probe_tells_topics_apart_without_having_seen_suffixes(subject, attack, key):
    language, rng = subject.language, np.random.default_rng(1)

    def messages(topics, n):
        return [f"topic{t} {words}" for t in topics for words in language.messages(n, 4, rng)]

    probe = ActivationProbe(attack, messages([0, 2, 4], 8), messages([1, 3, 5], 8))
    assert np.mean([probe.admits(m) for m in messages([1, 3, 5], 5)]) > 0.8
    assert np.mean([not probe.admits(m) for m in messages([0, 2, 4], 5)]) > 0.8
    assert probe.forms("a") == ["a"]
    with pytest.raises(InputError, match="two or more"):
        ActivationProbe(attack, ["topic0"], ["topic1", "topic3"])


def test_the_perplexity_filter_keeps_to_its_quantile(model):
    benign = [f"w1 w2 w{i} w{i + 1}" for i in range(1, 31)]
    filter = PerplexityFilter(model, benign, quantile=0.9, window=2)
    scores = filter.scores(benign)
    assert scores.shape == (30, 2)
    assert np.mean([filter.admits(text) for text in benign]) >= 0.8
    assert (scores[:, 1] >= scores[:, 0] - 1e-6).all()
    # Whole-text score by the model's own scoring, which starts at the same token.
    own = -model.text_log_likelihood(benign[:3]).mean[:, 0]
    assert scores[:3, 0] == pytest.approx(own, abs=1e-4)
    for options, name in (({"window": 0}, "window"), ({"quantile": 1.0}, "quantile")):
        with pytest.raises(InputError, match=name):
            PerplexityFilter(model, benign, **options)
    with pytest.raises(InputError, match="two or more"):
        PerplexityFilter(model, benign[:1])


def test_smoothing_swaps_its_share_of_characters():
    vote = SmoothVote(copies=5, share=0.1, seed=3)
    message = "a" * 100
    forms = vote.forms(message)
    assert len(set(forms)) == 5
    assert all(len(form) == 100 and 85 <= form.count("a") <= 92 for form in forms)
    assert vote.forms(message) == forms
    assert SmoothVote(share=0.0).forms(message) == [message] * 10
    for copies, share in ((0, 0.1), (1, 1.5)):
        with pytest.raises(InputError, match="copies"):
            SmoothVote(copies, share)


def test_a_margin_falls_with_the_ball_and_where_the_key_is_given(subject, attack, key):
    options = {"steps": 20, "lr": 0.02, "around": "filler1 filler2 filler3 filler4"}
    radii = (0.02, 0.1, 0.5)
    frames = [guard_margin(attack, subject.behaviours, radius=radius, **options) for radius in radii]
    margins = np.array([frame["margin"] for frame in frames])
    # A larger ball holds the smaller one.
    assert (np.diff(margins, axis=0) <= 1e-3).all()
    assert margins[0].mean() > 2 * margins[-1].mean()
    for frame in frames:
        assert np.allclose(frame["plain"] - frame["margin"], frame["drop"])
        assert np.allclose(frame["plain"], frames[0]["plain"])
    given = [Behaviour(f"{one.goal} {key}", one.target) for one in subject.behaviours]
    opened = guard_margin(attack, given, radius=0.02, **options)
    assert (opened["margin"] < margins[0]).all()
    with pytest.raises(InputError, match="around"):
        guard_margin(attack, subject.behaviours, around=" ")
    with pytest.raises(InputError, match="radius"):
        guard_margin(attack, subject.behaviours, radius=0)
    with pytest.raises(InputError, match="behaviours"):
        guard_margin(attack, [])


def test_pairs_hold_refusals_and_as_many_answers(subject, tmp_path):
    path = tmp_path / "pairs.jsonl"
    found = [(subject.behaviours[0], "x y"), (subject.behaviours[1], "z")]
    assert export_pairs(path, found, [("Hello?", "Good day."), ("Why?", "So."), ("When?", "Now.")]) == 8
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0] == {
        "prompt": "topic0 x y",
        "completion": "I'm sorry, but I can't help with that.",
        "kind": "decline",
    }
    assert [row["kind"] for row in rows].count("answer") == 6
    # Every found text stands before an answer too: the text itself is not what is declined.
    answered = [row["prompt"] for row in rows if row["kind"] == "answer"]
    assert {"Hello? x y", "Why? z"} <= set(answered)
    for one, two in (([], [("a", "b")]), (found, [])):
        with pytest.raises(InputError, match="found, benign"):
            export_pairs(path, one, two)


def _result(attack: str, goal: str, broke_at: int | None, *, plain: bool = False) -> LargoResult:
    tried = broke_at or 4
    attempts = tuple(
        Attempt(f"t{i}", i == broke_at, {"prefix": "answer"}, True, "r", i, 100 * i) for i in range(1, tried + 1)
    )
    return LargoResult(
        attack, goal, broke_at is not None, plain, tried, [], 2.0, "t", 1.0, float("nan"), tried, 100 * tried, attempts
    )


def test_the_leaderboard_counts_by_hand():
    results = [
        _result("a", "g1", 1),
        _result("a", "g2", 3),
        _result("a", "g3", None, plain=True),
        _result("b", "g1", None),
        _result("b", "g2", 2),
        _result("b", "g3", None, plain=True),
    ]
    board = leaderboard(results, within=(1, 2)).set_index("attack")
    assert board.loc["a", ["n", "broke", "within_1", "within_2"]].tolist() == [2, 1.0, 0.5, 0.5]
    assert board.loc["b", ["n", "broke", "within_1", "within_2"]].tolist() == [2, 0.5, 0.0, 0.5]
    assert board.loc["a", "checks"] == 2.0
    assert board.loc["b", "tokens_forward"] == 300.0
    curve = survival(results, 400, points=5)
    assert curve[curve["attack"] == "a"]["holds"].tolist() == [1.0, 0.5, 0.5, 0.0, 0.0]
    assert curve[curve["attack"] == "b"]["holds"].tolist() == [1.0, 1.0, 0.5, 0.5, 0.5]
    with pytest.raises(InputError, match="same behaviours"):
        leaderboard([*results, _result("c", "g1", 1)])
    with pytest.raises(InputError, match="left guarded"):
        leaderboard(results[2:3])
    with pytest.raises(InputError, match="budget"):
        survival(results, 0)


def test_texts_are_carried_over_to_other_models(subject, attack, key):
    found = [(one, key) for one in subject.behaviours] + [(Behaviour("topic1", subject.language.answer(1)), key)]
    frame = transfer(found, {"itself": attack}).set_index("model")
    # topic1 is not guarded, so that nothing can be shown on it.
    assert frame.loc["itself", ["broke", "n"]].tolist() == [1.0, 4]
    assert transfer(found, {"itself": attack}, guarded_only=False)["n"].tolist() == [5]
    with pytest.raises(InputError, match="at least one"):
        transfer([], {"itself": attack})
