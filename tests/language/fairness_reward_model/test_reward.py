"""The reward model, its baselines, the planted bias on real cases, the check and the study."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from touchstone.errors import InputError
from touchstone.language.fairness_reward_model import Chain, FairnessRewardModel, compas
from touchstone.language.fairness_reward_model.baselines import asked_scores, keyword_scores, prompted_scores
from touchstone.language.fairness_reward_model.check import METRICS, NEEDS, Settings, check
from touchstone.language.fairness_reward_model.fairness import gaps
from touchstone.language.fairness_reward_model.lm import Training
from touchstone.language.fairness_reward_model.reasoning import (
    Matched,
    Reasoned,
    built_in,
    default_reward_model,
)
from touchstone.language.fairness_reward_model.reward import outcome_labels
from touchstone.language.fairness_reward_model.simulation import Shift, corpus, moderation, simulate
from touchstone.language.fairness_reward_model.study import study
from touchstone.language.fairness_reward_model.study_cases import ballots
from touchstone.language.fairness_reward_model.voting import Ballots
from touchstone.run import Run


@pytest.fixture(scope="module")
def learnt():
    return corpus(seed=0)


@pytest.fixture(scope="module")
def reward(learnt):
    return FairnessRewardModel(context="none").fit(learnt.steps, learnt.labels)


@pytest.fixture(scope="module")
def cases():
    return compas.evidence(compas.load(), seed=0)


def test_the_corpus_has_the_shares_it_says(learnt):
    assert len(learnt.steps) == 6000
    assert np.mean(learnt.clean == 0) == pytest.approx(0.21, abs=0.02)
    wrong = np.mean(learnt.clean != learnt.labels)
    # 8 % flips, and 15 % of the third of neutral steps that mention a group.
    assert wrong == pytest.approx(0.08 + 0.84 * 0.79 / 3 * 0.15, abs=0.015)
    assert corpus(n=50, seed=3).steps == corpus(n=50, seed=3).steps != corpus(n=50, seed=4).steps


def test_wrong_labels_are_seen_through(reward, learnt):
    scores = reward.score_steps(learnt.steps)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert roc_auc_score(learnt.clean, scores) > 0.99


def test_equal_steps_are_scored_once_and_alike(reward):
    steps = ["Women tend to be late.", "The bill was paid.", "Women tend to be late."]
    one_by_one = [float(reward.score_steps([step])[0]) for step in steps]
    assert reward.score_steps(steps) == pytest.approx(one_by_one, abs=1e-12)
    assert reward.score_steps([]).shape == (0,)


def test_chains_are_scored_and_explained(reward):
    chain = Chain(("The bill was paid.", "Rich families tend to be lazy."), "A")
    both = reward.score_steps(chain.steps)
    assert reward.score_chains([chain, Chain((), "B")])[0] == pytest.approx(both.mean())
    assert math.isnan(reward.score_chains([Chain((), "B")])[0])
    assert reward.explain(chain)[0] == (chain.steps[1], pytest.approx(both[1]))
    right, wrong = Chain(("a", "b"), "x"), Chain(("c",), "y")
    assert outcome_labels([right, wrong], ["x", "x"]) == [1, 1, 0]


def test_the_context_is_what_is_read(learnt):
    model = FairnessRewardModel(context="first").fit(learnt.steps, learnt.labels)
    asked = Chain(("The bill was paid.",), None, "Do women tend to be late?")
    assert model.score_chains([asked])[0] == pytest.approx(
        float(model.score_steps(["Do women tend to be late?\n\nThe bill was paid."])[0])
    )
    whole = FairnessRewardModel(context="none", unit="chain").fit(learnt.steps, learnt.labels)
    two = Chain(("The bill was paid.", "Women tend to be late."), None)
    assert whole.score_chains([two])[0] == pytest.approx(float(whole.score_steps(["\n\n".join(two.steps)])[0]))


def test_only_steps_that_mention_a_group_are_judged(learnt):
    model = FairnessRewardModel(context="none", mentions=["women"]).fit(learnt.steps, learnt.labels)
    scores = model.score_steps(["Zebras gallop wildly.", "Women tend to be late."])
    assert scores[0] == 1.0
    assert scores[1] < 0.5


def test_it_is_saved_without_pickling_and_comes_back(reward, learnt, tmp_path, make_tiny):
    path = reward.save(tmp_path / "r.safetensors")
    assert b"pickle" not in path.read_bytes()[:4096]
    again = FairnessRewardModel.load(path)
    assert np.array_equal(again.score_steps(learnt.steps[:50]), reward.score_steps(learnt.steps[:50]))
    model = make_tiny()
    texts, labels = ["w1 w2", "w3 w4", "w5 w6", "w7 w8"], [0, 1, 0, 1]
    states = FairnessRewardModel(encoder=model, context="none").fit(texts, labels)
    back = FairnessRewardModel.load(states.save(tmp_path / "s.safetensors"), model)
    assert back.score_steps(texts) == pytest.approx(states.score_steps(texts))
    with pytest.raises(InputError, match="encoder"):
        FairnessRewardModel.load(tmp_path / "s.safetensors")
    (tmp_path / "bad").write_bytes(b"no")
    with pytest.raises(InputError, match="cannot be read"):
        FairnessRewardModel.load(tmp_path / "bad")
    with pytest.raises(InputError, match="not fitted"):
        FairnessRewardModel().save(tmp_path / "x")


def test_a_language_model_learns_stops_and_goes_on(make_tiny, tmp_path):
    model = make_tiny()
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=48)
    texts = [f"w{rng.integers(10)} {'w20' if y else 'w30'} w{rng.integers(10)}" for y in labels]
    training = Training(epochs=4, rate=0.02, batch=16)
    full = FairnessRewardModel("lm", model, context="none", training=training).fit(texts, labels)
    scores = full.score_steps(texts)
    assert ((scores > 0.5) == labels).mean() > 0.9
    # The encoder itself is as it was.
    assert not any("lora" in name for name, _ in model.module.named_parameters())
    path = tmp_path / "c.safetensors"
    seen: list[int] = []

    def stop(n: int) -> None:
        seen.append(n)
        if sum(seen) == 2 * 48 + 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FairnessRewardModel("lm", model, context="none", training=training).fit(
            texts, labels, checkpoint=path, progress=stop
        )
    resumed = FairnessRewardModel("lm", model, context="none", training=training)
    counted: list[int] = []
    resumed.fit(texts, labels, checkpoint=path, progress=counted.append)
    assert sum(counted) == 2 * 48
    assert resumed.score_steps(texts) == pytest.approx(scores, abs=1e-5)
    back = FairnessRewardModel.load(full.save(tmp_path / "lm.safetensors"), model)
    assert back.score_steps(texts) == pytest.approx(scores, abs=1e-6)
    one_by_one = np.concatenate([back.score_steps([text]) for text in texts])
    assert one_by_one == pytest.approx(scores, abs=1e-5)
    with pytest.raises(InputError, match="checkpoint"):
        FairnessRewardModel("lm", model, context="none", training=training, seed=1).fit(texts, labels, checkpoint=path)


def test_bad_input(reward):
    for options, name in (
        ({"backend": "x"}, "backend"),
        ({"backend": "lm"}, "encoder"),
        ({"mentions": []}, "mentions"),
    ):
        with pytest.raises(InputError, match=name):
            FairnessRewardModel(**options)
    model = FairnessRewardModel()
    for steps, labels, name in ((["a"], [2], "labels"), (["a", "b"], [1], "labels"), (["a", "b"], [1, 1], "all are")):
        with pytest.raises(InputError, match=name):
            model.fit(steps, labels)
    with pytest.raises(InputError, match="sample_weight"):
        model.fit(["a", "b"], [0, 1], [-1, 1])
    with pytest.raises(InputError, match="single string"):
        reward.score_steps("abc")
    with pytest.raises(InputError, match="not fitted"):
        model.score_steps(["a"])
    for field, value in (("epochs", 0), ("rate", 0.0), ("dropout", 1.0)):
        with pytest.raises(InputError, match=field):
            Training(**{field: value})


def test_baselines(chat_model):
    assert keyword_scores(["Women came.", "They came."]).tolist() == [0.0, 1.0]
    scores, unread = asked_scores(lambda question: "0.25" if "first" in question else "no idea 12", ["first", "second"])
    assert (scores.tolist(), unread) == ([0.25, 0.5], 1)
    found = prompted_scores(chat_model, ["w1 w2", "w3", "w1 w2"])
    assert found[0] == found[2]
    assert ((found > 0) & (found < 1)).all()
    with pytest.raises(InputError, match="single string"):
        prompted_scores(chat_model, "w1")


def test_compas_holds_no_names_and_the_rows_that_are_known(cases):
    frame = compas.load()
    assert len(frame) == 4247
    assert not {"name", "first", "last", "dob", "c_case_number"} & set(frame.columns)
    assert len(cases.label) == 500
    assert (cases.group == np.repeat([0, 1], 250)).all()
    assert roc_auc_score(cases.label, cases.logit) > 0.65
    with pytest.raises(InputError, match="each 99999"):
        compas.evidence(frame, each=99999)


def test_weighing_mends_a_planted_bias_on_real_cases(cases, reward):
    chains = simulate(cases, seed=0)
    assert chains.biased[cases.group == 0].mean() == pytest.approx(0.60, abs=0.02)
    assert chains.biased[cases.group == 1].mean() == pytest.approx(0.35, abs=0.02)
    by_text = reward.score_steps(chains.texts)
    assert roc_auc_score(~chains.biased.ravel(), chains.scores(by_text).ravel()) > 0.93
    votes = ballots(chains, by_text)
    found = {
        tau: gaps(chains.label, votes.vote(tau).answer == 1, chains.group)["eodds_sum"] for tau in (math.inf, 0.2, 0.01)
    }
    assert found[math.inf] > found[0.2] > 2 * found[0.01]
    first = gaps(chains.label, votes.first().answer == 1, chains.group)["eodds_sum"]
    assert found[math.inf] > first


def test_where_nothing_is_biased_weighing_does_no_harm(cases, reward):
    chains = simulate(cases, shift=Shift(often=(0.0, 0.0)), seed=0)
    assert not chains.biased.any()
    votes = ballots(chains, reward.score_steps(chains.texts))
    plain, fair = votes.vote(math.inf).answer, votes.vote(0.2).answer
    assert abs(float((plain == chains.label).mean() - (fair == chains.label).mean())) <= 0.02
    before, after = (gaps(chains.label, said == 1, chains.group)["eodds_sum"] for said in (plain, fair))
    assert abs(after - before) < 0.06


def test_scores_of_chains_are_those_of_their_steps():
    task = moderation(each=3, chains=2, seed=0)
    by_text = np.linspace(0.1, 0.9, len(task.texts))
    row = task.steps[1, 0]
    steps = by_text[row[row >= 0]]
    assert task.scores(by_text)[1, 0] == pytest.approx(steps.mean())
    assert task.scores(by_text, "min")[1, 0] == steps.min()
    assert task.scores(by_text, "log_mean")[1, 0] == pytest.approx(np.log(steps).mean())


# The check and the study


def test_chance_is_what_shuffling_within_pairs_leaves():
    rng = np.random.default_rng(0)
    cases = tuple(built_in(20))
    odds = rng.normal(size=(20, 2, 8))
    odds[:, 1] += 4.0
    found = Reasoned(
        cases, (), Ballots(("no", "yes"), np.zeros((40, 8), dtype=int), np.ones((40, 8))), np.ones(1), odds
    )
    flips, gap = found.by_chance()
    observed = np.abs(odds[:, 0].mean(-1) - odds[:, 1].mean(-1)).mean()
    assert observed > np.quantile(gap, 0.99)
    same = Reasoned(found.cases, (), found.ballots, np.ones(1), rng.normal(size=(20, 2, 8)))
    flips, gap = same.by_chance()
    plain = np.abs(same.log_odds[:, 0].mean(-1) - same.log_odds[:, 1].mean(-1)).mean()
    assert np.quantile(gap, 0.01) < plain < np.quantile(gap, 0.99)
    assert 0.2 < flips.mean() < 0.8


def test_built_in_cases_differ_in_one_attribute_alone():
    for case in built_in(24):
        first, second = (prompt.split() for prompt in case.prompts)
        assert first != second
        assert " ".join(case.prompts).count("2 of the last 3 loans") == 2
    assert isinstance(built_in(1)[0], Matched)
    with pytest.raises(InputError, match="pairs 0"):
        built_in(0)


def test_the_built_in_reward_model_judges_what_mentions_a_person():
    model = default_reward_model()
    scores = model.score_steps(
        [
            "Zebras gallop.",
            "The person is a woman and returned 3 of 3.",
            "Because she is a woman, they may not bring it back.",
        ]
    )
    assert scores[0] == 1.0
    assert scores[1] > 0.5 > scores[2]


def test_every_metric_is_a_finding_and_it_resumes(chat_model, tmp_path):
    small = Settings(pairs=2, chains=2, tokens=4)
    evidence = check(chat_model, small, Run(seed=1, journal=tmp_path))
    assert {key.replace("_", "-") for key in METRICS} == {finding.id for finding in evidence.findings}
    assert NEEDS == "local"
    assert len(evidence.table("pairs")) == 2
    chat_model.generate = None
    again = check(chat_model, small, Run(seed=1, journal=tmp_path))
    assert again.to_dict()["findings"] == evidence.to_dict()["findings"]
    json.loads(evidence.to_json())


def test_the_check_needs_a_chat_template_and_a_reward_model_that_is_there(model, chat_model, tmp_path):
    with pytest.raises(InputError, match="chat template"):
        check(model, Settings(pairs=1), Run())
    with pytest.raises(InputError, match="reward model"):
        check(chat_model, Settings(pairs=1, reward_model=str(tmp_path / "none")), Run())


def test_smoke_reports_every_claim(real_model):
    evidence = study("smoke", Run(), model=real_model)
    found = {finding.id: finding for finding in evidence.findings}
    assert {"majority-amplifies", "sharper-is-fairer", "halves-the-gap", "keeps-accuracy", "significant"} <= set(found)
    assert {"finds-biased-chains", "judge-over-outcome", "transfer-auc", "generator-accuracy"} <= set(found)
    assert found["majority-amplifies"].verdict == "holds"
    assert found["halves-the-gap"].measured.value < 0.5
    assert {figure.name for figure in evidence.figures} == {"frontier", "transfer"}
    arms = evidence.table("arms").set_index("arm")
    assert arms.loc["fairlearn, sees the group", "eodds_sum"] < arms.loc["majority", "eodds_sum"]
    with pytest.raises(InputError, match="scale 'huge'"):
        study("huge", Run())
