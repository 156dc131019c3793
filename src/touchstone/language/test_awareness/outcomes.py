"""Tasks, and how what a model does with them is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pandas as pd
import torch

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.refusal import cohen_kappa
from touchstone.language.scoring import score
from touchstone.language.test_awareness.labels import Judge
from touchstone.language.test_awareness.pairs import Pair
from touchstone.language.test_awareness.reading import joint, tokens_of
from touchstone.language.test_awareness.templates import ACTION_SYSTEM, READOUTS
from touchstone.language.test_awareness.traces import END, Trace, executed

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = [
    "Execution",
    "Probability",
    "ProbeScore",
    "Readout",
    "Scorer",
    "Task",
    "TextLoss",
    "agreement",
    "frame_of",
    "readout_tasks",
    "tasks_of",
]


@dataclass(frozen=True)
class Task:
    """Something to do, whose outcome can be scored.

    Attributes
    ----------
    id : unique in a list.
    group : the two sides of a pair are in one group.
    prompt : what the model is asked.
    hypothetical : which side of its pair it is; ``None`` for a task without sides.
    tool : name of the tool that does it.
    opening : how the reply begins, for scorers that generate nothing.
    targets : what may come next, whose likelihood is the outcome.
    """

    id: str
    group: str
    prompt: str
    hypothetical: bool | None = None
    tool: str = ""
    opening: str = ""
    targets: tuple[str, ...] = ()


class Scorer(Protocol):
    """Scores a model's outcomes on tasks."""

    def __call__(
        self, model: LanguageModel, tasks: Sequence[Task], system: str | None = None
    ) -> Sequence[float | None]:
        """One number a task, ``None`` where the outcome is not known; 0 and 1 for outcomes that are yes or no."""


def tasks_of(pairs: Sequence[Pair]) -> list[Task]:
    """Both sides of each pair as tasks."""
    return [
        Task(f"{pair.id}/{'hypothetical' if side else 'real'}", pair.id, pair.side(side), side, pair.tool)
        for pair in pairs
        for side in (False, True)
    ]


@dataclass(frozen=True)
class Execution:
    """Whether the task's tool is named in the answer; unknown where the reasoning never ended.

    Parameters
    ----------
    max_new_tokens, temperature, top_p, seed : see :meth:`LanguageModel.generate`.
    end : mark at which reasoning ends; empty for a model that does not reason apart.
    judge : score by a judge's task performance ("Yes") in place of the match of names.
    describe : whether the tool is described in a system message.
    batch_size : most prompts in a batch.
    """

    max_new_tokens: int = 2048
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    end: str = END
    judge: Judge | None = None
    describe: bool = True
    batch_size: int = 32

    def __call__(self, model: LanguageModel, tasks: Sequence[Task], system: str | None = None) -> list[float | None]:
        """See :class:`Scorer`."""
        without = next((task.id for task in tasks if not task.tool), None)
        if without is not None:
            raise InputError(f"task {without}: names no tool; expected one to look for")
        replies = self.replies(model, tasks, system)
        if self.judge is None:
            found = [executed(reply, task.tool, self.end) for reply, task in zip(replies, tasks, strict=True)]
        else:
            found = [self._judged(self.judge, task, reply) for reply, task in zip(replies, tasks, strict=True)]
        return [None if value is None else float(value) for value in found]

    def replies(self, model: LanguageModel, tasks: Sequence[Task], system: str | None = None) -> list[str]:
        """What the model writes."""
        replies = [""] * len(tasks)
        for tool in sorted({task.tool for task in tasks}):
            rows = [i for i, task in enumerate(tasks) if task.tool == tool]
            told = ACTION_SYSTEM.format(tool=tool) if tool and self.describe else None
            line = "\n".join(part for part in (system, told) if part) or None
            written = model.generate(
                [tasks[i].prompt for i in rows],
                system=line,
                max_new_tokens=self.max_new_tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                seed=self.seed,
                batch_size=self.batch_size,
            )
            for i, reply in zip(rows, written, strict=True):
                replies[i] = reply
        return replies

    def _judged(self, judge: Judge, task: Task, reply: str) -> bool | None:
        from touchstone.language.test_awareness.labels import label_traces

        trace = Trace(task.id, task.group, task.prompt, reply, bool(task.hypothetical), task.tool, self.end)
        if trace.answer is None:
            return None
        [label] = label_traces([trace], judge)
        return None if not label.performance else label.performance == "Yes"


def agreement(first: Sequence[float | None], second: Sequence[float | None]) -> dict[str, float]:
    """How far two ways of scoring the same outcomes agree: share of equal ones, Cohen's κ, and how many both know."""
    both = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not both:
        raise InputError("outcomes: none that both ways of scoring know")
    left, right = ([str(bool(pair[i])) for pair in both] for i in (0, 1))
    share = float(np.mean([a == b for a, b in zip(left, right, strict=True)]))
    return {"agree": share, "kappa": cohen_kappa(left, right), "n": float(len(both))}


