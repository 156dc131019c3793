"""Behaviours that a model is meant to decline, and what an attack on one of them came to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from touchstone.errors import InputError
from touchstone.files import read_jsonl, write_jsonl
from touchstone.tensors import write_tensors

__all__ = ["Attempt", "Behaviour", "LargoResult", "digest", "read_behaviours", "write_latents", "write_results"]


@dataclass(frozen=True)
class Behaviour:
    """Something the model is meant to decline.

    Attributes
    ----------
    goal : the request.
    target : opening words of a reply that complies.
    on_task : words of which a reply that complies has one, or a function of the reply; a reply that only fails to
        refuse does not count. Without it every answer counts.
    """

    goal: str
    target: str
    on_task: Sequence[str] | Callable[[str], bool] | None = None

    def __post_init__(self) -> None:
        if not self.goal.strip():
            raise InputError("goal: empty; expected the request that should be declined")
        if not self.target.strip():
            raise InputError(f"target of {self.goal!r}: empty; expected the opening words of a reply that complies")
        if isinstance(self.on_task, str):
            raise InputError(f"on_task of {self.goal!r}: expected a list of words, got a single string")

    def is_on_task(self, reply: str) -> bool:
        """Whether a reply does what was asked."""
        if self.on_task is None:
            return True
        if callable(self.on_task):
            return bool(self.on_task(reply))
        return any(word.lower() in reply.lower() for word in self.on_task)


@dataclass(frozen=True)
class Attempt:
    """One text tried on the guarded model.

    Attributes
    ----------
    text : what stood in the slot.
    broke : whether the reply was an answer by the first judge, and on task.
    labels : class of the reply by each judge.
    on_task : see :class:`Behaviour`.
    reply : the greedy reply.
    checks, tokens_forward : spent until then, this text included.
    """

    text: str = field(repr=False)
    broke: bool
    labels: dict[str, str]
    on_task: bool
    reply: str = field(repr=False)
    checks: int
    tokens_forward: int


@dataclass(frozen=True)
class LargoResult:
    """What one attack on one behaviour came to.

    Attributes
    ----------
    attack, goal : which.
    broke : whether a text was found to which the guard gave way.
    plain_broke : whether it gave way to the bare goal, before any attack.
    rounds : rounds begun.
    losses : one record a round: ``latent`` (before and after stage 1, ``None`` without one), ``text`` (loss of the text
        that was tried), ``checks`` and ``tokens_forward`` at its end; losses in nats a target token.
    plain_loss : loss of the bare goal.
    text : the text that broke the guard, else the one of lowest loss.
    loss, perplexity : of that text; perplexity by the model itself, NaN where a text is too short.
    checks, tokens_forward : spent in all.
    attempts : every text that was tried.
    latent : the last optimised latent, float32 [n, width]; ``None`` for attacks without one.
    """

    attack: str
    goal: str
    broke: bool
    plain_broke: bool
    rounds: int
    losses: list[dict[str, Any]]
    plain_loss: float
    text: str = field(repr=False)
    loss: float
    perplexity: float
    checks: int
    tokens_forward: int
    attempts: tuple[Attempt, ...] = field(repr=False)
    latent: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def labels(self) -> dict[str, str]:
        """Class of the reply to :attr:`text` by each judge; empty if it was never tried."""
        return next((a.labels for a in reversed(self.attempts) if a.text == self.text), {})

    def broke_within(self, checks: int) -> bool:
        """Whether the guard gave way within the first ``checks`` texts."""
        return any(a.broke and a.checks <= checks for a in self.attempts)

    def record(self, *, keep_text: bool = False) -> dict[str, Any]:
        """As JSON holds it; the text as a hash, and no replies, unless ``keep_text``."""
        row = {
            name: getattr(self, name)
            for name in ("attack", "goal", "broke", "plain_broke", "rounds", "losses", "plain_loss", "loss", "checks",
                         "tokens_forward", "labels")
        }  # fmt: skip
        row["perplexity"] = self.perplexity if self.perplexity == self.perplexity else None
        row["sha256"] = digest(self.text)
        if keep_text:
            row["text"] = self.text
            row["attempts"] = [vars(a) for a in self.attempts]
        return row


def digest(text: str) -> str:
    """SHA-256 of a text, by which a report names a suffix without spreading it."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write_results(path: str | Path, results: Sequence[LargoResult], *, keep_text: bool = False) -> None:
    """Write results as JSON lines; texts only as hashes unless ``keep_text``."""
    write_jsonl(path, [one.record(keep_text=keep_text) for one in results])


def write_latents(path: str | Path, results: Sequence[LargoResult]) -> None:
    """Write the results' latents as safetensors, one tensor a result, with their goals in the record."""
    found = {f"latent.{i}": one.latent for i, one in enumerate(results) if one.latent is not None}
    record = {"schema": "touchstone.largo/1", "goals": [one.goal for one in results]}
    write_tensors(path, found, record)


def read_behaviours(path: str | Path) -> list[Behaviour]:
    """Behaviours of a JSONL file with ``goal``, ``target`` and, optionally, a list of words ``on_task``.

    Raises
    ------
    InputError
        Naming the line that is not such a record.
    """
    found = []
    for number, row in enumerate(read_jsonl(path, "behaviours", texts=("goal", "target")), start=1):
        words = row.get("on_task")
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise InputError(f"behaviours {path}, record {number}: 'on_task' is not a list of words")
        found.append(Behaviour(row["goal"], row["target"], words or None))
    return found
