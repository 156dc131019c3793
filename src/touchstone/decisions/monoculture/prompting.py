"""Decisions by prompting: language models and prompt styles over the rows of a table, thresholds from other rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.decisions.monoculture.prompts import PromptStyle, TabularPrompter
from touchstone.decisions.monoculture.scorer import LEAST_MASS, LMScorer, ScoreCache
from touchstone.decisions.monoculture.table import Criterion, DecisionTable
from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["Prompted", "Rows", "prompt_models"]

_UNIT = 64


@dataclass(frozen=True)
class Rows:
    """Features of rows and what came true of them."""

    frame: pd.DataFrame
    y: np.ndarray

    def __post_init__(self) -> None:
        if len(self.frame) != len(self.y) or not len(self.y):
            raise InputError(f"rows: {len(self.frame)} rows and {len(self.y)} outcomes; expected as many, one or more")


@dataclass(frozen=True)
class Prompted:
    """Scores and decisions of models under prompt styles.

    Attributes
    ----------
    table : decisions, one column a model and style; what is known of a column is its ``model`` and ``style``.
    scores, val_scores : risk scores of the rows to decide and of those for thresholds, with the same columns.
    columns : of each column the model, the style, its aspects, the share of rows on whose answers the model hardly
        puts any probability, and the mean probability of both answers.
    styles : the styles, whose orders of columns are fixed lists.
    """

    table: DecisionTable
    scores: pd.DataFrame
    val_scores: pd.DataFrame
    columns: pd.DataFrame
    styles: tuple[PromptStyle, ...]

    def record(self) -> dict[str, Any]:
        """What made the table, as JSON: styles with their orders, columns with their flags."""
        return {
            "styles": [{"name": style.name, **asdict(style), "order": list(style.order)} for style in self.styles],
            "columns": self.columns.to_dict(orient="records"),
        }


def prompt_models(
    models: Mapping[str, str | Path | LanguageModel],
    prompter: TabularPrompter,
    test: Rows,
    validation: Rows,
    styles: Sequence[PromptStyle],
    run: Run,
    *,
    groups: Sequence[str] = (),
    both_orders: bool = False,
    chat: bool | None = None,
    criterion: Criterion = "balanced_accuracy",
    batch_size: int = 32,
    dtype: str = "float32",
    cache: str | Path | None = None,
) -> Prompted:
    """Ask every model about every row in every style, and decide by a threshold from the validation rows.

    One model is in memory at a time. A threshold is of one model and style, chosen on the validation rows.

    Parameters
    ----------
    models : by the name of their columns: a source for :meth:`LanguageModel.load`, or a loaded model.
    prompter : writes the prompts, with examples if it has any.
    test, validation : rows to decide (the paper: 60,000 and more), and rows for thresholds (the paper: 2,000).
    styles : prompt styles.
    run : seed, engine, journal and progress.
    groups : columns of ``test`` that the table keeps as attributes.
    both_orders : average over both orders of the two answers, at twice the cost.
    chat : send prompts as chats; ``None`` does so for models that have a chat template, see :class:`LMScorer`.
    criterion : of the thresholds.
    batch_size, dtype : see :class:`LMScorer` and :meth:`LanguageModel.load`.
    cache : SQLite file of known scores, which a later run with more rows or styles reads.

    Raises
    ------
    InputError
        If a style is given twice, the validation outcomes are all the same, or a model cannot be read.
    """
    names = [style.name for style in styles]
    if len(set(names)) < len(names) or not names or not models:
        raise InputError("styles and models: expected at least one of each, and each style once")
    if len(set(np.asarray(validation.y).tolist())) < 2:
        raise InputError("validation: all outcomes are the same, so no threshold can be chosen")
    both = pd.concat([validation.frame, test.frame], ignore_index=True)
    scores, info = {}, []
    for label, source in models.items():
        jobs = [
            (k, begin, flipped)
            for k in range(len(styles))
            for flipped in ((False, True) if both_orders else (False,))
            for begin in range(0, len(both), _UNIT)
        ]
        ask = _Asking(
            prompter=prompter,
            frame=both,
            styles=tuple(styles),
            model=_loaded(source, run.device, dtype),
            name=label,
            chat=chat,
            batch_size=batch_size,
            cache=None if cache is None else str(cache),
        )
        found = run.map(f"asking {label}", partial(_unit, ask), jobs)
        for k, style in enumerate(styles):
            mine = [part for (j, _, _), part in zip(jobs, found, strict=True) if j == k]
            score = np.array([x for part in mine for x in part["score"]], dtype=np.float32)
            mass = np.array([x for part in mine for x in part["mass"]], dtype=np.float32)
            if both_orders:
                score, mass = (x.reshape(2, -1).mean(axis=0) for x in (score, mass))
            column = f"{label}/{style.name}" if len(styles) > 1 else label
            scores[column] = score
            info.append(
                {
                    "column": column,
                    "model": label,
                    "style": style.name,
                    "order": style.order_name,
                    "format": style.format,
                    "connector": style.connector,
                    "granularity": style.granularity,
                    "flagged": float((mass < LEAST_MASS).mean()),
                    "mass": float(mass.mean()),
                }
            )
    frame = pd.DataFrame(scores)
    val, rest = frame.iloc[: len(validation.y)], frame.iloc[len(validation.y) :].reset_index(drop=True)
    columns = pd.DataFrame(info)
    table = DecisionTable.from_scores(
        rest,
        test.y,
        val,
        validation.y,
        criterion=criterion,
        groups={name: test.frame[name].to_numpy() for name in groups} if groups else None,
        model_meta=columns.set_index("column"),
    )
    return Prompted(table, rest, val, columns, tuple(styles))


@dataclass(frozen=True)
class _Asking:
    """What a unit of prompts needs, plain enough to be sent elsewhere."""

    prompter: TabularPrompter
    frame: pd.DataFrame
    styles: tuple[PromptStyle, ...]
    model: Any
    name: str
    chat: bool | None
    batch_size: int
    cache: str | None


def _unit(ask: _Asking, job: tuple[int, int, bool]) -> dict[str, list[float]]:
    style, begin, flipped = job
    rows = ask.frame.iloc[begin : begin + _UNIT]
    prompts = ask.prompter.prompts(rows, ask.styles[style], flipped=flipped)
    cache = None if ask.cache is None else ScoreCache(ask.cache)
    try:
        scorer = LMScorer(ask.model, chat=ask.chat, batch_size=ask.batch_size, cache=cache, name=ask.name)
        found = scorer.risk_scores(prompts, ask.prompter.keys(flipped))
    finally:
        if cache is not None:
            cache.close()
    return {"score": found.score.tolist(), "mass": found.mass.tolist()}


def _loaded(source: str | Path | LanguageModel, device: str, dtype: str) -> LanguageModel:
    from touchstone.language.model import LanguageModel

    if isinstance(source, LanguageModel):
        return source
    return LanguageModel.load(source, device=device, dtype=dtype)
