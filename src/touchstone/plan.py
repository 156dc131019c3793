"""Audit plans: which checks to run on which subject, with which settings and limits; read from TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError

from touchstone import catalog
from touchstone.errors import InputError
from touchstone.evidence import Limit
from touchstone.files import read_text

if TYPE_CHECKING:
    from touchstone.decisions.predictions import Predictions

__all__ = [
    "CheckPlan",
    "Plan",
    "Subject",
    "TablePlan",
    "TableSubject",
    "default_plan",
    "load_plan",
    "needed_setting",
    "needs_before",
    "settings_of",
    "table_plan",
]


class Subject(BaseModel):
    """What is audited.

    Attributes
    ----------
    model : ``"default"``, a local folder, a ``.gguf`` file, a Hugging Face id, or the name an endpoint knows it by.
    before : the same model before a change, such as unlearning; a local folder, a ``.gguf`` file or a Hugging Face id.
        Needed by checks that compare the two.
    endpoint : base URL of an OpenAI-compatible server; empty runs the model here.
    device : where to run it, ``"auto"`` takes a GPU where there is one.
    dtype : type of the weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str = Field(default="default", min_length=1)
    before: str = ""
    endpoint: str = ""
    device: str = "auto"
    dtype: str = "float32"


class TableSubject(BaseModel):
    """A table of predictions that is audited; see :class:`touchstone.decisions.Predictions`.

    Attributes
    ----------
    predictions : a ``.csv`` or ``.parquet`` file, one row a case.
    truth, scores, decisions, groups : its columns by role; those that are not named are guessed from their names.
    favourable : the value of outcomes and decisions that people want.
    threshold : a score of at least this is a favourable decision.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    predictions: str = Field(min_length=1)
    truth: str = ""
    scores: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    favourable: str | int | float | bool = 1
    threshold: float = 0.5


class CheckPlan(BaseModel):
    """One check of a plan; keys other than ``use`` and ``limit`` are settings of the check."""

    model_config = ConfigDict(extra="allow", frozen=True)
    use: str
    limit: dict[str, str] = Field(default_factory=dict)

    @cached_property
    def module(self) -> ModuleType:
        """The check's module: ``check``, ``Settings`` and ``METRICS``."""
        return catalog.check_of(self.use)[1]

    @property
    def room(self) -> str:
        """The room whose subjects the check is about."""
        return catalog.check_of(self.use)[0]

    @property
    def settings(self) -> Any:
        """The check's ``Settings``, made of this plan's other keys."""
        return settings_of(self.module.Settings, self.model_extra or {}, self.use)

    @property
    def limits(self) -> dict[str, Limit]:
        """Bounds by limit key."""
        return {key: Limit.parse(text) for key, text in self.limit.items()}


class Plan(BaseModel):
    """An audit plan: one subject, one or more checks."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str = "Audit"
    subject: Subject = Subject()
    check: list[CheckPlan] = Field(min_length=1)


class TablePlan(Plan):
    """An audit plan of a table of predictions."""

    subject: TableSubject  # type: ignore[assignment]


def default_plan(model: str = "default", *, before: str = "", given: Mapping[str, str] | None = None) -> Plan:
    """Every check on a language model that works today and that has what it needs, with default settings and no limits.

    Parameters
    ----------
    model, before : see :class:`Subject`; checks that compare the two are left out without ``before``.
    given : settings for the checks that have them, such as ``ledger`` or ``forgotten``. A check that cannot do without
        one is left out if it is absent.

    Raises
    ------
    InputError
        If something is given that no check of the plan has.
    """
    from touchstone.language import embedded

    if model in embedded.NAMES:
        # Reports should say which model it was, not that it was the default.
        model = embedded.NAME
    given, checks, used = dict(given or {}), [], set()
    for record in catalog.offering("check"):
        check = CheckPlan(use=record.slug)
        if record.room != "language" or (needs_before(check.module) and not before):
            continue
        needed = needed_setting(check.module)
        if needed and needed not in given:
            continue
        own = {key: value for key, value in given.items() if key in {f.name for f in fields(check.module.Settings)}}
        used |= set(own)
        checks.append(CheckPlan.model_validate({"use": record.slug, **own}) if own else check)
    unknown = sorted(set(given) - used)
    if unknown:
        raise InputError(f"{unknown[0]}: no check of this audit has it")
    return Plan(title=f"Audit of {model}", subject=Subject(model=model, before=before), check=checks)


def table_plan(subject: TableSubject, table: Predictions) -> TablePlan:
    """Every check on tables of predictions that has what it needs in ``table``, with default settings and no limits.

    Raises
    ------
    InputError
        If no check has what it needs.
    """
    names = [*catalog.ROOM_CHECKS, *(one.slug for one in catalog.offering("check"))]
    checks = [CheckPlan(use=name) for name in names if catalog.check_of(name)[0] == "decisions"]
    able = [one for one in checks if table.models and all(getattr(table, role) for role in one.module.NEEDS)]
    if not able:
        raise InputError(
            f"predictions {subject.predictions}: no check has what it needs; name the column of outcomes (truth) and "
            "one of scores or decisions"
        )
    return TablePlan(title=f"Audit of {Path(subject.predictions).name}", subject=subject, check=able)


def needs_before(module: ModuleType) -> bool:
    """Whether a check's module compares the model with what it was before a change."""
    return bool(getattr(module, "NEEDS_BEFORE", False))


