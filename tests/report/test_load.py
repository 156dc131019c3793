from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from touchstone.errors import InputError
from touchstone.evidence import Evidence
from touchstone.report import load_run, render_html


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def test_one_evidence(tmp_path: Path, refusal: Evidence) -> None:
    refusal.save(tmp_path / "run")
    title, (evidence,), audit = load_run(tmp_path / "run")
    assert title == refusal.title
    assert audit is None
    assert evidence.findings == refusal.findings
    assert evidence.figures == refusal.figures


def test_audit(audit_folder: Path, audit: dict[str, Any]) -> None:
    title, evidences, loaded = load_run(audit_folder)
    assert title == "Small model before release"
    assert loaded == audit
    # The third check did not finish and left no Evidence.
    assert [e.method for e in evidences] == ["evorefuse", "test-awareness"]


def test_loaded_audit_renders_as_the_one_in_memory(
    audit_folder: Path, audit: dict[str, Any], refusal: Evidence, awkward: Evidence
) -> None:
    title, evidences, loaded = load_run(str(audit_folder))
    assert render_html(title, evidences, audit=loaded) == render_html(title, [refusal, awkward], audit=audit)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        load_run(tmp_path / "nowhere")


def test_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither audit\.json nor evidence\.json"):
        load_run(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b'{"schema": "touchstone.audit/9"}', b"[" * 100_000])
def test_damaged_json(tmp_path: Path, content: bytes) -> None:
    for name in ("audit.json", "evidence.json"):
        if name == "evidence.json" and content.startswith(b"[["):
            continue
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(content)
        with pytest.raises(InputError, match=name) as caught:
            load_run(folder)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.pop("title"),
        lambda d: d.pop("checks"),
        lambda d: d.update(checks={}),
        lambda d: d.update(checks=["evorefuse"]),
        lambda d: d.update(verdict="fine"),
        lambda d: d.update(verdict=["holds"]),
        lambda d: d.update(seconds="long"),
        lambda d: d.update(subject="model"),
        lambda d: d["checks"][0].pop("use"),
        lambda d: d["checks"][0].update(seconds=None),
        lambda d: d["checks"][0].update(verdict=1),
        lambda d: d["checks"][0].update(folder=3),
        lambda d: d["checks"][0].update(limits=[{"key": "a"}]),
        lambda d: d["checks"][0].update(limits=5),
        lambda d: d["checks"][0]["limits"][0].update(value="0.1"),
    ],
)
def test_damaged_audit(audit_folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    change(audit_folder / "audit.json", edit)
    with pytest.raises(InputError, match=r"audit\.json: damaged"):
        load_run(audit_folder)


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.pop("findings"),
        lambda d: d["findings"][0].update(statement=3),
        lambda d: d["findings"][0].update(limit=0.1),
        lambda d: d["findings"][0]["measured"].update(low="0.1"),
        lambda d: d["findings"][0]["measured"].update(name=None),
        lambda d: d["findings"][0]["against"].update(n=1.5),
        lambda d: d["tables"][0].update(title=None),
        lambda d: d["figures"][0].update(title=["x"]),
    ],
)
def test_damaged_evidence(tmp_path: Path, refusal: Evidence, edit: Callable[[dict[str, Any]], object]) -> None:
    folder = refusal.save(tmp_path / "run")
    load_run(folder)
    change(folder / "evidence.json", edit)
    with pytest.raises(InputError, match=r"evidence\.json: damaged"):
        load_run(folder)


def test_audit_whose_evidence_is_gone(audit_folder: Path) -> None:
    (audit_folder / "01-evorefuse" / "evidence.json").unlink()
    with pytest.raises(InputError, match="01-evorefuse"):
        load_run(audit_folder)


def test_check_without_folder_or_error(audit_folder: Path) -> None:
    change(audit_folder / "audit.json", lambda d: d["checks"][2].update(error=None, folder=None))
    with pytest.raises(InputError, match="'watermark' names no folder"):
        load_run(audit_folder)


def test_interrupted_audit(audit_folder: Path) -> None:
    change(audit_folder / "audit.json", lambda d: d["checks"][2].update(error=None))
    with pytest.raises(InputError, match="03-watermark"):
        load_run(audit_folder)
    change(audit_folder / "audit.json", lambda d: d.update(status="running"))
    assert len(load_run(audit_folder)[1]) == 2


def test_folder_outside_the_audit(audit_folder: Path, refusal: Evidence) -> None:
    refusal.save(audit_folder.parent / "secret")
    change(audit_folder / "audit.json", lambda d: d["checks"][0].update(folder="../secret"))
    with pytest.raises(InputError, match="outside the audit"):
        load_run(audit_folder)


def test_import_is_light() -> None:
    heavy = ("jinja2", "rich", "matplotlib", "torch")
    code = f"import sys, touchstone.report; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_of_several_studies(tmp_path):
    from touchstone.evidence import Evidence, Finding, Measurement

    for name in ("b", "a"):
        Evidence(f"Study {name}", name, "study", (Finding("f", "F.", "holds", Measurement("m", 1.0)),)).save(
            tmp_path / "runs" / name
        )
    title, evidences, audit = load_run(tmp_path / "runs")
    assert (title, [e.method for e in evidences], audit) == ("Studies", ["a", "b"], None)
