"""Parts A and B of the study: a real model's curves against their baselines, and edits that turn the right answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.bootstrap import clustered, sign
from touchstone.evidence import Figure, Finding, Limit, Measurement, Table
from touchstone.language.isolation_continuity import divergence, figures, findings
from touchstone.language.isolation_continuity.basin import attractor_basin, built_in_patterns, captures
from touchstone.language.isolation_continuity.bodies import Body, passage, pattern
from touchstone.language.isolation_continuity.curve import continuity_curve, single_slope, summary
from touchstone.language.isolation_continuity.edit_sources import syntax_edits, text_edits
from touchstone.language.isolation_continuity.edits import decisive_edits, restated
from touchstone.language.isolation_continuity.period import learnable_periods, pair_matrix
from touchstone.language.isolation_continuity.position import position_profile
from touchstone.language.isolation_continuity.reading import next_log_probs
from touchstone.language.isolation_continuity.report import Report
from touchstone.language.isolation_continuity.scaling import log_n_attention, rounded, untrained
from touchstone.run import Run

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["ModelSize", "curves", "decisive", "patterns"]

Part = tuple[list[Finding], list[Table], list[Figure]]
_SLACK = 0.05


@dataclass(frozen=True)
class ModelSize:
    """How large these parts are."""

    lengths: tuple[int, ...]
    single_lengths: tuple[int, ...]
    fractions: tuple[float, ...]
    draws: int
    baseline_draws: int
    periods: tuple[int, ...]
    period_length: int
    functions: int
    most: int
    texts: int
    shares: tuple[float, ...] = (0.05, 0.1, 0.4)
    baseline_shares: tuple[float, ...] = (0.05, 0.1, 0.4)
    points: int = 24
    profile_length: int = 128
    text_lines: tuple[int, ...] = (2, 8, 24)
    full: bool = True


def curves(model: LanguageModel, size: ModelSize, run: Run) -> Part:
    """The continuity curve of a pattern and of text, against rounding, the untrained network and log n attention."""
    seed = run.seed
    longest = max(*size.lengths, *size.single_lengths)
    body = pattern(model, length=longest)
    text = passage(model, seed=seed)
    main = continuity_curve(
        model,
        body,
        lengths=size.lengths,
        single_lengths=size.single_lengths,
        fractions=size.fractions,
        draws=size.draws,
        seed=seed,
        label="curve, pattern",
        run=run,
    )
    late = tuple(n for n in size.lengths if n >= 64 and n <= len(text.ids))
    options: dict[str, Any] = {"lengths": late, "draws": size.baseline_draws, "seed": seed, "run": run}
    prose = continuity_curve(model, text, fractions=size.shares, label="curve, text", **options)
    with log_n_attention(model):
        scaled = continuity_curve(model, body, fractions=size.baseline_shares, label="curve, log n", **options)
    random = continuity_curve(
        untrained(model, seed=seed), body, fractions=size.baseline_shares, label="curve, untrained", **options
    )
    bare = continuity_curve(model, body.bare(), fractions=size.shares[:1], label="curve, no head", **options)
    [noise] = run.map("rounding", partial(_rounding, model, body), [late[-1]])
    found = [
        findings.fading(main, seed, against=_single("without a head", bare, seed)),
        findings.invariant(main, seed, shares=size.shares),
        findings.delta(main, seed),
        _slope(main, seed),
        _floor(main, noise, seed),
        findings.fading(prose, seed, "text-single-change", "a text"),
        findings.invariant(prose, seed, "text-invariance", "a text"),
        findings.fading(random, seed, "untrained-single-change", "the untrained network's view of the pattern"),
        _scaling(main, scaled, seed),
    ]
    every = {"pattern": main, "text": prose, "log n": scaled, "untrained": random, "no head": bare}
    table = pd.concat([summary(report.rows).assign(curve=name) for name, report in every.items()])
    panels = {
        "Constant pattern": main.rows,
        "Text": prose.rows,
        "Constant pattern, attention scaled by log n": scaled.rows,
    }
    return (
        found,
        [Table("curves", "How far the prediction moves with length and share of changed tokens", table)],
        [figures.curve(panels)],
    )


def patterns(model: LanguageModel, size: ModelSize, run: Run) -> Part:
    """Which periods are held, which are continued as the constant, where changes are ignored, how far basins reach."""
    seed = run.seed
    options: dict[str, Any] = {"periods": size.periods, "length": size.period_length, "seed": seed, "run": run}
    digits = learnable_periods(model, label="periods, digits", **options)
    words = learnable_periods(
        model, symbols=(" no", " yes"), prompt="Continue the sequence.", label="periods, words", **options
    )
    some = [p for p in size.periods if p >= 4]
    taken = captures(model, periods=some, length=size.period_length, seed=seed, run=run)
    where: dict[str, Any] = {"length": size.profile_length, "points": size.points, "seed": seed, "run": run}
    on_text = position_profile(model, passage(model, seed=seed), label="profile, text", **where)
    on_pattern = position_profile(model, pattern(model), label="profile, pattern", **where)
    found = [
        findings.largest_period(digits),
        _falling(digits),
        findings.largest_period(words, "p-max-words", "words"),
        _isolation(digits),
        findings.captured(taken),
        findings.dead_zone(on_text, seed),
        _recency(on_pattern, seed),
    ]
    tables = [
        Table("periods", "Which periods the model holds; 0 is the constant pattern", digits.rows),
        Table("periods-words", "The same with the words no and yes", words.rows),
        Table("pairs", "Which patterns are held together; 0 is the constant pattern", pair_matrix(digits)),
        Table("captures", "How periodic prompts are continued", taken.rows),
        Table(
            "profiles",
            "A single change by its position",
            pd.concat([on_text.rows.assign(body="text"), on_pattern.rows.assign(body="pattern")]),
        ),
    ]
    if size.full:
        basin = attractor_basin(model, built_in_patterns(model), draws=2, seed=seed, run=run)
        tables.append(Table("basins", "Corrupted prompts still continued by their pattern", basin.rows))
    pictures = [
        figures.periods({"0 and 1": digits.rows, "no and yes": words.rows}),
        figures.profile({"text": on_text.rows, "constant pattern": on_pattern.rows}),
    ]
    return found, tables, pictures


def decisive(model: LanguageModel, size: ModelSize, run: Run) -> Part:
    """Edits of syntax, of a last value, of a negation and of a digit; and the same with the sentence said again."""
    seed = run.seed
    syntax = decisive_edits(
        model,
        syntax_edits(functions=size.functions, most=size.most, seed=seed),
        seed=seed,
        label="edits, syntax",
        run=run,
    )
    plain = text_edits(lines=size.text_lines, each=size.texts, seed=seed)
    text = decisive_edits(model, plain, seed=seed, label="edits, text", run=run)
    again = decisive_edits(model, [restated(edit) for edit in plain], seed=seed, label="edits, said again", run=run)
    found = [
        _length(syntax, seed),
        findings.flip_rate(syntax, "syntax-flip-rate", "edits of syntax"),
        findings.edit_accuracy(syntax, seed, "syntax-accuracy"),
        findings.flip_rate(text, "text-flip-rate", "edits of a text"),
        _repair(text, again, seed),
    ]
    rows = pd.concat([syntax.rows, text.rows, again.rows], ignore_index=True)
    shown = pd.concat([syntax.rows, text.rows], ignore_index=True)
    tables = [Table("edits", "Edits that turn the right answer round", rows)]
    return found, tables, [figures.edits(shown)]


def _rounding(model: LanguageModel, body: Body, length: int) -> float:
    """TV between the predictions of float32 and of bfloat16 on the unchanged prompt."""
    row, after = [*body.head, *body.ids[:length]], [len(body.head) + length - 1]
    exact = next_log_probs(model, [row], after)[0]
    with rounded(model):
        coarse = next_log_probs(model, [row], after)[0]
    return float(divergence.total_variation(exact, coarse)[0])


def _single(name: str, report: Report, seed: int) -> Measurement:
    rows = report.rows[report.rows["wanted"] == 0]
    return clustered(f"mean TV {name}", rows.groupby("draw")["tv"].mean().to_numpy(), seed=seed)


def _slope(report: Report, seed: int) -> Finding:
    measured = findings.resampled("slope of log TV on log N", report.rows, single_slope, seed=seed)
    limit = Limit("<", 0)
    return Finding(
        "single-slope",
        "A single change fades as the prompt grows: log TV falls with log N.",
        limit.judge(measured),
        measured,
        limit=str(limit),
    )


def _floor(report: Report, noise: float, seed: int) -> Finding:
    """What batches and rounding change, against the smallest change that the curve measures."""
    rows = report.rows[report.rows["wanted"] == 0]
    smallest = clustered("mean TV of a single change", rows["tv"].to_numpy(), seed=seed)
    measured = Measurement("TV between readings alone and in a batch", report.numbers["floor"])
    limit = Limit("<=", 0.001)
    return Finding(
        "floor",
        f"Batching changes nothing that matters (bfloat16 alone moves the prediction by a TV of {noise:.4f}).",
        limit.judge(measured),
        measured,
        against=smallest,
        limit=str(limit),
    )


def _scaling(plain: Report, scaled: Report, seed: int) -> Finding:
    """Whether the mitigation makes a single change visible in a long prompt."""
    length = int(scaled.rows["length"].max())
    parts = []
    for report in (plain, scaled):
        rows = report.rows[(report.rows["wanted"] == 0) & (report.rows["length"] == length)]
        parts.append(rows["tv"].to_numpy(dtype=float))
    measured = clustered(f"mean TV of one change, {length} tokens, log n", parts[1], seed=seed)
    against = clustered(f"mean TV of one change, {length} tokens", parts[0], seed=seed)
    # The same draws are read by both: what counts is their difference.
    shared = min(map(len, parts))
    verdict = sign(clustered("", parts[1][:shared] - parts[0][:shared], seed=seed))
    return Finding(
        "log-n-attention",
        "Attention scaled by log n, put on without training, lets a single change reach the prediction of a long prompt"
        " better.",
        verdict,
        measured,
        against=against,
    )


def _falling(report: Report) -> Finding:
    """P(rare | due) does not rise with the period, up to a slack."""
    rows = report.rows[report.rows["period"] > 0].sort_values("period")
    values = rows["due_prob"].to_numpy()
    rise = float(np.max(values[1:] - np.minimum.accumulate(values)[:-1])) if len(values) > 1 else float("nan")
    limit = Limit("<=", _SLACK)
    return Finding(
        "due-falls",
        f"P of the rare symbol where it is due does not rise with the period by more than {_SLACK:g}.",
        limit.judge(Measurement("", rise)),
        Measurement("largest rise", rise, n=len(values)),
        limit=str(limit),
    )


def _isolation(report: Report) -> Finding:
    """Patterns near the constant one are predicted like it."""
    pairs = pair_matrix(report)
    near = pairs[pairs["a"] == 0].sort_values("hamming")
    limit = Limit("<", 0.5)
    closest, furthest = near.iloc[0], near.iloc[-1]
    measured = Measurement(f"gap at distance 1/{int(closest['b'])}", float(closest["gap"]))
    return Finding(
        "isolation",
        f"Where the constant pattern and that of period {int(closest['b'])} demand different symbols, the model's"
        " P(rare) differs by less than the 0.5 that holding both with a margin would need.",
        limit.judge(measured),
        measured,
        against=Measurement(f"gap at distance 1/{int(furthest['b'])}", float(furthest["gap"])),
        limit=str(limit),
    )


def _recency(report: Report, seed: int) -> Finding:
    means = report.rows.groupby("position")["tv"].mean()
    where = means.index.to_numpy() / float(report.settings["length"])
    late, early = means[where >= 0.9].to_numpy(), means[where < 0.5].to_numpy()
    measured, against = (
        clustered(name, values, seed=seed)
        for name, values in (("mean TV, last tenth", late), ("mean TV, first half", early))
    )
    apart = measured.low is not None and against.high is not None and measured.low > against.high
    return Finding(
        "recency",
        "A change in the last tenth of a pattern moves the prediction further than one in its first half.",
        "holds" if apart else "undecided" if measured.value > against.value else "fails",
        measured,
        against=against,
    )


def _length(report: Report, seed: int) -> Finding:
    tokens, delta = report.rows["tokens"].to_numpy(dtype=float), report.rows["delta"].to_numpy(dtype=float)
    measured = _bootstrap_slope(tokens, delta, seed)
    limit = Limit("<", 0)
    return Finding(
        "syntax-slope",
        "One mark that breaks a Python function moves the answer to whether it is valid less, the longer the function.",
        limit.judge(measured),
        measured,
        limit=str(limit),
    )


def _bootstrap_slope(tokens: np.ndarray, delta: np.ndarray, seed: int) -> Measurement:
    from touchstone.language.isolation_continuity.edits import length_slope

    rng = np.random.default_rng(seed)
    picks: Sequence[np.ndarray] = [rng.integers(len(tokens), size=len(tokens)) for _ in range(1000)]
    low, high = np.nanquantile([length_slope(tokens[i], delta[i]) for i in picks], [0.025, 0.975])
    value = length_slope(tokens, delta)
    return Measurement("slope of log |ΔP| on log tokens", value, low=float(low), high=float(high), n=len(tokens))


def _repair(plain: Report, again: Report, seed: int) -> Finding:
    gained = (again.rows["delta"] - plain.rows["delta"]).to_numpy(dtype=float)
    measured = clustered("change of ΔP(right answer) by saying it again", gained, seed=seed)
    return Finding(
        "said-again",
        "Saying the sentence that decides again, just before the question, moves the answer further the right way.",
        sign(measured),
        measured,
        against=clustered("ΔP(right answer) without", plain.rows["delta"].to_numpy(dtype=float), seed=seed),
    )
