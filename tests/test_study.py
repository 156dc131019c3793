"""Studies: where their Evidence goes, several seeds, several slugs, and nothing overwritten."""

from __future__ import annotations

import math

import pytest

from tests import fakes
from touchstone import catalog
from touchstone.engine import RayEngine
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Finding, Measurement
from touchstone.run import Run
from touchstone.study import merge, run_studies


@pytest.fixture(autouse=True)
def _fake_method(monkeypatch):
    monkeypatch.setattr(catalog, "METHODS", catalog.METHODS)
    fakes.install()


def test_one_study_saves_its_evidence(tmp_path):
    found = run_studies(["fake"], "smoke", run=Run(seed=4), out=tmp_path / "s")
    saved = Evidence.load(tmp_path / "s")
    assert saved.scale == "smoke"
    assert saved.seed == 4
    assert saved.kind == "study"
    assert saved.finding("claim").measured.value == found["fake"].finding("claim").measured.value == 4 + 5 + 6


def test_several_seeds_give_their_mean_and_every_one(tmp_path):
    evidence = run_studies(["fake"], "cpu", seeds=3, out=tmp_path / "s")["fake"]
    claim = evidence.finding("claim")
    # Seeds 0, 1, 2 give 3, 6, 9; t(0.975, 2) = 4.30265, s/√3 = 1.73205.
    assert claim.measured.value == 6
    assert claim.measured.low == pytest.approx(6 - 4.30265 * 1.73205, abs=1e-3)
    assert claim.measured.n == 3
    assert claim.verdict == "holds"
    assert evidence.finding("even").verdict == "undecided"
    assert evidence.table("seeds").query("finding == 'claim'").measured.tolist() == [3, 6, 9]
    assert sorted(p.name for p in (tmp_path / "s" / "seeds").iterdir()) == ["seed-0", "seed-1", "seed-2"]
    assert Evidence.load(tmp_path / "s" / "seeds" / "seed-2").seed == 2


def test_what_is_there_stays_unless_it_may_be_replaced(tmp_path):
    run_studies(["fake"], "smoke", out=tmp_path / "s")
    with pytest.raises(InputError, match="--replace"):
        run_studies(["fake"], "smoke", out=tmp_path / "s")
    run_studies(["fake"], "smoke", run=Run(seed=9), out=tmp_path / "s", replace_out=True)
    assert Evidence.load(tmp_path / "s").seed == 9
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(InputError, match=r"no evidence\.json"):
        run_studies(["fake"], "smoke", out=tmp_path / "mine", replace_out=True)
    assert (tmp_path / "mine" / "file").exists()


def test_a_study_on_a_local_ray_gives_the_same():
    ray = pytest.importorskip("ray")
    ray.init(
        num_cpus=2, log_to_driver=False, include_dashboard=False, configure_logging=False, ignore_reinit_error=True
    )
    try:
        there = run_studies(["fake"], "smoke", run=Run(seed=4, engine=RayEngine(workers=2)))["fake"]
    finally:
        ray.shutdown()
    here = run_studies(["fake"], "smoke", run=Run(seed=4))["fake"]
    assert there.findings == here.findings
    assert there.table("noise").equals(here.table("noise"))


def test_options_reach_the_study():
    assert run_studies(["fake"], "smoke", options={"shift": 2.5})["fake"].finding("claim").measured.value == 5.5
    with pytest.raises(InputError, match="option 'shfit': the study of fake has shift"):
        run_studies(["fake"], "smoke", options={"shfit": 2.5})


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(fakes, "study", lambda scale, run: pytest.fail("the study ran"))
    with pytest.raises(InputError, match="cannot be written"):
        run_studies(["fake"], "smoke", out=tmp_path / "file" / "s")


def test_bad_arguments():
    with pytest.raises(InputError, match="scale 'huge'"):
        run_studies(["fake"], "huge")
    with pytest.raises(InputError, match="seeds 0"):
        run_studies(["fake"], "smoke", seeds=0)
    with pytest.raises(InputError, match="did you mean 'fake'"):
        run_studies(["fakes"], "smoke")
    with pytest.raises(InputError, match="has no study yet"):
        run_studies(["uniteformer"], "smoke")


def test_merging_numbers_that_could_not_be_measured():
    def one(value: float) -> Evidence:
        return Evidence("t", "m", "study", (Finding("f", "F.", "holds", Measurement("x", value)),))

    assert merge([one(1.0), one(math.nan), one(3.0)]).finding("f").measured.value == 2.0
    assert math.isnan(merge([one(math.nan), one(math.nan)]).finding("f").measured.value)
