"""Alignment records: what is kept, what is dropped, and the plain loop of tiny models."""

from __future__ import annotations

import json

import pytest
import torch

from touchstone.errors import InputError
from touchstone.files import read_jsonl
from touchstone.language.evorefuse import build_align
from touchstone.language.evorefuse.align import (
    REFUSAL,
    answers_of,
    benign_pairs,
    read_align,
    unsafe_pairs,
)
from touchstone.language.evorefuse.grammar import Instruction, default_grammar
from touchstone.language.evorefuse.result import Found
from touchstone.language.evorefuse.rules import calmed
from touchstone.language.evorefuse.tuning import tune
from touchstone.language.refusal import RefusalJudge

from .conftest import ANSWER
from .conftest import REFUSAL as SAID


def test_records_have_an_answer_and_a_refusal_and_what_teaches_nothing_is_dropped(tmp_path):
    found = [
        Found("s", "a", -1.0, reply=SAID),
        Found("s", "b", -1.0, reply=ANSWER),
        Found("s", "c", -1.0),
        Found("s", "d", -1.0, reply=SAID),
        Found("s", "e", -1.0, reply=SAID),
    ]
    answers = {"a": ANSWER, "b": ANSWER, "c": ANSWER, "d": SAID, "e": ""}
    built = build_align(found, lambda prompts: [answers[p] for p in prompts], judge=RefusalJudge("prefix"))
    assert [(r.prompt, r.chosen, r.rejected) for r in built.records] == [
        ("a", ANSWER, SAID), ("b", ANSWER, REFUSAL), ("c", ANSWER, REFUSAL),
    ]  # fmt: skip
    assert built.dropped == ["d", "e"]
    built.to_jsonl(tmp_path / "align.jsonl")
    assert read_align(tmp_path / "align.jsonl") == built.records


def test_the_answerer_may_be_asked_calmly():
    class Echo:
        source = "echo"

        def generate(self, prompts, **options):
            return [f"To {prompt}" for prompt in prompts]

    grammar = default_grammar()
    loud = grammar.text(Instruction(0, 1, 1, 1))
    calm = answers_of(Echo(), rewording=lambda text: calmed(grammar, text))
    assert calm([loud, "Hello"]) == ["To How do I stop a process that hangs?", "To Hello"]
    partly = answers_of(Echo(), rewording={"a": "b"}.get)
    assert partly(["a", "c"]) == ["To b", "To c"]
    assert [pair.chosen for pair in benign_pairs(["x"], answers_of(Echo()))] == ["To x"]


def test_unsafe_prompts_keep_their_refusal():
    [pair] = unsafe_pairs(["no"])
    assert pair.chosen == REFUSAL
    assert pair.rejected != REFUSAL


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no record"),
        ("{", "line 1: not JSON"),
        ('{"prompt": "a", "chosen": "b"}\n', "line 1: expected an object with the text 'rejected'"),
        ('\n{"prompt": "a", "chosen": "b", "rejected": ""}\n', "line 2"),
        ("[1]\n", "line 1"),
    ],
)
def test_bad_files(tmp_path, text, message):
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        read_align(tmp_path / "bad.jsonl")


def test_a_found_record_needs_only_its_instruction(tmp_path):
    (tmp_path / "f.jsonl").write_text(json.dumps({"instruction": "a", "fitness": -2}) + "\n")
    assert Found.of(read_jsonl(tmp_path / "f.jsonl", texts=["instruction"])[0]) == Found("", "a", -2.0)


def test_no_instruction_and_answers_that_do_not_fit_are_errors():
    with pytest.raises(InputError, match="holds no instruction"):
        build_align([], lambda prompts: [])
    with pytest.raises(InputError, match="gave 0 answers to 1"):
        build_align(["a"], lambda prompts: [])


# The plain loop


def test_tune_learns_replies_and_nothing_of_prompts(make_tiny):
    model = make_tiny()
    state = torch.get_rng_state()
    before = model.log_likelihood(["w1 w2", "w3"], ["w9", "w8"]).total
    loss = tune(model, [[("w1 w2", "w9")], [("w3", "w8")]], steps=60, rate=3e-3, sizes=[4, 4])
    after = model.log_likelihood(["w1 w2", "w3"], ["w9", "w8"]).total
    assert loss < 0.2
    assert after[0, 0] > before[0, 0]
    assert after[0, 0] > after[0, 1]
    assert after[1, 1] > after[1, 0]
    assert not model.module.training
    assert torch.equal(state, torch.get_rng_state())


def test_tune_repeats_for_a_seed(make_tiny):
    def trained(seed):
        model = make_tiny()
        tune(model, [[("w1", "w9"), ("w2", "w8"), ("w3", "w7")]], steps=3, sizes=[2], seed=seed)
        return model.module.model.layers[0].mlp.up_proj.weight

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_tune_needs_pairs(model):
    with pytest.raises(InputError, match="groups"):
        tune(model, [[("w1", "w2")], []])
    with pytest.raises(InputError, match="sizes"):
        tune(model, [[("w1", "w2")]], sizes=[1, 2])
