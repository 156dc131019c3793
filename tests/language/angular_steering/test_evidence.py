"""The check and the study: what they report is what was measured, on tiny, planted and real models."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from touchstone.bootstrap import over_items
from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.angular_steering import Contrast, Rotation, SteeringPlane, Unsteered, statistics, sweep
from touchstone.language.angular_steering.check import METRICS, Settings, check
from touchstone.language.angular_steering.prompts import HAPPY_OR_SAD, NEUTRAL_PROMPTS, TONE_TRAIN, tone_prompts
from touchstone.language.angular_steering.study import study
from touchstone.language.organisms import GuardedLanguage, grow
from touchstone.run import Run


@pytest.fixture
def reader(make_tiny) -> LanguageModel:
    """A tiny random model that can read any text, byte by byte."""
    model = make_tiny()
    letters = sorted(ByteLevel.alphabet())
    core = Tokenizer(BPE({letter: i for i, letter in enumerate(["<s>", "</s>", "<pad>", *letters])}, merges=[]))
    core.pre_tokenizer, core.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.module.resize_token_embeddings(len(letters) + 3, mean_resizing=False)
    model.module.config.max_position_embeddings = 512
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    return LanguageModel(model.module, tokenizer, source="bytes")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "positive").write_text("\n".join(f"Please do thing {i}" for i in range(9)))
    (tmp_path / "negative").write_text("\n".join(f"Never do thing {i}!" for i in range(9)))
    return {"positive": str(tmp_path / "positive"), "negative": str(tmp_path / "negative")}


def test_the_check_reports_every_metric_and_continues(reader, files, tmp_path):
    model = reader
    settings = Settings(**files, angles=4, prompts=3, texts=2, replies=1, max_new_tokens=3)
    run = Run(journal=tmp_path / "journal")
    evidence = check(model, settings, run)
    assert {key.replace("_", "-") for key in METRICS} == {finding.id for finding in evidence.findings}
    assert evidence.kind == "check"
    assert all(math.isfinite(finding.measured.value) for finding in evidence.findings)
    circle = evidence.table("circle")
    fitted = circle[circle["arm"] == "fitted plane"]
    assert fitted["degrees"].tolist() == [0, 90, 180, 270]
    odds = fitted["refusal log-odds (nats)"]
    assert evidence.finding("refusal-range").measured.value == pytest.approx(odds.max() - odds.min(), abs=1e-6)
    worst = fitted["perplexity"].max()
    assert evidence.finding("perplexity-cost").measured.value == pytest.approx(
        worst / circle[circle["arm"] == "unsteered"]["perplexity"].iloc[0], rel=0.05
    )
    assert len(evidence.table("replies")) == 5
    assert evidence.figures[0].png.startswith(b"\x89PNG")
    again = check(model, settings, run)
    assert [f.measured for f in again.findings] == [f.measured for f in evidence.findings]


def test_the_check_is_the_same_on_ray(reader, files):
    ray = pytest.importorskip("ray")
    from touchstone.engine import RayEngine

    model = reader
    settings = Settings(**files, angles=2, prompts=2, texts=2, replies=0, margin=False)
    here = check(model, settings, Run())
    ray.init(
        num_cpus=2, log_to_driver=False, include_dashboard=False, configure_logging=False, ignore_reinit_error=True
    )
    try:
        there = check(model, settings, Run(engine=RayEngine(workers=2)))
    finally:
        ray.shutdown()
    assert [f.id for f in there.findings] == [f.id for f in here.findings]
    values = [[f.measured.value for f in e.findings] for e in (here, there)]
    np.testing.assert_allclose(*values, rtol=1e-3)


def test_a_check_with_bad_files(make_tiny, tmp_path, files):
    (tmp_path / "empty").write_text("\n")
    for changes, says in (
        ({"positive": str(tmp_path / "empty")}, "holds no prompt"),
        ({"positive": str(tmp_path / "missing")}, "cannot be read"),
        ({"negative": ""}, "expected both"),
    ):
        with pytest.raises(InputError, match=says):
            check(make_tiny(), Settings(**(files | changes)), Run())


def test_intervals_of_a_spread_by_hand():
    scores = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]])
    exact = over_items("spread", scores, statistics.spread, seed=0)
    assert (exact.value, exact.low, exact.high, exact.n) == (3.0, 3.0, 3.0, 4)
    wide = over_items("spread", scores * np.array([0.0, 1.0, 1.0, 2.0]), statistics.spread, seed=0)
    assert wide.low < 3.0 < wide.high
    assert statistics.worst_ratio(np.log([[2.0, 2.0], [3.0, 3.0], [6.0, 6.0]])) == pytest.approx(3.0)
    assert over_items("spread", scores[:, :1], statistics.spread, seed=0).low is None


def test_an_organism_is_opened_by_one_plane_and_not_by_a_random_one():
    """Guarded topics are refused by rule, and what is right is known: rotation opens topics it was not fitted on."""
    language = GuardedLanguage("a")
    organism = grow(language, steps=500)
    model = LanguageModel(organism.module, organism.tokenizer, source="organism")
    rng = np.random.default_rng(0)
    guarded = [topic for topic in range(24) if language.is_guarded(topic)]
    plain = [topic for topic in range(24) if not language.is_guarded(topic)]

    def before_the_verdict(topics: list[int], count: int) -> list[str]:
        prompts = language.prompts([topics[i % len(topics)] for i in range(count)], rng)
        return [f"{prompt} normal filler1 filler2 </think>" for prompt in prompts]

    plane = SteeringPlane.fit(model, before_the_verdict(guarded[:8], 96), before_the_verdict(plain[:8], 96))
    refuses = Contrast(("sorry",), ("ok",))
    arms = [
        Unsteered(),
        Rotation(plane, tuple(float(a) for a in range(0, 360, 30)), adaptive=False),
        Rotation(plane.control("plane", seed=1), (0.0, 90.0, 180.0, 270.0), adaptive=False, name="random"),
    ]
    test = before_the_verdict(guarded[8:], 32)
    frame = sweep(model, arms, test, contrast=refuses)
    rate = (frame["score"] > 0).groupby([frame["arm"], frame["value"]]).mean()
    assert rate["unsteered"].iloc[0] >= 0.9
    assert rate["rotation"].max() >= 0.8
    assert rate["rotation"].min() <= 0.2
    assert rate["random"].min() >= 0.6


def test_the_smoke_study_reports_its_claims(tmp_path, real_model):
    evidence = study("smoke", Run(), model=real_model)
    found = {finding.id: finding for finding in evidence.findings}
    for name in ("norm-kept", "angle-reached", "addition-is-rotation", "ablation-is-quarter-turn", "equals-projection"):
        assert found[name].verdict == "holds"
        assert found[name].measured.n is None
    for name in ("refusal-arc", "random-plane", "plain-answers", "garbage-share", "tone-range", "perplexity-adaptive"):
        assert math.isfinite(found[name].measured.value)
        assert found[name].against is not None
    assert evidence.scale == "smoke"
    assert evidence.figures
    with pytest.raises(InputError, match="scale"):
        study("huge", Run())
    with pytest.raises(InputError, match="expected both"):
        study("smoke", Run(), positive=["a", "b"])


def test_the_real_models_tone_follows_the_dial(real_model):
    """End to end: a plane fitted on 16 topics moves the tone of requests about others, far more than a random one."""
    plane = SteeringPlane.fit(real_model, tone_prompts("happy", TONE_TRAIN[:8]), tone_prompts("sad", TONE_TRAIN[:8]))
    arms = [
        Unsteered(),
        Rotation(plane, (0.0, 180.0), adaptive=False),
        Rotation(plane.control("plane"), (0.0, 180.0), adaptive=False, name="random"),
    ]
    frame = sweep(real_model, arms, NEUTRAL_PROMPTS[:3], contrast=HAPPY_OR_SAD)
    tone = frame.groupby(["arm", "value"])["score"].mean()
    assert tone["rotation"][180.0] < tone["unsteered"].iloc[0] - 0.5
    moved = abs(tone["rotation"] - tone["unsteered"].iloc[0]).max()
    assert moved > 2 * abs(tone["random"] - tone["unsteered"].iloc[0]).max()
