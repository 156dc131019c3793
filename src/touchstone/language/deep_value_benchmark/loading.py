"""Trials from the authors' files, for those who have them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from touchstone.errors import InputError
from touchstone.files import read_text
from touchstone.language.deep_value_benchmark.benchmark import DeepValueBenchmark
from touchstone.language.deep_value_benchmark.trials import Case, Item, Letter, Option

__all__ = ["from_json"]

_BLOCK = re.compile(
    r"CONTEXT:\s*(?P<context>.+?)\s*\n\s*Option A:\s*(?P<a>.+?)\s*\n\s*Option B:\s*(?P<b>.+?)\s*"
    r"(?:\n\s*CHOICE:\s*(?:Option\s*)?(?P<choice>[AB])\b|(?=\n\s*\n|\n\s*CONTEXT:|\Z))",
    re.DOTALL,
)


def from_json(path: str | Path) -> DeepValueBenchmark:
    """Read a JSON list of prompts in the authors' form; every prompt becomes a trial with its own examples.

    Parameters
    ----------
    path : file whose records have ``prompt_id``, ``prompt``, ``expected_deep_value_choice``, ``deep_values`` and
        ``shallow_preferences`` (each with ``preferred`` and ``less_preferred``) and ``context`` (with ``name`` and
        ``activity``).

    Raises
    ------
    InputError
        Naming the record, if a field is missing or a prompt is not of the form ``CONTEXT … Option A … Option B …``.
    """
    try:
        records = json.loads(read_text(path, "trials"))
    except ValueError as error:
        raise InputError(f"trials {path}: not JSON ({error})") from None
    records = records.get("prompts", records) if isinstance(records, dict) else records
    if not isinstance(records, list) or not records:
        raise InputError(f"trials {path}: expected a list of records")
    cases = tuple(_case(record, i, path) for i, record in enumerate(records))
    shots = tuple(sorted({len(case.training) for case in cases}))
    return DeepValueBenchmark(cases, shots, 1, 0, exact=True, config={"file": Path(path).name})


def _case(record: dict[str, Any], i: int, path: str | Path) -> Case:
    try:
        deep, shallow = record["deep_values"], record["shallow_preferences"]
        v1, v2, s1, s2 = (str(pair[side]) for pair in (deep, shallow) for side in ("preferred", "less_preferred"))
        letter = str(record["expected_deep_value_choice"]).strip().upper()[-1:]
        context, text = str(record["context"]["name"]), str(record["prompt"])
        id = str(record["prompt_id"])
    except (KeyError, TypeError) as error:
        raise InputError(f"trials {path}, record {i}: {type(error).__name__}: {error}") from None
    blocks = list(_BLOCK.finditer(text))
    if len(blocks) < 2 or letter not in ("A", "B"):
        raise InputError(f"trials {path}, record {id}: expected examples and a test, and a choice of A or B")
    *examples, test = blocks
    if test["choice"] or not all(found["choice"] for found in examples):
        raise InputError(f"trials {path}, record {id}: expected a CHOICE in all blocks but the last")
    training = tuple(_item(found, (v1, s1), (v2, s2), found["choice"], context) for found in examples)
    return Case(id, context, v1, v2, s1, s2, training, (_item(test, (v1, s2), (v2, s1), letter, context, test=True),))


def _item(
    found: re.Match[str], good: tuple[str, str], bad: tuple[str, str], letter: str, context: str, test: bool = False
) -> Item:
    a, b = (good, bad) if letter == "A" else (bad, good)
    choice: Letter = "A" if letter == "A" else "B"
    # The text's own line may begin with the context's name, which is written before the activity anyway.
    activity = found["context"].removeprefix(context).lstrip(" ,:;–-")
    return Item(context, activity, Option(found["a"], *a), Option(found["b"], *b), None if test else choice)
