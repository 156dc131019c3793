"""Sweeps: every arm at every setting on every prompt, many settings to a batch, as one tidy table."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch

from touchstone.errors import InputError
from touchstone.evidence import Measurement
from touchstone.language.refusal import incoherent, log_odds
from touchstone.run import Run

if TYPE_CHECKING:
    from touchstone.language.angular_steering.arms import Arm
    from touchstone.language.model import LanguageModel

__all__ = ["Contrast", "Judge", "perplexities", "summary", "sweep"]

Judge = Callable[[Sequence[str], Sequence[str]], Sequence[float] | np.ndarray]
"""Takes prompts and replies and gives one number a reply, such as the probability that it refuses."""


@dataclass(frozen=True)
class Contrast:
    """A behaviour measured before anything is generated: how much likelier one set of continuations is than another.

    Parameters
    ----------
    positive, negative : continuations of both kinds.
    how : ``"odds"``: log Σ p(positive) − log Σ p(negative), in nats; ``"token"``: the difference of the mean
        log-probabilities a token, in nats a token.
    """

    positive: tuple[str, ...]
    negative: tuple[str, ...]
    how: Literal["odds", "token"] = "odds"

    def __post_init__(self) -> None:
        if not self.positive or not self.negative:
            raise InputError("contrast: expected at least one positive and one negative continuation")
        if self.how not in ("odds", "token"):
            raise InputError(f"how {self.how!r}: expected 'odds' or 'token'")

    @property
    def unit(self) -> str:
        return "nats" if self.how == "odds" else "nats/token"

    def score(
        self, model: LanguageModel, prompts: Sequence[str], *, system: str | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """One number a prompt, float64 [prompts]; above 0 towards ``positive``."""
        options: dict[str, Any] = {"system": system, "batch_size": batch_size}
        if self.how == "odds":
            return log_odds(model, prompts, self.positive, self.negative, **options)
        mean = model.log_likelihood(prompts, [*self.positive, *self.negative], **options).mean
        split = len(self.positive)
        difference: np.ndarray = mean[:, :split].mean(axis=1) - mean[:, split:].mean(axis=1)
        return difference


def sweep(
    model: LanguageModel,
    arms: Sequence[Arm],
    prompts: Sequence[str] = (),
    *,
    score: Literal["logprob", "generate"] = "logprob",
    contrast: Contrast | None = None,
    judges: Mapping[str, Judge] | None = None,
    texts: Sequence[str] = (),
    reply_likelihood: bool = False,
    system: str | None = None,
    max_new_tokens: int = 64,
    batch_size: int = 32,
    rows_per_shard: int = 256,
    run: Run | None = None,
    label: str = "sweep",
) -> pd.DataFrame:
    """Measure every arm at each of its settings; settings and prompts share batches.

    Parameters
    ----------
    model : the model, not steered by anything else.
    arms : what to compare.
    prompts : what to measure the behaviour on; may be empty if ``texts`` are given.
    score : ``"logprob"`` scores ``contrast``; ``"generate"`` writes greedy replies and judges them.
    contrast : continuations to score.
    judges : names and judges of replies.
    texts : neutral texts whose log-likelihood shows what an arm costs.
    reply_likelihood : also score every reply under the unsteered model.
    system : system message for all prompts, unless an arm has its own.
    max_new_tokens : length of replies.
    batch_size : most rows in a batch.
    rows_per_shard : rows (a prompt at a setting) in one unit of work, which an engine may send elsewhere.
    run : carries out the units of work; without it they run here.
    label : name of the step in the progress bar.

    Returns
    -------
    One row for each arm, setting, measure and item, with columns ``arm``, ``value``, ``unit``, ``measure``, ``item``
    (index of the prompt or text), ``score``, ``tokens`` (of the text or reply; 0 elsewhere) and, if
    ``score="generate"``, ``reply``. Measures are ``contrast``, ``nll`` (of ``texts``, in nats a token), the judges'
    names, ``incoherent`` (0 or 1) and ``reply_nll``.
    """
    if score not in ("logprob", "generate"):
        raise InputError(f"score {score!r}: expected 'logprob' or 'generate'")
    if isinstance(prompts, str) or isinstance(texts, str):
        raise InputError("prompts, texts: expected lists of strings, got a single string")
    if prompts and score == "logprob" and contrast is None:
        raise InputError("contrast: expected continuations to score, as score is 'logprob'")
    if not prompts and not texts:
        raise InputError("prompts: expected at least one prompt or text")
    if len({arm.name for arm in arms}) != len(arms):
        raise InputError("arms: two have the same name")
    plan = _Plan(
        tuple(prompts), contrast, dict(judges or {}), tuple(texts), reply_likelihood, system, max_new_tokens, batch_size
    )
    items = []
    for k, arm in enumerate(arms):
        kinds = [(score, len(prompts)), ("text", len(texts))]
        for kind, count in kinds:
            if kind == "text" and arm.system(arm.values[0]) is not None:
                # A neutral text has no place for a system line: scoring it would show that prompting costs nothing.
                continue
            rows = [(value, i) for value in arm.values for i in range(count)]
            pieces = max(1, math.ceil(len(rows) / rows_per_shard))
            # Pieces of one size: a short last one would be a batch that is half empty.
            for piece in np.array_split(np.arange(len(rows)), pieces) if rows else ():
                items.append({"kind": kind, "arm": k, "rows": [rows[j] for j in piece]})
    work = partial(_shard, model, tuple(arms), plan)
    name = f"{label} [{fingerprint((model.source, list(arms), plan, rows_per_shard))}]"
    records: list[dict[str, Any]] = []
    for part in (run or Run()).map(name, work, items):
        records += part
    frame = pd.DataFrame(records)
    frame["score"] = frame["score"].astype(float)
    return frame


@dataclass(frozen=True)
class _Plan:
    prompts: tuple[str, ...]
    contrast: Contrast | None
    judges: dict[str, Judge]
    texts: tuple[str, ...]
    reply_likelihood: bool
    system: str | None
    max_new_tokens: int
    batch_size: int


def _shard(model: LanguageModel, arms: tuple[Arm, ...], plan: _Plan, item: dict[str, Any]) -> list[dict[str, Any]]:
    """One unit of work: some rows of one arm."""
    arm: Arm = arms[item["arm"]]
    records: list[dict[str, Any]] = []
    measure = {"logprob": _contrast, "generate": _replies, "text": _texts}[item["kind"]]
    # Rows that share a system line go together; it is the same for all but the prompting arm.
    groups: dict[str | None, list[tuple[float, int]]] = {}
    for value, i in item["rows"]:
        groups.setdefault(arm.system(value) or plan.system, []).append((value, i))
    for system, rows in groups.items():
        columns = measure(model, arm, plan, system, rows)
        for name, scores in columns.items():
            for (value, i), score in zip(rows, scores, strict=True):
                record = {"arm": arm.name, "value": value, "unit": arm.unit, "measure": name, "item": i, "tokens": 0}
                records.append(record | (score if isinstance(score, dict) else {"score": score}))
    return records


Rows = list[tuple[float, int]]


def _contrast(model: LanguageModel, arm: Arm, plan: _Plan, system: str | None, rows: Rows) -> dict[str, Any]:
    assert plan.contrast is not None
    prompts = [plan.prompts[i] for _, i in rows]
    with model.edited(arm.edits(model, [value for value, _ in rows]), by_row=True):
        scores = plan.contrast.score(model, prompts, system=system, batch_size=plan.batch_size)
    return {"contrast": scores.tolist()}


def _texts(model: LanguageModel, arm: Arm, plan: _Plan, system: str | None, rows: Rows) -> dict[str, Any]:
    with model.edited(arm.edits(model, [value for value, _ in rows]), by_row=True):
        scores = model.text_log_likelihood([plan.texts[i] for _, i in rows], batch_size=plan.batch_size)
    found = zip((-scores.mean[:, 0]).tolist(), scores.tokens[:, 0].tolist(), strict=True)
    return {"nll": [{"score": nll, "tokens": tokens} for nll, tokens in found]}


def _replies(model: LanguageModel, arm: Arm, plan: _Plan, system: str | None, rows: Rows) -> dict[str, Any]:
    prompts = [plan.prompts[i] for _, i in rows]
    options: dict[str, Any] = {"system": system, "batch_size": plan.batch_size}
    with model.edited(arm.edits(model, [value for value, _ in rows]), by_row=True):
        replies = model.generate(prompts, max_new_tokens=plan.max_new_tokens, **options)
    columns: dict[str, Any] = {"incoherent": [{"score": float(incoherent(reply)), "reply": reply} for reply in replies]}
    for name, judge in plan.judges.items():
        columns[name] = [float(score) for score in judge(prompts, replies)]
    if plan.reply_likelihood:
        columns["reply_nll"] = _under_unsteered(model, plan, prompts, replies)
    return columns


def _under_unsteered(
    model: LanguageModel, plan: _Plan, prompts: Sequence[str], replies: Sequence[str]
) -> list[dict[str, Any]]:
    """NLL of each reply after its prompt, without steering and without the arm's system line."""
    said = [i for i, reply in enumerate(replies) if reply.strip()]
    found: list[dict[str, Any]] = [{"score": None} for _ in replies]
    if said:
        scores = model.log_likelihood(
            [prompts[i] for i in said],
            [[replies[i]] for i in said],
            system=plan.system,
            batch_size=plan.batch_size,
        )
        columns = zip(said, (-scores.mean[:, 0]).tolist(), scores.tokens[:, 0].tolist(), strict=True)
        for i, nll, tokens in columns:
            found[i] = {"score": nll, "tokens": tokens}
    return found


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean, 95 % interval and number of items of each measure, by arm and setting."""
    records = []
    for (arm, value, unit, measure), group in frame.groupby(["arm", "value", "unit", "measure"], sort=False):
        scores = group["score"].dropna().to_numpy()
        if len(scores) == 0:
            continue
        found = Measurement.mean(str(measure), scores)
        records.append(
            {
                "arm": arm,
                "value": value,
                "unit": unit,
                "measure": measure,
                "mean": found.value,
                "low": found.low,
                "high": found.high,
                "n": found.n,
            }
        )
    return pd.DataFrame(records)


def perplexities(frame: pd.DataFrame, measure: str = "nll") -> pd.Series:
    """Perplexity by arm and setting: exp of the mean negative log-likelihood a token (natural logarithm) over all
    texts.
    """
    rows = frame[(frame["measure"] == measure) & frame["score"].notna()]
    total = (rows["score"] * rows["tokens"]).groupby([rows["arm"], rows["value"]], sort=False).sum()
    count = rows["tokens"].groupby([rows["arm"], rows["value"]], sort=False).sum()
    return pd.Series(np.exp(total / count), name="perplexity")


def fingerprint(value: Any) -> str:
    """Short fingerprint of what a sweep works on: the journal must not hand out the results of other work."""
    state = hashlib.sha256()
    _feed(state, value)
    return state.hexdigest()[:8]


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        state.update(value.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(value, pd.DataFrame):
        state.update(value.to_csv().encode())
    elif is_dataclass(value) and not isinstance(value, type):
        state.update(type(value).__name__.encode())
        for item in fields(value):
            _feed(state, getattr(value, item.name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            state.update(repr(key).encode())
            _feed(state, item)
    elif isinstance(value, list | tuple):
        state.update(f"[{len(value)}".encode())
        for item in value:
            _feed(state, item)
    elif isinstance(value, partial):
        _feed(state, [value.func, *value.args, value.keywords])
    elif callable(value) and hasattr(value, "__qualname__"):
        state.update(f"{value.__module__}.{value.__qualname__}".encode())
    elif value is None or isinstance(value, str | int | float | bool):
        state.update(repr(value).encode())
    else:
        # Of any other object (a judge with its model), what it is and its plain settings; a default repr would show its
        # address, and to follow every attribute would lead through the whole model.
        state.update(type(value).__qualname__.encode())
        for key, item in sorted(getattr(value, "__dict__", {}).items()):
            if item is None or isinstance(item, str | int | float | bool | tuple):
                state.update(key.encode())
                _feed(state, item)