def needed_setting(module: ModuleType) -> str:
    """Name of the setting without which a check's module cannot run; empty if there is none."""
    return str(getattr(module, "NEEDS_SETTING", ""))


def load_plan(path: str | Path) -> Plan:
    """Read and check a plan.

    Raises
    ------
    InputError
        With the line of the file where it is not what was expected.
    """
    text = read_text(path, "plan")
    name = Path(path).name
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"plan {name}: not TOML: {error}") from None
    try:
        about = data.get("subject")
        kind = TablePlan if isinstance(about, dict) and "predictions" in about else Plan
        plan = kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = first["loc"]
        raise InputError(f"plan {name}, line {_line(text, place)}: {_describe(place, first, data)}") from None
    for i, check in enumerate(plan.check):
        _look_at(check, i, plan.subject, name, text)
    return plan


def _look_at(check: CheckPlan, i: int, subject: Subject | TableSubject, name: str, text: str) -> None:
    """Everything about a check that can be wrong before it runs."""

    def fail(message: str, *place: str) -> InputError:
        return InputError(f"plan {name}, line {_line(text, ('check', i, *place))}: {message}")

    try:
        module = check.module
    except InputError as error:
        raise fail(str(error), "use") from None
    wanted = "decisions" if isinstance(subject, TableSubject) else "language"
    if check.room != wanted:
        other = "a table: [subject] needs predictions" if check.room == "decisions" else "a language model"
        raise fail(f"{check.use} is a check of {other}", "use")
    if isinstance(subject, Subject):
        if subject.endpoint and module.NEEDS == "local":
            raise fail(f"{check.use} reads the model's activations: it needs the model itself, not an endpoint", "use")
        if needs_before(module) and not subject.before:
            raise fail(f"{check.use} compares two models: [subject] needs before, the model before the change", "use")
    needed = needed_setting(module)
    if needed and not (check.model_extra or {}).get(needed):
        raise fail(f"{check.use} needs the setting {needed}", "use")
    for key, bound in check.limit.items():
        if key not in module.METRICS:
            known = ", ".join(sorted(module.METRICS))
            raise fail(f"limit {key!r}: {check.use} measures no such thing; it measures {known}", "limit", key)
        try:
            Limit.parse(bound)
        except InputError as error:
            raise fail(str(error), "limit", key) from None
    try:
        _ = check.settings
    except InputError as error:
        wrong = next((key for key in check.model_extra or {} if repr(key) in str(error)), "use")
        raise fail(str(error), wrong) from None


def settings_of(kind: type, values: dict[str, Any], check: str) -> Any:
    """A check's ``Settings`` made of ``values``; raises :class:`InputError` naming the one that is wrong."""
    known = [item.name for item in fields(kind)]
    for key in values:
        if key not in known:
            raise InputError(f"setting {key!r}: {check} has no such setting; it has {', '.join(known)}")
    try:
        return TypeAdapter(kind).validate_python(values)
    except (ValidationError, PydanticUserError) as error:
        if not isinstance(error, ValidationError):
            raise
        first = error.errors()[0]
        raise InputError(f"setting {str(first['loc'][0])!r} of {check}: {_plain(first)}") from None


def _plain(error: Any) -> str:
    message = str(error["msg"])
    return f"{message[0].lower()}{message[1:]}, got {error['input']!r}"


def _describe(place: tuple[int | str, ...], error: Any, data: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in place if not isinstance(part, int))
    if error["type"] == "extra_forbidden":
        table = "predictions" in data.get("subject", {})
        kind = (TableSubject if table else Subject) if place[0] == "subject" else Plan
        return f"{where!r}: unknown key; expected one of {', '.join(kind.model_fields)}"
    if error["type"] == "missing":
        return f"{where!r}: missing"
    return f"{where!r}: {_plain(error)}"


def _line(text: str, place: tuple[int | str, ...]) -> int:
    """Line, counted from 1, of the key at ``place``; of the nearest table that holds it where it is absent."""
    lines = text.splitlines()
    start, end = 0, len(lines)
    names = [part for part in place if isinstance(part, str)]
    index = next((part for part in place if isinstance(part, int)), None)
    if len(place) > 1 or index is not None:
        header = re.compile(rf"\s*\[\[?\s*{re.escape(names[0])}\b[^\]]*\]\]?")
        opens = [i for i, line in enumerate(lines) if header.match(line) and "." not in line.split("]")[0]]
        which = index or 0
        if which < len(opens):
            start = opens[which]
            after = (i for i in range(start + 1, len(lines)) if re.match(r"\s*\[\[?\s*\w+\s*\]", lines[i]))
            end = next(after, len(lines))
            names = names[1:]
    for name in reversed(names):
        key = re.compile(rf"(?:^|[\s,{{.])[\"']?{re.escape(name)}[\"']?\s*[=.\]]")
        for i in range(start, end):
            if key.search(lines[i].split("#")[0]):
                return i + 1
    return start + 1
