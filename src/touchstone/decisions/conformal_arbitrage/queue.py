"""People as a Guardian: questions are appended to a queue file, answers are read from the file beside it.

``queue.jsonl`` holds one question a line, ``{"key", "id", "prompt", "options"}``; ``queue.answers.jsonl`` one answer,
``{"key", "choice": place}`` or ``{"key", "scores": [...]}``, with ``"minutes"`` if known. Any tool may write it.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from touchstone.decisions.conformal_arbitrage.parties import Answer, Query, UnavailableError
from touchstone.errors import InputError

__all__ = ["QueueParty", "answer", "open_questions"]


class QueueParty:
    """People who answer a queue file.

    A question that was answered before is not asked again.

    Parameters
    ----------
    path : the queue file; it is made if it is not there.
    timeout : seconds to wait for the answers of one call.
    poll : seconds from one look at the answers to the next.

    Raises
    ------
    InputError
        If the file cannot be written.
    """

    how = "person"

    def __init__(self, path: str | Path, *, timeout: float = 600.0, poll: float = 0.2) -> None:
        self.path = Path(path)
        self.name = f"people at {self.path}"
        self.timeout, self.poll = timeout, poll
        self._lock = threading.Lock()
        _append(self.path, [])
        self._asked = {str(record.get("key")) for record in _records(self.path)}

    def score(self, queries: Sequence[Query]) -> list[Answer]:
        """Scores by people: 1 for the option they chose, or the scores they gave.

        Raises
        ------
        UnavailableError
            If an answer is not there in time; the question stays in the queue.
        InputError
            If an answer is none.
        """
        keys = [_key(query) for query in queries]
        with self._lock:
            new = {key: query for key, query in zip(keys, queries, strict=True) if key not in self._asked}
            _append(self.path, [_record(key, query) for key, query in new.items()])
            self._asked |= new.keys()
        until = time.monotonic() + self.timeout
        while True:
            found = {str(record.get("key")): record for record in _records(_answers(self.path))}
            missing = [query for key, query in zip(keys, queries, strict=True) if key not in found]
            if not missing:
                return [_read(found[key], query) for key, query in zip(keys, queries, strict=True)]
            if time.monotonic() > until:
                raise UnavailableError(f"{self.name}: no answer to query {missing[0].id!r} in {self.timeout:g} s")
            time.sleep(self.poll)


def open_questions(path: str | Path) -> list[dict[str, Any]]:
    """Questions of a queue file that have no answer yet, oldest first.

    Raises
    ------
    InputError
        If there is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"queue {path}: no such file")
    done = {str(record.get("key")) for record in _records(_answers(path))}
    return [record for record in _records(path) if str(record.get("key")) not in done]


def answer(path: str | Path, key: str, choice: int, *, minutes: float = 0.0) -> None:
    """Answer the question ``key`` of a queue file with the option at place ``choice``."""
    _append(_answers(Path(path)), [{"key": key, "choice": choice, "minutes": round(minutes, 4)}])


def _key(query: Query) -> str:
    prompt = query.prompt if isinstance(query.prompt, str) else [dict(message) for message in query.prompt]
    return hashlib.sha256(json.dumps([prompt, list(query.options)], sort_keys=True).encode()).hexdigest()[:16]


def _record(key: str, query: Query) -> dict[str, Any]:
    prompt = query.prompt if isinstance(query.prompt, str) else [dict(message) for message in query.prompt]
    return {"key": key, "id": query.id, "prompt": prompt, "options": list(query.options)}


def _answers(path: Path) -> Path:
    return path.with_suffix(".answers.jsonl")


def _append(path: Path, records: Sequence[dict[str, Any]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    except OSError as error:
        raise InputError(f"queue {path}: cannot be written ({error.strerror or error})") from None


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a file that others may be writing to: a last line that is not whole yet is left for the next look."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"queue {path}: cannot be read ({error})") from None
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n") or not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            raise InputError(f"queue {path}, line {number}: not JSON") from None
        if not isinstance(record, dict):
            raise InputError(f"queue {path}, line {number}: expected a JSON object")
        yield record


def _read(record: dict[str, Any], query: Query) -> Answer:
    minutes = record.get("minutes", 0)
    minutes = float(minutes) if isinstance(minutes, int | float) and minutes >= 0 else 0.0
    scores, choice = record.get("scores"), record.get("choice")
    if isinstance(scores, list) and len(scores) == len(query.options):
        return Answer(tuple(float(x) for x in scores), minutes=minutes)
    if isinstance(choice, int) and not isinstance(choice, bool) and 0 <= choice < len(query.options):
        return Answer(tuple(float(k == choice) for k in range(len(query.options))), minutes=minutes)
    raise InputError(
        f"queue: the answer to {query.id!r} is no place among its {len(query.options)} options, nor scores"
    )
