"""Logs of scores and of decisions, one JSON object a line: any run can be calibrated or replayed without a model.

A line of scores: ``{"id", "options": [...], "primary": [...], "guardian": [...] | null, "guard_value": [...] | null,
"label": int | null, "cost": {...}}``. A line of decisions has ``"lam", "alpha", "candidates", "deferred", "choice"``
and the digest of the options in their order, by which a choice that is a place stays tied to what it chose.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage, Decision
from touchstone.decisions.conformal_arbitrage.tables import Options, padded, table
from touchstone.errors import InputError
from touchstone.files import read_jsonl, write_jsonl

__all__ = ["ScoreLog", "decided", "options_digest", "replay", "write_decisions"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ScoreLog:
    """Scores of the options of many queries, as read from a log.

    Attributes
    ----------
    ids : of the queries.
    options : their texts.
    primary : Primary scores, [queries, options] and where there is an option.
    guardian : Guardian scores, ``None`` unless every query has them.
    guard : guardrail values, from ``guard_value`` or as 1 for the option of ``label``; ``None`` unless every query has.
    reduce : how a language model's scores were reduced, if the log says so.
    """

    ids: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]
    primary: Options
    guardian: Floats | None
    guard: Floats | None
    reduce: str | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def read(cls, path: str | Path) -> ScoreLog:
        """Read a file.

        Raises
        ------
        InputError
            If a line is not as the module says, or an id stands twice; it names the line's id.
        """
        records = read_jsonl(path, "scores")
        for place, record in enumerate(records, start=1):
            _check(record, f"scores {path}, record {place}")
        ids = tuple(str(record["id"]) for record in records)
        if len(set(ids)) < len(ids):
            twice = next(name for name in ids if ids.count(name) > 1)
            raise InputError(f"scores {path}: the id {twice!r} stands twice")
        reduces = {record.get("reduce") for record in records}
        if len(reduces) > 1:
            raise InputError(f"scores {path}: lines differ in 'reduce' ({', '.join(sorted(map(str, reduces)))})")
        primary = table([record["primary"] for record in records], f"scores {path}: primary")
        guards = [_guard(record) for record in records]
        return cls(
            ids,
            tuple(tuple(record["options"]) for record in records),
            primary,
            _whole([record.get("guardian") for record in records]),
            _whole(guards),
            next(iter(reduces)),
        )

    def take(self, rows: NDArray[np.int64]) -> ScoreLog:
        """The log of some of its queries."""
        return ScoreLog(
            tuple(self.ids[i] for i in rows),
            tuple(self.options[i] for i in rows),
            Options(self.primary.scores[rows], self.primary.mask[rows]),
            None if self.guardian is None else self.guardian[rows],
            None if self.guard is None else self.guard[rows],
            self.reduce,
        )

    def need(self, *names: str) -> None:
        """Raise :class:`InputError` for the first of ``guard``, ``guardian`` that the log lacks."""
        lines = {"guard": "a label or guard_value", "guardian": "guardian scores"}
        for name in names:
            if getattr(self, name) is None:
                raise InputError(f"scores: expected {lines[name]} on every line")


def options_digest(options: Sequence[str]) -> str:
    """Sixteen hexadecimal digits of the options in their order."""
    return hashlib.sha256(json.dumps(list(options), ensure_ascii=False).encode()).hexdigest()[:16]


def decided(router: ConformalArbitrage, log: ScoreLog, made: Decision) -> list[dict[str, Any]]:
    """Lines of a decision log."""
    lam: float | str = "inf" if math.isinf(router.lam_) else router.lam_
    return [
        {
            "id": log.ids[i],
            "options_digest": options_digest(log.options[i]),
            "alpha": router.alpha,
            "lam": lam,
            "candidates": np.flatnonzero(made.candidates[i]).tolist(),
            "deferred": bool(made.deferred[i]),
            "choice": int(made.choice[i]),
            "answer": log.options[i][int(made.choice[i])],
            "cost": {"total": float(made.cost[i])},
        }
        for i in range(len(log))
    ]


def write_decisions(path: str | Path, router: ConformalArbitrage, log: ScoreLog, made: Decision) -> None:
    """Write a decision log."""
    write_jsonl(path, decided(router, log, made))


def replay(path: str | Path, log: ScoreLog) -> NDArray[np.int64]:
    """Choices of a decision log for the queries of ``log``, in its order.

    Raises
    ------
    InputError
        If a query has no decision, or its options stand in another order than when it was decided.
    """
    records = {str(record.get("id")): record for record in read_jsonl(path, "decisions")}
    choices = []
    for name, options in zip(log.ids, log.options, strict=True):
        record = records.get(name)
        if record is None:
            raise InputError(f"decisions {path}: none for the query {name!r}")
        if record.get("options_digest") != options_digest(options):
            raise InputError(
                f"decisions {path}: the options of {name!r} are not those, in that order, it was decided on"
            )
        choice = record.get("choice")
        if not isinstance(choice, int) or not 0 <= choice < len(options):
            raise InputError(f"decisions {path}: the choice of {name!r} is {choice!r}, no place among its options")
        choices.append(choice)
    return np.array(choices, dtype=np.int64)


def _check(record: dict[str, Any], place: str) -> None:
    if not isinstance(record.get("id"), str | int):
        raise InputError(f"{place}: expected an 'id'")
    options = record.get("options")
    if not isinstance(options, list) or not options or not all(isinstance(option, str) for option in options):
        raise InputError(f"{place} ({record['id']}): expected 'options', a list of texts")
    for key in ("primary", "guardian", "guard_value"):
        values = record.get(key)
        if values is None and key != "primary":
            continue
        right = isinstance(values, list) and len(values) == len(options)
        # Where the Guardian was not asked, its log has null.
        if not right or not all(_number(value) or (key == "guardian" and value is None) for value in values or ()):
            raise InputError(f"{place} ({record['id']}): expected {key!r}, {len(options)} numbers, one an option")
    label = record.get("label")
    if label is not None and (not isinstance(label, int) or not 0 <= label < len(options)):
        raise InputError(f"{place} ({record['id']}): label {label!r} is no place among {len(options)} options")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _guard(record: dict[str, Any]) -> list[float] | None:
    if record.get("guard_value") is not None:
        return list(record["guard_value"])
    if record.get("label") is None:
        return None
    return [float(place == record["label"]) for place in range(len(record["options"]))]


def _whole(rows: list[list[float] | None]) -> Floats | None:
    """Rows as one array, or ``None`` if one is missing."""
    found = [row for row in rows if row is not None]
    if len(found) < len(rows):
        return None
    return padded([np.array([np.nan if value is None else value for value in row]) for row in found], "scores")[0]
