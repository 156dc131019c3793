"""Features: that spans are where they must be, and that reading all at once gives what reading one by one does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.test_awareness.features import (
    Features,
    balanced,
    build_grid,
    cell_features,
    cue_features,
    span_features,
)
from touchstone.language.test_awareness.labels import Label
from touchstone.language.test_awareness.pairs import Pair, build_pairs
from touchstone.language.test_awareness.reading import layer_sites, project_tokens, span_means, tokens_in
from touchstone.language.test_awareness.traces import Trace

LONG = " ".join(f"w{i}" for i in range(20))


def label(i: int, reply: str, aware: bool, *quotes: str) -> Label:
    trace = Trace(f"t{i}", f"g{i}", f"w{i} w39", reply)
    return Label(trace, "Yes" if aware else "No", "No", "No", (quotes, (), ()))


def hidden(model: LanguageModel, ids: list[int]) -> np.ndarray:
    """Every layer's states of one text, [layers, tokens, width], straight from transformers."""
    seen: list[torch.Tensor] = []
    handles = [
        model.site_module(site).register_forward_hook(
            lambda module, arguments, output: seen.append(output[0] if isinstance(output, tuple) else output)
        )
        for site in layer_sites(model)
    ]
    with torch.inference_mode():
        model.module(torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    return torch.cat([state.reshape(1, len(ids), -1) for state in seen]).numpy()


def test_tokens_in() -> None:
    offsets = [(0, 0), (0, 3), (3, 5), (6, 9)]
    assert tokens_in(offsets, 0, 3) == (1, 2)
    assert tokens_in(offsets, 2, 7) == (1, 4)
    assert tokens_in(offsets, 5, 6) is None
    assert tokens_in(offsets, 9, 12) is None


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2", "gpt2"])
def test_means_over_spans_are_the_means_of_single_passes(kind: str, make_tiny) -> None:
    model = make_tiny(kind)
    rng = np.random.default_rng(0)
    # A head of 20 tokens that all share is read once; spans lie after it, and once inside it.
    for first in (21, 5):
        ids = [[*range(7, 27), *rng.integers(7, 46, size=n).tolist()] for n in (4, 9, 6, 2)]
        spans = [[(first, 22)], [(22, 25), (first, 29)], [], [(20, 22)]]
        found = span_means(model, ids, spans, layer_sites(model), batch_size=3)
        expected = [hidden(model, ids[i])[:, a:b].mean(axis=1) for i in range(4) for a, b in spans[i]]
        assert found == pytest.approx(np.stack(expected), abs=2e-4)


def test_projections_of_all_tokens(random_model: LanguageModel, unit: np.ndarray) -> None:
    ids = [[*range(7, 27), 30 + i, *([8] * i)] for i in range(4)]
    site = layer_sites(random_model)[2]
    found = project_tokens(random_model, ids, site, unit, batch_size=2)
    for row, values in zip(ids, found, strict=True):
        assert values == pytest.approx(hidden(random_model, row)[2] @ unit, abs=2e-4)


def test_spans_outside_a_text_are_named(random_model: LanguageModel) -> None:
    for span in ((0, 9), (2, 2), (-1, 2)):
        with pytest.raises(InputError, match="spans of text 0"):
            span_means(random_model, [[7, 8, 9]], [[span]], layer_sites(random_model))


@pytest.mark.parametrize("chat", [False, True])
def test_cue_features_pool_what_follows_the_cue(chat: bool, make_tiny) -> None:
    model = make_tiny(chat=chat)
    pair = Pair("p", "w1 w2 w3 w4 w5 w6", "w1 w9 w3 w4 w5 w6", (3, 5), (3, 5), "g")
    found = cue_features(model, [pair], tokens=2)
    assert found.x.shape == (2, 4, 32)
    assert found.y.tolist() == [0, 1]
    assert found.groups.tolist() == ["p", "p"]
    words = [[model.decode([token]).strip() for token in row] for row in found.tokens]
    assert words == [["w3", "w4"]] * 2
    # Both sides pool the same words: the embedding cannot tell them apart, later layers can.
    assert np.array_equal(found.x[0, 0], found.x[1, 0])
    assert not np.allclose(found.x[0, 1], found.x[1, 1])
    assert cue_features(model, [pair], group="cue").groups.tolist() == ["g", "g"]
    only = cue_features(model, [pair], tokens=2, layers=[2, 0])
    assert only.layers == (2, 0)
    assert np.allclose(only.x[:, 0], found.x[:, 2], atol=1e-5)
    inside = cue_features(model, [pair], tokens=2, layers=[2], space="mlp_input")
    assert not np.allclose(inside.x[:, 0], found.x[:, 2], atol=1e-3)


def test_cells_are_read_where_their_cue_is_in_any_format(make_tiny) -> None:
    model = make_tiny()
    pair = Pair("p", "w1 w2 w3", "w1 w9 w3", (3, 5), (3, 5), "g")
    cells = build_grid([pair], ("{}", "w20 w21 {} w22"))
    found = cell_features(model, cells, tokens=1)
    assert [model.decode(list(row)).strip() for row in found.tokens] == ["w3"] * 4


def test_a_cue_at_the_end_is_named(random_model: LanguageModel) -> None:
    pair = Pair("p", "w1 w2", "w1 w9", (3, 5), (3, 5), "g")
    with pytest.raises(InputError, match="no token follows its cue"):
        cue_features(random_model, [pair])
    with pytest.raises(InputError, match="tokens 0"):
        cue_features(random_model, [pair], tokens=0)
    followed = Pair("p", "w1 w2 w3", "w1 w9 w3", (3, 5), (3, 5), "g")
    with pytest.raises(InputError, match="layers"):
        cue_features(random_model, [followed], layers=[9])
    with pytest.raises(InputError, match="space 'x'"):
        cue_features(random_model, [followed], space="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("span", ["w7 w8", "w9"]),
        ("whole", ["w6 w7 w8 w9", "w5 w9"]),
        ("last", ["w9", "w9"]),
        ("end", ["w38", "w38"]),
    ],
)
def test_pooling(pooling: str, expected: list[str], random_model: LanguageModel) -> None:
    labels = [label(1, "w6 w7 w8 w9 w38 w2", True, "w7 w8"), label(2, "w5 w9 w38 w4", False, "w9")]
    labels = [Label(Trace(**{**vars(one.trace), "end": "w38"}), *list(vars(one).values())[1:]) for one in labels]
    found = span_features(random_model, labels, pooling=pooling, balance=False)  # type: ignore[arg-type]
    assert [random_model.decode(list(row)).strip() for row in found.tokens] == expected
    assert found.y.tolist() == [1, 0]
    assert found.groups.tolist() == ["g1", "g2"]
    row = random_model.tokenizer(f"w1 w39 {labels[0].trace.reasoning.strip()}")["input_ids"]
    if pooling == "span":
        assert found.x[0] == pytest.approx(hidden(random_model, row)[:, 3:5].mean(axis=1), abs=2e-4)


