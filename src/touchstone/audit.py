"""The audit: a plan's checks on one subject, Evidence on disk as each check ends, a verdict at the end."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from touchstone.budget import Budget, Cost, slowness
from touchstone.environment import describe
from touchstone.errors import InputError, OutOfTimeError, TouchstoneError
from touchstone.evidence import Evidence, Verdict, worst
from touchstone.files import locked, read_text, write_text
from touchstone.plan import CheckPlan, Plan, TableSubject, needs_before, settings_of
from touchstone.run import Run

if TYPE_CHECKING:
    from touchstone.decisions.predictions import Predictions

__all__ = ["SCHEMA", "AuditResult", "load_table", "run_audit"]

SCHEMA = "touchstone.audit/1"


@dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes
    ----------
    folder : where it is on disk.
    record : content of ``audit.json``.
    evidences : Evidence of each check that ended, in the plan's order.
    """

    folder: Path
    record: dict[str, Any]
    evidences: list[Evidence] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """``fails`` if a limit is broken or a check could not run."""
        return self.record["verdict"]

    @property
    def exit_code(self) -> int:
        """0 if all limits hold, 1 if one is broken, 2 if a check could not run."""
        if any(check["error"] for check in self.record["checks"]):
            return 2
        return int(any(limit["verdict"] == "fails" for c in self.record["checks"] for limit in c["limits"]))


def run_audit(
    plan: Plan,
    out: str | Path,
    *,
    run: Run | None = None,
    subject: Any = None,
    before: Any = None,
    resume: bool = False,
    minutes: float | None = None,
    say: Callable[[str], None] | None = None,
) -> AuditResult:
    """Run ``plan`` and write ``out``: one Evidence folder a check, ``audit.json`` and ``report.html``.

    Parameters
    ----------
    plan : what to check.
    out : folder to write; it must be empty or absent unless ``resume`` is set.
    run : seed, device, engine and progress.
    subject, before : the model itself, and what it was before a change; loaded from the plan if ``None``.
    resume : continue an audit of the same plan, seed and version that was interrupted: checks that ended are read
        from disk, and of the check that was interrupted the units of work that ended.
    minutes : time budget. Checks measure less, or more, so that they end by then; one that no longer fits is left
        out, and one that meets the end is stopped, which the record and the report say. Settings that the plan
        names stay as they are. ``None`` runs every check at its own settings.
    say : called with a line whenever a step begins.

    Raises
    ------
    InputError
        If ``minutes`` is not positive, the folder holds something else, another run writes to it, or the subject
        cannot be loaded. What was in the folder stays.
    """
    run = run or Run()
    say = say or (lambda line: None)
    if minutes is not None and not minutes > 0:
        raise InputError(f"minutes {minutes}: expected more than 0")
    with locked(out) as folder:
        record = _open(folder, plan, run, resume)
        record["minutes"] = minutes
        budget = None if minutes is None else Budget(60 * minutes)
        measured = False
        names = [f"{i:02d}-{check.use}" for i, check in enumerate(plan.check, start=1)]
        evidences: list[Evidence] = []
        for i, (check, name, entry) in enumerate(zip(plan.check, names, record["checks"], strict=True)):
            if (folder / name / "evidence.json").is_file():
                evidence: Evidence | None = Evidence.load(folder / name)
            else:
                if subject is None:
                    subject = load_subject(plan, run, say)
                if budget is not None and not measured:
                    table = isinstance(plan.subject, TableSubject)
                    budget.slowness, measured = (1.0 if table else slowness(subject)), True
                settings = _settings(check, entry, budget, plan.check[i + 1 :])
                evidence = None
                if settings is not None:
                    pair: dict[str, Any] = {}
                    if needs_before(check.module):
                        before = load_subject(plan, run, say, before=True) if before is None else before
                        pair["before"] = before
                    work = partial(check.module.check, subject, settings, **pair)
                    evidence = _check(check, name, work, settings, run, folder, entry, budget, say)
            if evidence is not None:
                _judge(entry, evidence, check)
                evidences.append(evidence)
            _write(folder, record)
        record["status"] = "complete"
        record["verdict"] = worst(entry["verdict"] for entry in record["checks"])
        record["seconds"] = round(sum(entry["seconds"] for entry in record["checks"]), 3)
        _write(folder, record)
        from touchstone.report import write_report

        write_report(folder, plan.title, evidences, record)
        if not any(entry["left_out"] for entry in record["checks"]):
            shutil.rmtree(folder / ".journal", ignore_errors=True)
        return AuditResult(folder, record, evidences)


def load_subject(plan: Plan, run: Run, say: Callable[[str], None], *, before: bool = False) -> Any:
    """What a plan names: a table, a model here or behind an endpoint, or what the model was before a change."""
    wanted = plan.subject
    if isinstance(wanted, TableSubject):
        return load_table(wanted, say)
    if wanted.endpoint and not before:
        from touchstone.language.endpoint import RemoteModel

        return RemoteModel(wanted.endpoint, wanted.model)
    from touchstone.language import LanguageModel

    device = run.device if run.device != "auto" else wanted.device
    return LanguageModel.load(
        wanted.before if before else wanted.model, device=device, dtype=wanted.dtype, progress=say
    )


