"""What the first page says: what was tried, what was found, how sure that is, and what to do next."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from touchstone.catalog import METHODS
from touchstone.evidence import Evidence, Finding, Measurement, Verdict, worst
from touchstone.report.words import (
    VERDICTS,
    Position,
    count,
    date,
    duration,
    interval,
    limit_text,
    position,
    value_text,
)

__all__ = ["Part", "found", "named", "overall", "parts", "shown_badge", "standing_of", "sureness", "tried"]

_SEVERITY = {"fails": 0, "undecided": 1, "holds": 2}
# A first page is a page: what is left out stands in the sections.
_MOST_NAMED = 6
_MOST_METHODS = 12


@dataclass(frozen=True)
class Part:
    """One check of an audit, or one Evidence outside an audit.

    Attributes
    ----------
    name : title for people.
    use : slug of the method.
    verdict : verdict of the whole part.
    seconds : what it cost.
    findings : its findings, with the limits of the plan put on them.
    judged : ids of the findings that a limit of the plan bounds.
    evidence : where the findings come from; ``None`` where a check ended before it had any.
    error : the line with which it ended, if it did not finish.
    left_out : whether it did not finish only for want of time.
    audited : whether it is a check of an audit, which limits of a plan may judge.
    """

    name: str
    use: str
    verdict: Verdict
    seconds: float
    findings: tuple[Finding, ...]
    judged: frozenset[str] = frozenset()
    evidence: Evidence | None = None
    error: str | None = None
    left_out: bool = False
    audited: bool = False

    @property
    def badge(self) -> str:
        """Its verdict, or ``measured`` where no limit judges a check that ended."""
        return "measured" if self.audited and not self.judged and self.verdict == "holds" else self.verdict

    @property
    def headline(self) -> Finding | None:
        """The finding that speaks for the part: the worst that a limit judges, else the first that made its verdict,
        and in an audit without limits the first of all.
        """
        judged = [f for f in self.findings if f.id in self.judged]
        if judged:
            return min(judged, key=lambda f: _SEVERITY[f.verdict])
        if self.audited:
            return next(iter(self.findings), None)
        return next((f for f in self.findings if f.verdict == self.verdict), next(iter(self.findings), None))


def parts(evidences: Sequence[Evidence], audit: dict[str, Any] | None) -> list[Part]:
    """The checks of the audit with their Evidence, or every Evidence as a part of its own."""
    if audit is None:
        return [_alone(evidence) for evidence in evidences]
    checks = list(audit.get("checks", []))
    left = list(evidences)
    finished = [not (check.get("error") or check.get("left_out")) for check in checks]
    result = []
    for check, done in zip(checks, finished, strict=True):
        evidence: Evidence | None = None
        if len(evidences) == len(checks) or (done and len(evidences) == sum(finished)):
            evidence = left.pop(0)
        elif len(evidences) != sum(finished):
            evidence = next((e for e in left if e.method == check["use"]), None)
            left = [e for e in left if e is not evidence]
        part = _of_check(check, evidence)
        if evidence is None and done and audit.get("status") == "running":
            part = replace(part, findings=(), error="the audit has not ended; continue it with --resume")
        result.append(part)
    return result + [_alone(evidence) for evidence in left]


def _alone(evidence: Evidence) -> Part:
    # What found nothing shows nothing, so it does not hold.
    verdict = evidence.verdict if evidence.findings else "undecided"
    return Part(evidence.title, evidence.method, verdict, evidence.seconds, evidence.findings, evidence=evidence)


def _of_check(check: dict[str, Any], evidence: Evidence | None) -> Part:
    findings = [] if evidence is None else list(evidence.findings)
    judged = set()
    for limit in check.get("limits") or []:
        id = str(limit["key"]).replace("_", "-")
        judged.add(id)
        place = next((i for i, f in enumerate(findings) if f.id == id), None)
        if place is not None:
            findings[place] = replace(findings[place], limit=limit["limit"], verdict=limit["verdict"])
        elif not (check.get("error") or check.get("left_out")):
            # audit.json knows the value alone; n and interval are then not at hand.
            name = str(limit["key"]).replace("_", " ")
            value = math.nan if limit["value"] is None else float(limit["value"])
            measured = Measurement(name, value)
            findings.append(Finding(id, name.capitalize(), limit["verdict"], measured, limit=limit["limit"]))
    return Part(
        name=_called(check["use"]) or (check["use"] if evidence is None else evidence.title),
        use=check["use"],
        verdict=check["verdict"],
        seconds=float(check.get("seconds") or 0.0),
        findings=tuple(findings),
        judged=frozenset(judged),
        evidence=evidence,
        error=check.get("error") or check.get("left_out") or None,
        left_out=not check.get("error") and bool(check.get("left_out")),
        audited=True,
    )


def _called(use: str) -> str:
    """What the check measures, as a title; empty where the catalog does not say."""
    words = next((record.measures for record in METHODS if record.slug == use), "")
    return words[:1].upper() + words[1:]


def overall(shown: Sequence[Part], audit: dict[str, Any] | None) -> Verdict:
    """The verdict over everything; an audit states its own."""
    if audit is not None and audit.get("verdict") in VERDICTS:
        verdict: Verdict = audit["verdict"]
        return verdict
    return worst(part.verdict for part in shown) if shown else "undecided"


def shown_badge(shown: Sequence[Part], audit: dict[str, Any] | None) -> str:
    """The verdict over everything, or ``measured`` for an audit in which no limit judges anything."""
    verdict = overall(shown, audit)
    unbounded = audit is not None and bool(shown) and all(part.badge == "measured" for part in shown)
    return "measured" if unbounded else verdict


def found(shown: Sequence[Part], audit: dict[str, Any] | None) -> str:
    """The result in one sentence, such as "2 of 6 checks fail, 1 is not decided and 3 hold."."""
    unfinished = sum(part.error is not None for part in shown) if audit is not None else 0
    if audit is not None:
        verdicts = [part.badge for part in shown if part.error is None]
        one, many = "check", "checks"
    else:
        verdicts = [f.verdict for part in shown for f in part.findings]
        claims = bool(shown) and all(part.evidence is not None and part.evidence.kind == "study" for part in shown)
        one, many = ("claim", "claims") if claims else ("finding", "findings")
    total = len(verdicts) + unfinished
    if total == 0:
        return f"There are no {many} to show."
    tally = Counter(verdicts)
    groups = (
        (tally["fails"], "fails", "fail"),
        (unfinished, "did not finish", "did not finish"),
        (tally["undecided"], "is not decided", "are not decided"),
        (tally["holds"], "holds", "hold"),
        (tally["measured"], "was measured without a limit", "were measured without a limit"),
    )
    phrases: list[str] = []
    for n, singular, plural in groups:
        if n == total:
            which = f"The one {one}" if total == 1 else f"Both {many}" if total == 2 else f"All {total} {many}"
            return f"{which} {singular if total == 1 else plural}."
        if n:
            of = f" of {total} {many}" if not phrases else ""
            phrases.append(f"{n}{of} {singular if n == 1 else plural}")
    return f"{_and(phrases)}."


def tried(shown: Sequence[Part], audit: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What was tried, on what, when and where, as label and text."""
    rows: list[tuple[str, str]] = []
    evidences = [part.evidence for part in shown if part.evidence is not None]
    if audit is not None:
        subject = audit.get("subject") or {}
        for key in sorted(subject, key=lambda k: k != "model"):
            # A report is passed on: what an endpoint's address holds of a password stays out of it.
            text = re.sub(r"//[^/@\s]*@", "//", str(subject[key]))
            if isinstance(subject[key], str | int | float) and text not in ("", "auto"):
                rows.append((str(key).replace("_", " ").capitalize(), text))
        rows.append(("Checks", f"{len(shown)}: " + ", ".join(_lower(p) for p in shown) if shown else "none"))
        if audit.get("minutes"):
            rows.append(("Time budget", duration(60 * float(audit["minutes"]))))
    else:
        for kind, label in (("study", "Study"), ("check", "Check"), ("remedy", "Remedy")):
            methods = list(dict.fromkeys(e.method for e in evidences if e.kind == kind))
            if methods:
                text = ", ".join(methods)
                rows.append((label, text if len(methods) <= _MOST_METHODS else f"{len(methods)} methods, listed below"))
        scales = list(dict.fromkeys(e.scale for e in evidences if e.scale))
        if scales:
            rows.append(("Scale", ", ".join(scales)))
    started = [str(audit["started"])] if audit is not None and audit.get("started") else []
    started = started or sorted(e.started for e in evidences if e.started)[:1]
    rows += [("Started", date(text)) for text in started]
    environments = [e.environment for e in evidences if e.environment]
    if not environments and audit is not None and audit.get("environment"):
        environments = [audit["environment"]]
    machines = list(dict.fromkeys(machine(environment) for environment in environments))
    if machines:
        rows.append(("Machine", "; ".join(machines)))
    cost = float(audit["seconds"]) if audit is not None and audit.get("seconds") else sum(p.seconds for p in shown)
    rows.append(("Cost", duration(cost)))
    return rows


