"""A language model under prompt styles on rows of Adult: what a small model shows, with its intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from touchstone import bootstrap
from touchstone.decisions.monoculture.adult import ADULT, Task, split
from touchstone.decisions.monoculture.measures import model_scores
from touchstone.decisions.monoculture.prompting import Prompted, Rows, prompt_models
from touchstone.decisions.monoculture.prompts import PromptStyle, TabularPrompter, all_styles, one_at_a_time
from touchstone.decisions.monoculture.report import audit
from touchstone.decisions.monoculture.scorer import LEAST_MASS, LMScorer
from touchstone.decisions.monoculture.subsets import compare_sets
from touchstone.evidence import Figure, Finding, Measurement, Table, Verdict

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["PromptSize", "prompted"]


@dataclass(frozen=True)
class PromptSize:
    """Rows for thresholds and to decide, prompt styles, and rows that are asked in both orders of the answers."""

    validation: int
    test: int
    styles: int
    both_orders: int


def prompted(
    task: Task, size: PromptSize, sources: Sequence[str], run: Run, *, dtype: str, shots: int
) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Ask each model in each style; the findings are about the first one."""
    from touchstone.language.model import LanguageModel

    validation, test, examples = split(task, (size.validation, size.test, 1000), run.seed)
    # Small samples of rows by chance hold one outcome only: half of each, so that accuracy is against a coin.
    validation, test = _even(task, size.validation, run.seed), _even(task, size.test, run.seed + 1)
    prompter = TabularPrompter(ADULT)
    if shots:
        prompter = prompter.with_examples(examples.frame, examples.y, shots, run.seed)
    model = LanguageModel.load(sources[0], device=run.device, dtype=dtype)
    found = prompt_models(
        {model.source: model, **{source: source for source in sources[1:]}},
        prompter,
        Rows(test.frame, test.y),
        Rows(validation.frame, validation.y),
        _styles(size.styles),
        run,
        dtype=dtype,
    )
    own = _where(found, "model", model.source)
    findings = [
        *_scores(found, own, test.y, model.source, run.seed),
        *_styles_agree(found, own, run.seed),
        _order(model, prompter, test, size.both_orders, run),
    ]
    tables = [Table("prompts", "Each model and prompt style", _columns(found))]
    if len(sources) > 2:
        default = _where(found, "style", found.styles[0].name)
        sets = {"models": found.table.select(default), "prompts of one model": found.table.select(own)}
        tables.append(Table("models_and_prompts", "Models and prompts at the same size of set", compare_sets(sets)))
    return findings, tables, []


def _where(found: Prompted, key: str, value: str) -> list[str]:
    """Columns of one model or one style."""
    return [str(name) for name in found.columns.loc[found.columns[key] == value, "column"]]


