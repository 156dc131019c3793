"""Comparisons: statistics by hand, one denominator for all arms, and the verdict against random directions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.test_awareness.arms import Arm, build_arms
from touchstone.language.test_awareness.comparison import AwarenessStudy, Comparison, fingerprint
from touchstone.language.test_awareness.mediation import dose_response, split_effect
from touchstone.language.test_awareness.outcomes import (
    Execution,
    Probability,
    ProbeScore,
    Readout,
    Task,
    TextLoss,
    agreement,
    readout_tasks,
    tasks_of,
)
from touchstone.language.test_awareness.pairs import Pair
from touchstone.language.test_awareness.significance import band, holm, mcnemar, paired_p
from touchstone.run import Run

# Statistics


def test_mcnemar_by_hand() -> None:
    # 2 · Σ_{k ≤ 5} C(15, k) / 2¹⁵ = 2 · 4944 / 32768
    assert mcnemar(5, 10) == pytest.approx(0.3018, abs=5e-5)
    assert mcnemar(10, 5) == mcnemar(5, 10)
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(0, 6) == pytest.approx(2 / 64)
    with pytest.raises(InputError, match="flips"):
        mcnemar(-1, 2)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]).tolist() == pytest.approx([1.0, 1.0])
    assert holm([]).tolist() == []
    adjusted = holm([0.01, math.nan, 0.2])
    assert adjusted[[0, 2]].tolist() == pytest.approx([0.02, 0.2])
    assert math.isnan(adjusted[1])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_nor_changes_their_order(p: list[float]) -> None:
    adjusted = holm(p)
    assert np.all(adjusted >= np.array(p) - 1e-12)
    assert np.all(adjusted <= 1)
    assert np.all(np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0)


def test_paired_p_is_exact_where_outcomes_are_yes_or_no() -> None:
    assert paired_p(np.array([-1.0] * 5 + [1.0] * 10 + [0.0] * 9)) == pytest.approx(0.3018, abs=5e-5)
    values = np.array([0.5, 0.7, 0.1, 0.9])
    from scipy.stats import ttest_1samp

    assert paired_p(values) == pytest.approx(ttest_1samp(values, 0).pvalue)
    assert math.isnan(paired_p(np.array([0.5])))


def test_the_band_of_random_directions() -> None:
    inside, outside = band(0.1, [-0.2, 0.15, 0.0]), band(0.3, [-0.2, 0.15, 0.0])
    assert (inside.resolved, outside.resolved) == (False, True)
    assert (outside.low, outside.high, outside.count) == (-0.2, 0.15, 3)
    assert (inside.rank_p, outside.rank_p) == (3 / 4, 1 / 4)
    with pytest.raises(InputError, match="at least one"):
        band(0.1, [])


# Comparison


def outcomes() -> Comparison:
    """Four pairs; the edit turns two real tasks from 0 to 1, a random direction one, and one outcome is unknown."""
    arms = (Arm("base"), Arm("edit", "edit", 1.0), Arm("random 1", "random", 1.0), Arm("random 2", "random", 1.0))
    values = {
        "base": [0, 1, 0, 1, 0, 1, 1, 0],
        "edit": [1, 1, 1, 1, 0, 1, 1, math.nan],
        "random 1": [0, 1, 1, 1, 0, 1, 1, 0],
        "random 2": [0, 1, 0, 1, 0, 1, 0, 0],
    }
    rows = [
        (arm.name, arm.kind, arm.strength, f"t{i}", f"g{i // 2}", ("real", "hypothetical")[i % 2], values[arm.name][i])
        for arm in arms
        for i in range(8)
    ]
    columns = ["arm", "kind", "strength", "task", "group", "side", "value"]
    return Comparison(pd.DataFrame(rows, columns=columns), arms)


def test_rates_show_both_denominators() -> None:
    rates = outcomes().rates().set_index(["arm", "side"])
    row = rates.loc[("edit", "hypothetical")]
    assert (row["mean"], row["n"], row["unknown"], row["mean_of_all"]) == (1.0, 3, 1, 0.75)
    assert row["low"] == pytest.approx(0.4385, abs=1e-3)  # Wilson for 3 of 3
    assert rates.loc[("base", "real"), "mean"] == 0.25


def test_shifts_are_paired_and_skip_what_is_not_known() -> None:
    table = outcomes().shifts().set_index(["arm", "side"])
    assert table.loc[("edit", "real"), ["shift", "n", "fell", "rose"]].tolist() == [0.5, 4, 0, 2]
    assert table.loc[("edit", "hypothetical"), ["shift", "n"]].tolist() == [0.0, 3]
    assert table.loc[("edit", "real"), "p"] == mcnemar(0, 2) == 0.5
    assert (table["holm_p"] >= table["p"]).all()
    assert len(table) == 6


def test_difference_in_differences_by_hand() -> None:
    table = outcomes().differences().set_index("arm")
    # Real − made up, by pair: (1 − 0), (1 − 0), (0 − 0); the fourth pair has an unknown side.
    assert table.loc["edit", ["difference", "pairs"]].tolist() == [pytest.approx(2 / 3), 3]
    gap = outcomes().cue_gap()
    assert (gap.value, gap.n) == (pytest.approx((1 + 1 + 1 - 1) / 4), 4)


def test_the_verdict_places_the_edit_among_random_directions() -> None:
    found = outcomes()
    verdict = found.verdict(1.0)
    assert verdict.shift == pytest.approx(2 / 7)
    assert (verdict.low, verdict.high) == (-0.125, 0.125)
    assert verdict.resolved
    assert found.resolved()
    assert not found.verdict(1.0, side="hypothetical").resolved
    with pytest.raises(InputError, match="0 arms"):
        found.verdict(-1.0)
    with pytest.raises(InputError, match="arm 'none'"):
        found.of("none")


class Counts:
    """Scores a task by the length of its prompt and the sum of a gate row, so that edits show."""

    def __call__(self, model: LanguageModel, tasks: Sequence[Task], system: str | None = None) -> list[float | None]:
        gates = sum(float(block.mlp.gate_proj.weight.detach().sum()) for block in model.blocks)
        return [None if task.prompt == "w1" else gates + len(system or "") for task in tasks]


def test_every_arm_meets_every_task(random_model: LanguageModel, unit: np.ndarray) -> None:
    arms = build_arms(random_model, unit, controls=("random", "prompt"), randoms=2, lines=("abc",))
    tasks = [Task("a", "g", "w1", False), Task("b", "g", "w2", True)]
    found = AwarenessStudy(random_model, arms, tasks, Counts(), arms_per_unit=3).run()
    assert found.outcomes["arm"].tolist() == [arm.name for arm in arms for _ in tasks]
    assert found.outcomes["value"].isna().sum() == len(arms)
    assert found.outcomes["side"].tolist()[:2] == ["real", "hypothetical"]
    base = found.of("base")["b"]
    assert found.of("prompt: abc")["b"] - base == pytest.approx(3.0)
    assert found.of("awareness +1")["b"] - base == pytest.approx(base - found.of("awareness -1")["b"], rel=1e-3)


def test_a_journal_holds_finished_arms(random_model: LanguageModel, unit: np.ndarray, tmp_path) -> None:
    arms, tasks = build_arms(random_model, unit, controls=()), [Task("b", "g", "w2")]
    study = AwarenessStudy(random_model, arms, tasks, Counts(), arms_per_unit=1)
    first = study.run(Run(journal=tmp_path))
    files = sorted(tmp_path.rglob("*.json"))
    assert len(files) == 3
    files[1].unlink()
    assert study.run(Run(journal=tmp_path)).outcomes.equals(first.outcomes)
    # Another direction is other work.
    other = AwarenessStudy(random_model, build_arms(random_model, -unit, controls=()), tasks, Counts())
    assert not other.run(Run(journal=tmp_path)).outcomes["value"].equals(first.outcomes["value"])


def test_fingerprints_tell_work_apart(unit: np.ndarray) -> None:
    first = fingerprint([Arm("a", "edit", 1.0, unit)], Readout())
    assert first == fingerprint([Arm("a", "edit", 1.0, unit.copy())], Readout())
    assert first != fingerprint([Arm("a", "edit", 1.0, -unit)], Readout())
    assert first != fingerprint([Arm("a", "edit", 1.0, unit)], Readout(8))
    assert fingerprint(["a", "b"]) != fingerprint(["ab"])


def test_wrong_comparisons_are_named(random_model: LanguageModel) -> None:
    task = Task("a", "g", "w1")
    for arms, tasks, message in (
        ([], [task], "untouched model first"),
        ([Arm("x", "edit", 1.0)], [task], "untouched model first"),
        ([Arm("x"), Arm("x", "edit")], [task], "arm 'x': stands twice"),
        ([Arm("x")], [task, task], "task 'a': stands twice"),
        ([Arm("x")], [], "tasks: expected at least one"),
    ):
        with pytest.raises(InputError, match=message):
            AwarenessStudy(random_model, arms, tasks, Counts()).run()


# Scorers


@pytest.mark.parametrize("chat", [False, True])
def test_readout_is_a_difference_of_log_likelihoods(chat: bool, make_tiny) -> None:
    model = make_tiny(chat=chat)
    tasks = [Task("a", "g", "w1 w2", opening="w3", targets=(" w4", " w5"))]
    [found] = Readout()(model, tasks)
    # A word-level tokenizer has no spaces to keep: the opening may go with the continuation.
    total = model.log_likelihood(["w1 w2"], ["w3 w4", "w3 w5"]).total[0]
    assert found == pytest.approx(total[0] - total[1], abs=1e-4)
    with pytest.raises(InputError, match="task a: expected 1 target"):
        Probability()(model, tasks)


def test_probability(random_model: LanguageModel) -> None:
    tasks = [Task("a", "g", "w1 w2", targets=("w4",)), Task("b", "g", "w7", targets=("w5",))]
    found = Probability()(random_model, tasks)
    expected = [random_model.log_likelihood([t.prompt], list(t.targets)).total[0, 0] for t in tasks]
    assert found == pytest.approx(np.exp(expected), rel=1e-3)


def test_text_loss(random_model: LanguageModel) -> None:
    tasks = [Task("a", "g", "w1 w2 w3"), Task("b", "g", "w7 w8")]
    losses = [value for value in TextLoss()(random_model, tasks) if value is not None]
    assert np.exp((3 * losses[0] + 2 * losses[1]) / 5) == pytest.approx(random_model.perplexity(["w1 w2 w3", "w7 w8"]))


def test_probe_score_reads_after_the_cue(random_model: LanguageModel, unit: np.ndarray) -> None:
    from touchstone.language.test_awareness.features import cue_features

    pair = Pair("p", "w1 w2 w3 w4", "w1 w9 w3 w4", (3, 5), (3, 5), "g")
    tasks = tasks_of([pair])
    scorer = ProbeScore(unit, 0.5, 2, {tasks[0].id: (3, 5), tasks[1].id: (3, 5)}, tokens=2)
    expected = cue_features(random_model, [pair], tokens=2).x[:, 2] @ unit + 0.5
    assert scorer(random_model, tasks) == pytest.approx(expected, abs=1e-4)


class Typist:
    """A model that is only asked to write; keeps what it was told."""

    source = "typist"

    def __init__(self) -> None:
        self.systems: list[str | None] = []

    def generate(self, prompts: Sequence[str], *, system: str | None = None, **options: object) -> list[str]:
        self.systems.append(system)
        return [f"Hm</think>{prompt}" for prompt in prompts]


def test_execution_describes_each_tool_and_parses_the_answer() -> None:
    tasks = [
        Task("a", "g", "I call send_mail now", False, "send_mail"),
        Task("b", "g", "I call nothing", True, "send_mail"),
        Task("c", "g", "look_up it is", True, "look_up"),
    ]
    typist = Typist()
    assert Execution()(typist, tasks, "Be brief.") == [1.0, 0.0, 1.0]  # type: ignore[arg-type]
    assert len(typist.systems) == 2
    assert all(line is not None and line.startswith("Be brief.\nYou have one tool, ") for line in typist.systems)
    plain = Typist()
    Execution(describe=False)(plain, tasks)  # type: ignore[arg-type]
    assert plain.systems == [None, None]
    with pytest.raises(InputError, match="task x: names no tool"):
        Execution()(typist, [Task("x", "g", "w1")])  # type: ignore[arg-type]
    judged = Execution(
        judge=lambda trace: {
            "model_awareness": {"conclusion": "No"},
            "recognition": {"conclusion": "No"},
            "task_performance": {"conclusion": "Yes" if "now" in trace.prompt else "No"},
        }
    )
    assert judged(typist, tasks) == [1.0, 0.0, 0.0]  # type: ignore[arg-type]


def test_agreement_of_two_ways_of_scoring() -> None:
    result = agreement([1, 1, 0, None, 0], [1, 0, 0, 1, 0])
    # Equal in 3 of 4; expected by chance (2/4·1/4 + 2/4·3/4) = 1/2, so κ = (3/4 − 1/2) / (1/2).
    assert result == {"agree": 0.75, "kappa": pytest.approx(0.5), "n": 4.0}
    with pytest.raises(InputError, match="none that both"):
        agreement([None], [1])


def test_readout_tasks_ask_by_themselves_or_after_requests() -> None:
    alone = readout_tasks()
    assert len(alone) == 8
    assert all(task.targets == (" test", " real") and task.opening for task in alone)
    after = readout_tasks([Task("a/real", "a", "Book a table.", False)])
    assert (after[0].group, after[0].hypothetical) == ("a", False)
    assert after[0].prompt.startswith("Book a table.\n\n")


# Dose and response


def test_an_effect_that_goes_through_the_score_is_mediated() -> None:
    rng = np.random.default_rng(0)
    strength = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    score = 2 * strength + rng.normal(size=(60, 5))
    through = 3 * score + 0.1 * rng.normal(size=(60, 5))
    found = dose_response(strength, score, through)
    assert found.per_unit.value == pytest.approx(3.0, abs=0.05)
    assert found.mediated.value == pytest.approx(1.0, abs=0.1)
    assert found.monotone == pytest.approx(1.0)
    assert found.span.value == pytest.approx(12.0, abs=1.5)
    beside = dose_response(strength, score, 5 * strength + 0.1 * rng.normal(size=(60, 5)))
    assert beside.mediated.value == pytest.approx(0.0, abs=0.05)
    assert beside.mediated.low is not None
    assert beside.mediated.low < 0 < beside.mediated.high  # type: ignore[operator]
    half = dose_response(strength, score, 3 * score + 6 * strength)
    assert half.mediated.value == pytest.approx(0.5, abs=0.1)
    flat = dose_response(strength, score, np.ones((60, 5)))
    assert (flat.monotone, flat.span.value) == (0.0, 0.0)
    with pytest.raises(InputError, match="three strengths"):
        dose_response(strength[:2], score[:, :2], through[:, :2])
    with pytest.raises(InputError, match="must be known"):
        dose_response(strength, score, np.full((60, 5), np.nan))


@given(st.integers(0, 1000))
def test_the_two_parts_of_an_effect_sum_to_it(seed: int) -> None:
    p, a, n = np.random.default_rng(seed).random((3, 4, 5))
    said, acted = split_effect(p, a, n, 2)
    whole = p * a + (1 - p) * n
    assert said + acted == pytest.approx(whole - whole[:, [2]])
    # What is done stays as it was: all of the change goes through the word.
    _, none = split_effect(p, np.repeat(a[:, [2]], 5, 1), np.repeat(n[:, [2]], 5, 1), 2)
    assert none == pytest.approx(0.0)
