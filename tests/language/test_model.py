"""Generation, scoring, activations and edits against plain transformers, for every known layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.language import LanguageModel, Site, batching
from touchstone.language.decoding import Sampling

PROMPTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10", "w1 w2"]
LAYOUTS = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt2"]


def reference_reply(model: LanguageModel, prompt: str, n: int) -> list[int]:
    """Greedy tokens from the full sequence each time, one prompt alone, no cache, no padding."""
    ids = model.encode([prompt])[0]
    out: list[int] = []
    with torch.inference_mode():
        for _ in range(n):
            logits = model.module(torch.tensor([ids + out]), use_cache=False).logits[0, -1]
            token = int(logits.argmax())
            if token in model.stop_ids:
                break
            out.append(token)
    return out


def reference_score(model: LanguageModel, prompt: str, continuation: str) -> float:
    ids, tail = model.encode([prompt])[0], model.encode_continuation(continuation)
    with torch.inference_mode():
        logp = model.module(torch.tensor([ids + tail]), use_cache=False).logits[0].double().log_softmax(-1)
    return float(sum(logp[len(ids) + i - 1, token] for i, token in enumerate(tail)))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_greedy_generation_equals_one_prompt_at_a_time_without_cache(make_tiny, kind):
    model = make_tiny(kind)
    expected = [model.decode(reference_reply(model, prompt, 8)) for prompt in PROMPTS]
    assert model.generate(PROMPTS, max_new_tokens=8) == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize("kind", LAYOUTS)
def test_log_likelihood_equals_plain_forward(make_tiny, kind):
    model = make_tiny(kind)
    continuations = ["w7 w8", "w9", "w1 w2 w3 w4"]
    scores = model.log_likelihood(PROMPTS, continuations)
    expected = [[reference_score(model, p, c) for c in continuations] for p in PROMPTS]
    np.testing.assert_allclose(scores.total, expected, atol=1e-4)
    assert scores.tokens.tolist() == [[2, 1, 4]] * len(PROMPTS)
    np.testing.assert_allclose(scores.mean, np.array(expected) / [2, 1, 4], atol=1e-4)


def test_a_long_shared_head_is_read_once_and_changes_nothing(model):
    head = " ".join(f"w{i % 40}" for i in range(20))
    prompts = [f"{head} w1", f"{head} w2 w3 w4", f"{head} w5 w6"]
    lengths: list[tuple[int, int]] = []
    handle = model.module.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    scores = model.log_likelihood(prompts, ["w7 w8"])
    handle.remove()
    assert lengths == [(1, 20), (3, 3), (3, 1)]
    np.testing.assert_allclose(scores.total[:, 0], [reference_score(model, p, "w7 w8") for p in prompts], atol=1e-4)
    expected = [model.decode(reference_reply(model, p, 6)) for p in prompts]
    assert model.generate(prompts, max_new_tokens=6) == expected


def test_ragged_continuations_are_padded_with_nan(model):
    scores = model.log_likelihood(PROMPTS[:2], [["w1", "w2 w3"], ["w4"]])
    assert np.isnan(scores.total[1, 1])
    assert scores.tokens[1, 1] == 0
    assert np.isnan(scores.mean[1, 1])
    assert scores.total[0, 1] == pytest.approx(reference_score(model, PROMPTS[0], "w2 w3"), abs=1e-4)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.lists(st.integers(0, 39), min_size=1, max_size=12), min_size=1, max_size=7), st.integers(1, 5))
def test_batch_size_changes_neither_scores_nor_samples(make_tiny, rows, size):
    model = make_tiny()
    prompts = [" ".join(f"w{i}" for i in row) for row in rows]
    together = model.log_likelihood(prompts, ["w1 w2", "w3"])
    apart = model.log_likelihood(prompts, ["w1 w2", "w3"], batch_size=size)
    np.testing.assert_allclose(together.total, apart.total, atol=1e-4)
    options = {"temperature": 1.0, "top_p": 0.9, "seed": 3, "max_new_tokens": 5}
    assert model.generate(prompts, **options) == model.generate(prompts, batch_size=size, **options)


def test_sampling_follows_seed_and_distribution(model):
    prompts = ["w1 w2 w3"] * 4000
    one = model.generate(prompts, temperature=1.0, seed=1, max_new_tokens=1, batch_size=4000)
    assert one == model.generate(prompts, temperature=1.0, seed=1, max_new_tokens=1, batch_size=4000)
    assert one != model.generate(prompts, temperature=1.0, seed=2, max_new_tokens=1, batch_size=4000)
    with torch.inference_mode():
        p = model.module(torch.tensor(model.encode(["w1 w2 w3"]))).logits[0, -1].softmax(-1)
    # Special tokens decode to nothing, so compare texts.
    texts = [model.decode([i]) for i in range(len(p))]
    for text in set(texts):
        expected = sum(float(p[i]) for i in range(len(p)) if texts[i] == text)
        assert abs(one.count(text) / 4000 - expected) < 0.03, text


def test_sampling_keeps_top_k_and_top_p():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(2000, 1)
    uniform = torch.rand(2000, generator=torch.Generator().manual_seed(0))
    assert set(Sampling(1.0, top_k=2).choose(logits, uniform).tolist()) == {0, 1}
    assert set(Sampling(1.0, top_p=0.79).choose(logits, uniform).tolist()) == {0, 1}
    assert set(Sampling(1.0, top_p=0.81).choose(logits, uniform).tolist()) == {0, 1, 2}
    assert set(Sampling(1.0, top_p=0.01).choose(logits, uniform).tolist()) == {0}
    everything = Sampling(1.0).choose(logits, uniform)
    assert abs((everything == 1).double().mean().item() - 0.3) < 0.03
    assert set(everything.tolist()) == {0, 1, 2, 3}
    assert Sampling(1.0).choose(logits[:1], torch.tensor([0.9999999])).item() == 3


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_sampling_refuses_nonsense(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Sampling(**bad)


def test_streamed_pieces_join_to_the_reply_and_progress_counts(model):
    pieces: dict[int, str] = {}
    done: list[int] = []
    replies = model.generate(
        PROMPTS,
        max_new_tokens=6,
        batch_size=2,
        stream=lambda i, piece: pieces.update({i: pieces.get(i, "") + piece}),
        progress=done.append,
    )
    assert [pieces.get(i, "") for i in range(len(PROMPTS))] == replies
    assert sum(done) == len(PROMPTS)


def test_chat_template_is_used_and_system_comes_first(chat_model):
    assert chat_model.render("w1", system="w9") == "<s> system w9 </s> user w1 </s> assistant"
    assert chat_model.render("w1", chat=False) == "w1"
    ids = chat_model.encode(["w1"])[0]
    assert ids[0] == 0
    assert ids.count(0) == 1
    talk = [
        {"role": "user", "content": "w1"},
        {"role": "assistant", "content": "w2"},
        {"role": "user", "content": "w3"},
    ]
    assert chat_model.render(talk).count("user") == 2


def test_a_turn_that_the_assistant_began_stays_open(chat_model):
    begun = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2 w3"}]
    assert chat_model.render(begun) == "<s> user w1 </s> assistant w2 w3"
    longer = chat_model.log_likelihood(["w1"], ["w2 w3 w4"]).total.item()
    begun_first = chat_model.log_likelihood(["w1"], ["w2 w3"]).total.item()
    then = chat_model.log_likelihood([begun], ["w4"]).total.item()
    assert longer == pytest.approx(begun_first + then, abs=1e-4)


def test_perplexity_is_the_exponential_of_the_mean_negative_log_likelihood(model):
    texts = ["w1 w2 w3 w4", "w5 w6"]
    logp = [reference_score(model, "<s>", text) for text in texts]
    assert model.perplexity(texts) == pytest.approx(np.exp(-sum(logp) / 6), rel=1e-4)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_activations_equal_hooks_on_single_prompts(make_tiny, kind):
    model = make_tiny(kind)
    sites = model.sites()
    assert len(sites) == 1 + 3 * 3
    last = model.activations(PROMPTS, sites)
    everything = model.activations(PROMPTS, sites, positions="all")
    mean = model.activations(PROMPTS, sites, positions="mean")
    for site in sites:
        for i, prompt in enumerate(PROMPTS):
            seen = []
            handle = model.site_module(site).register_forward_hook(
                lambda m, a, out, seen=seen: seen.append(out[0] if isinstance(out, tuple) else out)
            )
            with torch.inference_mode():
                model.module(torch.tensor([model.encode([prompt])[0]]), use_cache=False)
            handle.remove()
            torch.testing.assert_close(everything[site][i], seen[0][0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(last[site][i], seen[0][0, -1], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(mean[site][i], seen[0][0].mean(0), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_activations_after_a_shared_head_are_the_same(make_tiny, kind, monkeypatch):
    model = make_tiny(kind)
    head = " ".join(f"w{i}" for i in range(20))
    prompts = [f"{head} {tail}" for tail in ("w30", "w31 w32 w33", "w34 w35")]
    sites, spans = model.sites(), [(20, 21), (21, 23), (20, 22)]
    read = []

    def counted(module, arguments, options):
        read.append(tuple(options["input_ids"].shape))

    handle = model.module.base_model.register_forward_pre_hook(counted, with_kwargs=True)
    shared = [model.activations(prompts, sites), model.activations(prompts, sites, positions=spans)]
    rows = {1, 3} if model.shares_prefixes else {3}
    assert {shape[0] for shape in read} == rows, "the head was not read once"
    read.clear()
    inside = model.activations(prompts, sites, positions=[(19, 21), (3, 4), (20, 21)])
    assert {shape[0] for shape in read} == {3}, "what is asked for lies inside the head"
    handle.remove()
    monkeypatch.setattr(batching, "_SHORTEST_SHARED_PREFIX", 1000)
    plain = [model.activations(prompts, sites), model.activations(prompts, sites, positions=spans)]
    for site in sites:
        for got, wanted in zip(shared, plain, strict=True):
            torch.testing.assert_close(got[site], wanted[site], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            inside[site][2], model.activations(prompts[2:], [site], positions=[(20, 21)])[site][0], atol=1e-4, rtol=1e-4
        )


def test_a_head_is_read_once_for_all_batches_of_a_call(model, monkeypatch):
    head = " ".join(f"w{i}" for i in range(20))
    prompts = [f"{head} {tail}" for tail in ("w30", "w31 w32", "w33 w34 w35", "w36", "w37 w38")]
    calls = {
        "scores": lambda size: model.log_likelihood(prompts, ["w7 w8"], batch_size=size).total,
        "replies": lambda size: model.generate(prompts, max_new_tokens=4, batch_size=size),
        "activations": lambda size: model.activations(prompts, ["output.2"], batch_size=size)[
            Site("output", 2)
        ].numpy(),
    }
    for name, call in calls.items():
        read = []
        handle = model.module.base_model.register_forward_pre_hook(
            lambda module, arguments, options, read=read: read.append(options["input_ids"].shape[1]), with_kwargs=True
        )
        shared = [call(1), call(2)]
        handle.remove()
        assert sum(length >= 16 for length in read) == 2, (name, read)
        with monkeypatch.context() as patch:
            patch.setattr(batching, "_SHORTEST_SHARED_PREFIX", 1000)
            plain = call(2)
        for found in shared:
            if name == "replies":
                assert found == plain
            else:
                np.testing.assert_allclose(found, plain, atol=1e-4, rtol=1e-4)


def test_a_batch_may_share_more_than_the_call(model, monkeypatch):
    head = " ".join(f"w{i}" for i in range(18))
    longer = f"{head} " + " ".join(f"w{i % 40}" for i in range(20, 40))
    prompts = [f"{longer} w1 w2", f"{longer} w3 w4", f"{head} w5", f"{head} w6"]
    shared = model.log_likelihood(prompts, ["w7", "w8 w9"], batch_size=2).total
    monkeypatch.setattr(batching, "_SHORTEST_SHARED_PREFIX", 1000)
    np.testing.assert_allclose(shared, model.log_likelihood(prompts, ["w7", "w8 w9"]).total, atol=1e-4)


def test_activations_of_spans(model):
    everything = model.activations(PROMPTS, ["output.1"], positions="all")[Site("output", 1)]
    spans = [(0, 2), (0, 1), (2, 5), (1, 2)]
    got = model.activations(PROMPTS, ["output.1"], positions=spans)[Site("output", 1)]
    for i, (start, end) in enumerate(spans):
        torch.testing.assert_close(got[i], everything[i][start:end].mean(0), atol=1e-5, rtol=1e-5)
    same = model.activations(PROMPTS, ["output.1"], positions=slice(0, 1))[Site("output", 1)]
    torch.testing.assert_close(same, torch.stack([rows[0] for rows in everything]), atol=1e-5, rtol=1e-5)
    with pytest.raises(InputError, match="prompt 1"):
        model.activations(PROMPTS, ["output.1"], positions=[(0, 2), (0, 2), (0, 1), (0, 1)])


@pytest.mark.parametrize("kind", LAYOUTS)
def test_edits_reach_every_site_nest_and_leave_no_trace(make_tiny, kind):
    model = make_tiny(kind)
    before = model.log_likelihood(PROMPTS, ["w7 w8"]).total
    for site in model.sites():
        with model.edited({site: lambda h: h.roll(1, -1)}):
            assert not np.allclose(model.log_likelihood(PROMPTS, ["w7 w8"]).total, before, atol=1e-3), site
    site = Site("mlp_input", 1)
    with model.edited({site: lambda h: h + 1}), model.edited({str(site): lambda h: h * 2}):
        inner = model.activations(PROMPTS, [site])[site]
    plain = model.activations(PROMPTS, [site])[site]
    torch.testing.assert_close(inner, (plain + 1) * 2, atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(model.log_likelihood(PROMPTS, ["w7 w8"]).total, before)


def test_edits_are_removed_after_an_exception(model):
    before = model.generate(PROMPTS, max_new_tokens=5)
    with pytest.raises(RuntimeError), model.edited({"output.0": lambda h: h * 0}):
        raise RuntimeError
    with pytest.raises(InputError, match="blocks 0 to 2"), model.edited({"output.0": lambda h: h * 0, "output.9": abs}):
        pass
    assert model.generate(PROMPTS, max_new_tokens=5) == before


def test_edits_by_row_see_which_prompt_a_row_is(model):
    scale = torch.tensor([1.0, 0.0, 0.5, 2.0])
    head = " ".join(f"w{i}" for i in range(18))
    prompts = [f"{head} w1", f"{head} w2 w3", f"{head} w4", f"{head} w5 w6 w7"]

    def by_row(h: torch.Tensor) -> torch.Tensor:
        return h * scale[model.batch.rows].view(-1, 1, 1)

    with model.edited({"attention_input.1": by_row}, by_row=True):
        together = model.log_likelihood(prompts, ["w7 w8", "w9"], batch_size=3).total
        replies = model.generate(prompts, max_new_tokens=5)
    for i, prompt in enumerate(prompts):
        with model.edited({"attention_input.1": lambda h, i=i: h * scale[i]}):
            np.testing.assert_allclose(together[i], model.log_likelihood([prompt], ["w7 w8", "w9"]).total[0], atol=1e-4)
            assert replies[i] == model.generate([prompt], max_new_tokens=5)[0]
    assert model.batch is None


def test_duck_typed_layout_and_clear_error(make_tiny, model):
    from touchstone.language.layout import find_layout

    module = make_tiny("llama").module
    module.config.model_type = "something-new"
    found = find_layout(module)
    assert found.blocks == "model.layers"
    assert found.gate == "mlp.gate_proj"
    with pytest.raises(InputError, match="no decoder blocks"):
        find_layout(torch.nn.Linear(2, 2))


def test_site_names_round_trip(model):
    for site in model.sites():
        assert Site.parse(str(site)) == site
    assert [str(site) for site in model.sites("mlp_input")] == ["mlp_input.0", "mlp_input.1", "mlp_input.2"]
    for bad in ("mlp.1", "output", "output.-1", ""):
        with pytest.raises(InputError, match="site"):
            Site.parse(bad)


def test_bad_arguments_name_what_is_wrong(model, chat_model):
    with pytest.raises(InputError, match="single string"):
        model.generate("w1")
    with pytest.raises(InputError, match="prompt 1: empty"):
        model.generate(["w1", ""])
    with pytest.raises(InputError, match="at most 128"):
        model.generate([" ".join(["w1"] * 200)])
    with pytest.raises(InputError, match="max_new_tokens"):
        model.generate(["w1"], max_new_tokens=0)
    with pytest.raises(InputError, match="batch_size"):
        model.generate(["w1"], batch_size=0)
    with pytest.raises(InputError, match="no chat template"):
        model.generate(["w1"], chat=True)
    with pytest.raises(InputError, match="continuation ''"):
        model.log_likelihood(["w1"], [""])
    with pytest.raises(InputError, match="one list of strings for each"):
        model.log_likelihood(["w1", "w2"], [["w1"]])
    with pytest.raises(InputError, match="'role' and 'content'"):
        chat_model.render([{"text": "w1"}])
    assert model.generate([]) == []


def test_tiny_models_compute_on_one_thread(model, monkeypatch):
    model.generate(["w1"], max_new_tokens=1)
    assert model.threads == 1
    monkeypatch.setenv("TOUCHSTONE_THREADS", "many")
    model.threads = None
    with pytest.raises(InputError, match="TOUCHSTONE_THREADS"):
        model.generate(["w1"], max_new_tokens=1)


def test_the_embedded_model_knows_a_capital_and_agrees_with_transformers(real_model):
    prompts = ["What is the capital of France?", "What is the capital of Italy?"]
    replies = real_model.generate(prompts, max_new_tokens=12)
    assert "Paris" in replies[0]
    messages = [{"role": "user", "content": prompts[0]}]
    ids = real_model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    plain = real_model.module.generate(**ids, max_new_tokens=12, do_sample=False)
    assert real_model.decode(plain[0, ids["input_ids"].shape[1] :].tolist()) == replies[0]


def test_a_text_that_the_tokenizer_cannot_read_is_one_line(model):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    model.tokenizer._tokenizer = Tokenizer(WordLevel({"w1": 7}))
    with pytest.raises(InputError, match="cannot read it"):
        model.generate(["nonsense"])
    with pytest.raises(InputError, match="cannot read it"):
        model.log_likelihood(["w1"], ["nonsense"])
