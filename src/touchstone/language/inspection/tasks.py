"""Tasks: one for each language check, one sample for each thing that the check measures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.to_thread
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from touchstone import catalog
from touchstone.errors import InputError
from touchstone.language.inspection.provider import TouchstoneAPI, registered
from touchstone.language.prompt import Prompt, as_messages

if TYPE_CHECKING:
    from touchstone.evidence import Evidence, Finding

__all__ = ["TASKS", "InspectModel"]


class InspectModel:
    """Any model of Inspect as what text checks read; its calls stand in the log of the sample that made them.

    For use from a worker thread that Inspect's event loop started.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.source = str(model)

    def generate(
        self,
        prompts: list[Prompt],
        *,
        system: str | None = None,
        chat: bool | None = None,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stream: Callable[[int, str], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Replies to ``prompts``, in their order; see :meth:`LanguageModel.generate`."""
        config = GenerateConfig(max_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed)
        replies = [""] * len(prompts)

        async def one(i: int) -> None:
            output = await self._model.generate(_chat(prompts[i], system), config=config)
            replies[i] = output.completion
            if stream is not None:
                stream(i, replies[i])
            if progress is not None:
                progress(1)

        async def everything() -> None:
            async with anyio.create_task_group() as group:
                for i in range(len(prompts)):
                    group.start_soon(one, i)

        anyio.from_thread.run(everything)
        return replies


@solver(name="touchstone_check")
def _checked(slug: str, settings: dict[str, Any], seed: int, before: str) -> Solver:
    """Runs the check once an epoch; every sample then reads its own finding."""
    found: dict[int, Evidence] = {}
    lock = anyio.Lock()

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        async with lock:
            if state.epoch not in found:
                work = partial(_run, slug, settings, seed + state.epoch - 1, before, get_model())
                found[state.epoch] = await anyio.to_thread.run_sync(work)
        evidence = found[state.epoch]
        state.metadata["environment"] = evidence.environment
        finding = next((f for f in evidence.findings if f.id == str(state.sample_id)), None)
        if finding is None:
            return state
        state.metadata["finding"] = _content(finding)
        state.output = ModelOutput.from_content(evidence.title, _sentence(finding))
        state.messages.append(state.output.message)
        return state

    return solve


def _run(slug: str, settings: dict[str, Any], seed: int, before: str, model: Model) -> Evidence:
    from touchstone.plan import needs_before, settings_of
    from touchstone.run import Run

    module = catalog.method(slug).part("check")
    chosen = settings_of(module.Settings, settings, slug)
    api = model.api
    if isinstance(api, TouchstoneAPI):
        pair: dict[str, Any] = {}
        if needs_before(module):
            from touchstone.language import LanguageModel

            pair["before"] = LanguageModel.load(before, device=str(api.language_model.device))
        found: Evidence = module.check(api.language_model, chosen, Run(seed=seed), **pair)
        return found
    if module.NEEDS == "local":
        raise InputError(f"{slug} reads the model's weights: use a model of the provider touchstone/, not {model}")
    found = module.check(InspectModel(model), chosen, Run(seed=seed))
    return found


@metric(name="findings")
def _findings() -> Metric:
    """Value of each finding, mean over epochs, and the widest bounds of its 95 % interval."""

    def compute(scores: list[SampleScore]) -> dict[str, float]:
        result: dict[str, float] = {}
        for key in dict.fromkeys(str(s.sample_id) for s in scores):
            mine = [s.score for s in scores if str(s.sample_id) == key]
            name = key.replace("-", "_")
            result[name] = sum(score.as_float() for score in mine) / len(mine)
            measured = [(score.metadata or {}).get("measured") or {} for score in mine]
            lows = [m["low"] for m in measured if m.get("low") is not None]
            highs = [m["high"] for m in measured if m.get("high") is not None]
            if lows and highs:
                result[f"{name}_low"], result[f"{name}_high"] = min(lows), max(highs)
        return result

    return compute


@scorer(metrics=[_findings()], name="finding")
def _scored() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        finding = state.metadata.get("finding")
        if finding is None:
            return Score.unscored(reason="not measured with these settings")
        value = finding["measured"]["value"]
        return Score(
            value=float("nan") if value is None else float(value),
            answer=state.output.completion,
            explanation=finding["statement"],
            metadata=finding,
        )

    return score


def _task(slug: str, name: str) -> Callable[..., Task]:
    def build(seed: int = 0, before: str = "", **settings: Any) -> Task:
        from touchstone.plan import needs_before, settings_of

        module = catalog.method(slug).part("check")
        if needs_before(module) and not before:
            raise InputError(f"{slug} compares two models: give the model before the change, -T before=MODEL")
        # Wrong settings are told before the model is asked anything.
        settings_of(module.Settings, settings, slug)
        samples = [
            Sample(id=key.replace("_", "-"), input=f"Measure {what}.", metadata={"key": key})
            for key, what in module.METRICS.items()
        ]
        return Task(
            dataset=samples,
            solver=_checked(slug, settings, seed, before),
            scorer=_scored(),
            metadata={"method": slug, "paper": catalog.method(slug).paper, "url": catalog.method(slug).url},
        )

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"{catalog.method(slug).purpose}."
    return registered(task, build, name)


def _content(finding: Finding) -> dict[str, Any]:
    from dataclasses import asdict

    content: dict[str, Any] = asdict(finding)
    content["limit"] = None if finding.limit is None else str(finding.limit)
    if content["measured"]["value"] != content["measured"]["value"]:
        content["measured"]["value"] = None
    return content


def _sentence(finding: Finding) -> str:
    from touchstone.report.words import interval, value_text

    text = f"{finding.measured.name}: {value_text(finding.measured)} {interval(finding.measured)}".strip()
    if finding.against is not None:
        text += f"; {finding.against.name}: {value_text(finding.against)} {interval(finding.against)}".rstrip()
    return text


def _chat(prompt: Prompt, system: str | None) -> list[ChatMessage]:
    kinds = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
    return [kinds[message["role"]](content=message["content"]) for message in as_messages(prompt, system)]


TASKS: dict[str, Callable[..., Task]] = {
    record.task: _task(record.slug, record.task) for record in catalog.offering("check") if record.room == "language"
}
"""Task by name; ``inspect eval touchstone/<name>``. Settings of the check and ``seed`` are ``-T`` arguments."""