def _even(task: Task, size: int, seed: int) -> Task:
    rng = np.random.default_rng(seed)
    # Disjoint by parity of the row, whatever the seed.
    rows = [rng.choice(np.flatnonzero(task.y == k)[seed % 2 :: 2], size // 2, replace=False) for k in (0, 1)]
    return task.part(np.sort(np.concatenate(rows)))


def _styles(n: int) -> list[PromptStyle]:
    if n >= 90:
        return all_styles(ADULT.names)
    few = {style.name: style for style in one_at_a_time(ADULT.names)}
    # One of each aspect first.
    first = ["default-bullet-is-original", "default-text-is-original", "default-bullet-is-coarse"]
    first += ["reverse-bullet-is-original"]
    return [few[name] for name in [*first, *(name for name in few if name not in first)][:n]]


def _scores(found: Prompted, own: list[str], y: np.ndarray, source: str, seed: int) -> list[Finding]:
    score = np.stack([found.scores[name].to_numpy(dtype=float) for name in own])
    # A row's place among both outcomes, averaged over styles: the area under the curve without its thresholds.
    pairs = np.mean([_auc_parts(row, y) for row in score], axis=0)
    auc = bootstrap.clustered(f"area under the curve, {source}", pairs, seed=seed)
    flagged = found.columns.set_index("column").loc[own, "flagged"].to_numpy()
    n = len(y) * len(own)
    answers = Measurement.rate(
        f"prompts on whose answers the model puts at least {LEAST_MASS}", round(float((1 - flagged).mean()) * n), n
    )
    right = (found.table.select(own).votes == y).astype(float)
    moved = bootstrap.over_items(
        "largest difference of accuracy between styles", right, lambda r: float(np.ptp(r.mean(axis=1))), seed=seed
    )
    # The largest of differences is larger still in every draw: the interval is reflected at the observed value.
    low, high = (max(0.0, 2 * moved.value - end) for end in (moved.high or 0.0, moved.low or 0.0))
    moved = Measurement(moved.name, moved.value, "", low, high, moved.n)
    return [
        Finding(
            "prompts-better-than-chance",
            f"Scores of {source} tell incomes apart better than chance.",
            bootstrap.sign(auc, above=0.5),
            auc,
            Measurement("chance", 0.5),
        ),
        Finding.held_to("prompts-answered", f"{source} answers with one of the two keys.", answers, ">= 0.5"),
        Finding(
            "prompts-accuracy-range",
            "Minor aspects of the prompt move accuracy by at most 0.03 (the paper's models).",
            _below(moved, 0.03),
            moved,
            limit="<= 0.03",
        ),
    ]


def _below(measured: Measurement, bound: float) -> Verdict:
    """Noise alone spreads the accuracies of few rows: it fails only if the whole interval is above."""
    if measured.low is None or measured.high is None or measured.low <= bound < measured.high:
        return "undecided"
    return "holds" if measured.high <= bound else "fails"


def _auc_parts(score: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Share of rows of the other outcome that each row is on the right side of."""
    wins = (score[:, None] > score[None]) + 0.5 * (score[:, None] == score[None])
    mask = y[:, None] != y[None]
    side = np.where(y[:, None] == 1, wins, 1 - wins)
    return np.asarray((side * mask).sum(axis=1) / mask.sum(axis=1))


def _styles_agree(found: Prompted, own: list[str], seed: int) -> list[Finding]:
    if len(own) < 2:
        return []
    report = audit(found.table.select(own), np.inf, groups=[], focus="all", n_boot=500, seed=seed)
    measured = report.estimates.measured
    position = measured["position"]
    ranks = found.scores[own].rank().to_numpy(dtype=float).T
    alike = bootstrap.over_items("mean rank correlation of scores between styles", ranks, _correlation, seed=seed)
    return [
        Finding(
            "prompts-rank-alike",
            "Styles of one model put people in a similar order, whatever the thresholds.",
            bootstrap.sign(alike),
            alike,
            Measurement("unrelated", 0.0),
        ),
        Finding(
            "prompts-agree-beyond-independence",
            "Styles of one model agree more than independent errors of their accuracy.",
            bootstrap.sign(position),
            Measurement(
                "place of agreement between both extremes, all rows",
                position.value,
                "",
                position.low,
                position.high,
                position.n,
            ),
            Measurement("independent errors", 0.0),
        ),
    ]


def _correlation(ranks: np.ndarray) -> float:
    """Mean over pairs of rows."""
    # A draw of few rows may hold one row only, which has no correlation.
    with np.errstate(invalid="ignore", divide="ignore"):
        pairs = np.corrcoef(ranks)[np.triu_indices(len(ranks), 1)]
    known = pairs[~np.isnan(pairs)]
    return float(known.mean()) if len(known) else float("nan")


def _order(model: LanguageModel, prompter: TabularPrompter, test: Task, rows: int, run: Run) -> Finding:
    """How far the score moves when the two answers change places."""
    frame = test.frame.iloc[:rows]
    scorer = LMScorer(model)
    with run.progress.bar("asking in the other order", len(frame)) as advance:
        plain = scorer.risk_scores(prompter.prompts(frame)).score
        turned = scorer.risk_scores(prompter.prompts(frame, flipped=True), prompter.keys(True), progress=advance).score
    moved = np.abs(plain.astype(float) - turned)
    spread = float(np.std(plain))
    return Finding(
        "answer-order-matters-less-than-the-row",
        "Turning the two answers round moves a score less than another row does.",
        bootstrap.sign(bootstrap.clustered("difference", spread - moved, seed=run.seed)) if rows > 1 else "undecided",
        bootstrap.clustered("change of the score when the answers change places", moved, seed=run.seed),
        Measurement("standard deviation of scores over rows", spread, n=len(frame)),
    )


def _columns(found: Prompted) -> pd.DataFrame:
    frame = found.columns.copy()
    frame["accuracy"] = model_scores(found.table)
    frame["positive_rate"] = found.table.votes.mean(axis=1)
    frame["mean_score"] = found.scores.mean().to_numpy()
    return frame