def _lower(part: Part) -> str:
    return part.name[:1].lower() + part.name[1:] if part.name == _called(part.use) else part.use


def machine(environment: dict[str, Any]) -> str:
    """Processor, device and threads in one line."""
    threads = environment.get("threads")
    return ", ".join(
        str(item)
        for item in (
            environment.get("cpu"),
            environment.get("device") and f"device {environment['device']}",
            threads and f"{threads} thread{'' if threads == 1 else 's'}",
        )
        if item
    )


def sureness(shown: Sequence[Part]) -> list[str]:
    """How sure the result is, one sentence an item: observations, intervals, undecided and missing numbers."""
    findings = [f for part in shown for f in part.findings]
    measured = [f.measured for f in findings if not math.isnan(f.measured.value)]
    result = []
    if measured:
        sizes = [m.n for m in measured if m.n is not None]
        missing = len(measured) - len(sizes)
        if sizes and min(sizes) == max(sizes):
            text = f"The numbers rest on n = {count(sizes[0])} independent observations each"
        elif sizes:
            least = min((m for m in measured if m.n is not None), key=lambda m: m.n or 0)
            text = (
                f"The numbers rest on n = {count(min(sizes))} to {count(max(sizes))} independent observations; "
                f"the fewest stand behind “{least.name}”"
            )
        else:
            text = "No number states how many observations it rests on"
        if sizes and missing:
            text += f"; {missing} of {len(measured)} numbers do{'es' if missing == 1 else ''} not state n"
        result.append(f"{text}.")
        with_interval = sum(m.low is not None and m.high is not None for m in measured)
        if with_interval:
            everyone = with_interval == len(measured)
            share = "Each number carries" if everyone else f"{with_interval} of {len(measured)} numbers carry"
            text = f"{share} a 95 % interval, written [low, high]: it misses the true value about once in 20 times"
            if with_interval >= 10:
                expected = round(with_interval / 20)
                text += f", so about {expected} of these {with_interval} may miss"
            result.append(f"{text}.")
        else:
            result.append("No number carries an interval: how far it may be from the true value is not known.")
    undecided = [f for f in findings if f.verdict == "undecided" and not math.isnan(f.measured.value)]
    close = [f for f in findings if f.verdict != "undecided" and standing_of(f) == "reaches"]
    for label, group in (("Not decided", undecided), ("Close", close)):
        if group:
            result.append(f"{label}: {named([_placed(f) for f in group])}.")
    unmeasured = [f.measured.name for f in findings if math.isnan(f.measured.value)]
    if unmeasured:
        result.append(f"Not measured: {named(unmeasured)}.")
    unfinished = [part.name for part in shown if part.error]
    if unfinished:
        it = "it checks" if len(unfinished) == 1 else "they check"
        result.append(f"Not finished: {named(unfinished)}. Nothing is known about what {it}.")
    return result


def standing_of(f: Finding) -> Position:
    """Where a finding's number stands to its limit or baseline."""
    return position(f.measured, f.against, f.limit)


def _placed(f: Finding) -> str:
    """The number and where it stands: ``refusal rate 0.08 [0.04, 0.14] crosses its limit ≤ 0.10``."""
    text = f"{f.measured.name} {value_text(f.measured, f.limit)} {interval(f.measured, f.limit)}".rstrip()
    if f.limit and standing_of(f) == "crosses":
        return f"{text} crosses its limit {limit_text(f.limit)}"
    if f.limit and standing_of(f) == "reaches":
        return f"{text} is outside its limit {limit_text(f.limit)}, but the interval reaches inside"
    return f"{text}, limit {limit_text(f.limit)}" if f.limit else text


def named(items: Sequence[str]) -> str:
    """The first few of several names, as one phrase."""
    if len(items) > _MOST_NAMED:
        items = [*items[: _MOST_NAMED - 1], f"{len(items) - _MOST_NAMED + 1} more"]
    return _and(items) if all("," not in item for item in items) else "; ".join(items)


def _and(items: Iterable[str]) -> str:
    *head, last = items
    return f"{', '.join(head)} and {last}" if head else last