def load_table(subject: TableSubject, say: Callable[[str], None]) -> Predictions:
    """The table of a plan; roles of columns that were guessed are said."""
    from touchstone.decisions.predictions import Predictions

    roles = subject.model_dump(exclude={"predictions"})
    table = Predictions.read(subject.predictions, **roles)
    for role in table.guessed:
        found = getattr(table, role)
        say(f"{role}, guessed: {found if isinstance(found, str) else ', '.join(found)}")
    return table


def _open(folder: Path, plan: Plan, run: Run, resume: bool) -> dict[str, Any]:
    """The record to fill: a new one, or that of the interrupted audit."""
    path = folder / "audit.json"
    fresh: dict[str, Any] = {
        "schema": SCHEMA,
        "title": plan.title,
        "status": "running",
        "subject": plan.subject.model_dump(mode="json"),
        "plan": plan.model_dump(mode="json"),
        "seed": run.seed,
        "checks": [
            {
                "use": check.use,
                "folder": f"{i:02d}-{check.use}",
                "verdict": "undecided",
                "seconds": 0.0,
                "limits": [],
                "error": None,
                "left_out": None,
                "settings": None,
            }
            for i, check in enumerate(plan.check, start=1)
        ],
        "verdict": "undecided",
        "environment": describe(run.device),
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": 0.0,
    }
    if not path.exists():
        there = sorted(item.name for item in folder.iterdir() if item.name != ".lock")
        if there:
            raise InputError(f"{folder}: not empty (it holds {there[0]}); choose another --out")
        _write(folder, fresh)
        return fresh
    if not resume:
        raise InputError(f"{folder}: already holds an audit; continue it with --resume or choose another --out")
    try:
        old: dict[str, Any] = json.loads(read_text(path, "audit"))
        same = all(old[key] == fresh[key] for key in ("schema", "plan", "seed"))
        same = same and old["environment"]["touchstone"] == fresh["environment"]["touchstone"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: damaged ({error})") from None
    if not same:
        raise InputError(f"{folder}: holds an audit of another plan, seed or version; choose another --out")
    for entry in old["checks"]:
        entry["error"] = entry["left_out"] = None
    return old


def _settings(check: CheckPlan, entry: dict[str, Any], budget: Budget | None, later: Sequence[CheckPlan]) -> Any | None:
    """The settings to run a check with, put down in its entry; ``None`` if it does not fit the budget any more."""
    if entry.get("settings") is not None:
        # An audit that goes on keeps the settings it began with: its journal holds units of them.
        return settings_of(check.module.Settings, entry["settings"], check.use)
    settings = check.settings
    if budget is not None:
        costs = [_cost(one) for one in later]
        settings = budget.fit(settings, list(check.model_extra or {}), _cost(check), costs)
    if settings is None:
        entry["left_out"] = "it no longer fitted the time budget"
        entry["verdict"] = "undecided"
        return None
    entry["settings"] = asdict(settings)
    return settings


def _cost(check: CheckPlan) -> Cost | None:
    return getattr(check.module, "COST", None)


def _check(
    check: CheckPlan,
    name: str,
    measure: Callable[[Run], Evidence],
    settings: Any,
    run: Run,
    folder: Path,
    entry: dict[str, Any],
    budget: Budget | None,
    say: Callable[[str], None],
) -> Evidence | None:
    say(f"checking {check.use}")
    started = time.time()
    journal = folder / ".journal" / name
    try:
        deadline = None if budget is None else time.monotonic() + budget.left
        evidence = measure(replace(run, journal=journal, deadline=deadline))
        evidence.save(folder / name)
        if budget is not None:
            budget.learn(settings, _cost(check), time.time() - started)
    except OutOfTimeError:
        entry["left_out"] = "the time budget ended while it ran"
        entry["verdict"] = "undecided"
        entry["seconds"] = round(time.time() - started, 3)
        return None
    except TouchstoneError as error:
        entry["error"] = str(error)
        entry["verdict"] = "fails"
        entry["seconds"] = round(time.time() - started, 3)
        return None
    shutil.rmtree(journal, ignore_errors=True)
    return evidence


def _judge(entry: dict[str, Any], evidence: Evidence, check: CheckPlan) -> None:
    """Hold what was measured to the plan's limits."""
    entry["seconds"] = round(evidence.seconds, 3)
    entry["limits"] = []
    for key, limit in check.limits.items():
        measured = evidence.finding(key.replace("_", "-")).measured
        entry["limits"].append(
            {
                "key": key,
                "limit": str(limit),
                "value": None if measured.value != measured.value else measured.value,
                "verdict": limit.judge(measured),
            }
        )
    entry["verdict"] = worst(item["verdict"] for item in entry["limits"]) if entry["limits"] else "holds"


def _write(folder: Path, record: dict[str, Any]) -> None:
    write_text(folder / "audit.json", json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
