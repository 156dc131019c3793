"""Fitness by hand, against separately scored openers, and early discard against no discard."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.language.evorefuse.fitness import CLIP, Scorer, bound
from touchstone.language.evorefuse.sampling import openers_mass, shortest, token_log_probabilities
from touchstone.language.evorefuse.targets import ModelTarget, Reply, SamplerTarget, TextTarget, as_target
from touchstone.language.refusal import RefusalJudge

from .conftest import WordRefuser


class ThreeTokens:
    """A language model of three tokens that always says the same two of them, at log-probabilities −0.1 and −0.3."""

    def sample(self, prompts, k):
        return [["a b"] * k for _ in prompts]

    def logprob(self, prompt, reply):
        return (-0.1 - 0.3) / 2


def half(prompts, replies):
    return [0.5] * len(replies)


def test_bound_by_hand():
    assert bound([0.5], [-0.2], 0.03) == pytest.approx(math.log(0.5) - 0.006) == pytest.approx(-0.6991, abs=1e-4)
    assert bound([0.5, 1.0], [-0.2, -1.0], 0.1) == pytest.approx((math.log(0.5) - 0.02 - 0.1) / 2)


def test_scorer_by_hand():
    scorer = Scorer([SamplerTarget(ThreeTokens())], "elbo", RefusalJudge(half), k=1)
    assert scorer.score([["x"]]) == [[pytest.approx(-0.6991, abs=1e-4)]]
    assert scorer.evidence("x") == (0.5, "a b")


def test_the_classifier_s_probability_counts_and_not_its_label():
    """The official code turns a label into 1 or 0.1, so that F cannot fall below log 0.1."""
    refuser = WordRefuser({})
    scorer = Scorer([refuser], "elbo", RefusalJudge(lambda p, r: [0.001] * len(r)), lam=0.0, k=4)
    assert scorer.score([["x"]])[0][0] == pytest.approx(math.log(0.001))
    scorer = Scorer([refuser], "elbo", RefusalJudge(lambda p, r: [0.0] * len(r)), lam=0.0, k=4)
    assert scorer.score([["x"]])[0][0] == pytest.approx(math.log(CLIP))


def test_a_judge_that_does_not_say_has_not_called_it_a_refusal():
    scorer = Scorer([WordRefuser({})], "elbo", RefusalJudge(lambda p, r: [math.nan] * len(r)), lam=0.0, k=2)
    assert scorer.score([["x"]])[0][0] == pytest.approx(math.log(CLIP))


def test_a_judge_that_returns_no_probability_is_an_error():
    scorer = Scorer([WordRefuser({})], "elbo", RefusalJudge(lambda p, r: [1.2] * len(r)), k=2)
    with pytest.raises(InputError, match=r"returned 1\.2, which is not a probability"):
        scorer.score([["x"]])


def test_sampled_log_probabilities_are_those_of_the_model_given_the_prompt(chat_model):
    """The official code scores the reply alone, without its prompt."""
    from touchstone.language.decoding import Sampling
    from touchstone.language.evorefuse.sampling import draw

    prompts = chat_model.encode(["w1 w2", "w3 w4 w5 w6"])
    rows = draw(chat_model, prompts, 3, names=["a", "b"], sampling=Sampling(1.0), max_new_tokens=6, seed=1)
    for prompt, row in zip(prompts, rows, strict=True):
        for one in row:
            stopped = len(one.log_probabilities) > len(one.ids)
            ids = [*one.ids, *sorted(chat_model.stop_ids)[:1]] if stopped else one.ids
            [exact] = token_log_probabilities(chat_model, [prompt], [ids])
            assert one.log_probabilities == pytest.approx(exact.tolist(), abs=2e-5)


def test_replies_do_not_hang_on_batch_company_or_on_being_drawn_in_parts(chat_model):
    target = ModelTarget(chat_model, max_new_tokens=5, seed=3)
    whole = target.sample(["w1 w2", "w3", "w4 w5 w6"], 5)
    parts = [a + b for a, b in zip(target.sample(["w3"], 2), target.sample(["w3"], 3, start=2), strict=True)]
    assert [r.text for r in parts[0]] == [r.text for r in whole[1]]
    assert len({r.text for r in whole[1]}) > 1
    assert [r.text for r in ModelTarget(chat_model, max_new_tokens=5, seed=4).sample(["w3"], 5)[0]] != [
        r.text for r in whole[1]
    ]


def test_token_log_probabilities_sum_to_log_likelihood(model):
    prompts, replies = ["w1 w2", "w3 w4 w5 w6", "w7"], ["w8 w9", "w10", "w11 w12 w13"]
    found = token_log_probabilities(
        model, model.encode(prompts), [model.encode_continuation(reply) for reply in replies]
    )
    expected = model.log_likelihood(prompts, [[reply] for reply in replies]).total[:, 0]
    assert [row.sum() for row in found] == pytest.approx(expected.tolist(), abs=1e-4)
    assert [len(row) for row in found] == [2, 1, 3]


# Prefix mass


def separately(model, prompts, openers):
    total = np.stack([model.log_likelihood(prompts, [opener]).total[:, 0] for opener in openers], axis=1)
    return np.logaddexp.reduce(total, axis=1)


@pytest.mark.parametrize(("kind", "tolerance"), [("llama", 1e-5), ("gpt2", 1e-5), ("qwen3", 1e-5), ("gemma2", 1e-3)])
def test_mass_is_the_log_sum_of_openers_scored_one_by_one(make_tiny, kind, tolerance):
    model = make_tiny(kind)
    if kind != "gemma2":
        # Padding in float64 makes transformers' Gemma 2 return NaN.
        model.module.double()
    prompts = ["w1 w2", "w3 w4 w5 w6 w7", "w8", "w1 w2 w9"]
    openers = ["w10", "w11 w12", "w11 w13", "w11 w12 w14 w15", "w16 w17 w18", "w19 w20"]
    kept = ["w10", "w11 w12", "w11 w13", "w16 w17 w18", "w19 w20"]
    found = ModelTarget(model).prefix_mass(prompts, openers)
    assert found == pytest.approx(separately(model, prompts, kept), abs=tolerance)


def test_openers_that_begin_with_another_are_not_counted_twice(model):
    prompts = ["w1 w2", "w3"]
    alone = ModelTarget(model).prefix_mass(prompts, ["w5"])
    both = ModelTarget(model).prefix_mass(prompts, ["w5 w6", "w5", "w5", "w5 w7 w8"])
    assert both == pytest.approx(alone, abs=1e-6)
    assert shortest([(1, 2), (1,), (3, 1), (3, 1, 2), (1,)]) == [(1,), (3, 1)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=12))
def test_shortest_keeps_one_opener_on_every_path(openers):
    kept = shortest(openers)
    assert all(any(tuple(o)[: len(k)] == k for k in kept) for o in openers)
    assert not any(a != b and a[: len(b)] == b for a in kept for b in kept)
    assert set(kept) <= {tuple(o) for o in openers}


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4))
def test_mass_does_not_hang_on_the_batch(make_tiny, rows):
    model = make_tiny()
    prompts = model.encode(["w1", "w2 w3 w4", "w5 w6", "w7 w8 w9 w10"])
    openers = [model.encode_continuation(o) for o in ("w11", "w12 w13", "w12 w14 w15")]
    assert openers_mass(model, prompts, openers, rows=rows) == pytest.approx(
        openers_mass(model, prompts, openers), abs=1e-5
    )


def test_no_opener_is_an_error(model):
    with pytest.raises(InputError, match="openers: expected at least one"):
        ModelTarget(model).prefix_mass(["w1"], [])


# Counting, discarding, targets


def test_calls_count_texts_once_and_samples_replies(knowing):
    refuser = WordRefuser({"war": 0.5})
    scorer = Scorer([refuser], "elbo", knowing, k=10, first=0)
    scorer.score([["a", "b", "a"], ["b", "war"]])
    assert (scorer.calls, scorer.samples) == (3, 30)
    scorer.score([["a", "war", "c"]])
    assert (scorer.calls, scorer.samples) == (4, 40)


def test_discard_keeps_the_best_exact_and_saves_samples(knowing):
    weights = {f"t{i:02d}": i / 20 for i in range(20)}
    texts = list(weights)
    full, early = (Scorer([WordRefuser(weights)], "elbo", knowing, k=10, first=first) for first in (0, 3))
    [exact] = full.score([texts], 4)
    [found] = early.score([texts], 4)
    best = sorted(range(20), key=lambda i: -exact[i])[:4]
    assert sorted(range(20), key=lambda i: -found[i])[:4] == best
    assert [found[i] for i in best] == [exact[i] for i in best]
    assert all(early.exact(texts[i]) for i in best)
    dropped = [i for i in range(20) if not early.exact(texts[i])]
    assert len(dropped) >= 5
    assert early.samples == full.samples - 7 * len(dropped)
    # What was dropped is shown by a bound that is above its fitness and below the best.
    assert all(exact[i] <= found[i] <= min(exact[j] for j in best) for i in dropped)
    # A text that comes back goes on where it stopped.
    before = early.samples
    assert early.score([[texts[dropped[0]]]], 1) == [[exact[dropped[0]]]]
    assert early.samples == before + 7


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=5, max_size=12, unique=True), st.integers(1, 4))
def test_discard_never_changes_which_is_best(values, keep):
    judge = RefusalJudge(lambda p, r: [0.98 if "sorry" in reply else 0.02 for reply in r])
    weights = {f"word{i:02d}": value for i, value in enumerate(values)}
    full, early = (Scorer([WordRefuser(weights)], "elbo", judge, k=10, first=first) for first in (0, 3))
    a, b = full.score([list(weights)], keep)[0], early.score([list(weights)], keep)[0]
    assert sorted(a)[-keep:] == sorted(b)[-keep:]


def test_several_targets_by_mean_and_by_worst(knowing):
    pair = [WordRefuser({"x": 1.0}), WordRefuser({"x": 0.2, "y": 0.6})]
    values = {}
    for over in ("mean", "worst"):
        scorer = Scorer(pair, "elbo", knowing, lam=0.0, k=10, over=over, first=0)
        [values[over]] = scorer.score([["x", "y"]])
        assert scorer.calls == 4
    low, high = math.log(0.02), math.log(0.98)
    x = (high, 0.2 * high + 0.8 * low)
    y = (low, 0.6 * high + 0.4 * low)
    assert values["mean"] == pytest.approx([np.mean(x), np.mean(y)])
    assert values["worst"] == pytest.approx([min(x), min(y)])


def test_a_target_without_log_probabilities_has_no_confidence_term_and_says_so(knowing):
    class Silent:
        def sample(self, prompts, k):
            return [["I'm sorry, but I can't help with that."] * k for _ in prompts]

    with pytest.warns(UserWarning, match="λ = 0"):
        scorer = Scorer([as_target(Silent())], "elbo", knowing, lam=0.5, k=2)
    assert "λ = 0" in scorer.notes[0]
    assert scorer.score([["x"]])[0][0] == pytest.approx(math.log(0.98))
    with pytest.raises(InputError, match="tells no log-probabilities; use 'elbo'"):
        Scorer([as_target(Silent())], "prefix_mass")


def test_text_targets_ask_every_reply_with_a_seed_of_its_own():
    seeds = []

    class Remote:
        source = "remote"

        def generate(self, prompts, *, seed, temperature, **options):
            seeds.append(seed)
            return [f"{prompt} {seed}" for prompt in prompts]

    rows = TextTarget(Remote(), seed=10).sample(["a", "b"], 3, start=2)
    assert seeds == [12, 13, 14]
    assert rows[1] == [Reply("b 12"), Reply("b 13"), Reply("b 14")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k 0: expected at least 1"),
        ({"lam": -1.0}, "lam"),
        ({"over": "median"}, "over 'median'"),
        ({"kind": "gradient"}, "fitness 'gradient'"),
        ({"targets": []}, "target: expected at least one"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(InputError, match=message):
        Scorer(**({"targets": [WordRefuser({})]} | options))


def test_what_is_no_target_is_an_error():
    with pytest.raises(InputError, match="target dict: expected a LanguageModel"):
        as_target({})
    short = SamplerTarget(type("Short", (), {"sample": lambda self, prompts, k: [["a"]]})())
    with pytest.raises(InputError, match="must give k replies"):
        short.sample(["x", "y"], 2)


def test_a_fitness_function_must_give_numbers():
    scorer = Scorer([], lambda texts: [float("nan")] * len(texts))
    with pytest.raises(InputError, match="expected a number"):
        scorer.score([["x"]])
