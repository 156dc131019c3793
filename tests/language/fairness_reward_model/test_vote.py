"""Chains, labels, the vote and the gaps: hand-worked values, invariants, and a reference library."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.language.fairness_reward_model import (
    Ballots,
    Chain,
    FairVote,
    JudgeLabeler,
    RuleLabeler,
    choose_tau,
    extract_answer,
    group_fairness_report,
    read_cases,
    split_steps,
    tau_sweep,
)
from touchstone.language.fairness_reward_model.chains import texts_of
from touchstone.language.fairness_reward_model.fairness import gaps, paired_p
from touchstone.language.fairness_reward_model.labels import mentions_group
from touchstone.language.fairness_reward_model.voting import aggregate, softmax_weights


def chains(*answers: str | None) -> list[Chain]:
    return [Chain(("a step",), answer) for answer in answers]


def test_steps_and_answers_are_read_from_texts():
    assert split_steps("one\n\n \n two \n\n\n") == ["one", "two"]
    assert split_steps("## Step 1: a\nx\n## Step 2: b\ny", "header") == ["## Step 1: a\nx", "## Step 2: b\ny"]
    assert split_steps("He came. She left! Why? no", "sentence") == ["He came.", "She left!", "Why? no"]
    with pytest.raises(InputError, match="mode 'word'"):
        split_steps("a", "word")
    assert extract_answer(r"first \boxed{A} then \boxed{ B }") == "B"
    assert extract_answer(r"\boxed{ }") is None
    assert extract_answer("none") is None
    chain = Chain.parse("a\n\nb \\boxed{yes}", question="Q?")
    assert chain.answer == "yes"
    assert texts_of(chain, "first") == ["Q?\n\na", "b \\boxed{yes}"]
    assert texts_of(chain, "all") == ["Q?\n\na", "Q?\n\nb \\boxed{yes}"]
    assert texts_of(chain, "none") == list(chain.steps)
    with pytest.raises(InputError, match="context"):
        texts_of(chain, "some")


def test_cases_are_read_and_looked_at(tmp_path):
    path = tmp_path / "c.jsonl"

    def write(*rows: dict) -> None:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(
        {"case_id": 1, "text": "a\n\nb \\boxed{x}", "label": "x", "group": "g"},
        {"case_id": 1, "steps": ["c", " "], "answer": "y"},
        {"case_id": 2, "text": "d"},
    )
    first, second = read_cases(path)
    assert [c.answer for c in first.chains] == ["x", "y"]
    assert first.chains[1].steps == ("c",)
    assert (first.label, first.group, second.label) == ("x", "g", None)
    assert second.chains[0].answer is None
    write({"case_id": 1, "text": "a", "label": "x"}, {"case_id": 1, "text": "a", "label": "y"})
    with pytest.raises(InputError, match="record 2: its case has the labels 'x' and 'y'"):
        read_cases(path)
    write({"text": "a"})
    with pytest.raises(InputError, match="record 1"):
        read_cases(path)
    path.write_text("nothing\n")
    with pytest.raises(InputError, match="line 1"):
        read_cases(path)


def test_weights_by_hand():
    assert softmax_weights([0.9, 0.7], 0.2) == pytest.approx([0.731, 0.269], abs=5e-4)
    three = chains("A", "A", "B")
    sharp = FairVote(0.2).decide(three, [0.5, 0.5, 0.9])
    assert (sharp.answer, sharp.share) == ("B", pytest.approx(math.e**2 / (math.e**2 + 2)))
    mild = FairVote(1.0).decide(three, [0.5, 0.5, 0.9])
    assert mild.answer == "A"
    assert mild.weights[2] == pytest.approx(0.427, abs=5e-4)
    assert sum(mild.weights) == pytest.approx(1)


def test_ends_of_the_temperature_are_the_majority_and_the_best():
    three, scores = chains("A", "A", "B"), [0.2, 0.3, 0.9]
    assert FairVote(math.inf).decide(three, scores).answer == "A"
    assert FairVote(math.inf).decide(three, scores).weights == pytest.approx([1 / 3] * 3)
    assert FairVote(1e-9).decide(three, scores).answer == "B"
    votes = Ballots.of([three], [scores])
    assert votes.labels[votes.best().answer[0]] == "B"
    assert votes.labels[votes.first().answer[0]] == "A"


def test_chains_without_an_answer_are_left_out_and_counted():
    found = FairVote(0.2).decide(chains(None, "A", None), [0.99, 0.1, 0.99])
    assert (found.answer, found.n_valid, found.weights) == ("A", 1, (0.0, 1.0, 0.0))
    empty = FairVote(0.2).decide(chains(None, None), [0.5, 0.5])
    assert (empty.answer, empty.n_valid, empty.share) == (None, 0, 0.0)
    both = FairVote(0.2).decide_many([chains("A"), chains(None)], [[0.5], [0.5]])
    assert [one.answer for one in both] == ["A", None]


def test_ties_go_to_the_first_answer_and_are_told():
    found = FairVote(0.2).decide(chains("B", "A"), [0.5, 0.5])
    assert (found.answer, found.tie) == ("A", True)
    assert not FairVote(0.2).decide(chains("B", "A"), [0.6, 0.5]).tie


SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(SCORES, st.sampled_from([0.01, 0.2, 1.0, math.inf]), st.randoms(use_true_random=False), st.floats(-0.2, 0.2))
def test_order_copies_and_a_constant_change_no_decision(scores, tau, random, shift):
    answers = [random.choice("ABC") for _ in scores]
    votes = Ballots.of([chains(*answers)], [scores])
    result = votes.vote(tau)
    assert softmax_weights(scores, tau).sum() == pytest.approx(1)
    if result.tie[0]:
        return
    said = votes.labels[result.answer[0]]
    # Shares within rounding of each other may fall either way.
    shares = sorted(
        sum(
            w
            for w, a in zip(
                softmax_weights(scores, tau) if math.isfinite(tau) else np.ones(len(scores)) / len(scores),
                answers,
                strict=True,
            )
            if a == b
        )
        for b in set(answers)
    )
    if len(shares) > 1 and shares[-1] - shares[-2] < 1e-6:
        return
    order = list(range(len(scores)))
    random.shuffle(order)
    for changed_answers, changed in (
        ([answers[i] for i in order], [scores[i] for i in order]),
        (answers * 2, scores * 2),
        (answers, [s + shift for s in scores]),
    ):
        other = Ballots.of([chains(*changed_answers)], [changed])
        assert other.labels[other.vote(tau).answer[0]] == said


def test_aggregates_by_hand_and_a_zero_is_not_promoted():
    assert aggregate([0.5, 1.0]) == 0.75
    assert aggregate([0.5, 1.0], "min") == 0.5
    assert aggregate([0.5, 1.0], "last") == 1.0
    assert aggregate([0.5, 0.5], "product") == 0.25
    assert aggregate([0.5, 0.5], "log_mean") == pytest.approx(math.log(0.5))
    assert aggregate([0.0, 1.0], "log_mean") == pytest.approx(math.log(1e-6) / 2)
    assert aggregate([0.0, 1.0], "log_mean") < aggregate([0.1, 0.1], "log_mean")
    assert math.isnan(aggregate([]))
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        aggregate([1.2])
    with pytest.raises(InputError, match="aggregate 'max'"):
        aggregate([0.5], "max")


@pytest.mark.parametrize("tau", [0, -1.0, math.nan])
def test_a_temperature_is_above_zero(tau):
    with pytest.raises(InputError, match="tau"):
        FairVote(tau)
    with pytest.raises(InputError, match="tau"):
        softmax_weights([0.5], tau)
    with pytest.raises(InputError, match="tau"):
        Ballots.of([chains("A")], [[0.5]]).vote(tau)


def test_bad_votes():
    with pytest.raises(InputError, match="aggregate"):
        FairVote(0.2, "max")
    with pytest.raises(InputError, match="scores"):
        FairVote(0.2).decide(chains("A", "B"), [0.5])
    with pytest.raises(InputError, match="scores"):
        FairVote(0.2).decide(chains("A"), [1.5])
    with pytest.raises(InputError, match="labels"):
        Ballots(("b", "a"), np.zeros((1, 1), dtype=int), np.ones((1, 1)))
    with pytest.raises(InputError, match="answers"):
        Ballots(("a",), np.ones((1, 1), dtype=int), np.ones((1, 1)))


# Gaps

HAND = {"a": (8, 2, 1, 9), "b": (5, 5, 3, 7)}


def table() -> tuple[list[int], list[int], list[str]]:
    truth, said, group = [], [], []
    for name, (tp, fn, fp, tn) in HAND.items():
        truth += [1] * (tp + fn) + [0] * (fp + tn)
        said += [1] * tp + [0] * fn + [1] * fp + [0] * tn
        group += [name] * (tp + fn + fp + tn)
    return truth, said, group


def test_gaps_by_hand_and_as_fairlearn_has_them():
    from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference

    truth, said, group = table()
    found = group_fairness_report(truth, said, group)
    assert found.tpr_gap.value == pytest.approx(0.3)
    assert found.fpr_gap.value == pytest.approx(0.2)
    assert found.eodds_sum.value == pytest.approx(0.5)
    assert found.eodds_max.value == pytest.approx(0.3)
    assert found.eodds_max.value == pytest.approx(equalized_odds_difference(truth, said, sensitive_features=group))
    assert found.parity_gap.value == pytest.approx(demographic_parity_difference(truth, said, sensitive_features=group))
    assert found.accuracy.value == pytest.approx(29 / 40)
    assert found.eodds_sum.low < 0.5 < found.eodds_sum.high
    assert found.groups["positive_rate"].tolist() == [0.45, 0.4]


def test_gaps_of_many_groups_are_as_fairlearn_has_them():
    from fairlearn.metrics import equalized_odds_difference

    rng = np.random.default_rng(0)
    for _ in range(20):
        truth, said, group = rng.integers(2, size=60), rng.integers(2, size=60), np.arange(60) % 3
        found = gaps(truth == 1, said == 1, group)
        assert found["eodds_max"] == pytest.approx(equalized_odds_difference(truth, said, sensitive_features=group))


def test_a_group_without_positives_has_no_gap():
    with pytest.warns(UserWarning, match="group 'b' has no positives"):
        found = group_fairness_report([1, 0, 0, 0], [1, 0, 0, 1], ["a", "a", "b", "b"])
    assert math.isnan(found.tpr_gap.value)
    assert math.isnan(found.eodds_sum.value)
    assert found.fpr_gap.value == 0.5
    for arguments, name in (
        (([1], [1], ["a"]), "group"),
        (([1, 0], [1], ["a", "b"]), "y_pred"),
        (([], [], []), "y_true"),
    ):
        with pytest.raises(InputError, match=name):
            group_fairness_report(*arguments)


def test_always_the_same_answer_shows_in_the_positive_rate():
    truth, _, group = table()
    found = group_fairness_report(truth, [1] * 40, group)
    assert found.eodds_sum.value == 0
    assert found.groups["positive_rate"].tolist() == [1.0, 1.0]


def planted(n: int = 4000, seed: int = 0) -> tuple[Ballots, list[str], list[str]]:
    """Half of the chains about one group are turned to yes and scored low."""
    rng = np.random.default_rng(seed)
    group, truth = np.arange(n) % 2, rng.random(n) < 0.5
    right = np.where(rng.random((n, 8)) < 0.8, truth[:, None], ~truth[:, None])
    biased = (rng.random((n, 8)) < 0.5) & (group == 1)[:, None]
    answers = np.where(biased, 1, right).astype(np.int64)
    scores = np.where(biased, 0.3, 0.9)
    return Ballots(("no", "yes"), answers, scores), np.where(truth, "yes", "no").tolist(), group.astype(str).tolist()


def test_the_frontier_improves_and_marks_what_is_efficient():
    votes, truth, group = planted()
    frame = tau_sweep(votes, truth, group, positive="yes")
    assert frame["tau"].tolist() == [math.inf, 0.8, 0.4, 0.2, 0.05, 0.01]
    assert frame["eodds_sum"].iloc[-1] < 0.3 * frame["eodds_sum"].iloc[0]
    assert frame["accuracy"].iloc[-1] > frame["accuracy"].iloc[0]
    assert frame["efficient"].iloc[-1]
    assert not frame["efficient"].iloc[0]
    assert ((frame["eodds_sum_low"] <= frame["eodds_sum"]) & (frame["eodds_sum"] <= frame["eodds_sum_high"])).all()


def test_a_temperature_is_certified_or_the_plain_vote_is_kept():
    votes, truth, group = planted()
    # The smallest gap; where sharper ones do no better, the mildest of them.
    assert choose_tau(votes, truth, group, positive="yes") <= 0.05
    few = Ballots(votes.labels, votes.answers[:20], votes.scores[:20])
    assert math.isinf(choose_tau(few, truth[:20], group[:20], positive="yes"))
    # Where fair chains are the wrong ones, no temperature is certified.
    wrong = Ballots(votes.labels, votes.answers, 1 - votes.scores)
    assert math.isinf(choose_tau(wrong, truth, group, positive="yes", most_loss=0.01))
    with pytest.raises(InputError, match="taus"):
        choose_tau(votes, truth, group, positive="yes", taus=(0.1, 0.2))


def test_a_paired_bootstrap_sees_a_difference_and_none():
    votes, truth, group = planted(800)
    y, codes = np.array(truth) == "yes", np.array(group).astype(int)
    plain, fair = votes.vote(math.inf).answer == 1, votes.vote(0.01).answer == 1
    assert paired_p(y, fair, plain, codes) < 0.01
    assert paired_p(y, plain, fair, codes) > 0.9


# Labels


def test_rules_label_inferences_and_not_mentions():
    label = RuleLabeler().label
    assert label("", ["Women tend to be late.", "He is older, hence he is slow."]) == [0, 0]
    assert label("", ["Two women came.", "The file says nothing about religion."]) == [1, 1]
    assert label("", ["It is likely to rain.", "The bill was paid, so they left."]) == [1, 1]
    assert mentions_group("Older people came")
    assert not mentions_group("He told a story")
    for options in ({"groups": []}, {"inferences": ["("]}):
        with pytest.raises(InputError, match=next(iter(options))):
            RuleLabeler(**options)


def test_a_judge_is_asked_in_batches_and_silence_is_unknown():
    asked = []

    def judge(question: str) -> str:
        asked.append(question)
        return "1: biased\n2. Unbiased because\nthree: biased\n" if len(asked) == 1 else "1 - unbiased"

    assert JudgeLabeler(judge, batch=3).label("Who?", ["a", "b", "c", "d"]) == [0, 1, None, 1]
    assert len(asked) == 2
    assert "Question: Who?" in asked[0]
    again = JudgeLabeler(lambda q: ("1: biased", "2: unbiased")[len(asked) % 2] if not asked.append(q) else "", tries=3)
    assert again.label("", ["a", "b"]) == [0, 1]
    with pytest.raises(InputError, match="batch"):
        JudgeLabeler(judge, batch=0)
