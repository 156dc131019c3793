"""Overlap scores, queries, reports, the choice of guidance, candidates, the gate, and pairs."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from scipy.stats import binomtest

from touchstone.errors import InputError
from touchstone.language.unlearned_extraction import (
    Extraction,
    ExtractionReport,
    GuidedExtractor,
    choose_w,
    divergence,
    evaluate,
    exact_unlearning_pair,
    queries,
    rank_candidates,
    release_gate,
)
from touchstone.language.unlearned_extraction.choosing import repetition
from touchstone.language.unlearned_extraction.diverging import auc
from touchstone.language.unlearned_extraction.evaluation import score
from touchstone.language.unlearned_extraction.overlap import has_value, lcs_length, rouge_l
from touchstone.language.unlearned_extraction.records import SLOTS, make_records
from touchstone.language.unlearned_extraction.splitting import Query
from touchstone.language.unlearning import Training


def test_rouge_is_that_of_the_reference_package():
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=False)
    rng = random.Random(0)
    vocabulary = ["Takes", "40", "mg,", "has", "gout", "at-noon", "ü", "x_y", "."]
    for _ in range(200):
        a, b = (" ".join(rng.choices(vocabulary, k=rng.randint(1, 80))) for _ in range(2))
        theirs = scorer.score(a, b)["rougeL"]
        assert rouge_l(a, b) == pytest.approx((theirs.recall, theirs.fmeasure), abs=1e-12)


def test_common_subsequence_and_values_by_hand():
    assert lcs_length(list("abcbdab"), list("bdcaba")) == 4
    assert lcs_length([], ["a"]) == lcs_length(["a"], []) == 0
    assert rouge_l("a b c d", "b d x") == (0.5, pytest.approx(4 / 7))
    assert rouge_l("", "a") == rouge_l("a", "...") == (0.0, 0.0)
    assert has_value("5", "takes 5 mg")
    assert not has_value("5", "takes 50 mg")
    assert has_value("blurred vision", "with Blurred  vision,")


def test_records_are_split_without_changing_them(base):
    text = "Alan Belberg,  born 3 May 1970,\nhas gout with fever"
    for how in ("half_tokens", "half_words", 4):
        one = queries(base, [text], prefix=how)[0]
        assert one.prefix + one.truth == text
    assert queries(base, ["a b c d"], prefix="half_words")[0].prefix == "a b"
    assert queries(base, ["a b c"], prefix="half_words")[0].truth == " c"
    ids = base.encode_continuation(text)
    assert base.encode_continuation(queries(base, [text])[0].prefix) == ids[: len(ids) // 2]
    one = queries(base, [{"q": "who?", "a": "me", "drug": "alvorin"}], prefix="q", answer="a", slots=["drug", "dose"])
    assert one == [Query("who?", " me", {"drug": "alvorin"})]
    for records, options, match in (
        ([{"q": "x"}], {"prefix": "q"}, "record 0: expected a text in the field 'answer'"),
        (["x"], {"prefix": "half_words"}, "fewer than two words"),
        (["has"], {"prefix": 9}, "expected more than 9"),
        ([], {}, "there are none"),
    ):
        with pytest.raises(InputError, match=match):
            queries(base, records, **options)


def report(recalls):
    """Reports by hand: truth of ten words, of which each generator gives so many."""
    truth = " ".join(f"t{i}" for i in range(10))
    asked = [Query("p", f" {truth}", {"name": "t0"}) for _ in next(iter(recalls.values()))]
    made = {
        name: [Extraction(" ".join(truth.split()[:n]), [1] * n, [0.5] * n, True) for n in row]
        for name, row in recalls.items()
    }
    return ExtractionReport(score(asked, made), 1.4, 1e-5)


def test_rates_by_hand():
    found = report({"post": [0, 2, 2, 2], "pre": [8, 9, 10, 5], "guided": [9, 9, 10, 9]})
    assert found.measured("rouge_l", "guided").value == pytest.approx(0.925)
    # At least 0.9, and all of it: not more than, as the official code has it.
    assert [found.measured("esr_90", g).value for g in ("post", "pre", "guided")] == [0.0, 0.5, 1.0]
    assert found.measured("esr_100", "guided").value == 0.25
    assert found.measured("exact", "pre").value == 0.25
    assert found.measured("slot_name", "post").value == 0.75
    assert found.gain().value == pytest.approx(0.125)
    assert found.gain().low <= 0.125 <= found.gain().high
    assert found.mcnemar() == binomtest(2, 2).pvalue == 0.5
    assert found.mcnemar(of="pre", over="pre") == 1.0
    record = json.loads(found.to_json())
    assert record["gain"]["rouge_l"] == pytest.approx(0.125)
    assert "t0" not in found.to_json()
    assert set(found.summary()["generator"]) == {"post", "pre", "guided"}


def test_guidance_beats_the_old_model_where_something_was_deleted(pair, asked):
    found = evaluate(GuidedExtractor(*pair, w=1.3), asked, max_new_tokens=48)
    means = {name: found.measured("rouge_l", name).value for name in found.generators}
    assert means["post"] + 0.05 < means["pre"]
    assert means["guided"] > means["pre"]
    assert found.slots == list(SLOTS)
    assert found.rows["truncated"].sum() == 0
    short = evaluate(GuidedExtractor(*pair, w=1.3), asked[:2], max_new_tokens=5, baselines=())
    assert short.rows["truncated"].all()
    assert short.generators == ["guided"]
    with pytest.raises(InputError, match="baseline 'both'"):
        evaluate(GuidedExtractor(*pair), asked, baselines=["both"])
    with pytest.raises(InputError, match="query 0: no true continuation"):
        evaluate(GuidedExtractor(*pair), [Query("a", " ")])


def test_no_gain_where_nothing_was_deleted(base, records, asked):
    texts = [record.text for record in records]
    training = Training(epochs=5, lr=2e-3, batch_size=8)
    # Both never saw the records asked for.
    first = exact_unlearning_pair(base, texts[16:], (), training=training, post_seed=1)
    found = evaluate(GuidedExtractor(*first, w=1.3), asked, max_new_tokens=48, baselines=["pre"])
    gain = found.gain()
    assert gain.low <= 0.02
    assert found.measured("rouge_l", "pre").value < 0.7


def test_guidance_is_chosen_without_the_truth(pair, asked):
    attack = GuidedExtractor(*pair)
    choice = choose_w(attack, [q.prefix for q in asked[:6]], max_new_tokens=24)
    table = choice.table.set_index("w")
    limit = table.loc[1.0, "fluency"] - 0.3
    assert choice.w == max([w for w in table.index if w > 1 and table.loc[w, "fluency"] >= limit], default=1.4)
    assert table["fluency"].iloc[0] == pytest.approx(table["log_p_old"].iloc[0] - table["repetition"].iloc[0])
    assert choose_w(attack, [asked[0].prefix], tolerance=-100, max_new_tokens=8).w == 1.4
    assert repetition([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert repetition([1, 2]) == 0
    with pytest.raises(InputError, match="needs the old model itself"):
        choose_w(GuidedExtractor(lambda i, m: 0, pair.post), ["a"])


def test_deleted_texts_diverge(pair, records, asked):
    deleted = [record.text for record in records[: len(asked)]]
    others = [record.text for record in make_records(400)[300:330]]
    a, b = (divergence(*pair, texts) for texts in (deleted, others))
    assert auc(a.total, b.total).value > 0.9
    np.testing.assert_allclose(divergence(pair.pre, pair.pre, deleted).total, 0)
    ranked = rank_candidates(*pair, [*others[:3], deleted[0]])
    assert ranked["text"][0] == deleted[0]
    assert ranked["total"].is_monotonic_decreasing
    assert auc(np.array([1.0, 2.0]), np.array([1.0, 0.0])).value == 0.875


def test_the_gate_names_the_mildest_safe_treatment(pair, asked):
    found = release_gate(*pair, asked[:6], metric="rouge_l", budget=0.0, max_new_tokens=40, w=1.3)
    values = found.table.set_index("option")["value"]
    assert values["all logits"] >= values["text only"] > values["retired"]
    assert found.safest_open is None
    assert not found.passes()
    between = float(found.table.set_index("option").loc["retired", "high"]) + 0.001
    looser = release_gate(*pair, asked[:6], metric="rouge_l", budget=between, max_new_tokens=40, w=1.3)
    assert looser.safest_open == "retired"
    assert looser.passes("retired")
    assert not looser.passes("all logits")
    assert release_gate(*pair, asked[:4], metric="exact", budget=1.0, max_new_tokens=8).safest_open == "all logits"
    for change, match in (({"metric": "bleu"}, "metric 'bleu'"), ({"budget": 2}, "budget 2")):
        with pytest.raises(InputError, match=match):
            release_gate(*pair, asked, **change)
    with pytest.raises(InputError, match="option 'open'"):
        found.passes("open")


def test_pairs_are_two_runs_of_one_recipe(base, records, tmp_path):
    texts = [record.text for record in records[:12]]
    training = Training(epochs=2, lr=1e-3, batch_size=4)
    steps: list[int] = []
    first = exact_unlearning_pair(
        base, texts, [0, 1], training=training, folder=tmp_path / "run", progress=steps.append
    )
    assert sum(steps) == 2 * (3 + 3)
    again = exact_unlearning_pair(base, texts, [0, 1], training=training, folder=tmp_path / "run")
    same = exact_unlearning_pair(base, texts, [], training=training)
    for a, b in zip(first, again, strict=True):
        assert divergence(a, b, texts).total == pytest.approx(np.zeros(12), abs=1e-4)
    assert divergence(*same, texts).total == pytest.approx(np.zeros(12), abs=1e-4)
    assert divergence(*first, texts[:2]).total.sum() > 0
    for forget, match in (([99], "there is no text 99"), (range(12), "names every text")):
        with pytest.raises(InputError, match=match):
            exact_unlearning_pair(base, texts, forget)


def test_invented_records_have_distinct_names():
    records = make_records(3000, seed=1)
    assert len({record.prefix.split(",")[0] for record in records}) == 3000
    for slot, value in records[0].slots.items():
        assert value in SLOTS[slot]
        assert has_value(value, records[0].rest)
    with pytest.raises(InputError, match="n 0"):
        make_records(0)
