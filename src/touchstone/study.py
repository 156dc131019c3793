"""Runs studies: one in this process, or many slugs and seeds on a pool or a Ray cluster."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from touchstone import catalog
from touchstone.catalog import offering
from touchstone.engine import LocalEngine
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Finding, Measurement, Scale, Table
from touchstone.run import Run

__all__ = ["merge", "run_studies"]


@dataclass(frozen=True)
class _Job:
    slug: str
    seed: int


def run_studies(
    slugs: Sequence[str],
    scale: Scale,
    *,
    run: Run | None = None,
    seeds: int = 1,
    out: str | Path | None = None,
    replace_out: bool = False,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Evidence]:
    """Run studies and return their Evidence by slug.

    Parameters
    ----------
    slugs : methods; ``["all"]`` means every method that has a study.
    scale : ``"smoke"`` (< 20 s), ``"cpu"`` (< 5 min on two cores) or ``"gpu"`` (the paper's scale).
    run : first seed, device, engine and progress. One study on one seed hands its units of work to the engine;
        several studies or seeds are the units themselves.
    seeds : number of seeds, from ``run.seed`` on; with more than one, the Evidence is their summary and
        ``out/seeds`` holds each one's.
    out : folder of the Evidence; with several slugs, one sub-folder each.
    replace_out : whether Evidence of an earlier run in ``out`` may be replaced.
    options : keyword arguments of the studies beyond scale and run, such as the model of a ``gpu`` study.

    Raises
    ------
    InputError
        If a slug is unknown or has no study, a study has no such option, or ``out`` exists.
    """
    run = run or Run()
    if scale not in get_args(Scale):
        raise InputError(f"scale {scale!r}: expected one of {', '.join(get_args(Scale))}")
    if seeds < 1:
        raise InputError(f"seeds {seeds}: expected 1 or more")
    chosen = [record.slug for record in offering("study")] if list(slugs) == ["all"] else list(slugs)
    for slug in chosen:
        _look_at_options(slug, options or {})
    places = {slug: None if out is None else Path(out) / slug if len(chosen) > 1 else Path(out) for slug in chosen}
    for place in places.values():
        if place is not None:
            _look_at(place, replace_out)
    jobs = [_Job(slug, run.seed + k) for slug in chosen for k in range(seeds)]
    if len(jobs) == 1:
        results = {jobs[0]: _study(jobs[0], scale=scale, run=run, options=options or {})}
        _save(results[jobs[0]], places[chosen[0]])
        return {chosen[0]: results[jobs[0]]}
    work = partial(_study, scale=scale, run=Run(device=run.device, engine=LocalEngine()), options=options or {})
    results = {}
    found: dict[str, Evidence] = {}
    with run.progress.bar("studies", len(jobs)) as advance:
        for i, evidence in run.engine.map(work, jobs):
            results[jobs[i]] = evidence
            advance()
            slug = jobs[i].slug
            mine = [results[job] for job in jobs if job.slug == slug and job in results]
            if len(mine) == seeds:
                # Saved as soon as its seeds are there: a later study that fails takes nothing with it.
                found[slug] = mine[0] if seeds == 1 else merge(mine)
                _save(found[slug], places[slug], [] if seeds == 1 else mine)
    return {slug: found[slug] for slug in chosen}


def _look_at_options(slug: str, options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(catalog.method(slug).part("study").study).parameters.values()
    known = [item.name for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise InputError(f"option {name!r}: the study of {slug} has {', '.join(known) or 'no options'}")


def _study(job: _Job, *, scale: Scale, run: Run, options: Mapping[str, Any]) -> Evidence:
    study = catalog.method(job.slug).part("study").study
    evidence: Evidence = study(scale, replace(run, seed=job.seed), **options)
    return evidence


def _look_at(place: Path, replace_out: bool) -> None:
    """Refuse to touch a folder before hours of work rather than after them."""
    if not place.exists():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=place.parent).close()
        except OSError as error:
            raise InputError(f"{place}: cannot be written ({error.strerror or error})") from None
        return
    if not replace_out:
        raise InputError(f"{place}: already exists; choose another --out or pass --replace")
    if any(place.iterdir()):
        Evidence.load(place)


def _save(evidence: Evidence, place: Path | None, seeds: Sequence[Evidence] = ()) -> None:
    if place is None:
        return
    evidence.save(place, replace=True)
    for one in seeds:
        one.save(place / "seeds" / f"seed-{one.seed}")


def merge(evidences: Sequence[Evidence]) -> Evidence:
    """One Evidence for several seeds: means over seeds with Student-t intervals, and a table of every seed's numbers.

    A finding holds or fails if it does so for every seed; otherwise it is not decided.
    """
    first = evidences[0]
    findings, rows = [], []
    for finding in first.findings:
        each = [evidence.finding(finding.id) for evidence in evidences]
        verdicts = {one.verdict for one in each}
        findings.append(
            Finding(
                finding.id,
                finding.statement,
                verdicts.pop() if len(verdicts) == 1 else "undecided",
                _mean([one.measured for one in each]),
                None if finding.against is None else _mean([one.against for one in each if one.against is not None]),
                finding.limit,
            )
        )
        for evidence, one in zip(evidences, each, strict=True):
            against = None if one.against is None else one.against.value
            rows.append((finding.id, evidence.seed, one.measured.value, against, one.verdict))
    seeds = pd.DataFrame(rows, columns=["finding", "seed", "measured", "against", "verdict"])
    return replace(
        first,
        title=f"{first.title} ({len(evidences)} seeds)",
        findings=tuple(findings),
        tables=(Table("seeds", "Every seed's numbers", seeds), *first.tables),
        seconds=sum(evidence.seconds for evidence in evidences),
    )


def _mean(each: Sequence[Measurement]) -> Measurement:
    values = np.array([one.value for one in each])
    mean = Measurement.mean(each[0].name, values[np.isfinite(values)] if np.isfinite(values).any() else values)
    return replace(mean, unit=each[0].unit)
