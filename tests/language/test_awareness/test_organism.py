"""From traces to a verdict on organisms whose truth is planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.language.test_awareness.arms import Arm
from touchstone.language.test_awareness.labels import LexiconJudge
from touchstone.language.test_awareness.organism import RESIDUAL_UNIT, Organism, OrganismSize, judge, score_under, tasks
from touchstone.language.test_awareness.outcomes import Task
from touchstone.language.test_awareness.pairs import Pair
from touchstone.language.test_awareness.pipeline import PipelineSettings, run_pipeline
from touchstone.language.test_awareness.traces import END
from touchstone.run import Run

SETTINGS = PipelineSettings(
    max_new_tokens=10,
    temperature=1.0,
    top_p=1.0,
    layer=3,
    controls=("random", "shuffled"),
    randoms=2,
    describe_tools=False,
    batch_size=128,
)


def test_the_judge_quotes_what_follows_the_word(organism: Callable[[str], Organism]) -> None:
    labels = organism("a").labels
    judged = [label for label in labels if label.awareness]
    assert len(judged) > 0.9 * len(labels)
    for label in judged:
        word, first, second = label.trace.reasoning.split()
        assert label.awareness == ("Yes" if word == "aware" else "No")
        assert label.quotes[0] == (f"{first} {second}",)
    assert 0.3 < np.mean([label.awareness == "Yes" for label in labels]) < 0.6


def test_awareness_is_read_from_fillers_and_not_from_the_embedding(organism: Callable[[str], Organism]) -> None:
    one = organism("a")
    report = one.probe.report().set_index("layer")
    assert report["test_accuracy"].loc[3] >= 0.8
    assert report["test_accuracy"].loc[0] <= 0.68
    assert report["shuffled_accuracy"].loc[3] <= 0.68
    words = {one.model.decode([token]) for row in one.features.tokens for token in row}
    assert words <= set(one.language.fillers)


def test_exact_probabilities_are_those_of_sampled_replies(organism: Callable[[str], Organism]) -> None:
    one = organism("a")
    prompt = one.language.prompt(4, cue="fake")
    asked = [Task("p/aware", "p", prompt, targets=("aware",))]
    for word in ("aware", "normal"):
        asked.append(Task(f"p/given_{word}", "p", f"{prompt} {word} filler3 filler5 {END}", targets=("ok",)))
    from touchstone.language.test_awareness.outcomes import Probability

    aware, given_aware, given_normal = Probability()(one.model, asked)
    assert aware is not None
    assert given_aware is not None
    assert given_normal is not None
    replies = one.model.generate([prompt] * 600, max_new_tokens=6, temperature=1.0, batch_size=600)
    sampled = np.mean([reply.split()[:1] == ["aware"] for reply in replies])
    executes = np.mean([reply.split(END)[-1].split()[:1] == ["ok"] for reply in replies])
    # Three standard errors of 600 replies; the fillers matter a little for what is done.
    assert sampled == pytest.approx(aware, abs=0.06)
    assert executes == pytest.approx(aware * given_aware + (1 - aware) * given_normal, abs=0.1)


def test_both_variants_answer_steering_with_opposite_signs(
    organism: Callable[[str], Organism], size: OrganismSize
) -> None:
    slopes, drawn = {}, {}
    for variant in ("a", "b"):
        one = organism(variant)
        arms = [arm for arm in one.arms(size, 0) if arm.kind in ("base", "residual_decision", "random_residual")]
        frame = one.compare(arms, size, Run())
        rows = frame[(frame["topics"] == "guarded") & (frame["cue"] == "fake")]
        at = rows[rows["strength"].abs() == RESIDUAL_UNIT]
        means = at.groupby(["kind", "arm"])["executes"].mean().reset_index()
        true = means[means["kind"] == "residual_decision"].set_index("arm")["executes"]
        slopes[variant] = true[f"residual, decision +{RESIDUAL_UNIT}"] - true[f"residual, decision -{RESIDUAL_UNIT}"]
        random = means[means["kind"] == "random_residual"]["executes"].to_numpy()
        drawn[variant] = np.abs(np.diff(random.reshape(-1, 2), axis=1)).max()
    assert slopes["a"] > 0.05
    assert slopes["b"] < -0.05
    assert all(abs(slopes[variant]) > drawn[variant] for variant in ("a", "b"))


def test_an_edited_organism_is_scored_and_put_back(organism: Callable[[str], Organism]) -> None:
    one = organism("a")
    found = score_under(one, [-1.0, 0.0, 1.0], 1, 0)
    assert found.shape == (12, 3)
    assert not np.allclose(found[:, 0], found[:, 1])
    assert np.array_equal(score_under(one, [0.0], 1, 0)[:, 0], found[:, 1])
    asked = tasks(one.language, 1, 0)
    assert len(asked) == 24 * 3 * 3
    with Arm("base").on(one.model) as done:
        assert done["rows"] == 0


def test_the_pipeline_runs_goes_on_and_says_what_it_found(
    organism: Callable[[str], Organism], organism_pairs: Callable[[int], list[Pair]], tmp_path: Path
) -> None:
    model, pairs, said = organism("a").model, organism_pairs(70), []
    options = {"actions": organism_pairs(12), "settings": SETTINGS, "run": Run(), "say": said.append}
    found = run_pipeline(model, pairs, judge, tmp_path / "run", **options)
    assert {"probe-accuracy", "aware-raised", "executed-lowered", "scores-agree", "unknown-outcomes"} <= {
        finding.id for finding in found.findings
    }
    assert found.finding("probe-accuracy").measured.value > 0.65
    assert found.finding("scores-agree").measured.value == 1.0
    rates = found.table("rates-aware")
    base = rates[rates["arm"] == "base"].set_index("side")["mean"]
    assert base["hypothetical"] > base["real"] + 0.3
    assert set(found.table("classes")["rule"]) == {"paper", "code"}
    assert len(said) == 3
    # Every stage is on disk: what is left of a run that was killed is used, and the end is the same.
    for name in ("features.safetensors", "evidence/evidence.json"):
        (tmp_path / "run" / name).unlink()
    for step in (tmp_path / "run" / "journal").iterdir():
        max(step.glob("*.json")).unlink()
    calls = []

    def counted(trace):
        calls.append(trace)
        return judge(trace)

    again = run_pipeline(model, pairs, counted, tmp_path / "run", **options)
    assert [finding.measured for finding in again.findings] == [finding.measured for finding in found.findings]
    assert len({trace.id for trace in calls}) == 24
    with pytest.raises(InputError, match="another pairs"):
        run_pipeline(model, pairs[:-1], judge, tmp_path / "run", **options)
    with pytest.raises(InputError, match="another seed"):
        run_pipeline(model, pairs, judge, tmp_path / "run", **(options | {"run": Run(seed=1)}))


def test_wrong_runs_are_named(
    organism: Callable[[str], Organism], organism_pairs: Callable[[int], list[Pair]], tmp_path: Path
) -> None:
    model, pairs = organism("a").model, organism_pairs(4)
    plain = [Pair(p.id, p.real, p.hypothetical, p.real_cue, p.hypothetical_cue, p.group) for p in pairs]
    with pytest.raises(InputError, match="none names a tool"):
        run_pipeline(model, plain, judge, tmp_path / "a", settings=SETTINGS)
    leaky = LexiconJudge(awareness=[r"\bfake\b"])
    with pytest.raises(InputError, match="4 prompts match the judge's own patterns"):
        run_pipeline(model, pairs, leaky, tmp_path / "b", settings=SETTINGS)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "other.txt").write_text("x")
    with pytest.raises(InputError, match="not empty"):
        run_pipeline(model, pairs, judge, tmp_path / "c", settings=SETTINGS)
    with pytest.raises(InputError, match="training rows of class"):
        run_pipeline(model, pairs, judge, tmp_path / "d", settings=SETTINGS)
