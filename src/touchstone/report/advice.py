"""What to do next: the last part of the first page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from touchstone.evidence import Finding, Verdict
from touchstone.report.summary import Part, named, standing_of
from touchstone.report.words import count, cut, enough

__all__ = ["Step", "next_steps"]

_NEXT_SCALE = {"smoke": "cpu", "cpu": "gpu"}
# A first page is a page: what is left out stands in the sections.
_MOST_STEPS = 10
_DISTRUST = "Do not rely on this"
_MORE_TIME = "give the audit more minutes, or continue it with --resume."


@dataclass(frozen=True)
class Step:
    """Something to do: what it is about, what it is, and the command that does it."""

    about: str
    text: str
    command: str = ""


def next_steps(shown: Sequence[Part], verdict: Verdict, audit: dict[str, Any] | None) -> list[Step]:
    """What to do next, the most pressing first."""
    return _after_audit(shown, verdict) if audit is not None else _after_run(shown)


def _after_run(shown: Sequence[Part]) -> list[Step]:
    steps: list[Step] = []
    studies = [part for part in shown if part.evidence is not None and part.evidence.kind == "study"]
    for part in shown:
        scale = part.evidence.scale if part.evidence is not None else ""
        for f in part.findings:
            if f.verdict == "fails":
                at = f" (measured at scale {scale})" if scale else ""
                steps.append(Step(_DISTRUST, f"{cut(f.statement, 140)}{at}"))
        open_ = [f.measured.name for f in part.findings if f.verdict == "undecided"]
        larger = _NEXT_SCALE.get(scale)
        if part in studies and larger and (open_ or scale == "smoke"):
            about = f"To decide {named(open_)}" if open_ else part.name
            text = "run it on a larger scale."
            if scale == "smoke":
                text = (
                    "run it on a larger scale; the scale smoke shows that the study runs, not what the method is worth."
                )
            steps.append(Step(about, text, f"touchstone study {part.use} --scale {larger}"))
        elif open_:
            more = "run it with more seeds." if part in studies else "measure on more observations."
            command = f"touchstone study {part.use} --scale {scale} --seeds N" if part in studies and scale else ""
            steps.append(Step(f"To decide {named(open_)}", more, command))
    if len(steps) > _MOST_STEPS:
        steps.sort(key=lambda step: step.about != _DISTRUST)
        steps[_MOST_STEPS - 1 :] = [Step(f"{len(steps) - _MOST_STEPS + 1} more", "see the sections.")]
    if not any(part.findings for part in shown):
        return [*steps, Step("Nothing was found", "find out why there is nothing to show.")]
    if not steps:
        what = "claim" if studies else "finding"
        steps.append(
            Step(f"Every {what} holds", "before relying on it, check that your model and data resemble what was tried.")
        )
    return steps


def _after_audit(shown: Sequence[Part], verdict: Verdict) -> list[Step]:
    steps = []
    if verdict == "fails":
        broken = any(part.verdict == "fails" and part.error is None for part in shown)
        steps.append(Step("Hold the release", f"at least one check {'fails' if broken else 'did not finish'}."))
    elif verdict == "undecided":
        steps.append(Step("Do not release on this evidence yet", "at least one check is not decided."))
    for part in shown:
        if part.error:
            steps.append(Step(part.name, _MORE_TIME if part.left_out else "mend what stopped it, and audit again."))
            continue
        failing = [f for f in part.findings if f.verdict == "fails"]
        if part.verdict == "fails" and failing:
            names = named([f.measured.name for f in failing])
            first = ""
            if all(standing_of(f) == "reaches" for f in failing):
                first = "measure on more observations, as the interval reaches inside the limit; "
            steps.append(Step(part.name, f"{first}mend {names}, or change the limit on purpose; then audit again."))
        if part.verdict == "undecided":
            crossing = [f for f in part.findings if f.verdict == "undecided"]
            steps += [Step(part.name, f"{f.measured.name}: {_to_decide(f)}") for f in crossing[:2]]
    silent = [part.name for part in shown if not part.judged and not part.error]
    if verdict == "holds" and not any(part.judged for part in shown):
        return [
            Step(
                "Nothing was held to a limit",
                "read what was found, decide what your release must keep, and write the limits into a plan beside the "
                "model; the audit of a plan passes or fails.",
                "touchstone audit plan.toml",
            )
        ]
    if verdict == "holds":
        steps.append(
            Step(
                "Every limit holds",
                "keep this report with the release, and audit again after every change to the model, its prompt or "
                "its data.",
            )
        )
    if silent:
        it = "it" if len(silent) == 1 else "they"
        steps.append(
            Step("No limit in the plan", f"{named(silent)}. Set one if {it} should be able to stop a release.")
        )
    return steps


def _to_decide(f: Finding) -> str:
    if math.isnan(f.measured.value):
        return "find out why it could not be measured."
    needed = enough(f.measured, f.limit)
    if needed is not None:
        now = count(f.measured.n)
        return f"about n = {count(needed)} instead of {now} would decide it, if the value stays where it is."
    if f.measured.n and standing_of(f) == "crosses":
        return "too close to the limit for more observations to help; settle how much margin is needed."
    return "measure it on more observations."
