"""Scores of a file of questions by two parties, kept as they come, so that a run that was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from touchstone.decisions.conformal_arbitrage.parties import Party, Query, checked
from touchstone.errors import InputError
from touchstone.files import read_jsonl, write_jsonl
from touchstone.run import Progress, Silent

__all__ = ["score_file"]

_CHUNK = 16


def score_file(
    questions: str | Path, out: str | Path, primary: Party, guardian: Party | None, *, progress: Progress | None = None
) -> int:
    """Write a log of scores for the lines of ``questions``: ``id``, ``prompt``, ``options`` and what else stands there.

    Finished lines are kept in ``<out>.part`` until all are there.

    Raises
    ------
    InputError
        If a line is no question, an id stands twice, or ``out`` exists.
    UnavailableError
        If a party does not answer; what was finished stays in the part file.
    """
    out = Path(out)
    if out.exists():
        raise InputError(f"--out {out}: already exists; nothing was written")
    records = read_jsonl(questions, "questions")
    queries = [
        _query(record, f"questions {questions}, record {place}") for place, record in enumerate(records, start=1)
    ]
    if len({query.id for query in queries}) < len(queries):
        raise InputError(f"questions {questions}: an id stands twice")
    part = out.with_name(out.name + ".part")
    done = _kept(part, queries)
    todo = [i for i, query in enumerate(queries) if query.id not in done]
    with (progress or Silent()).bar(f"scores of {len(queries)} questions", len(queries)) as advance:
        advance(len(done))
        for begin in range(0, len(todo), _CHUNK):
            some = todo[begin : begin + _CHUNK]
            lines = _scored([queries[i] for i in some], [records[i] for i in some], primary, guardian)
            done |= {line["id"]: line for line in lines}
            write_jsonl(part, list(done.values()))
            advance(len(some))
    write_jsonl(out, [done[query.id] for query in queries])
    part.unlink(missing_ok=True)
    return len(queries)


def _scored(
    queries: Sequence[Query], records: Sequence[dict[str, Any]], primary: Party, guardian: Party | None
) -> list[dict[str, Any]]:
    first = [checked(a, q, primary) for a, q in zip(primary.score(queries), queries, strict=True)]
    lines = []
    for query, record, answer in zip(queries, records, first, strict=True):
        own = {"id": query.id, "primary": list(answer.scores), "reduce": primary.how}
        lines.append(record | own | ({"cost": {"tokens": answer.tokens}} if answer.tokens else {}))
    if guardian is not None:
        second = [checked(a, q, guardian) for a, q in zip(guardian.score(queries), queries, strict=True)]
        for line, answer in zip(lines, second, strict=True):
            line["guardian"] = list(answer.scores)
    return lines


def _query(record: dict[str, Any], place: str) -> Query:
    name, prompt, options = (record.get(key) for key in ("id", "prompt", "options"))
    if not isinstance(name, str | int):
        raise InputError(f"{place}: expected an 'id'")
    if not (isinstance(prompt, str) and prompt.strip()) and not _is_talk(prompt):
        raise InputError(f"{place} ({name}): expected 'prompt', a text or a list of messages")
    if not isinstance(options, list) or not options or not all(isinstance(option, str) for option in options):
        raise InputError(f"{place} ({name}): expected 'options', a list of texts")
    return Query(str(name), prompt, tuple(options))  # type: ignore[arg-type]


def _is_talk(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(one, dict) and isinstance(one.get("content"), str) and "role" in one for one in prompt)
    )


def _kept(part: Path, queries: Sequence[Query]) -> dict[str, dict[str, Any]]:
    """Lines that an earlier run finished, of questions that still have these options."""
    if not part.is_file():
        return {}
    options = {query.id: list(query.options) for query in queries}
    records = [json.loads(line) for line in part.read_text(encoding="utf-8").splitlines() if line]
    return {record["id"]: record for record in records if options.get(record["id"]) == record["options"]}
