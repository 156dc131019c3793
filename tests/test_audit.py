"""Plans and audits: errors with their line, limits and exit codes, and a run that a kill cannot spoil."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import fakes
from touchstone import catalog
from touchstone.audit import run_audit
from touchstone.errors import InputError
from touchstone.evidence import Evidence
from touchstone.plan import default_plan, load_plan, needed_setting, needs_before
from touchstone.run import Run


@pytest.fixture(autouse=True)
def _fake_method(monkeypatch):
    monkeypatch.setattr(catalog, "METHODS", catalog.METHODS)
    fakes.install()


@pytest.fixture
def plan(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "plan.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


GOOD = """title = "Release 4"

[subject]
model = "some/model"

[[check]]
use = "fake"   # over-refusal
limit = { refusal_rate = "<= 0.10" }
units = 3

[[check]]
use = "fake"
rate = 0.05
[check.limit]
cost = "< 100"
"""


def test_a_plan_is_read(plan):
    found = load_plan(plan(GOOD))
    assert found.title == "Release 4"
    assert found.subject.model == "some/model"
    assert found.check[0].settings == fakes.Settings(units=3)
    assert found.check[1].settings == fakes.Settings(rate=0.05)
    assert str(found.check[1].limits["cost"]) == "< 100"


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (("[subject]", "[subject"), 3, "not TOML"),
        (('model = "some/model"', 'modle = "some/model"'), 4, "'subject.modle': unknown key; expected one of model"),
        (('model = "some/model"', "model = 3"), 4, "subject.model"),
        (('use = "fake"   #', 'use = "fkae"   #'), 7, "did you mean 'fake'"),
        (("refusal_rate", "refusal_rat"), 8, "measures refusal_rate|it measures cost, refusal_rate"),
        (('"<= 0.10"', '"about 0.10"'), 8, "expected a relation and a number"),
        (('"<= 0.10"', "0.10"), 8, "limit"),
        (("units = 3", "unit = 3"), 9, "no such setting; it has units"),
        (("units = 3", 'units = "many"'), 9, "setting 'units' of fake"),
        (("rate = 0.05", "rate = [1]"), 13, "setting 'rate'"),
        (('cost = "< 100"', 'price = "< 100"'), 15, "limit 'price'"),
        (('title = "Release 4"', 'titel = "Release 4"'), 1, "'titel': unknown key"),
        (('use = "fake"\nrate', "rate"), 11, "'check.use': missing"),
        (('use = "fake"   #', 'use = "uniteformer"   #'), 7, "has no check yet"),
        (('model = "some/model"', 'model = "m"\nendpoint = "http://x/v1"'), 8, "needs the model itself"),
    ],
)
def test_a_typo_in_a_plan_is_one_line_with_its_number(plan, change, line, says):
    assert change[0] in GOOD
    with pytest.raises(InputError, match=says) as caught:
        load_plan(plan(GOOD.replace(*change, 1)))
    assert f"line {line}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[subject]\n", "check = []\n"])
def test_a_plan_without_checks(plan, text):
    with pytest.raises(InputError, match="check"):
        load_plan(plan(text))


def test_a_plan_that_is_not_text(plan, tmp_path):
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        load_plan(tmp_path / "bad.toml")
    with pytest.raises(InputError, match="cannot be read"):
        load_plan(tmp_path / "missing.toml")


def test_the_default_plan_has_every_language_check():
    slugs = [check.use for check in default_plan().check]
    records = [record for record in catalog.METHODS if record.room == "language" and "check" in record.offers]
    modules = {record.slug: record.part("check") for record in records}
    assert slugs == [
        slug for slug, module in modules.items() if not needs_before(module) and not needed_setting(module)
    ]
    assert "angular-steering" in slugs
    assert "perinucleus-fingerprint" not in slugs


def test_an_audit_writes_evidence_record_and_report(plan, tmp_path):
    out = tmp_path / "out"
    result = run_audit(load_plan(plan(GOOD)), out, subject=object())
    assert sorted(p.name for p in out.iterdir()) == [".lock", "01-fake", "02-fake", "audit.json", "report.html"]
    record = json.loads((out / "audit.json").read_text())
    assert record == result.record
    assert record["schema"] == "touchstone.audit/1"
    assert record["status"] == "complete"
    assert [check["folder"] for check in record["checks"]] == ["01-fake", "02-fake"]
    assert record["checks"][0]["limits"] == [
        {"key": "refusal_rate", "limit": "<= 0.1", "value": 0.1, "verdict": "undecided"}
    ]
    assert record["checks"][1]["verdict"] == "holds"
    assert result.verdict == "undecided"
    assert result.exit_code == 0
    assert Evidence.load(out / "01-fake").finding("cost").measured.value == 3.0
    assert "Release 4" in (out / "report.html").read_text(encoding="utf-8")


def test_a_broken_limit_is_exit_code_1_and_a_check_that_cannot_run_is_2(plan, tmp_path):
    broken = run_audit(load_plan(plan(GOOD.replace("units = 3", "rate = 0.2"))), tmp_path / "a", subject=object())
    assert (broken.verdict, broken.exit_code) == ("fails", 1)
    error = run_audit(load_plan(plan(GOOD.replace("units = 3", "broken = true"))), tmp_path / "b", subject=object())
    assert error.exit_code == 2
    assert error.record["checks"][0]["error"] == "subject: cannot be checked"
    assert error.record["checks"][1]["verdict"] == "holds"
    assert "cannot be checked" in (tmp_path / "b" / "report.html").read_text(encoding="utf-8")
    again = run_audit(
        load_plan(plan(GOOD.replace("units = 3", "broken = true"))), tmp_path / "b", subject=object(), resume=True
    )
    assert again.exit_code == 2


def test_an_audit_never_writes_over_anything(plan, tmp_path):
    made = load_plan(plan(GOOD))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        run_audit(made, tmp_path / "full", subject=object())
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
    run_audit(made, tmp_path / "out", subject=object())
    before = (tmp_path / "out" / "audit.json").read_bytes()
    with pytest.raises(InputError, match="--resume"):
        run_audit(made, tmp_path / "out", subject=object())
    with pytest.raises(InputError, match="another plan, seed or version"):
        run_audit(made, tmp_path / "out", subject=object(), run=Run(seed=1), resume=True)
    assert (tmp_path / "out" / "audit.json").read_bytes() == before
    with pytest.raises(InputError, match="cannot be written"):
        run_audit(made, tmp_path / "plan.toml" / "out", subject=object())
    (tmp_path / "out" / "audit.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        run_audit(made, tmp_path / "out", subject=object(), resume=True)


SCRIPT = """
import sys
from tests import fakes
fakes.install()
from touchstone.audit import run_audit
from touchstone.plan import load_plan
run_audit(load_plan(sys.argv[1]), sys.argv[2], subject=object(), resume=len(sys.argv) > 3)
"""


def test_resume_after_kill_9_recomputes_nothing(plan, tmp_path):
    log, out = tmp_path / "log", tmp_path / "out"
    check = f'[[check]]\nuse = "fake"\nlog = "{log}"\n'
    path = plan(f"{check}units = 2\n{check}units = 40\nseconds = 0.05\n")
    command = [sys.executable, "-c", SCRIPT, str(path), str(out)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    for _ in range(600):
        if (out / "01-fake" / "evidence.json").exists() and log.read_text().count("\n") >= 10:
            break
        time.sleep(0.05)
    with pytest.raises(InputError, match="another run is writing there"):
        run_audit(load_plan(path), out, subject=object(), resume=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "02-fake").exists()
    assert json.loads((out / "audit.json").read_text())["status"] == "running"
    first = log.read_text().split()
    first_evidence = (out / "01-fake" / "evidence.json").stat().st_mtime_ns
    done = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    second = log.read_text().split()[len(first) :]
    # The one unit under way when the process died may run again; no other may.
    assert len(set(first[2:]) & set(second)) <= 1
    assert set(first[2:]) | set(second) == {str(i) for i in range(40)}
    assert (out / "01-fake" / "evidence.json").stat().st_mtime_ns == first_evidence
    assert Evidence.load(out / "02-fake").finding("cost").measured.value == sum(range(40))
    assert not (out / ".journal").exists()


def test_checks_that_need_a_second_model_or_a_setting_wait_for_it(plan, tmp_path):
    fakes.install_needy("fake-pair", NEEDS_BEFORE=True)
    fakes.install_needy("fake-ledger", NEEDS_SETTING="ledger")
    plain = [check.use for check in default_plan().check]
    assert not {"fake-pair", "fake-ledger"} & set(plain)
    full = default_plan("some/model", before="some/older", given={"ledger": "l.json"})
    assert full.subject.before == "some/older"
    added = [check.use for check in full.check if check.use not in plain]
    assert added == ["perinucleus-fingerprint", "unlearned-extraction", "fake-pair", "fake-ledger"]
    assert full.check[-1].settings == fakes.PairSettings("l.json")
    with pytest.raises(InputError, match="ladder: no check of this audit has it"):
        default_plan(given={"ladder": "x"})

    text = (
        '[subject]\nmodel = "new"\nbefore = "old"\n\n[[check]]\nuse = "fake-pair"\n\n[[check]]\nuse = "fake-ledger"\n'
    )
    with pytest.raises(InputError, match="line 9: fake-ledger needs the setting ledger"):
        load_plan(plan(text))
    with pytest.raises(InputError, match="line 5: fake-pair compares two models"):
        load_plan(plan(text.replace('before = "old"\n', "")))
    found = load_plan(plan(text + 'ledger = "l.json"\n'))
    result = run_audit(found, tmp_path / "out", subject="NEW", before="OLD")
    given = [evidence.table("given")["what"].tolist() for evidence in result.evidences]
    assert given == [["'NEW'", "'OLD'", ""], ["'NEW'", "None", "l.json"]]


def test_the_model_before_is_loaded_from_the_plan(plan, tmp_path, monkeypatch):
    fakes.install_needy("fake-pair", NEEDS_BEFORE=True)
    loaded = []

    class Loader:
        @staticmethod
        def load(name, **options):
            loaded.append(name)
            return name

    monkeypatch.setattr("touchstone.language.LanguageModel", Loader, raising=False)
    text = '[subject]\nmodel = "new"\nbefore = "old"\n\n[[check]]\nuse = "fake-pair"\n'
    result = run_audit(load_plan(plan(text)), tmp_path / "out")
    assert loaded == ["new", "old"]
    assert result.evidences[0].table("given")["what"].tolist()[:2] == ["'new'", "'old'"]
    assert result.record["subject"]["before"] == "old"
