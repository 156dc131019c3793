"""How work is carried out: seed, device, engine, journal and progress, handed to every check and study.

A check or study never loops over units of work itself. It calls ``run.map(label, function, items)``: the engine
decides where ``function`` runs (here, in a process pool, on a Ray cluster), the journal keeps each result on disk
as soon as it is there, so that a killed run continues where it stopped, and the progress bar moves.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from touchstone.engine import Engine, LocalEngine
from touchstone.errors import OutOfTimeError
from touchstone.evidence import Evidence, Figure, Finding, Kind, Table
from touchstone.files import write_text

__all__ = ["Advance", "Progress", "Run", "Silent"]

T = TypeVar("T")
R = TypeVar("R")


class Advance(Protocol):
    """Moves a progress bar by ``steps``."""

    def __call__(self, steps: int = 1) -> None: ...


class Progress(Protocol):
    """Where progress is shown."""

    def bar(self, label: str, total: int) -> Any:
        """A context manager that yields an :class:`Advance`."""


class Silent:
    """Shows nothing; the default from Python."""

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Advance]:
        yield lambda steps=1: None


@dataclass
class Run:
    """One run of a check or a study.

    Attributes
    ----------
    seed : every random number of the run follows from it.
    device : ``"auto"``, ``"cpu"``, ``"cuda"``, …
    engine : where units of work are carried out.
    journal : folder in which results of units are kept until the run ends; ``None`` keeps none.
    progress : where progress is shown.
    deadline : value of ``time.monotonic()`` after which no further unit of work begins; ``None`` for no end.
    """

    seed: int = 0
    device: str = "auto"
    engine: Engine = field(default_factory=LocalEngine)
    journal: Path | None = None
    progress: Progress = field(default_factory=Silent)
    deadline: float | None = None
    _started: float = field(default_factory=time.time, init=False, repr=False)

    def map(self, label: str, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Apply ``function`` to every item, in order, skipping what the journal already holds.

        ``function`` must be a plain function (or a ``functools.partial`` of one) whose result JSON can hold
        exactly: dicts, lists, strings, finite numbers, booleans and ``None``. ``label`` names the step in the
        progress bar and the journal; it must be unique within the run and change when the work changes.

        Raises
        ------
        OutOfTimeError
            Between two units, once the deadline is past; what is in the journal stays there.
        """
        results: dict[int, R] = {}
        place = None if self.journal is None else self.journal / hashlib.sha256(label.encode()).hexdigest()[:16]
        if place is not None:
            for i in range(len(items)):
                path = place / f"{i:06d}.json"
                if path.exists():
                    results[i] = json.loads(path.read_text(encoding="utf-8"))
        todo = [i for i in range(len(items)) if i not in results]
        with self.progress.bar(label, len(items)) as advance:
            advance(len(results))
            self._look_at_clock()
            for i, result in self.engine.map(function, [items[i] for i in todo]):
                results[todo[i]] = result
                if place is not None:
                    write_text(place / f"{todo[i]:06d}.json", json.dumps(result, allow_nan=False))
                advance()
                if len(results) < len(items):
                    self._look_at_clock()
        return [results[i] for i in range(len(items))]

    def _look_at_clock(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError("the time budget is over")

    def evidence(
        self,
        title: str,
        method: str,
        kind: Kind,
        findings: Sequence[Finding],
        *,
        tables: Sequence[Table] = (),
        figures: Sequence[Figure] = (),
        scale: str = "",
        device: str = "cpu",
    ) -> Evidence:
        """Evidence stamped with this run's seed, environment, start and duration."""
        from touchstone.environment import describe

        return Evidence(
            title=title,
            method=method,
            kind=kind,
            findings=tuple(findings),
            tables=tuple(tables),
            figures=tuple(figures),
            scale=scale,
            seed=self.seed,
            environment=describe(device),
            started=datetime.fromtimestamp(self._started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=time.time() - self._started,
        )
