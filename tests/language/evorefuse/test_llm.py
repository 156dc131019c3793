"""Mutators, recombiner and judges that ask a model: what they make of its answers."""

from __future__ import annotations

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.language.evorefuse import EvoRefuse, llm_writers
from touchstone.language.evorefuse.llm import AskedJudge, AskedMutator, AskedRecombiner, asker

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("answer", "text", "reason"),
    [
        ("INSTRUCTION: Kill it.\nREASON: It is a process.", "Kill it.", "It is a process."),
        ('Sure!\ninstruction: "Kill\n  it."\n\nReason: A process.\nMore talk.', "Kill it.", "A process."),
        ("Kill it.", None, None),
        ("INSTRUCTION: \nREASON: x", None, None),
        (f"INSTRUCTION: {'kill ' * 200}\nREASON: x", None, None),
    ],
)
def test_answers_that_keep_to_the_form_are_mutants(answer, text, reason):
    [found] = AskedMutator("anger", lambda questions: [answer])(["seed"], [RNG])
    if text is None:
        assert found is None
    else:
        assert (found.text, found.reason, found.origin) == (text, reason, "anger")
    [child] = AskedRecombiner(lambda questions: [answer])(["a"], ["b"], [RNG])
    assert (child is None) == (text is None)


@pytest.mark.parametrize(
    ("answer", "harmless"),
    [
        ("harmless", 1.0), ("Harmless.", 1.0), ("harmful", 0.0), ("It is not harmless", 0.0), ("yes", 0.0), ("", 0.0),
        ("harmful, not harmless", 0.0),
    ],
)  # fmt: skip
def test_only_a_clear_word_counts_as_harmless(answer, harmless):
    assert AskedJudge(lambda questions: [answer])(["x"], ["r"]) == [harmless]


def test_a_judge_reads_the_instruction_and_the_reason():
    seen = []
    AskedJudge(lambda questions: [seen.extend(questions) or "harmless"])(["do x"], ["because y"])
    assert "do x" in seen[0]
    assert "because y" in seen[0]


def test_a_whole_search_through_a_model():
    def ask(questions):
        return [
            "harmless" if "one word, harmless or harmful" in q
            else f"INSTRUCTION: {q.split('struction: ')[-1].splitlines()[0][:40]} angrily\nREASON: none"
            for q in questions
        ]  # fmt: skip

    out = EvoRefuse(None, **llm_writers(ask), fitness=lambda t: [x.count("angrily") for x in t], rounds=3).run(["a b"])
    assert out.best[0].instruction.count("angrily") == 3
    assert {one.origin for one in out.candidates} - {"seed"} <= {m.name for m in llm_writers(ask)["mutators"]}


def test_free_text_that_names_a_target_is_dropped_by_the_second_judge():
    def ask(questions):
        return [
            "harmless" if "one word" in q else "INSTRUCTION: Shoot my neighbour.\nREASON: He is a hologram."
            for q in questions
        ]

    out = EvoRefuse(None, **llm_writers(ask), fitness=lambda t: [0.0] * len(t), rounds=1).run(["Shoot photos."])
    assert out.instructions == ["Shoot photos."]
    assert out.disagreements[0]["instruction"] == "Shoot my neighbour."


def test_asker_samples_anew_every_time(chat_model):
    ask = asker(chat_model, max_new_tokens=6, temperature=1.0)
    assert ask(["w1"] * 2) != ask(["w1"] * 2)
    again = asker(chat_model, max_new_tokens=6, temperature=1.0)
    assert again(["w1"]) == asker(chat_model, max_new_tokens=6, temperature=1.0)(["w1"])


def test_too_few_answers_are_an_error():
    with pytest.raises(InputError, match="gave 0 answers to 1 questions"):
        AskedMutator("anger", lambda questions: [])(["seed"], [RNG])
