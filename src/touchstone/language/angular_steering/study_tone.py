"""Study, part C: the tone of a real model, and what turning it costs, against activation addition and other arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from touchstone.bootstrap import over_items
from touchstone.evidence import Figure, Finding, Measurement, Table, Verdict
from touchstone.language.angular_steering import figures, statistics
from touchstone.language.angular_steering.arms import (
    Ablation,
    Addition,
    Arm,
    Prompting,
    Rotation,
    Unsteered,
    residual_plane,
    selective,
)
from touchstone.language.angular_steering.plane import SteeringPlane
from touchstone.language.angular_steering.prompts import (
    HAPPY_OR_SAD,
    NEUTRAL_PROMPTS,
    NEUTRAL_TEXTS,
    TONE_TRAIN,
    tone_prompts,
)
from touchstone.language.angular_steering.sweeping import perplexities, sweep

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["ToneSize", "tone"]

ADAPTIVE, ALL, RANDOM = "rotation, adaptive", "rotation, all tokens", "random plane, all tokens"
_LINES = ("You are a very happy, joyful writer.", "You are a very sad, mournful writer.")
# Alphas of addition at all points; a single layer needs several times as much for the same effect.
_ALPHAS = (0.025, 0.05, 0.1, 0.15)
_ENOUGH, _TIMES, _DEARER = 2.0, 3.0, 1.25
# On fewer prompts or texts than this nothing is decided.
_FEWEST = 4


@dataclass(frozen=True)
class ToneSize:
    """How much is measured: calibration topics, test prompts, neutral texts, and degrees between angles of both forms
    of rotation (``step``) and of other arms (``control_step``); ``few`` leaves out all arms but rotation, addition and
    the random plane."""

    topics: int
    prompts: int
    texts: int
    step: int
    control_step: int
    few: bool = False


def tone(model: LanguageModel, size: ToneSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Fit "very happy" against "very sad" sentences and sweep the circle on neutral requests about other topics."""
    topics = TONE_TRAIN[: size.topics]
    happy, sad = tone_prompts("happy", topics), tone_prompts("sad", topics)
    with run.progress.bar("reading the tone prompts", 2 * len(topics)) as advance:
        plane = SteeringPlane.fit(model, happy, sad, progress=advance)
    frame = sweep(
        model,
        _arms(model, plane, happy, sad, size, run),
        NEUTRAL_PROMPTS[: size.prompts],
        contrast=HAPPY_OR_SAD,
        texts=NEUTRAL_TEXTS[: size.texts],
        rows_per_shard=72,
        run=run,
        label="tone over the circle",
    )
    settings = _settings(frame)
    base = settings[settings["arm"] == "unsteered"].iloc[0]
    curves = _trade_off(settings, base["tone"], base["perplexity"])
    findings = _findings(frame, settings, run.seed)
    tables = [
        Table("tone-sweep", "Tone: every arm and setting", settings),
        Table("tone-arms", "Tone: each arm at a glance", _glance(settings)),
        Table("tone-trade-off", "Tone: range reached within a budget of perplexity", curves),
        Table("tone-plane", "Tone: the points of the plane", plane.diagnostics),
    ]
    drawn = [
        figures.tone(settings, (base["tone"], base["perplexity"]), [ADAPTIVE, ALL, RANDOM]),
        figures.trade_off(curves, "tone-trade-off", "What a change of tone costs"),
    ]
    return findings, tables, drawn


