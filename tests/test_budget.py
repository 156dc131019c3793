"""The time budget: shares by hand, checks that shrink, are left out or stopped, and an audit that goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from tests import fakes
from touchstone import catalog
from touchstone.audit import run_audit
from touchstone.budget import Budget, Cost, slowness
from touchstone.errors import InputError, OutOfTimeError
from touchstone.plan import load_plan
from touchstone.report import load_run, render_terminal
from touchstone.run import Run


@dataclass(frozen=True)
class Settings:
    prompts: int = 10
    other: int = 1


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


COST = Cost(seconds=60.0, setting="prompts", least=4, most=30, fixed=20.0)


def budget(seconds, slow=1.0):
    return Budget(seconds, slow, Clock())


def test_checks_share_what_is_left_in_proportion_to_their_cost():
    # 120 s for 60 + 60: a check may take 60 s, which is its default size.
    assert budget(120).fit(Settings(), [], COST, [COST]).prompts == 10
    # 80 s: 40 s each, of which 20 s are fixed, leaves 20 s at 4 s a prompt.
    assert budget(80).fit(Settings(), [], COST, [COST]).prompts == 5
    # Twice as slow: 120 s would be 60 s each, of which 40 s are fixed; 20 s at 8 s a prompt are fewer than the least.
    assert budget(120, 2.0).fit(Settings(), [], COST, [COST]).prompts == 4
    assert budget(1000).fit(Settings(), [], COST, [COST]).prompts == 30


def test_what_does_not_fit_even_at_its_least_is_left_out():
    # The least is 20 s + 4 · 4 s.
    assert budget(36.5).fit(Settings(), [], COST, []).prompts == 4
    assert budget(35.5).fit(Settings(), [], COST, []) is None
    assert budget(0).fit(Settings(), [], None, []) is None


def test_a_setting_that_the_plan_names_stays():
    named = Settings(prompts=25)
    assert budget(125).fit(named, ["prompts"], COST, []) == named
    assert budget(115).fit(named, ["prompts"], COST, []) is None
    assert budget(60).fit(Settings(other=7), ["other"], COST, []).other == 7


def test_a_check_of_unknown_cost_runs_as_it_is():
    assert budget(1).fit(Settings(), [], None, [COST]) == Settings()


def test_the_slowness_follows_what_checks_took():
    found = budget(100)
    found.learn(Settings(), COST, 240.0)
    assert found.slowness == pytest.approx(2.0)
    found.learn(Settings(prompts=5), COST, 80.0)
    assert found.slowness == pytest.approx(2.0)
    found.learn(Settings(), None, 999.0)
    assert found.slowness == pytest.approx(2.0)


class Writer:
    """Replies at once; counts the prompts."""

    source = "writer"
    asked = 0

    def generate(self, prompts, **options):
        self.asked += len(prompts)
        return ["x"] * len(prompts)


def test_slowness_asks_the_subject_and_is_never_zero():
    subject = Writer()
    assert 0 < slowness(subject) < 1
    assert subject.asked == 9


def test_a_run_past_its_deadline_begins_no_further_unit(tmp_path):
    done = []

    def unit(i):
        done.append(i)
        time.sleep(0.05)
        return i

    run = Run(deadline=time.monotonic() + 0.12, journal=tmp_path)
    with pytest.raises(OutOfTimeError, match="time budget"):
        run.map("units", unit, list(range(50)))
    assert 1 <= len(done) < 10
    assert Run(journal=tmp_path).map("units", unit, list(range(len(done)))) == sorted(set(done))


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(catalog, "METHODS", catalog.METHODS)
    fakes.install()


def write(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return load_plan(path)


@pytest.mark.usefixtures("fake")
def test_an_audit_measures_less_or_more_and_says_how_much(tmp_path):
    plan = write(tmp_path, '[[check]]\nuse = "fake"\n[[check]]\nuse = "fake"\nunits = 7\n')
    result = run_audit(plan, tmp_path / "out", subject=Writer(), minutes=1)
    first, second = result.record["checks"]
    assert first["settings"]["units"] > 4
    assert second["settings"]["units"] == 7
    assert result.record["minutes"] == 1
    assert result.exit_code == 0
    assert run_audit(plan, tmp_path / "whole", subject=Writer()).record["checks"][0]["settings"]["units"] == 4


@pytest.mark.usefixtures("fake")
def test_what_is_stopped_or_left_out_is_said_and_can_go_on(tmp_path):
    log = tmp_path / "log"
    slow = f'[[check]]\nuse = "fake"\nunits = 10\nseconds = 0.2\nlog = "{log}"\nlimit = {{ cost = "< 9999" }}\n'
    plan = write(tmp_path, slow + '[[check]]\nuse = "fake"\nunits = 5000\n')
    result = run_audit(plan, tmp_path / "out", subject=Writer(), minutes=0.01)
    assert result.record["checks"][0]["left_out"] == "the time budget ended while it ran"
    assert result.record["checks"][1]["left_out"] == "it no longer fitted the time budget"
    assert (result.verdict, result.exit_code) == ("undecided", 0)
    _, evidences, record = load_run(tmp_path / "out")
    assert evidences == []
    page = (tmp_path / "out" / "report.html").read_text()
    for text in ("Both checks did not finish", "the time budget ended while it ran", "give the audit more minutes"):
        assert text in page
    from rich.console import Console

    console = Console(width=200, record=True)
    console.print(render_terminal(evidences, record))
    assert "did not finish: it no longer fitted the time budget" in console.export_text()

    before = log.read_text().split()
    result = run_audit(plan, tmp_path / "out", subject=Writer(), resume=True)
    assert result.verdict == "holds"
    assert len(result.evidences) == 2
    assert sorted(log.read_text().split(), key=int) == [str(i) for i in range(10)], before
    assert not (tmp_path / "out" / ".journal").exists()


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_a_budget_of_nothing_is_refused_before_anything_is_written(tmp_path, minutes):
    plan = write(tmp_path, '[[check]]\nuse = "fake"\n')
    with pytest.raises(InputError, match="expected more than 0"):
        run_audit(plan, tmp_path / "out", subject=Writer(), minutes=minutes)
    assert not (tmp_path / "out").exists()
