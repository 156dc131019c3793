"""Reasoning chains: their steps, their answers, and the files that hold them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from touchstone.errors import InputError
from touchstone.files import read_jsonl

__all__ = [
    "BOXED",
    "Case",
    "Chain",
    "Context",
    "extract_answer",
    "read_cases",
    "split_steps",
    "texts_of",
]

Context = Literal["first", "all", "none"]
Split = Literal["blank", "header", "sentence"]

BOXED = r"\\boxed\{([^{}]*)\}"
"""An answer in a box, as the official prompts ask for."""

_HEADER = re.compile(r"(?m)^(?=\s*#{1,6}\s*Step\b)", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])")


@dataclass(frozen=True)
class Chain:
    """One sampled line of reasoning.

    Attributes
    ----------
    steps : its steps, none blank.
    answer : its final answer; ``None`` if none could be read.
    question : what was asked.
    meta : whatever else is known, such as ``chain_id`` or ``generator``.
    """

    steps: tuple[str, ...]
    answer: str | None
    question: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, *, question: str = "", mode: Split = "blank", pattern: str = BOXED) -> Chain:
        """A chain from a model's text."""
        return cls(tuple(split_steps(text, mode)), extract_answer(text, pattern), question)


@dataclass(frozen=True)
class Case:
    """What is decided: its chains, and for evaluation its true label and the group it belongs to."""

    case_id: str
    chains: tuple[Chain, ...]
    label: str | None = None
    group: str | None = None


def split_steps(text: str, mode: Split = "blank") -> list[str]:
    """Steps of a reasoning text, empty pieces removed.

    Parameters
    ----------
    mode : ``"blank"`` at blank lines (the official code), ``"header"`` before lines that begin with "## Step", or
        ``"sentence"`` after sentences.
    """
    if mode == "blank":
        pieces = re.split(r"\n\s*\n", text)
    elif mode == "header":
        pieces = _HEADER.split(text)
    elif mode == "sentence":
        pieces = [sentence for line in text.splitlines() for sentence in _SENTENCE.split(line)]
    else:
        raise InputError(f"mode {mode!r}: expected 'blank', 'header' or 'sentence'")
    return [piece.strip() for piece in pieces if piece.strip()]


def extract_answer(text: str, pattern: str = BOXED) -> str | None:
    """The last match's first group, trimmed; ``None`` without one or if it is blank."""
    found = re.findall(pattern, text)
    if not found:
        return None
    last = found[-1] if isinstance(found[-1], str) else found[-1][0]
    return last.strip() or None


def texts_of(chain: Chain, context: Context = "first") -> list[str]:
    """What a reward model reads of each step: the question before the first, before all, or before none."""
    if context not in ("first", "all", "none"):
        raise InputError(f"context {context!r}: expected 'first', 'all' or 'none'")
    ask = chain.question.strip()
    return [
        f"{ask}\n\n{step}" if ask and (context == "all" or (context == "first" and i == 0)) else step
        for i, step in enumerate(chain.steps)
    ]


def read_cases(path: str | Path, *, mode: Split = "blank", pattern: str = BOXED) -> list[Case]:
    """Cases of a file of chains: records with ``case_id`` and ``text`` or ``steps``, and as far as they are known
    ``answer``, ``question``, ``chain_id``, ``label`` and ``group``; label and group are the case's.

    Raises
    ------
    InputError
        If a record is incomplete, or two chains of a case differ in its label or group.
    """
    cases: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(read_jsonl(path, "chains"), start=1):
        place = f"chains {path}, record {number}"
        if "case_id" not in row or not (isinstance(row.get("text"), str) or isinstance(row.get("steps"), list)):
            raise InputError(f"{place}: expected 'case_id' and 'text' or 'steps'")
        text = row.get("text") or "\n\n".join(map(str, row["steps"]))
        steps = split_steps(text, mode) if "steps" not in row else [str(s).strip() for s in row["steps"]]
        answer = str(row["answer"]) if row.get("answer") is not None else extract_answer(text, pattern)
        meta: dict[str, Any] = {key: row[key] for key in ("chain_id", "generator", "seed") if key in row}
        chain = Chain(tuple(s for s in steps if s), answer, str(row.get("question", "")), meta)
        case = cases.setdefault(str(row["case_id"]), {"chains": [], "label": None, "group": None})
        case["chains"].append(chain)
        for key in ("label", "group"):
            value = None if row.get(key) is None else str(row[key])
            if value is not None and case[key] not in (None, value):
                raise InputError(f"{place}: its case has the {key}s {case[key]!r} and {value!r}")
            case[key] = case[key] if value is None else value
    return [Case(name, tuple(c["chains"]), c["label"], c["group"]) for name, c in cases.items()]