def _arms(
    model: LanguageModel, plane: SteeringPlane, happy: list[str], sad: list[str], size: ToneSize, run: Run
) -> list[Arm]:
    circle, coarse = (tuple(float(a) for a in range(0, 360, step)) for step in (size.step, size.control_step))
    both = tuple(sorted((*(-a for a in _ALPHAS), *_ALPHAS)))
    arms: list[Arm] = [
        Unsteered(),
        Rotation(plane, circle, name=ADAPTIVE),
        Rotation(plane, circle, adaptive=False, name=ALL),
        Rotation(plane.control("plane", seed=run.seed), coarse, adaptive=False, name=RANDOM),
        Addition(plane, both[1::5] if size.few else both, name="addition at all points"),
    ]
    if size.few:
        return arms
    residual = residual_plane(model, happy, sad)
    layer = residual.sites[int(residual.chosen or 0)]
    lengths = tuple(4 * alpha for alpha in both)
    return [
        *arms,
        Addition(
            residual,
            lengths,
            layers=[layer],
            own=True,
            name=f"addition to the residual stream after block {layer.block}",
        ),
        Ablation(plane, name="ablation at all points"),
        Ablation(residual, name="ablation in the residual stream"),
        selective(plane, coarse),
        Rotation(plane.control("second", seed=run.seed), coarse, adaptive=False, name="random second axis, all tokens"),
        Prompting(_LINES, name="prompting"),
    ]


def _settings(frame: pd.DataFrame) -> pd.DataFrame:
    """One row an arm and setting: mean tone in nats a token, perplexity of the neutral texts (none for prompting)."""
    scores = frame[frame["measure"] == "contrast"]
    table = scores.groupby(["arm", "value", "unit"], sort=False)["score"].mean().rename("tone").reset_index()
    return table.merge(perplexities(frame).reset_index(), on=["arm", "value"], how="left")


def _glance(settings: pd.DataFrame) -> pd.DataFrame:
    rows = [
        {
            "arm": arm,
            "settings": len(mine),
            "tone, lowest": mine["tone"].min(),
            "tone, highest": mine["tone"].max(),
            "perplexity, lowest": mine["perplexity"].min(),
            "perplexity, highest": mine["perplexity"].max(),
        }
        for arm, mine in settings.groupby("arm", sort=False)
    ]
    return pd.DataFrame(rows)


def _trade_off(settings: pd.DataFrame, base_tone: float, base_perplexity: float) -> pd.DataFrame:
    """Range of tone over the settings within each budget; the unsteered model belongs to every arm."""
    rows = []
    for arm, mine in settings.dropna(subset=["perplexity"]).groupby("arm", sort=False):
        if len(mine) < 2:
            continue
        budgets = sorted({base_perplexity, *mine.loc[mine["perplexity"] > base_perplexity, "perplexity"]})
        for budget in budgets:
            within = [base_tone, *mine.loc[mine["perplexity"] <= budget, "tone"]]
            rows.append({"arm": arm, "budget": budget, "range": max(within) - min(within)})
    return pd.DataFrame(rows)


def _findings(frame: pd.DataFrame, settings: pd.DataFrame, seed: int) -> list[Finding]:
    findings = []
    base = statistics.matrix(frame, "unsteered", "contrast")
    shift = _largest_shift(statistics.matrix(frame, RANDOM, "contrast"), base, seed)
    for name, arm, words in (
        ("tone-range", ADAPTIVE, "Adaptive rotation"),
        ("tone-range-all-tokens", ALL, "Rotation of all tokens"),
    ):
        range_ = over_items(
            f"range of tone, {arm}",
            statistics.matrix(frame, arm, "contrast"),
            statistics.spread,
            seed=seed,
            unit="nats/token",
        )
        needed = min(_ENOUGH, _TIMES * shift.value)
        findings.append(
            Finding(
                name,
                f"{words} moves the tone of neutral requests by at least {_TIMES:g} times what a random plane does, or"
                f" by at least {_ENOUGH:g} nats a token.",
                _above(range_, needed),
                range_,
                against=shift,
                limit=f">= {needed:.3f}",
            )
        )
    costs = {arm: _worst_perplexity(frame, arm, seed) for arm in (ADAPTIVE, ALL)}
    findings.append(
        Finding(
            "perplexity-adaptive",
            "At its worst angle, adaptive rotation leaves neutral text a lower perplexity than rotation of all tokens"
            " does.",
            _paired_lower(frame, seed),
            costs[ADAPTIVE],
            against=costs[ALL],
        )
    )
    additions = [str(arm) for arm in settings["arm"].unique() if str(arm).startswith("addition")]
    findings.append(
        _at_equal_cost("trade-off", "activation addition at the same points", additions[:1], frame, settings, seed)
    )
    if len(additions) > 1:
        findings.append(
            _at_equal_cost(
                "trade-off-best-addition", "activation addition at its best", additions, frame, settings, seed
            )
        )
    return findings