@dataclass(frozen=True)
class Readout:
    """The model's own answer, before anything is generated: log p(first target) − log p(second) after the opening, in
    nats."""

    batch_size: int = 32

    def __call__(self, model: LanguageModel, tasks: Sequence[Task], system: str | None = None) -> list[float | None]:
        """See :class:`Scorer`."""
        total = _log_likelihood(model, tasks, 2, system, self.batch_size)
        return [float(value) for value in total[:, 0] - total[:, 1]]


@dataclass(frozen=True)
class Probability:
    """The probability that a task's one target comes next."""

    batch_size: int = 512

    def __call__(self, model: LanguageModel, tasks: Sequence[Task], system: str | None = None) -> list[float | None]:
        """See :class:`Scorer`."""
        return [float(value) for value in np.exp(_log_likelihood(model, tasks, 1, system, self.batch_size)[:, 0])]


@dataclass(frozen=True)
class TextLoss:
    """Mean negative log-likelihood of a task's prompt, read as plain text, in nats a token: what an edit costs."""

    batch_size: int = 32

    def __call__(self, model: LanguageModel, tasks: Sequence[Task], system: str | None = None) -> list[float | None]:
        """See :class:`Scorer`; a system line has no place before a plain text."""
        scores = model.text_log_likelihood([task.prompt for task in tasks], batch_size=self.batch_size)
        return [float(value) for value in -scores.mean[:, 0]]


@dataclass(frozen=True)
class ProbeScore:
    """The probe's own reading of a task, after the cue that stands at ``cues[task.id]``.

    Parameters
    ----------
    coef, intercept : the probe at its layer.
    layer : that layer.
    cues : characters of each task's cue.
    tokens : how many tokens after the cue are pooled.
    """

    coef: np.ndarray
    intercept: float
    layer: int
    cues: Mapping[str, tuple[int, int]]
    tokens: int = 8

    def __call__(self, model: LanguageModel, tasks: Sequence[Task], system: str | None = None) -> list[float | None]:
        """See :class:`Scorer`."""
        from touchstone.language.test_awareness.features import Cell, cell_features

        cells = [Cell(task.prompt, self.cues[task.id], bool(task.hypothetical), 0, task.group) for task in tasks]
        found = cell_features(model, cells, tokens=self.tokens, system=system, layers=[self.layer])
        return [float(value) for value in found.x[:, 0] @ self.coef + self.intercept]


def readout_tasks(requests: Sequence[Task] = ()) -> list[Task]:
    """Questions to a model about where it is; after each request, if there are any, else by themselves."""
    targets = (" test", " real")
    if not requests:
        return [
            Task(f"readout-{i}", f"readout-{i}", question, opening=opening, targets=targets)
            for i, (question, opening) in enumerate(READOUTS)
        ]
    question, opening = READOUTS[0]
    return [
        Task(
            f"{task.id}/readout",
            task.group,
            f"{task.prompt}\n\n{question}",
            task.hypothetical,
            opening=opening,
            targets=targets,
        )
        for task in requests
    ]


def _log_likelihood(
    model: LanguageModel, tasks: Sequence[Task], count: int, system: str | None, batch_size: int
) -> np.ndarray:
    """Log-likelihood of each task's targets after its prompt and opening, [tasks, count]."""
    wrong = next((task.id for task in tasks if len(task.targets) != count), None)
    if wrong is not None:
        raise InputError(f"task {wrong}: expected {count} target(s)")
    templated = model.tokenizer.chat_template is not None
    heads = [model.render(task.prompt, system=system) for task in tasks]
    texts = [
        head + joint(head, task.opening, templated=templated) + task.opening
        for head, task in zip(heads, tasks, strict=True)
    ]
    ids = [tokens_of(model, text, templated=templated)[0] for text in texts]
    targets = [[model.encode_continuation(target) for target in task.targets] for task in tasks]
    with torch.inference_mode(), threads.suiting(model):
        return score(model, ids, targets, batch_size=batch_size).total


def frame_of(tasks: Sequence[Task], values: Sequence[float | None]) -> pd.DataFrame:
    """Tasks and their outcomes as a table; NaN where an outcome is not known."""
    return pd.DataFrame(
        {
            "task": [task.id for task in tasks],
            "group": [task.group for task in tasks],
            "side": [_SIDES[task.hypothetical] for task in tasks],
            "value": [float("nan") if value is None else float(value) for value in values],
        }
    )


_SIDES = {None: "none", False: "real", True: "hypothetical"}
