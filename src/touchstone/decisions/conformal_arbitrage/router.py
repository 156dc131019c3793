"""A router at work: a Primary, a Guardian, a calibrated threshold, what it all costs, a log and an alarm."""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage
from touchstone.decisions.conformal_arbitrage.drift import DriftAlarm
from touchstone.decisions.conformal_arbitrage.log import options_digest
from touchstone.decisions.conformal_arbitrage.parties import Answer, Messages, Party, Query, UnavailableError, checked
from touchstone.decisions.conformal_arbitrage.risk import guardian_order
from touchstone.decisions.conformal_arbitrage.tables import Options, gaps, table
from touchstone.decisions.conformal_arbitrage.votes import VOTES, Sampler, gathered
from touchstone.errors import InputError

__all__ = ["Routed", "Router"]

# Decisions that may still be judged by `feedback`.
_REMEMBERED = 10_000


@dataclass(frozen=True)
class Routed:
    """How one query was answered.

    Attributes
    ----------
    query : with its options.
    choice : place of the option that is returned.
    deferred : whether there was more than one candidate, so that the Guardian was called (in shadow: would have been).
    candidates : places of the candidates.
    primary : the Primary's scores, as it gave them.
    guardian : the Guardian's scores of the candidates; ``None`` where it was not called.
    cost : ``{"primary", "guardian", "total"}``, and ``"tokens"`` and ``"minutes"`` where they are known.
    missing : whether the Guardian did not answer and the Primary's choice stands in its place.
    """

    query: Query
    choice: int
    deferred: bool
    candidates: tuple[int, ...]
    primary: tuple[float, ...]
    guardian: tuple[float, ...] | None
    cost: dict[str, float]
    missing: bool = False

    @property
    def answer(self) -> str:
        """Text of the option that is returned."""
        return self.query.options[self.choice]


class _CanSample(Protocol):
    name: str

    def sample(self, prompt: Messages, count: int, options: dict[str, Any]) -> tuple[list[str], int]: ...