def _at_equal_cost(
    name: str, words: str, additions: Sequence[str], frame: pd.DataFrame, settings: pd.DataFrame, seed: int
) -> Finding:
    """Rotation, in whichever form goes further, against addition where both leave neutral text alone equally well."""
    budget = _DEARER * float(settings.loc[settings["arm"] == "unsteered", "perplexity"].iloc[0])
    ours, theirs = (
        max((_within(arm, budget, frame, settings, seed) for arm in arms), key=lambda found: found.value)
        for arms in ((ADAPTIVE, ALL), additions)
    )
    verdict: Verdict = "undecided"
    if (ours.n or 0) >= _FEWEST and None not in (ours.low, ours.high, theirs.low, theirs.high):
        verdict = "holds" if ours.low >= theirs.high else "fails" if ours.high < theirs.low else "undecided"  # type: ignore[operator]
    return Finding(
        name,
        f"Where neutral text keeps a perplexity of at most {_DEARER} times the unsteered, rotation moves the tone at"
        f" least as far as {words}.",
        verdict,
        ours,
        against=theirs,
    )


def _within(arm: str, budget: float, frame: pd.DataFrame, settings: pd.DataFrame, seed: int) -> Measurement:
    """Range of tone over the settings of an arm that keep within a budget of perplexity, and the unsteered model."""
    mine = settings[settings["arm"] == arm].sort_values("value")
    scores = statistics.matrix(frame, arm, "contrast")[(mine["perplexity"] <= budget).to_numpy()]
    scores = np.concatenate([statistics.matrix(frame, "unsteered", "contrast"), scores])
    return over_items(f"range of tone, {arm}", scores, statistics.spread, seed=seed, unit="nats/token")


def _largest_shift(scores: np.ndarray, base: np.ndarray, seed: int) -> Measurement:
    return over_items(
        "largest shift by a random plane",
        np.concatenate([base, scores]),
        lambda rows: float(np.abs(rows[1:].mean(axis=1) - rows[0].mean()).max()),
        seed=seed,
        unit="nats/token",
    )


def _worst_perplexity(frame: pd.DataFrame, arm: str, seed: int) -> Measurement:
    return over_items(f"perplexity at the worst angle, {arm}", _stacked(frame, [arm]), _highest, seed=seed)


def _stacked(frame: pd.DataFrame, arms: Sequence[str]) -> np.ndarray:
    """Summed NLL of each text at every setting of the arms, with the number of its tokens in the last row."""
    nll = np.concatenate([statistics.matrix(frame, arm, "nll") for arm in arms])
    tokens = statistics.matrix(frame, arms[0], "nll", "tokens")[:1]
    return np.concatenate([nll * tokens, tokens])


def _highest(rows: np.ndarray, first: int = 0, last: int | None = None) -> float:
    per_token = rows[first : len(rows) - 1 if last is None else last].sum(axis=1) / rows[-1].sum()
    return float(np.exp(per_token.max()))


def _paired_lower(frame: pd.DataFrame, seed: int) -> Verdict:
    """Whether adaptive's worst perplexity is lower, texts drawn alike for both."""
    count = len(statistics.matrix(frame, ADAPTIVE, "nll"))
    found = over_items(
        "",
        _stacked(frame, [ADAPTIVE, ALL]),
        lambda rows: _highest(rows, count) - _highest(rows, 0, count),
        seed=seed,
    )
    return _above(found, 0.0)


def _above(found: Measurement, bound: float) -> Verdict:
    if (found.n or 0) < _FEWEST:
        return "undecided"
    if found.value < bound or (bound == 0 and found.value <= 0):
        return "fails"
    return "undecided" if found.low is None or found.low < bound else "holds"
