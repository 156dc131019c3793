"""The check and the study, whole."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from touchstone.errors import InputError
from touchstone.evidence import Evidence
from touchstone.language import LanguageModel
from touchstone.language.isolation_continuity import divergence
from touchstone.language.isolation_continuity.bodies import pattern
from touchstone.language.isolation_continuity.check import COST, METRICS, Settings, check
from touchstone.language.isolation_continuity.curve import continuity_curve
from touchstone.language.isolation_continuity.reading import next_log_probs
from touchstone.language.isolation_continuity.scaling import log_n_attention, rounded, untrained
from touchstone.language.isolation_continuity.study import study
from touchstone.run import Run

_SMALL = {"lengths": (16, 64), "fractions": (0.1,), "draws": 2, "periods": 8, "functions": 2, "texts": 1}


def test_check_of_the_real_model(real_model: LanguageModel, tmp_path: Path) -> None:
    evidence = check(real_model, Settings(**_SMALL), Run(seed=1))  # type: ignore[arg-type]
    assert {finding.id.replace("-", "_") for finding in evidence.findings} == set(METRICS)
    # The default symbols are continued: nothing is left undecided for that reason.
    assert not any("Not decided" in finding.statement for finding in evidence.findings)
    assert evidence.finding("p-max").measured.value == 8
    assert evidence.finding("edit-accuracy").measured.value < 0.8
    saved = Evidence.load(evidence.save(tmp_path / "check"))
    assert [table.name for table in saved.tables][:3] == ["curve", "periods", "pairs"]
    assert hasattr(Settings(), COST.setting)


def test_a_model_that_does_not_continue_the_pattern_decides_nothing(real_model: LanguageModel, tmp_path: Path) -> None:
    """Untrained weights spread the probability: their small changes are no continuity."""
    fresh = untrained(real_model)
    evidence = check(fresh, Settings(**_SMALL), Run())  # type: ignore[arg-type]
    for name in ("delta-hat", "single-change", "invariance", "p-max", "captured"):
        assert evidence.finding(name).verdict == "undecided"
        assert "Not decided" in evidence.finding(name).statement


def test_check_bad_input(model: LanguageModel, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("w1 w2", encoding="utf-8")
    with pytest.raises(InputError, match="different as tokens"):
        check(model, Settings(), Run())
    with pytest.raises(InputError, match="2 tokens; expected at least 24"):
        check(model, Settings(common="w1", rare="w2", text=str(short), lengths=(16,)), Run())
    with pytest.raises(InputError, match="at least one length"):
        check(model, Settings(common="w1", rare="w2", lengths=(), text=""), Run())


def test_a_single_change_fades_and_a_bare_prompt_is_degenerate(real_model: LanguageModel) -> None:
    """The measured values of the method's description: .02 at 64 and 256 with a head, .8 and more without one."""
    body = pattern(real_model, length=128)
    report = continuity_curve(real_model, body, lengths=(32, 128), fractions=(0.4,), draws=3)
    assert report.numbers["symbol_mass"] > 0.9
    means = report.rows.groupby(["length", "wanted"])["tv"].mean()
    assert means[128, 0.0] < 0.15 < means[128, 0.4]
    bare = continuity_curve(real_model, body.bare(), lengths=(128,), fractions=(), draws=3)
    assert bare.rows["tv"].mean() > 0.6


def test_log_n_scaling_by_hand(model: LanguageModel) -> None:
    ids = [[9, 8, 10, 11, 9, 12] * 4]
    before = next_log_probs(model, ids, [3, 23])
    with log_n_attention(model, reference=8):
        inside = next_log_probs(model, ids, [3, 23])
    with log_n_attention(model, reference=24):
        same = next_log_probs(model, ids, [3, 23])
    after = next_log_probs(model, ids, [3, 23])
    # Up to the reference the scale is 1, and the hooks are gone at the end.
    assert np.abs(same - before).max() < 1e-5
    assert np.abs(inside[:, 0] - before[:, 0]).max() < 1e-5
    assert np.abs(inside[:, 1] - before[:, 1]).max() > 1e-4
    assert np.array_equal(after, before)
    with pytest.raises(InputError, match="2 or more"), log_n_attention(model, reference=1):
        pass


def test_rounding_is_small_and_ends_with_its_block(model: LanguageModel) -> None:
    ids = [[9, 8, 10, 11]]
    before = next_log_probs(model, ids, [3])[0]
    with rounded(model):
        coarse = next_log_probs(model, ids, [3])[0]
    assert 0 < divergence.total_variation(before, coarse)[0] < 0.2
    assert np.array_equal(next_log_probs(model, ids, [3])[0], before)
    assert not torch.is_autocast_enabled("cpu")


def test_smoke_study(real_model: LanguageModel, tmp_path: Path) -> None:
    evidence = study("smoke", Run(), model=real_model)
    assert evidence.finding("single-slope").measured.value < 0
    assert evidence.finding("floor").verdict == "holds"
    assert evidence.finding("untrained-single-change").measured.value < 0.05
    assert evidence.finding("recall-captured").verdict == "holds"
    assert evidence.finding("single-change").against is not None
    evidence.save(tmp_path / "study")
    assert all(math.isfinite(finding.measured.value) for finding in evidence.findings if finding.verdict != "undecided")
    with pytest.raises(InputError, match="scale 'huge'"):
        study("huge", Run(), model=real_model)  # type: ignore[arg-type]
