"""What a search found, and the JSONL files that hold it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from touchstone.files import write_jsonl

__all__ = ["EvoResult", "Found"]


@dataclass(frozen=True)
class Found:
    """A harmless instruction that the target refuses more confidently than any other seen from its seed.

    Attributes
    ----------
    seed, instruction : where the search began and ended.
    fitness : of the instruction, in nats.
    reason : why it is harmless, in the words of what wrote it; empty for a seed.
    origin : mutator that made it, ``recombination`` or ``seed``.
    refusal : highest probability of refusal among its sampled replies; 0 if none were sampled.
    reply : that reply.
    """

    seed: str
    instruction: str
    fitness: float
    reason: str = ""
    origin: str = ""
    refusal: float = 0.0
    reply: str = ""

    @classmethod
    def of(cls, record: dict[str, Any]) -> Found:
        """What a line of a JSONL file tells; only ``instruction`` must be there."""
        kinds: dict[str, type] = {"seed": str, "reason": str, "origin": str, "reply": str, "refusal": float}
        known = {name: kind(record[name]) for name, kind in kinds.items() if name in record}
        return cls(
            **({"seed": ""} | known), instruction=str(record["instruction"]), fitness=float(record.get("fitness", 0.0))
        )


@dataclass(frozen=True)
class EvoResult:
    """What a search found.

    Attributes
    ----------
    best : one instruction a seed, in the order of the seeds; only such as all judges called harmless.
    history : one entry a seed and round: where it stood, what was proposed, whether it moved, the best so far.
    n_calls, n_samples : texts scored, and replies drawn for them.
    candidates : every harmless instruction that was scored in full, fittest first.
    rejected : mutants that a judge turned down.
    disagreements : those on which judges did not agree, for people to look at.
    without : seeds from which nothing harmless was found.
    notes : what a reader must know, such as that a target tells no log-probabilities.
    config : settings of the search.
    """

    best: list[Found]
    history: list[dict[str, Any]]
    n_calls: int
    n_samples: int
    candidates: list[Found] = field(default_factory=list)
    rejected: int = 0
    disagreements: list[dict[str, Any]] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def instructions(self) -> list[str]:
        """The best instruction of every seed."""
        return [found.instruction for found in self.best]

    def refused(self, at_least: float) -> list[Found]:
        """Candidates whose fitness is at least ``at_least``: the alignment set.

        Train on these rather than on the winners alone. Winners resemble each other, and a model unlearns their words
        only.
        """
        return [found for found in self.candidates if found.fitness >= at_least]

    def mutator_success(self) -> pd.DataFrame:
        """For each mutator: rounds it won, and how often the search moved there; of the whole history."""
        rows = [entry for entry in self.history if "origin" in entry]
        frame = pd.DataFrame(rows, columns=["origin", "accepted"])
        table = frame.groupby("origin")["accepted"].agg(won="size", accepted="sum").reset_index()
        return table.sort_values(["accepted", "origin"], ascending=[False, True], ignore_index=True)

    def to_jsonl(self, path: str | Path, *, at_least: float | None = None) -> None:
        """Write :attr:`best`, one JSON object a line; with ``at_least`` all candidates that are at least that fit."""
        write_jsonl(path, [asdict(found) for found in (self.best if at_least is None else self.refused(at_least))])
