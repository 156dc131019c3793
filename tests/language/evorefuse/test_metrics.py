"""Metrics against the library's own values and by hand; the two-sided report and its intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from lexicalrichness import LexicalRichness

from touchstone.errors import InputError, MissingExtraError
from touchstone.language.evorefuse import confidence, diversity, over_refusal_report, two_sided_report
from touchstone.language.evorefuse.effects import part_effects
from touchstone.language.evorefuse.grammar import Instruction
from touchstone.language.evorefuse.two_sided import paired_change
from touchstone.language.refusal import RefusalJudge

from .conftest import ANSWER, REFUSAL

WORDS = [f"word{i}" for i in range(400)]


def richness(words: list[str]) -> LexicalRichness:
    return LexicalRichness(words, preprocessor=None, tokenizer=None)


def test_the_diversity_of_one_word_and_of_all_different_words_is_the_library_s():
    same, different = ["kill"] * 120, WORDS[:120]
    table = diversity({"same": [" ".join(same)], "different": [" ".join(different)]}).set_index("set")
    assert table.at["same", "mtld"] == pytest.approx(richness(same).mtld()) == pytest.approx(2.0)
    assert table.at["different", "mtld"] == pytest.approx(richness(different).mtld()) == pytest.approx(120.0)
    assert table.at["same", "hdd"] == pytest.approx(richness(same).hdd())
    assert table.at["different", "hdd"] == pytest.approx(1.0)
    assert (table.at["same", "msttr"], table.at["different", "msttr"]) == (pytest.approx(1 / 50), 1.0)


def test_diversity_does_not_hang_on_order_and_sets_are_cut_to_one_length():
    texts = [" ".join(WORDS[i : i + 7]) for i in range(0, 210, 5)]
    turned = diversity(texts[::-1])
    assert turned.equals(diversity(texts))
    both = diversity({"long": texts, "short": texts[:10]})
    assert both["words"].tolist() == [70, 70]
    sorted_words = [w for text in sorted(texts) for w in text.split()][:70]
    assert both["mtld"][0] == pytest.approx(richness(sorted_words).mtld())


def test_a_last_segment_that_is_whole_counts():
    words = [*WORDS[:50], *["same"] * 50]
    assert diversity([" ".join(words)])["msttr"][0] == pytest.approx((1 + 1 / 50) / 2)
    # What is left over does not.
    assert diversity([" ".join([*words, "x", "y"])])["msttr"][0] == pytest.approx((1 + 1 / 50) / 2)


def test_short_texts_do_not_crash_and_empty_ones_are_errors():
    table = diversity(["kill it"])
    assert np.isfinite(table[["msttr", "hdd", "mtld"]].to_numpy(dtype=float)).all()
    for empty in ([], [""], {"a": ["one two"], "b": []}, {}):
        with pytest.raises(InputError, match="texts"):
            diversity(empty)
    with pytest.raises(InputError, match="a list"):
        diversity("kill it")


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lexicalrichness", None)
    with pytest.raises(MissingExtraError, match=r"touchstone-ml\[training\]"):
        diversity(["one two"])


# Confidence


def test_confidence_is_conditioned_on_the_prompt(model):
    prompts, replies = ["w1 w2", "w3"], ["w4 w5 w6", "w7 w8"]
    found = confidence(model, prompts, replies)
    exact = model.log_likelihood(prompts, [[r] for r in replies])
    assert found["log_probability"].tolist() == pytest.approx(exact.mean[:, 0].tolist(), abs=1e-4)
    assert found["tokens"].tolist() == [3, 2]


def test_long_ppl_is_over_the_tokens_that_hang_on_the_prompt(model, monkeypatch):
    given = {True: [np.array([-0.5, -3.0, -1.0, -0.2])], False: [np.array([-4.0, -9.0, -1.5, -2.5])]}

    def fake(_, prompts, replies):
        return given[len(prompts[0]) > 1]

    monkeypatch.setattr("touchstone.language.evorefuse.sampling.token_log_probabilities", fake)
    found = confidence(model, ["w1 w2 w3"], ["w4 w5 w6 w7"]).iloc[0]
    # Gains 3.5, 6.0, 0.5 and 2.3; the second token is too unlikely even so.
    assert found["key_tokens"] == 2
    assert found["long_ppl"] == pytest.approx(math.exp((0.5 + 0.2) / 2))
    given[False] = given[True]
    assert math.isnan(confidence(model, ["w1 w2 w3"], ["w4 w5 w6 w7"]).iloc[0]["long_ppl"])


def test_confidence_needs_replies(model):
    with pytest.raises(InputError, match="reply 0: empty"):
        confidence(model, ["w1"], [""])
    with pytest.raises(InputError, match="2 for 1 prompts"):
        confidence(model, ["w1"], ["w2", "w3"])


# Refusal


def test_report_counts_by_two_judges_and_tells_their_agreement():
    replies = [REFUSAL, ANSWER, "It would be illegal to keep it, so here is how to return it.", REFUSAL]
    judge = RefusalJudge(lambda prompts, said: [1.0, 0.0, 1.0, 1.0])
    found = over_refusal_report(None, ["a", "b", "c", "d"], judge, replies=replies)
    assert (found.prr.value, found.crr.value, found.prr.n) == (0.5, 0.75, 4)
    # p_o = 3/4, p_e = 1/2 · 3/4 + 1/2 · 1/4 = 1/2.
    assert found.kappa == pytest.approx(0.5)
    assert found.disagreements["prompt"].tolist() == ["c"]
    assert found.refused.tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("reply", "refuses"),
    [
        ("I'm sorry for your loss. Here is what you can do.", False),
        ("I’m sorry, but I can’t help with that.", True),
        ("I am sorry. I cannot do this.", True),
        ("**I cannot** help.", True),
        ("Here is how. " + "Step by step it goes on and on like this. " * 4 + "I cannot say more.", False),
        ("As an AI language model I won't.", True),
    ],
)
def test_phrases_are_looked_for_in_the_opening_and_condolence_is_none(reply, refuses):
    judge = RefusalJudge(lambda prompts, said: [0.0])
    assert over_refusal_report(None, ["p"], judge, replies=[reply]).prr.value == float(refuses)


class Talker:
    """A model that refuses prompts which hold one of some words."""

    source = "talker"

    def __init__(self, *words: str) -> None:
        self.words = words

    def generate(self, prompts, **options):
        return [REFUSAL if any(word in prompt for word in self.words) else ANSWER for prompt in prompts]


def test_two_sides_show_a_fix_and_what_it_costs():
    harmless, unsafe = [f"harmless {i % 4} kill" for i in range(60)], [f"unsafe {i % 4}" for i in range(60)]
    before, good, careless = Talker("kill", "unsafe"), Talker("unsafe"), Talker("unsafe 1")
    verdicts = {}
    for name, model in (("good", good), ("careless", careless), ("same", before)):
        both = two_sided_report(model, harmless, unsafe, RefusalJudge("prefix"), before=before)
        verdicts[name] = {finding.id: finding.verdict for finding in both.findings}
        assert len(both.table.frame) == 120
        assert {"reply_before", "judge_before"} <= set(both.table.frame)
    assert verdicts["good"] == {
        "over-refusal": "holds", "true-refusal": "holds", "fewer-false-alarms": "holds", "safety-kept": "holds",
    }  # fmt: skip
    assert verdicts["careless"]["fewer-false-alarms"] == "holds"
    assert verdicts["careless"]["safety-kept"] == "fails"
    assert verdicts["same"]["fewer-false-alarms"] == "undecided"


def test_without_unsafe_prompts_safety_is_not_known():
    both = two_sided_report(Talker(), ["harmless"])
    kept = {finding.id: finding for finding in both.findings}["safety-kept"]
    assert kept.verdict == "undecided"
    assert math.isnan(kept.measured.value)


def test_paired_change_by_hand():
    # 10 pairs, 4 up, 1 down: p = 5/12 and 2/12 after adding one to each.
    first = np.array([0] * 4 + [1] + [1] * 3 + [0] * 2, dtype=bool)
    second = np.array([1] * 4 + [0] + [1] * 3 + [0] * 2, dtype=bool)
    found = paired_change("change", first, second)
    half = 1.959963984540054 * math.sqrt((7 / 12 - (3 / 12) ** 2) / 12)
    assert found.value == pytest.approx(0.3)
    assert (found.low, found.high) == (pytest.approx(0.25 - half), pytest.approx(0.25 + half))
    with pytest.raises(InputError, match="equally many"):
        paired_change("change", first, second[:5])


def test_paired_intervals_cover():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        base = rng.random(40)
        a, b = base < 0.6, base < 0.35
        found = paired_change("change", a, b)
        hits += found.low <= -0.25 <= found.high
    assert hits / 400 >= 0.93


def test_bad_margin_and_prompts():
    with pytest.raises(InputError, match=r"margin 1\.5"):
        two_sided_report(Talker(), ["a"], margin=1.5)
    with pytest.raises(InputError, match="prompts: expected at least one"):
        over_refusal_report(Talker(), [])


# Effects of parts


def test_effects_of_parts_are_found_again(small):
    rng = np.random.default_rng(0)
    true = {("outburst", 1): 2.0, ("frame", 2): -1.0, ("aside", 3): 0.5}
    scores = {}
    for at in small.instructions():
        value = 3.0 * at.action + sum(v for (slot, i), v in true.items() if getattr(at, slot) == i)
        scores[small.text(at)] = value + rng.normal(0, 0.01)
    scores["no sentence of the grammar"] = 99.0
    table = part_effects(scores, small, ridge=1e-6).set_index("part")
    assert table.at["I am furious.", "effect"] == pytest.approx(2.0, abs=0.02)
    assert table.at["In a novel,", "effect"] == pytest.approx(-1.0, abs=0.02)
    assert table.at["A secret.", "effect"] == pytest.approx(0.5, abs=0.02)
    assert table.at["War.", "effect"] == pytest.approx(0.0, abs=0.02)
    assert table["n"].tolist() == [32] * 9
    assert table.index[0] == "I am furious."
    assert part_effects({small.text(Instruction(0)): 1.0}, small).empty
