"""Guided decoding: limits of w and γ, hand-worked scores, the closed form, and one loop for every source."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.unlearned_extraction import (
    Function,
    GuidedExtractor,
    Released,
    ReversedGuidanceLogitsProcessor,
    SavedLogits,
)
from touchstone.language.unlearned_extraction.extractor import guided
from touchstone.language.unlearned_extraction.sources import Local

PREFIXES = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w2 w1", "w3 w3", "w9 w8 w7"]


@pytest.fixture
def two(make_tiny):
    return make_tiny(seed=0), make_tiny(seed=1)


def ids(made):
    return [one.ids for one in made]


def greedy(model, prefixes, n):
    return [model.encode_continuation(text) for text in model.generate(prefixes, max_new_tokens=n, chat=False)]


def test_scores_of_three_tokens_by_hand():
    pre, post = torch.tensor([[0.6, 0.3, 0.1]]).log(), torch.tensor([[0.7, 0.1, 0.2]]).log()
    scores = guided(pre, post, 2.0, 1e-5)
    np.testing.assert_allclose(scores[0].exp().numpy(), [0.36 / 0.7, 0.9, 0.05], rtol=1e-5)
    assert scores.argmax() == 1
    filtered = guided(pre, post, 2.0, 0.6)
    assert torch.isfinite(filtered[0]).tolist() == [True, False, False]


def test_the_deleted_distribution_comes_back_in_closed_form():
    rng = np.random.default_rng(0)
    for _ in range(100):
        post, q = (torch.tensor(rng.dirichlet(np.ones(20)), dtype=torch.float64) for _ in range(2))
        lam = float(rng.uniform(0.3, 1.0))
        pre = post ** (1 - lam) * q**lam
        pre = pre / pre.sum()
        # float64 by hand: the function itself computes in float32.
        scores = guided(pre.log()[None], post.log()[None], 1 / lam, 0.0)
        np.testing.assert_allclose(scores.softmax(-1)[0].numpy(), q.numpy(), atol=2e-5)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 10_000),
    st.floats(0, 4),
    st.sampled_from([0.0, 1e-5, 1e-2, 0.5, 1.0]),
    st.floats(-50, 50),
    st.floats(-50, 50),
)
def test_a_constant_changes_nothing_and_what_is_written_passes_the_filter(seed, w, gamma, a, b):
    rng = np.random.default_rng(seed)
    pre, post = (torch.tensor(rng.normal(0, 3, (2, 12)), dtype=torch.float32) for _ in range(2))
    one, two = guided(pre, post, w, gamma), guided(pre + a, post + b, w, gamma)
    torch.testing.assert_close(one.softmax(-1), two.softmax(-1), atol=1e-3, rtol=1e-3)
    chosen = one.argmax(-1)
    p = pre.softmax(-1)
    for row in range(2):
        assert p[row, chosen[row]] >= gamma * p[row].max() * (1 - 1e-5)


def test_guidance_at_its_ends_is_one_of_the_models(two):
    pre, post = two
    by_pre, by_post = (ids(GuidedExtractor(m, m, w=1, gamma=1).generate(PREFIXES, max_new_tokens=8)) for m in two)
    assert [pre.decode(one) for one in by_pre] == pre.generate(PREFIXES, max_new_tokens=8, chat=False)
    for gamma in (0.0, 1e-5, 0.5):
        assert ids(GuidedExtractor(pre, post, w=1, gamma=gamma).generate(PREFIXES, max_new_tokens=8)) == by_pre
    assert ids(GuidedExtractor(pre, post, w=0, gamma=0).generate(PREFIXES, max_new_tokens=8)) == by_post
    for w in (0.0, 1.4, 3.0):
        assert ids(GuidedExtractor(pre, post, w=w, gamma=1).generate(PREFIXES, max_new_tokens=8)) == by_pre
    assert by_pre != by_post
    assert ids(GuidedExtractor(pre, post, w=3, gamma=1e-5).generate(PREFIXES, max_new_tokens=8)) != by_pre


def test_batches_of_ragged_prefixes_give_what_one_by_one_gives(two):
    attack = GuidedExtractor(*two, w=1.7, gamma=1e-3)
    together = attack.generate(PREFIXES, max_new_tokens=10, batch_size=5)
    alone = [attack.generate([prefix], max_new_tokens=10)[0] for prefix in PREFIXES]
    assert ids(together) == ids(alone)
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a.gaps, b.gaps, atol=1e-3)
        assert len(a.gaps) == len(a.ids)


def function_of(model: LanguageModel):
    def call(tokens, mask):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        return model.module(input_ids=tokens, attention_mask=mask, position_ids=positions).logits

    return call


def test_cached_models_functions_and_the_processor_agree(two):
    pre, post = two
    made = GuidedExtractor(pre, post, w=1.7, gamma=1e-3).generate(PREFIXES, max_new_tokens=10)
    plain = GuidedExtractor(function_of(pre), function_of(post), post, w=1.7, gamma=1e-3)
    assert ids(plain.generate(PREFIXES, max_new_tokens=10)) == ids(made)
    pre.tokenizer.padding_side = "left"
    batch = pre.tokenizer(PREFIXES, return_tensors="pt", padding=True)
    processor = ReversedGuidanceLogitsProcessor(post, 1.7, 1e-3, attention_mask=batch["attention_mask"])
    for _ in range(2):
        out = pre.module.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=False, max_new_tokens=10,
            logits_processor=[processor], pad_token_id=pre.pad_id,
        )  # fmt: skip
        written = out[:, batch["input_ids"].shape[1] :].tolist()
        stops = pre.stop_ids
        cut = [row[: next((i for i, t in enumerate(row) if t in stops), len(row))] for row in written]
        assert cut == ids(made)


def test_logits_that_were_saved_replay_as_the_live_ones(two, tmp_path):
    pre, post = two
    heads = pre.encode(PREFIXES, chat=False)
    log = SavedLogits.log(pre, heads, max_new_tokens=10, batch_size=2)
    log = SavedLogits.load(log.save(tmp_path / "log.safetensors"))
    live = GuidedExtractor(pre, post, w=1.0, gamma=0.5)
    replayed = GuidedExtractor(log, post, w=1.0, gamma=0.5)
    # On the path that was logged: guidance of 1 stays on it.
    assert ids(replayed.generate(PREFIXES, max_new_tokens=10)) == ids(live.generate(PREFIXES, max_new_tokens=10))
    strong = [GuidedExtractor(source, post, w=2.0).generate(PREFIXES, max_new_tokens=1) for source in (log, pre)]
    assert ids(strong[0]) == ids(strong[1])
    # Nothing is known of a path that was never logged: the new model is left.
    few = SavedLogits.log(pre, [heads[0]], max_new_tokens=1, batch_size=1)
    few.contexts.fill_(10_000)
    alone = GuidedExtractor(post, post, w=0, gamma=0).generate(PREFIXES, max_new_tokens=5)
    assert ids(GuidedExtractor(few, post, post, w=2).generate(PREFIXES, max_new_tokens=5)) == ids(alone)


def test_a_service_releases_what_it_says(two):
    pre, post = two
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    generator = torch.Generator().manual_seed(0)
    source = Local(pre)
    top = Released(source, top_k=2).of(logits, generator)
    assert torch.isfinite(top[0]).tolist() == [True, True, False, False]
    torch.testing.assert_close(top[0, :2], logits.log_softmax(-1)[0, :2])
    rounded = Released(source, decimals=1).of(logits, generator)
    torch.testing.assert_close(rounded, (logits.log_softmax(-1) * 10).round() / 10)
    warm = Released(source, temperature=2.0).of(logits, generator)
    torch.testing.assert_close(warm, (logits / 2).log_softmax(-1))
    only = GuidedExtractor(Released(source, top_k=1), post, w=3).generate(PREFIXES, max_new_tokens=6)
    assert ids(only) == ids(GuidedExtractor(pre, pre, w=1, gamma=1).generate(PREFIXES, max_new_tokens=6))
    noisy = [
        ids(GuidedExtractor(Released(source, noise=2.0, seed=s), post, w=2).generate(PREFIXES, max_new_tokens=6))
        for s in (0, 0, 1)
    ]
    assert noisy[0] == noisy[1] != noisy[2]


def test_sampling_follows_the_scores_and_the_seed(two):
    pre, post = two
    attack = GuidedExtractor(pre, post, w=1.5, gamma=1e-2)
    draws = attack.generate(["w1 w2 w3"] * 3000, max_new_tokens=1, do_sample=True, seed=3, batch_size=512)
    counts = np.bincount([one.ids[0] if one.ids else min(pre.stop_ids) for one in draws], minlength=48) / 3000
    heads = pre.encode(["w1 w2 w3"], chat=False)
    with torch.no_grad():
        a, b = (model.module(input_ids=torch.tensor(heads)).logits[:, -1] for model in (pre, post))
    expected = guided(a, b, 1.5, 1e-2).softmax(-1)[0].numpy()
    np.testing.assert_allclose(counts, expected, atol=0.05)
    assert counts[expected == 0].sum() == 0
    again = attack.generate(PREFIXES, max_new_tokens=6, do_sample=True, seed=3)
    assert ids(again) == ids(attack.generate(PREFIXES, max_new_tokens=6, do_sample=True, seed=3, batch_size=2))


def test_writing_stops_at_the_end_of_a_text(pair, asked):
    made = GuidedExtractor(*pair, w=1.2).generate([q.prefix for q in asked], max_new_tokens=60)
    assert all(one.ended for one in made)
    assert all(not set(one.ids) & pair.pre.stop_ids for one in made)
    cut = GuidedExtractor(*pair, w=1.2).generate([asked[0].prefix], max_new_tokens=2)[0]
    assert len(cut.ids) == 2
    assert not cut.ended


@pytest.mark.parametrize(
    ("change", "match"),
    [({"w": -1}, "w -1"), ({"gamma": 2}, "gamma 2"), ({"w": float("nan")}, "w nan"), ({"gamma": -0.1}, "gamma -0.1")],
)
def test_numbers_out_of_range_are_one_error(two, change, match):
    with pytest.raises(InputError, match=match):
        GuidedExtractor(*two, **change)
    with pytest.raises(InputError, match="expected 0 or more"):
        ReversedGuidanceLogitsProcessor(two[1], w=change.get("w", 1), gamma=change.get("gamma", -1))


def test_models_that_do_not_fit_are_one_error(two, base):
    pre, post = two
    with pytest.raises(InputError, match="tokenizers differ"):
        GuidedExtractor(pre, base)
    with pytest.raises(InputError, match="48 and 7 logits"):
        GuidedExtractor(pre, Function(lambda i, m: torch.zeros(len(i), 7), vocabulary=7))
    with pytest.raises(InputError, match="48 and 7 logits"):
        GuidedExtractor(pre, lambda i, m: torch.zeros(len(i), 7)).generate(["w1"])
    with pytest.raises(InputError, match="pre: gives logits that are not numbers"):
        GuidedExtractor(lambda i, m: torch.full((len(i), 48), torch.nan), post).generate(["w1"])
    with pytest.raises(InputError, match="post: leaves out logits"):
        GuidedExtractor(pre, Released(Local(post), top_k=2)).generate(["w1"])
    with pytest.raises(InputError, match="tokenizer: expected a LanguageModel"):
        GuidedExtractor(function_of(pre), function_of(post))
    attack = GuidedExtractor(pre, post)
    with pytest.raises(InputError, match="prefix 1: empty"):
        attack.generate(["w1", ""])
    with pytest.raises(InputError, match="expected a list of prefixes"):
        attack.generate("w1")
    with pytest.raises(InputError, match="do not fit a context of 128"):
        attack.generate(["w1 " * 100], max_new_tokens=100)
