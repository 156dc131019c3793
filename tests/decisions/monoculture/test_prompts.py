"""Prompts, their ninety styles, scores of a language model and decisions by prompting."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from touchstone.decisions.monoculture import LMScorer, PromptStyle, Schema, TabularPrompter, all_styles
from touchstone.decisions.monoculture.adult import ADULT, load, split
from touchstone.decisions.monoculture.prompting import Rows, prompt_models
from touchstone.decisions.monoculture.prompts import one_at_a_time
from touchstone.decisions.monoculture.schema import Column
from touchstone.decisions.monoculture.scorer import ScoreCache
from touchstone.language import LanguageModel
from touchstone.run import Run

ROW = {
    "age": 39,
    "workclass": "State-gov",
    "education": "Bachelors",
    "marital_status": "Never-married",
    "occupation": "Adm-clerical",
    "relationship": "Not-in-family",
    "hours_per_week": 40,
    "sex": "Male",
    "race": "White",
}
GOLDEN = """Information:
- age is 39 years
- class of worker is state government
- highest education is bachelor's degree
- marital status is never married
- occupation is administrative or clerical
- role in the household is not living with family
- usual hours worked a week is 40 hours
- sex is male
- race is White
Question: Is this person's yearly income below or above 50,000 dollars?
A. Below
B. Above
Answer:"""
COARSE = (
    "Information:\nrace: White, sex: male, usual hours worked a week: 40 to 49 hours, role in the household: not "
    "living with family, occupation: sales or office, marital status: never married, highest education: bachelor's "
    "degree, class of worker: government, age: 30 to 39 years\n"
)
SMALL = Schema((Column("x", "x", step=10), Column("c", "colour", {"r": "red"})), "Good?", ("No", "Yes"))


def test_default_prompt_is_the_golden_one() -> None:
    assert TabularPrompter(ADULT).prompts(pd.DataFrame([ROW])) == [GOLDEN]
    style = PromptStyle(tuple(ADULT.names)[::-1], "comma", ": ", "coarse", "reverse")
    (prompt,) = TabularPrompter(ADULT).prompts(pd.DataFrame([ROW]), style)
    assert prompt.startswith(COARSE)
    text = PromptStyle(("age", "sex"), "text", " = ")
    assert (
        "The age = 39 years. The sex = male.\nQuestion" in TabularPrompter(ADULT).prompts(pd.DataFrame([ROW]), text)[0]
    )


def test_ninety_styles_are_ninety_prompts() -> None:
    styles = all_styles(ADULT.names)
    frame = pd.DataFrame([ROW])
    assert len(styles) == len({style.name for style in styles}) == 90
    assert len({TabularPrompter(ADULT).prompts(frame, style)[0] for style in styles}) == 90
    assert TabularPrompter(ADULT).prompts(frame, styles[0]) == [GOLDEN]
    # Orders are the same in every run: these are part of what is saved.
    assert {style.order for style in all_styles(ADULT.names)} == {style.order for style in styles}
    assert next(style for style in styles if style.order_name == "random 1").order[:3] == RANDOM_1
    assert all(sorted(style.order) == sorted(ADULT.names) for style in styles)
    assert len(one_at_a_time(ADULT.names)) == 10


RANDOM_1 = ("race", "occupation", "sex")


def test_answers_change_places_with_their_keys() -> None:
    prompter = TabularPrompter(SMALL)
    frame = pd.DataFrame({"x": [17, np.nan], "c": ["r", "b"]})
    plain, turned = prompter.prompts(frame), prompter.prompts(frame, flipped=True)
    assert plain[0].endswith("A. No\nB. Yes\nAnswer:")
    assert turned[0].endswith("A. Yes\nB. No\nAnswer:")
    assert prompter.keys() == ("A", "B")
    assert prompter.keys(True) == ("B", "A")
    assert "- x is 17\n- colour is red" in plain[0]
    assert "- x is unknown\n- colour is b" in plain[1]


def test_examples_are_balanced_and_the_same_for_all() -> None:
    frame = pd.DataFrame({"x": range(40), "c": ["r"] * 40})
    y = np.arange(40) % 4 == 0
    prompter = TabularPrompter(SMALL).with_examples(frame, y, 10, seed=1)
    one, two = prompter.prompts(frame.iloc[:2])
    assert sorted(prompter.outcomes) == [0] * 5 + [1] * 5
    head = one[: one.rindex("Information:")]
    assert two.startswith(head)
    assert head.count("Answer: A") == head.count("Answer: B") == 5
    turned = prompter.prompts(frame.iloc[:1], flipped=True)[0]
    first = "B" if prompter.outcomes[0] else "A"
    assert one.split("Answer: ")[1][0] == first
    assert turned.split("Answer: ")[1][0] != first
    with pytest.raises(ValueError, match="3 rows have the outcome 1, expected 5"):
        TabularPrompter(SMALL).with_examples(frame, np.arange(40) < 3)


def test_scores_are_those_of_the_model_itself(tiny) -> None:
    prompts = ["short\nAnswer:", "a longer question than the other\nAnswer:", "short\nAnswer:"]
    found = LMScorer(tiny).risk_scores(prompts)
    for i, prompt in enumerate(prompts):
        chance = {}
        for text in (" A", " B", "A", "B"):
            ids = tiny.tokenizer(prompt)["input_ids"]
            after = tiny.tokenizer(text, add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                logits = tiny.module(torch.tensor([ids + after])).logits[0].log_softmax(-1)
            chance[text] = math.exp(sum(float(logits[len(ids) - 1 + k, t]) for k, t in enumerate(after)))
        spaced, bare = chance[" A"] + chance[" B"], chance["A"] + chance["B"]
        pair = (chance[" A"], chance[" B"]) if spaced >= bare else (chance["A"], chance["B"])
        assert found.score[i] == pytest.approx(pair[1] / sum(pair), rel=1e-4)
        assert found.mass[i] == pytest.approx(sum(pair), rel=1e-4)
    assert found.score.dtype == np.float32
    assert found.score[0] == found.score[2]
    turned = LMScorer(tiny).risk_scores(prompts, ("B", "A"))
    assert turned.score == pytest.approx(1 - found.score, abs=1e-6)
    assert (found.flagged == (found.mass < 0.1)).all()


def test_known_scores_are_not_computed_again(tiny, tmp_path, monkeypatch) -> None:
    prompts = [f"question {i % 5}\nAnswer:" for i in range(10)]
    cache = ScoreCache(tmp_path / "scores.sqlite")
    first = LMScorer(tiny, cache=cache).risk_scores(prompts)
    asked: list[int] = []
    inner = tiny.log_likelihood
    monkeypatch.setattr(tiny, "log_likelihood", lambda p, *a, **k: asked.append(len(p)) or inner(p, *a, **k))
    done: list[int] = []
    again = LMScorer(tiny, cache=cache).risk_scores(prompts, progress=done.append)
    assert not asked
    assert sum(done) == 10
    assert (again.score == first.score).all()
    LMScorer(tiny, cache=cache, name="another").risk_scores(prompts)
    assert asked == [5]
    LMScorer(tiny, cache=cache).risk_scores(prompts, ("B", "A"))
    assert asked == [5, 5]
    cache.close()
    nameless = LanguageModel(tiny.module, tiny.tokenizer)
    with pytest.raises(ValueError, match="name: expected one"):
        LMScorer(nameless, cache=ScoreCache(tmp_path / "scores.sqlite"))
    with pytest.raises(ValueError, match="no chat template"):
        LMScorer(tiny, chat=True)


def test_models_are_asked_in_every_style(tiny, tmp_path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.integers(0, 90, 30), "c": rng.choice(["r", "b"], 30)})
    y = rng.integers(0, 2, 30)
    val, test = Rows(frame[:14].reset_index(drop=True), y[:14]), Rows(frame[14:].reset_index(drop=True), y[14:])
    styles = all_styles(SMALL.names)[:3]
    options = {"groups": ["c"], "both_orders": True, "cache": tmp_path / "s.sqlite"}
    found = prompt_models({"one": tiny, "two": tiny}, TabularPrompter(SMALL), test, val, styles, Run(), **options)
    assert len(found.table.models) == 6
    assert len(found.table) == 16
    assert found.table.model_meta["style"].tolist() == [style.name for style in styles] * 2
    one, two = found.scores[f"one/{styles[1].name}"], found.scores[f"two/{styles[1].name}"]
    assert (one == two).all()
    scorer, prompter = LMScorer(tiny), TabularPrompter(SMALL)
    plain = scorer.risk_scores(prompter.prompts(test.frame, styles[1])).score
    turned = scorer.risk_scores(prompter.prompts(test.frame, styles[1], flipped=True), ("B", "A")).score
    assert one.to_numpy() == pytest.approx((plain + turned) / 2, abs=1e-6)
    record = json.loads(json.dumps(found.record()))
    assert record["styles"][0]["order"] == ["x", "c"]
    assert set(found.table.groups) == {"c"}
    with pytest.raises(ValueError, match="each style once"):
        prompt_models({"one": tiny}, prompter, test, val, [styles[0]] * 2, Run())
    with pytest.raises(ValueError, match="all outcomes are the same"):
        prompt_models({"one": tiny}, prompter, test, Rows(val.frame, np.ones(14)), styles, Run())


def test_adult_is_whole_and_split_without_overlap() -> None:
    task = load()
    assert len(task) == 48_842
    assert task.y.sum() == 7841 + 3846
    assert set(ADULT.names) <= set(task.frame.columns)
    one, two = split(task, (100, 200), 0)
    again, _ = split(task, (100, 200), 0)
    assert one.frame.equals(again.frame)
    assert len(two) == 200
    for column in ADULT.columns:
        if column.values:
            assert set(task.frame[column.name]) <= set(column.values), column.name
        if column.coarse:
            assert set(task.frame[column.name]) <= set(column.coarse), column.name
    sizes = {c.name: len(set(c.coarse.values()) - {"unknown"}) for c in ADULT.columns if c.coarse}
    assert sizes == {"workclass": 3, "education": 5, "marital_status": 3, "occupation": 6}
    with pytest.raises(ValueError, match="50000 rows of 48842"):
        split(task, (50_000,), 0)


def test_schema_comes_back_from_its_file(tmp_path) -> None:
    (tmp_path / "s.json").write_text(ADULT.to_json())
    assert Schema.read(tmp_path / "s.json") == ADULT
    for text, message in (
        ("{", "not JSON"),
        ('{"question": "?", "choices": ["a", "b"]}', "lacks 'columns'"),
        ('{"question": "?", "choices": ["a", "a"], "columns": [{"name": "x"}]}', "two different choices"),
        ('{"question": "?", "choices": ["a", "b"], "columns": [{"name": "x", "unot": ""}]}', "a column has 'unot'"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            Schema.read(tmp_path / "bad.json")
    with pytest.raises(ValueError, match="column 'c': the table has x"):
        TabularPrompter(SMALL).prompts(pd.DataFrame({"x": [1]}))
