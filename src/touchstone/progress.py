"""Progress on stderr: bars on a terminal, one line a step elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from touchstone.run import Advance

__all__ = ["Bars"]


class Bars:
    """Shows the progress of a run on stderr, so that stdout stays free for results."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)

    def say(self, line: str) -> None:
        """One line about what begins now."""
        self.console.print(f"[dim]·[/dim] {line}", markup=True, soft_wrap=True)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Advance]:
        """A bar while the block runs; where stderr is not a terminal, a line when it ends."""
        if not self.console.is_terminal:
            started = time.monotonic()
            yield lambda steps=1: None
            print(f"· {label}: {total} done in {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
            return
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(label, total=total)
            yield lambda steps=1: progress.advance(task, steps)