class Router:
    """Answers queries by two parties.

    Parameters
    ----------
    arbitrage : calibrated or loaded.
    primary, guardian : see :mod:`parties`.
    log : file to which each decision is appended as a line of JSON.
    shadow : answer by the Primary alone and never call the Guardian; log what would have been done.
    on_missing : when the Guardian does not answer: ``"error"``, or ``"primary"`` to return the Primary's choice, which
        no promise covers; such answers are marked and counted.
    votes : replies that are sampled from the Primary for a query without options; 5 by default.
    false_alarm_every : of the drift alarm.

    Raises
    ------
    InputError
        If the router is not calibrated, or was calibrated on scores of another kind than the Primary's.
    """

    def __init__(
        self,
        arbitrage: ConformalArbitrage,
        primary: Party,
        guardian: Party,
        *,
        log: str | Path | None = None,
        shadow: bool = False,
        on_missing: Literal["error", "primary"] = "error",
        votes: int = 5,
        false_alarm_every: int = 10_000,
    ) -> None:
        if math.isnan(arbitrage.lam_):
            raise InputError("the router is not calibrated: call calibrate or load first")
        if arbitrage.reduce not in (None, VOTES, primary.how):
            raise InputError(
                f"primary {primary.name!r} scores by {primary.how!r}; the router was calibrated on {arbitrage.reduce!r}"
            )
        if on_missing not in ("error", "primary"):
            raise InputError(f"on_missing {on_missing!r}: expected 'error' or 'primary'")
        if votes < 2:
            raise InputError(f"votes: expected 2 or more, got {votes!r}")
        self.arbitrage, self.primary, self.guardian = arbitrage, primary, guardian
        self.shadow, self.on_missing, self.votes = shadow, on_missing, votes
        self.alarm = DriftAlarm(
            arbitrage.margins_,
            alpha=arbitrage.alpha,
            B=arbitrage.B,
            n=arbitrage.n_,
            false_alarm_every=false_alarm_every,
            seed=arbitrage.seed,
        )
        self._log = None if log is None else Path(log)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Routed] = OrderedDict()
        self._counts = {"queries": 0, "deferred": 0, "missing": 0, "feedback": 0}
        self._spent = {"primary": 0.0, "guardian": 0.0, "tokens": 0.0, "minutes": 0.0}
        self._lost = 0.0

    def route(self, queries: Sequence[Query]) -> list[Routed]:
        """Answer queries, in their order; the Guardian is called once, for those that need it.

        Queries with the same prompt and candidates share an answer.

        Raises
        ------
        UnavailableError
            If a party does not answer.
        InputError
            If a query has no options, the same option twice, or no options and a Primary that cannot write any.
        """
        if not queries:
            return []
        for query in queries:
            if not query.options or len(set(query.options)) < len(query.options):
                raise InputError(f"query {query.id!r}: expected a list of different options")
        if self.arbitrage.reduce == VOTES:
            raise InputError("this router was calibrated on sampled replies: ask it without options")
        found = self.primary.score(queries)
        return self._decided(queries, [checked(a, q, self.primary) for a, q in zip(found, queries, strict=True)])

    def reply(self, id: str, prompt: Messages, sampling: dict[str, Any] | None = None) -> Routed:
        """Answer a query without options: they are the Primary's own replies, and scores are their shares of votes.

        Raises
        ------
        InputError
            If the Primary cannot write, or the router was calibrated on scores of another kind.
        UnavailableError
            If a party does not answer.
        """
        if not isinstance(self.primary, Sampler):
            raise InputError(
                f"query {id!r}: expected 'options'; the Primary {self.primary.name!r} scores and cannot write"
            )
        if self.arbitrage.reduce not in (None, VOTES):
            raise InputError(
                f"query {id!r}: expected 'options'; the router was calibrated on {self.arbitrage.reduce!r}"
            )
        texts, tokens = self.primary.sample(prompt, self.votes, {"temperature": 0.7} | (sampling or {}))
        options, shares = gathered(texts)
        if not options:
            raise UnavailableError(f"{self.primary.name}: replied nothing to query {id!r}")
        return self._decided([Query(id, prompt, options)], [Answer(shares, tokens)])[0]

    def feedback(
        self,
        id: str,
        *,
        label: int | None = None,
        guard_values: Sequence[float] | None = None,
        loss: float | None = None,
    ) -> float:
        """Tell what an earlier answer was worth: one of the right option's place, all guardrail values, or the loss.

        Returns the loss, which the alarm takes in: of the candidates, or of what was returned where the router was
        calibrated on that.

        Raises
        ------
        InputError
            If the answer is not known (any more), or what is told about it does not fit its options.
        """
        with self._lock:
            routed = self._known.get(id)
        if routed is None:
            raise InputError(f"feedback: no answer {id!r} among the last {_REMEMBERED:,}")
        lost = self._loss(routed, label, guard_values, loss)
        with self._lock:
            self.alarm.lose(lost)
            self._counts["feedback"] += 1
            self._lost += lost
        return lost

    def stats(self) -> dict[str, Any]:
        """What it did so far: counts, money, and the state of the alarm."""
        with self._lock:
            queries, judged = self._counts["queries"], self._counts["feedback"]
            total = self._spent["primary"] + self._spent["guardian"]
            return {
                **self._counts,
                "calls": self._counts["deferred"] / queries if queries else None,
                "cost": self._spent | {"total": total, "mean": total / queries if queries else None},
                "unit": self.arbitrage.costs.unit,
                "mean_loss": self._lost / judged if judged else None,
                "alpha": self.arbitrage.alpha,
                "lam": "inf" if math.isinf(self.arbitrage.lam_) else self.arbitrage.lam_,
                "shadow": self.shadow,
                "alarm": self.alarm.summary(),
            }

    # Inside

    def _decided(self, queries: Sequence[Query], first: Sequence[Answer]) -> list[Routed]:
        options = self.arbitrage.prepared(table([answer.scores for answer in first], f"scores of {self.primary.name}"))
        candidates = self.arbitrage.inside(options)
        deferred = candidates.sum(axis=1) > 1
        second = {} if self.shadow else self._asked(queries, candidates, deferred)
        scores = np.zeros(candidates.shape)
        for i, answer in second.items():
            if answer is not None:
                scores[i, candidates[i]] = answer.scores
        # Where nobody was asked scores are equal, and ties go to the Primary's favourite.
        choices = guardian_order(Options(options.scores, candidates), scores).argmin(axis=1)
        found = []
        for i, query in enumerate(queries):
            answer = second.get(i)
            found.append(
                Routed(
                    query,
                    int(choices[i]),
                    bool(deferred[i]),
                    tuple(map(int, np.flatnonzero(candidates[i]))),
                    first[i].scores,
                    None if answer is None else answer.scores,
                    self._cost(first[i], answer, int(candidates[i].sum())),
                    missing=i in second and answer is None,
                )
            )
        self._keep(found, gaps(options))
        return found

    def _asked(
        self, queries: Sequence[Query], candidates: NDArray[np.bool_], deferred: NDArray[np.bool_]
    ) -> dict[int, Answer | None]:
        """The Guardian's answer for each query that needs one; ``None`` where it gave none and need not."""
        own: dict[str, list[int]] = {}
        asked: list[Query] = []
        for i in map(int, np.flatnonzero(deferred)):
            some = tuple(option for option, inside in zip(queries[i].options, candidates[i], strict=False) if inside)
            same = own.setdefault(json.dumps([_plain(queries[i].prompt), some]), [])
            if not same:
                asked.append(replace(queries[i], options=some))
            same.append(i)
        if not asked:
            return {}
        try:
            found: Sequence[Answer | None] = [
                checked(answer, query, self.guardian)
                for answer, query in zip(self.guardian.score(asked), asked, strict=True)
            ]
        except UnavailableError:
            if self.on_missing == "error":
                raise
            found = [None] * len(asked)
        return {i: answer for same, answer in zip(own.values(), found, strict=True) for i in same}

    def _cost(self, first: Answer, second: Answer | None, shown: int) -> dict[str, float]:
        costs = self.arbitrage.costs
        primary = costs.primary + costs.primary_token * first.tokens
        guardian, tokens, minutes = 0.0, first.tokens, first.minutes
        if second is not None:
            guardian = costs.guardian + costs.per_option * shown
            guardian += costs.guardian_token * second.tokens + costs.guardian_minute * second.minutes
            tokens, minutes = tokens + second.tokens, minutes + second.minutes
        found = {"primary": primary, "guardian": guardian, "total": primary + guardian}
        return found | ({"tokens": float(tokens)} if tokens else {}) | ({"minutes": minutes} if minutes else {})

    def _keep(self, found: Sequence[Routed], gap: NDArray[np.float64]) -> None:
        lines = []
        with self._lock:
            for routed, row in zip(found, gap, strict=True):
                if len(routed.query.options) > 1:
                    self.alarm.see(float(np.partition(row, 1)[1]))
                self._counts["queries"] += 1
                self._counts["deferred"] += routed.deferred
                self._counts["missing"] += routed.missing
                for name in self._spent:
                    self._spent[name] += routed.cost.get(name, 0.0)
                self._known[routed.query.id] = routed
                lines.append(json.dumps(self._line(routed), ensure_ascii=False) + "\n")
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            if self._log is not None:
                try:
                    self._log.parent.mkdir(parents=True, exist_ok=True)
                    with self._log.open("a", encoding="utf-8") as stream:
                        stream.write("".join(lines))
                except OSError as error:
                    raise InputError(f"log {self._log}: cannot be written ({error.strerror or error})") from None

    def _line(self, routed: Routed) -> dict[str, Any]:
        """A line of scores and of the decision in one, so that a log can be calibrated on once it has labels."""
        guardian: list[float | None] | None = None
        if routed.guardian is not None:
            asked = dict(zip(routed.candidates, routed.guardian, strict=True))
            guardian = [asked.get(place) for place in range(len(routed.query.options))]
        return {
            "id": routed.query.id,
            "prompt": _plain(routed.query.prompt),
            "options": list(routed.query.options),
            "options_digest": options_digest(routed.query.options),
            "primary": list(routed.primary),
            "reduce": self.arbitrage.reduce,
            "guardian": guardian,
            "alpha": self.arbitrage.alpha,
            "lam": "inf" if math.isinf(self.arbitrage.lam_) else self.arbitrage.lam_,
            "candidates": list(routed.candidates),
            "deferred": routed.deferred,
            "choice": routed.choice,
            "cost": routed.cost,
        } | {name: True for name, on in (("missing", routed.missing), ("shadow", self.shadow)) if on}

    def _loss(
        self, routed: Routed, label: int | None, guard_values: Sequence[float] | None, loss: float | None
    ) -> float:
        told = [value is not None for value in (label, guard_values, loss)]
        if sum(told) != 1:
            raise InputError("feedback: expected one of label, guard_values and loss")
        if loss is not None:
            if not 0 <= loss <= self.arbitrage.B:
                raise InputError(f"loss {loss!r}: expected a number in [0, {self.arbitrage.B:g}]")
            return float(loss)
        count = len(routed.query.options)
        if label is not None:
            if not 0 <= label < count:
                raise InputError(f"label {label!r}: no place among {count} options")
            guard_values = [self.arbitrage.B * (place == label) for place in range(count)]
        values = list(guard_values or ())
        if len(values) != count or not all(0 <= value <= self.arbitrage.B for value in values):
            raise InputError(f"guard_values: expected {count} numbers in [0, {self.arbitrage.B:g}]")
        kept = routed.candidates if self.arbitrage.risk == "candidate" else (routed.choice,)
        return float(max(values) - max(values[place] for place in kept))


def new_id() -> str:
    """A name for a query that has none."""
    return f"route-{uuid.uuid4().hex[:24]}"


def _plain(prompt: Messages) -> Any:
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
