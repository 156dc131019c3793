"""Scores by a language model, the questions of the study, and the study."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.language.conftest import tiny
from touchstone.decisions.conformal_arbitrage import LocalParty, OptionScorer, Query
from touchstone.decisions.conformal_arbitrage.capitals import questions
from touchstone.decisions.conformal_arbitrage.study import study
from touchstone.decisions.conformal_arbitrage.study_known import digits, stress
from touchstone.decisions.conformal_arbitrage.study_model import expert
from touchstone.errors import InputError
from touchstone.run import Run

PROMPTS = ["w1 w2 w3", "w4 w5"]
OPTIONS = [["w6 w7", "w8", "w9 w10 w11"], ["w12", "w13 w14"]]


@pytest.fixture(scope="module")
def model():
    return tiny()


def test_scores_are_the_models_log_probabilities(model, tmp_path):
    import torch

    found = OptionScorer(model, cache=tmp_path).score(PROMPTS, OPTIONS)
    assert [len(row) for row in found] == [3, 2]
    prompt, option = model.encode(PROMPTS[:1], chat=False)[0], model.encode_continuation(" w9 w10 w11")
    with torch.inference_mode():
        logits = model.module(torch.tensor([prompt + option])).logits[0].double().log_softmax(-1)
    steps = [float(logits[len(prompt) - 1 + k, token]) for k, token in enumerate(option)]
    assert found[0][2] == pytest.approx(sum(steps), abs=1e-4)
    assert OptionScorer(model, reduce="mean").score(PROMPTS, OPTIONS)[0][2] == pytest.approx(np.mean(steps), abs=1e-4)
    first = OptionScorer(model, reduce="first_token").score(PROMPTS, OPTIONS)
    assert first[0][2] == pytest.approx(steps[0], abs=1e-4)


def test_kept_scores_are_not_computed_again(model, tmp_path, monkeypatch):
    scorer = OptionScorer(model, cache=tmp_path)
    found = scorer.score(PROMPTS, OPTIONS)
    monkeypatch.setattr(scorer, "_computed", lambda prompts, options: pytest.fail(f"computed {prompts}"))
    assert scorer.score(PROMPTS, OPTIONS) == found
    next(tmp_path.iterdir()).write_text("[1]")
    with pytest.raises(pytest.fail.Exception):
        scorer.score(PROMPTS, OPTIONS)


def test_a_local_model_is_a_party(model):
    scorer = OptionScorer(model, reduce="mean")
    party = LocalParty(scorer)
    talk = Query("a", ({"role": "user", "content": PROMPTS[0]},), tuple(OPTIONS[0]))
    assert party.how == "mean"
    assert list(party.score([talk])[0].scores) == scorer.score(PROMPTS[:1], OPTIONS[:1])[0]


def test_what_a_scorer_refuses(model):
    with pytest.raises(InputError, match="reduce 'max'"):
        OptionScorer(model, reduce="max")
    with pytest.raises(InputError, match="tokenizer: a transformers model needs one"):
        OptionScorer(model.module)
    scorer = OptionScorer(model.module, model.tokenizer)
    with pytest.raises(InputError, match="expected one list for each of 2 prompts, got 1"):
        scorer.score(PROMPTS, OPTIONS[:1])
    with pytest.raises(InputError, match="options of prompt 1: expected a list"):
        scorer.score(PROMPTS, [OPTIONS[0], []])


def test_questions_about_capitals():
    found = questions()
    assert len(found) == 244
    by_code = {question.id: question for question in found}
    assert by_code["FR"].options[by_code["FR"].label] == "Paris"
    assert "Marseille" in by_code["FR"].options
    assert all(len(set(question.options)) == 4 for question in found)
    assert by_code["FR"].prompt.endswith("The capital of France is")
    assert np.bincount([question.label for question in found]).min() > 40
    assert [q.options for q in questions(seed=1)] != [q.options for q in found]
    right = [scores[q.label] for q, scores in zip(found, expert(found, 0), strict=True)]
    assert 0.93 < np.mean(right) < 1


def test_the_cells_of_the_stress_test_are_what_theory_says():
    cell = stress(0, (200, 0.05, 300))
    # k = 9 misses of 200 are left, so that the mean risk is 10 / 201.
    assert cell["predicted"] == pytest.approx(10 / 201)
    assert abs(cell["risk"] - cell["predicted"]) < 3 * cell["error"]
    assert cell["shifted_risk"] > 0.2
    assert stress(0, (20, 0.01, 5))["infinite"] == 1


def test_digits_hold_the_references_of_one_repetition():
    rows = [row for row in digits(0, 0) if row["alpha"] == 0.1]
    accuracy = {row["router"]: row["accuracy"] for row in rows}
    assert accuracy["primary"] == pytest.approx(0.56, abs=0.05)
    assert accuracy["guardian"] == pytest.approx(0.815, abs=0.05)
    assert accuracy["random"] < accuracy["arbitrage"] < accuracy["guardian"]


def test_the_study_at_the_smallest_scale(model, tmp_path):
    found = study("smoke", Run(seed=0), model=model)
    assert {finding.id for finding in found.findings} == {
        "digits-risk", "digits-tight", "digits-over-random", "digits-margin", "trade-risk", "trade-frontier",
        "trade-realised", "trade-monotone", "trade-tested", "capitals-risk", "capitals-over-random", "stress-bound",
        "stress-too-few", "stress-shift",
    }  # fmt: skip
    for name in ("digits-over-random", "trade-frontier", "stress-too-few", "stress-shift"):
        assert found.finding(name).verdict == "holds", found.finding(name)
    assert all(math.isfinite(finding.measured.value) for finding in found.findings)
    found.save(tmp_path / "evidence")
    with pytest.raises(InputError, match="scale 'huge'"):
        study("huge", Run())
