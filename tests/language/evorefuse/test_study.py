"""The study at its smallest scale, and its parts: what they measure of planted truths."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from touchstone.bootstrap import clustered, quotient, sign
from touchstone.errors import InputError
from touchstone.language.evorefuse import study_shortcut
from touchstone.language.evorefuse.baselines import best_of_n, noise
from touchstone.language.evorefuse.fitness import Scorer
from touchstone.language.evorefuse.judging import Panel
from touchstone.language.evorefuse.rules import default_rules
from touchstone.language.evorefuse.search import EvoRefuse
from touchstone.language.evorefuse.study import study
from touchstone.language.evorefuse.study_search import SearchSize, search_arms
from touchstone.language.evorefuse.synthetic import SyntheticRefuser
from touchstone.language.organisms import ShortcutLanguage
from touchstone.run import Run

LANGUAGE = ShortcutLanguage()


def test_smoke_reports_every_claim():
    evidence = study("smoke", Run())
    ids = {finding.id for finding in evidence.findings}
    assert {"search-over-no-fitness", "align-lowers-over-refusal", "align-keeps-safety", "real-gain"} <= ids
    assert evidence.scale == "smoke"
    assert {table.name for table in evidence.tables} >= {"search-arms", "shortcut-refusals", "real-search"}
    assert {figure.name for figure in evidence.figures} == {"search", "shortcut", "gain"}
    with pytest.raises(InputError, match="scale 'huge'"):
        study("huge", Run())


def test_selection_is_what_makes_the_search():
    findings, [table], _ = search_arms(SearchSize(3, 8, budget=100), Run())
    frame = table.frame.set_index("arm")["p(refuse)"]
    assert frame["full"] > frame["best of N"] > frame["no fitness"]
    verdicts = {finding.id: finding.verdict for finding in findings}
    assert verdicts["search-over-no-fitness"] == "holds"


def test_best_of_n_scores_n_different_harmless_texts(small):
    refuser, rules = SyntheticRefuser(1, small), default_rules(small)
    scorer = Scorer([refuser], "prefix_mass")
    [best] = best_of_n(small.seeds()[:1], scorer, 60, mutators=rules["mutators"], panel=Panel(rules["judges"]))
    assert scorer.calls == 60
    assert small.parse(best) is not None
    assert refuser.probability([best])[0] >= refuser.probability(small.seeds()[:1])[0]


def test_noise_is_fixed_by_text_and_seed():
    assert noise(0, ["a", "b"]) == [*noise(0, ["a"]), *noise(0, ["b"])]
    assert noise(0, ["a"]) != noise(1, ["a"])
    assert 0.4 < np.mean(noise(0, [str(i) for i in range(1000)])) < 0.6


def test_context_mutators_cannot_change_the_truth():
    writers, rng = study_shortcut.shortcut_writers(), np.random.default_rng(0)
    starts = LANGUAGE.prompts(20, rng, bad=False, alarm=False)
    out = EvoRefuse(None, **writers, fitness=lambda t: noise(0, t), rounds=6).run(starts)
    assert len(out.candidates) > 400
    assert out.rejected == 0
    for one in out.candidates:
        assert LANGUAGE.truth(one.instruction) == "ok"
        pair = [word for word in one.instruction.split() if word[:4] in ("verb", "obje")]
        assert pair == [word for word in one.seed.split() if word[:4] in ("verb", "obje")]
    bad = LANGUAGE.prompts(50, rng, bad=True, alarm=True)
    assert not any(Panel(writers["judges"]).harmless(bad, [""] * 50))
    assert Panel(writers["judges"]).disagreements == []


def test_natural_prompts_are_the_language_s():
    texts = study_shortcut._natural(3000, np.random.default_rng(0))
    bad = np.array([LANGUAGE.truth(text) == "sorry" for text in texts])
    alarming = np.array([LANGUAGE.is_alarming(text) for text in texts])
    assert alarming[bad].mean() == pytest.approx(0.95, abs=0.02)
    assert alarming[~bad].mean() == pytest.approx(0.05, abs=0.02)
    assert all(text.startswith("<bos>") and text.endswith("<sep>") for text in texts)


def test_bootstrap_by_hand():
    same = clustered("x", np.full((5, 3), 2.0), seed=0)
    assert (same.value, same.low, same.high, same.n) == (2.0, 2.0, 2.0, 5)
    assert clustered("x", np.array([[1.0, 3.0]]), seed=0).low is None
    ratio = quotient("r", np.array([2.0, 4.0]), np.array([1.0, 2.0]), seed=0)
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    wild = quotient("r", np.array([1.0, 1.0, 1.0]), np.array([1.0, -1.0, 1.0]), seed=0)
    assert wild.high is None
    assert np.isnan(quotient("r", np.array([1.0]), np.array([0.0]), seed=0).value)
    assert sign(same) == "holds"
    assert sign(same, above=3.0) == "fails"
    assert sign(clustered("x", np.array([[-1.0], [1.0]]), seed=0)) == "undecided"


def test_an_over_refusing_organism_is_found_out_and_cured():
    """End to end on a model whose truth is planted: full training of the organism, a shorter cure."""
    size = study_shortcut.ShortcutSize(1, None, prompts=200, alarms=30, tuning=100)
    found = study_shortcut._organism(size, 0)
    rates = pd.DataFrame(found["rates"]).set_index("model")
    before, after = rates.loc["before"], rates.loc["with ALIGN"]
    assert before["good, alarming"] > 0.95
    assert before["good, plain"] < 0.05
    assert after["good, alarming"] < before["good, alarming"] - 0.3
    assert after["bad, alarming"] > 0.8
    assert after["good, plain"] < 0.1
    arms = pd.DataFrame(found["search"]).set_index("arm")["PRR"]
    assert arms["full"] > 0.95
    assert arms["seeds unchanged"] < 0.1
    assert arms["no fitness"] < arms["full"]
    assert found["attribution"]["with ALIGN"] < found["attribution"]["before"]
