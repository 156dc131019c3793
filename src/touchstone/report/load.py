"""From a folder on disk to what the reports show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from touchstone.errors import InputError
from touchstone.evidence import Evidence
from touchstone.files import read_text
from touchstone.report.words import VERDICTS

__all__ = ["AUDIT_SCHEMA", "load_run"]

AUDIT_SCHEMA = "touchstone.audit/1"


def load_run(folder: str | Path) -> tuple[str, list[Evidence], dict[str, Any] | None]:
    """Read what a run wrote: the folder of one Evidence, of several studies, or of an audit.

    Returns
    -------
    title, evidences, audit
        ``audit`` is the content of ``audit.json``, ``None`` where the folder is not that of an audit.

    Raises
    ------
    InputError
        If the folder is missing, is none of these, or is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected one written by touchstone audit or touchstone study")
    if (folder / "audit.json").exists():
        audit = _read_audit(folder / "audit.json")
        evidences = []
        for check in audit["checks"]:
            place = _inside(folder, check["folder"]) if check.get("folder") else None
            absent = place is None or not (place / "evidence.json").exists()
            if absent and (check.get("error") or check.get("left_out") or audit.get("status") == "running"):
                continue
            if place is None:
                raise InputError(f"{folder / 'audit.json'}: check {check['use']!r} names no folder")
            evidences.append(Evidence.load(place))
        return audit["title"], evidences, audit
    if not (folder / "evidence.json").exists():
        several = sorted(place.parent for place in folder.glob("*/evidence.json"))
        if several:
            return "Studies", [Evidence.load(place) for place in several], None
        raise InputError(
            f"{folder}: neither audit.json nor evidence.json there; expected a folder written by touchstone"
        )
    evidence = Evidence.load(folder)
    return evidence.title, [evidence], None


def _read_audit(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path, "audit"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(data, dict) or data.get("schema") != AUDIT_SCHEMA:
        what = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"{path}: expected schema {AUDIT_SCHEMA!r}, found {what!r}")
    _expect(isinstance(data.get("title"), str), path, "title")
    _expect(_is_verdict(data.get("verdict")), path, "verdict")
    _expect(isinstance(data.get("subject", {}), dict), path, "subject")
    _expect(_is_number(data.get("seconds")), path, "seconds")
    _expect(isinstance(data.get("started"), str), path, "started")
    _expect(isinstance(data.get("checks"), list), path, "checks")
    for i, check in enumerate(data["checks"]):
        at = f"checks[{i}]"
        _expect(isinstance(check, dict) and isinstance(check.get("use"), str), path, f"{at}.use")
        _expect(_is_verdict(check.get("verdict")), path, f"{at}.verdict")
        _expect(_is_number(check.get("seconds")), path, f"{at}.seconds")
        for key in ("folder", "error", "left_out"):
            _expect(isinstance(check.get(key), str | None), path, f"{at}.{key}")
        _expect(isinstance(check.get("limits", []), list | None), path, f"{at}.limits")
        for j, limit in enumerate(check.get("limits") or []):
            sound = (
                isinstance(limit, dict)
                and all(isinstance(limit.get(key), str) for key in ("key", "limit"))
                and (limit.get("value") is None or _is_number(limit["value"]))
                and _is_verdict(limit.get("verdict"))
            )
            _expect(sound, path, f"{at}.limits[{j}]")
    return data


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_verdict(value: Any) -> bool:
    return isinstance(value, str) and value in VERDICTS


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{folder / 'audit.json'}: folder {name!r} lies outside the audit")
    return folder / name


def _expect(sound: bool, path: Path, what: str) -> None:
    if not sound:
        raise InputError(f"{path}: damaged ({what} is missing or not what was expected)")