def test_spans_are_looked_for_in_the_reasoning_and_not_in_the_prompt(random_model: LanguageModel) -> None:
    labels = [label(5, "w39 w6</think>w7", True, "w39"), label(2, "w5 w9</think>w7", False)]
    found = span_features(random_model, labels, balance=False)
    row = random_model.tokenizer("w5 w39 w39 w6")["input_ids"]
    assert found.x[0] == pytest.approx(hidden(random_model, row)[:, 2], abs=2e-4)


def test_unaware_traces_have_a_sentence_drawn_that_is_as_long_as_a_quote(random_model: LanguageModel) -> None:
    labels = [label(1, "w6 w7 w8. w9.</think>w1", True, "w6 w7 w8.")]
    labels += [label(i, "w1 w2 w3. w4. w5 w6 w7 w8 w9 w10 w11.</think>w1", False) for i in range(2, 6)]
    found = span_features(random_model, labels, balance=False)
    unaware = {random_model.decode(list(row)).strip() for row, y in zip(found.tokens, found.y, strict=True) if y == 0}
    assert len(unaware) == 1
    assert unaware.pop().split()[:3] == ["w1", "w2", "w3"]


def test_the_larger_class_is_cut_at_random_but_repeatably(random_model: LanguageModel) -> None:
    labels = [label(i, "w6 w7</think>w1", i < 3, "w6") for i in range(12)]
    first, again = (span_features(random_model, labels) for _ in range(2))
    assert first.y.tolist().count(1) == first.y.tolist().count(0) == 3
    assert np.array_equal(first.groups, again.groups)
    assert not np.array_equal(first.groups, span_features(random_model, labels, seed=5).groups)
    y = np.array([0, 1, 1, 1, 0])
    assert y[balanced(y, np.random.default_rng(0))].tolist().count(1) == 2


def test_the_rule_decides_what_counts(random_model: LanguageModel) -> None:
    wide = Label(Trace("t", "g", "w1", "w2 w3</think>w1"), "No", "Yes", "No", ((), ("w3",), ()))
    labels = [label(1, "w6 w7</think>w1", True, "w6"), label(2, "w5</think>w1", False), wide]
    assert len(span_features(random_model, labels, balance=False)) == 2
    assert span_features(random_model, labels, rule="code", balance=False).y.sum() == 2


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([label(1, "w2</think>", True, "w2")], {}, "no unaware trace"),
        ([label(1, "w2</think>", False)], {}, "no aware trace"),
        ([label(1, "w2</think>", True, "w2"), label(2, "w2", False)], {"pooling": "middle"}, "pooling 'middle'"),
    ],
)
def test_wrong_labels_are_named(labels, options, message: str, random_model: LanguageModel) -> None:
    with pytest.raises(InputError, match=message):
        span_features(random_model, labels, **options)


def test_features_are_read_back(random_model: LanguageModel, tmp_path: Path) -> None:
    pair = Pair("p", "w1 w2 w3 w4", "w1 w9 w3 w4", (3, 5), (3, 5), "g")
    found = cue_features(random_model, [pair])
    again = Features.load(found.save(tmp_path / "features.safetensors"))
    assert np.array_equal(again.x, found.x)
    assert np.array_equal(again.groups, found.groups)
    assert (again.y.tolist(), again.tokens, again.layers) == ([0, 1], found.tokens, found.layers)
    assert len(found.rows(np.array([True, False]))) == 1
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    for name in ("bad.safetensors", "none.safetensors"):
        with pytest.raises(InputError, match=r"^features "):
            Features.load(tmp_path / name)


def test_the_embedded_models_cues_are_pooled_after_the_cue(real_model: LanguageModel) -> None:
    pairs = build_pairs(n=8, tokenise=real_model.encode_continuation)
    found = cue_features(real_model, pairs, layers=[0, 12])
    for i, pair in enumerate(pairs):
        real, made_up = found.tokens[2 * i : 2 * i + 2]
        assert real == made_up
        assert len(real) == 8
        assert pair.real[pair.real_cue[1] :].strip().startswith(real_model.decode(list(real)).strip())
    assert np.allclose(found.x[::2, 0], found.x[1::2, 0], atol=1e-5)
    assert not np.allclose(found.x[::2, 1], found.x[1::2, 1], atol=1e-2)
