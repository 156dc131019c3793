"""The whole pipeline on a reasoning model: traces, labels, features, probe, edit, outcomes; each stage is kept on
disk."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from touchstone.errors import InputError
from touchstone.evidence import Evidence, Figure, Finding, Table
from touchstone.files import locked, read_text, write_text
from touchstone.language.test_awareness.arms import CONTROLS, Arm, Control, How, build_arms, has_gates
from touchstone.language.test_awareness.comparison import Comparison, fingerprint
from touchstone.language.test_awareness.features import Features, Pooling, cue_features, span_features
from touchstone.language.test_awareness.findings import findings_of, tables_of
from touchstone.language.test_awareness.labels import (
    Judge,
    Label,
    LexiconJudge,
    Rule,
    label_traces,
    load_labels,
    save_labels,
)
from touchstone.language.test_awareness.outcomes import Execution, Task, frame_of, tasks_of
from touchstone.language.test_awareness.pairs import Pair, build_pairs, load_pairs, save_pairs
from touchstone.language.test_awareness.probe import AwarenessProbe, Kind
from touchstone.language.test_awareness.templates import PROMPT_LINES
from touchstone.language.test_awareness.traces import END, Trace, generate_traces

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["PipelineSettings", "reasoner", "run_pipeline"]

_SHARD = 32
OUTCOMES = ("executed", "performed", "aware", "recognised")


@dataclass(frozen=True)
class PipelineSettings:
    """How the pipeline is run.

    Attributes
    ----------
    source : where the probe's features come from: ``"traces"`` for a model that says what it thinks, ``"cues"`` for
        one that does not, from the tokens after the cues.
    max_new_tokens, temperature, top_p : of the replies.
    end : mark at which reasoning ends; empty for a model that does not reason apart.
    rule, pooling, kind : see :func:`span_features` and :class:`AwarenessProbe`.
    layer : layer of the probe, 0 for the best one.
    strength, k, rank, how : see :class:`~touchstone.language.test_awareness.arms.Arm`; ``k`` 0 is the paper's share.
    controls, randoms : see :func:`~touchstone.language.test_awareness.arms.build_arms`.
    describe_tools : whether tools are described to the model in a system message.
    batch_size : most prompts in a batch.
    """

    source: Literal["traces", "cues"] = "traces"
    max_new_tokens: int = 2048
    temperature: float = 0.6
    top_p: float = 0.95
    end: str = END
    rule: Rule = "paper"
    pooling: Pooling = "span"
    kind: Kind = "logistic"
    layer: int = 0
    strength: float = 1.0
    k: int = 0
    rank: Literal["global", "layer"] = "global"
    how: Literal["auto", "edit", "residual"] = "auto"
    controls: tuple[Control, ...] = CONTROLS
    randoms: int = 5
    describe_tools: bool = True
    batch_size: int = 32


def run_pipeline(
    model: LanguageModel,
    pairs: Sequence[Pair],
    judge: Judge,
    out: str | Path,
    *,
    actions: Sequence[Pair] = (),
    settings: PipelineSettings | None = None,
    run: Run | None = None,
    say: Callable[[str], None] | None = None,
) -> Evidence:
    """Run every stage that ``out`` does not hold yet, and write its Evidence to ``out/evidence``.

    Stages and their files: ``pairs.json``, ``traces.jsonl``, ``labels.jsonl``, ``features.safetensors``,
    ``probe.safetensors``, ``journal`` (replies and judgements of every arm), ``evidence``.

    Parameters
    ----------
    model : the model.
    pairs : trigger pairs, on which the probe is trained.
    judge : judges traces and replies.
    out : folder; what is there is used, so that a run that was killed goes on.
    actions : pairs whose tool use is scored in every arm; the trigger pairs with tools if none.
    settings : see :class:`PipelineSettings`.
    run : seed, engine and progress.
    say : called with a line whenever a stage begins.

    Raises
    ------
    InputError
        If ``out`` holds a run of another model, of other pairs or other settings; if no action names a tool; or if
        too few traces are aware to train a probe.
    """
    from touchstone.run import Run as NewRun

    settings, run, say = settings or PipelineSettings(), run or NewRun(), say or (lambda line: None)
    chosen = [pair for pair in (actions or pairs) if pair.tool]
    if not chosen:
        raise InputError("actions: none names a tool; expected pairs with a 'tool'")
    if isinstance(judge, LexiconJudge):
        leaks = judge.leaks([pair.side(side) for pair in pairs for side in (False, True)])
        if leaks:
            raise InputError(f"pairs: {len(leaks)} prompts match the judge's own patterns, such as {leaks[0][:60]!r}")
    with locked(out) as folder:
        _open(folder, model, pairs, chosen, settings, run.seed)
        say("writing traces and judging them")
        labels = _labels(folder, model, pairs, judge, settings, run)
        say("reading activations and fitting the probe")
        features, probe = _probe(folder, model, pairs, labels, settings, run)
        arms = _arms(model, probe, settings, run.seed)
        say(f"measuring {len(arms)} arms on {2 * len(chosen)} tasks")
        found = _measure(folder, model, arms, tasks_of(chosen), judge, settings, run)
        findings = findings_of(labels, features, probe, found)
        evidence = run.evidence(
            f"Test awareness of {model.source}",
            "test-awareness",
            "check",
            findings,
            tables=tables_of(labels, probe, found),
            device=str(model.device),
        )
        evidence.save(folder / "evidence", replace=True)
        return evidence


def reasoner(source: str, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """The pipeline on a reasoning model, with the built-in pairs and the offline judge, for the study's ``gpu``
    scale."""
    from touchstone.language.model import LanguageModel

    model = LanguageModel.load(source, device=run.device, dtype="bfloat16")
    pairs = build_pairs(n=90, seed=run.seed, tokenise=model.encode_continuation)
    with tempfile.TemporaryDirectory(prefix="touchstone-") as folder:
        found = run_pipeline(model, pairs, LexiconJudge(), Path(folder) / "run", run=run)
    findings = [replace(finding, id=f"reasoner-{finding.id}") for finding in found.findings]
    return findings, [replace(table, name=f"reasoner-{table.name}") for table in found.tables], []


def _open(
    folder: Path,
    model: LanguageModel,
    pairs: Sequence[Pair],
    actions: Sequence[Pair],
    settings: PipelineSettings,
    seed: int,
) -> None:
    """Begin a run, or see that what is there is this one."""
    mark: dict[str, Any] = {
        "model": model.source,
        "seed": seed,
        "pairs": fingerprint([list(asdict(pair).values()) for pair in pairs]),
        "actions": fingerprint([list(asdict(pair).values()) for pair in actions]),
        "settings": json.loads(json.dumps(asdict(settings))),
    }
    path = folder / "run.json"
    if not path.exists():
        there = sorted(item.name for item in folder.iterdir() if item.name != ".lock")
        if there:
            raise InputError(f"{folder}: not empty (it holds {there[0]}); choose another folder")
        save_pairs(pairs, folder / "pairs.json")
        write_text(path, json.dumps(mark, indent=1) + "\n")
        return
    text = read_text(path, "run")
    try:
        old = json.loads(text)
    except ValueError:
        raise InputError(f"{path}: damaged; choose another folder") from None
    differing = [key for key in mark if old.get(key) != mark[key]]
    if differing:
        raise InputError(f"{folder}: holds a run with another {' and '.join(differing)}; choose another folder")
    load_pairs(folder / "pairs.json")


def _labels(
    folder: Path, model: LanguageModel, pairs: Sequence[Pair], judge: Judge, settings: PipelineSettings, run: Run
) -> list[Label]:
    path = folder / "labels.jsonl"
    if path.exists():
        return load_labels(path)
    with run.progress.bar("traces", 2 * len(pairs)) as advance:
        traces = generate_traces(
            model,
            pairs,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            seed=run.seed,
            end=settings.end,
            out=folder / "traces.jsonl",
            chunk=2 * settings.batch_size,
            progress=advance,
        )
    with run.progress.bar("judging", len(traces)) as advance:
        labels = label_traces(traces, judge, progress=advance)
    save_labels(labels, path)
    return labels


def _probe(
    folder: Path,
    model: LanguageModel,
    pairs: Sequence[Pair],
    labels: Sequence[Label],
    settings: PipelineSettings,
    run: Run,
) -> tuple[Features, AwarenessProbe]:
    place, kept = folder / "features.safetensors", folder / "probe.safetensors"
    if place.exists():
        features = Features.load(place)
    else:
        count = 2 * len(pairs) if settings.source == "cues" else len(labels)
        with run.progress.bar("features", count) as advance:
            options: dict[str, Any] = {"batch_size": settings.batch_size, "progress": advance}
            if settings.source == "cues":
                features = cue_features(model, pairs, **options)
            else:
                features = span_features(model, labels, pooling=settings.pooling, rule=settings.rule, **options)
        features.save(place)
    if kept.exists():
        return features, AwarenessProbe.load(kept)
    probe = AwarenessProbe(settings.kind, layer=settings.layer or "auto", seed=run.seed)
    probe.fit(features.x, features.y, features.groups, layers=features.layers, source=model.source)
    probe.save(kept)
    return features, probe


def _arms(model: LanguageModel, probe: AwarenessProbe, settings: PipelineSettings, seed: int) -> list[Arm]:
    how: How = "edit" if settings.how == "edit" or (settings.how == "auto" and has_gates(model)) else "residual"
    return build_arms(
        model,
        probe.direction_,
        strengths=(-settings.strength, settings.strength),
        controls=settings.controls,
        shuffled=probe.shuffled_direction_,
        lines=PROMPT_LINES,
        randoms=settings.randoms,
        how=how,
        layer=probe.layer_,
        k=settings.k or None,
        rank=settings.rank,
        seed=seed,
    )


def _measure(
    folder: Path,
    model: LanguageModel,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    judge: Judge,
    settings: PipelineSettings,
    run: Run,
) -> dict[str, Comparison]:
    """Replies of every arm, judged: one comparison for each kind of outcome."""
    run = replace(run, journal=folder / "journal")
    writer = Execution(
        settings.max_new_tokens,
        settings.temperature,
        settings.top_p,
        run.seed,
        settings.end,
        describe=settings.describe_tools,
        batch_size=settings.batch_size,
    )
    shards = [(arm, start) for arm in range(len(arms)) for start in range(0, len(tasks), _SHARD)]
    mark = fingerprint(model.source, list(arms), list(tasks), writer)
    parts = run.map(f"replies [{mark}]", partial(_replies, model, tuple(arms), tuple(tasks), writer), shards)
    items = [(arm, start, replies) for (arm, start), replies in zip(shards, parts, strict=True)]
    judged = run.map(f"judging replies [{mark}]", partial(_judged, tuple(tasks), settings.end, judge), items)
    values: dict[str, list[list[float | None]]] = {name: [[] for _ in arms] for name in OUTCOMES}
    for (arm, _), part in zip(shards, judged, strict=True):
        for name in OUTCOMES:
            values[name][arm] += [row[name] for row in part]
    found = {}
    for name in OUTCOMES:
        frames = []
        for treated, row in zip(arms, values[name], strict=True):
            frame = frame_of(tasks, row)
            frames.append(frame.assign(arm=treated.name, kind=treated.kind, strength=treated.strength))
        found[name] = Comparison(pd.concat(frames, ignore_index=True), tuple(arms))
    return found


def _replies(
    model: LanguageModel, arms: tuple[Arm, ...], tasks: tuple[Task, ...], writer: Execution, shard: Sequence[int]
) -> list[str]:
    """One unit of work: what an arm writes for some tasks. Every arm draws from the same numbers."""
    number, start = shard
    with arms[number].on(model):
        seeded = replace(writer, seed=writer.seed * 1_000_003 + start)
        return seeded.replies(model, tasks[start : start + _SHARD], arms[number].system)


def _judged(
    tasks: tuple[Task, ...], end: str, judge: Judge, item: tuple[int, int, Sequence[str]]
) -> list[dict[str, float | None]]:
    """One unit of work: the outcomes of some replies."""
    _, start, replies = item
    traces = [
        Trace(task.id, task.group, task.prompt, reply, bool(task.hypothetical), task.tool, end)
        for task, reply in zip(tasks[start : start + _SHARD], replies, strict=True)
    ]
    from touchstone.language.test_awareness.traces import executed

    rows = []
    for label in label_traces(traces, judge):
        trace = label.trace
        does = executed(trace.reply, trace.tool, end)
        known = bool(label.awareness)
        # Without an answer there is nothing that could have been done.
        performed = None if trace.answer is None or not known else float(label.performance == "Yes")
        rows.append(
            {
                "executed": None if does is None else float(does),
                "performed": performed,
                "aware": float(label.awareness != "No") if known else None,
                "recognised": float(label.recognition != "No") if known else None,
            }
        )
    return rows
