"""The audit's check: how much of a prompt can change before the continuation does, and what the model cannot hold.

A defender reads it as blindness: a small share of changed tokens that the prediction does not notice, patterns that are
continued as another one, and edits that turn the right answer round and leave the model's as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from touchstone.budget import Cost
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Finding, Table
from touchstone.language.isolation_continuity import figures, findings
from touchstone.language.isolation_continuity.basin import captures
from touchstone.language.isolation_continuity.bodies import BINARY, Body, passage, pattern
from touchstone.language.isolation_continuity.curve import continuity_curve, summary
from touchstone.language.isolation_continuity.edit_sources import syntax_edits, text_edits
from touchstone.language.isolation_continuity.edits import decisive_edits
from touchstone.language.isolation_continuity.period import learnable_periods, pair_matrix
from touchstone.language.isolation_continuity.position import position_profile

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["COST", "METRICS", "NEEDS", "Settings", "check"]

NEEDS = "local"
"""It reads whole next-token distributions after given tokens: an endpoint cannot be checked."""

METRICS: dict[str, str] = {
    "delta_hat": "largest share of a prompt that can change while the next-token distribution stays within epsilon",
    "single_change": "mean TV after one changed token, at the length from 64 where it is largest, 0 to 1",
    "invariance": "largest gap in mean TV between lengths at the same share of changes, 0 to 1",
    "p_max": "largest period up to which the model predicts a rare symbol when it is due, and only then",
    "captured": "share of periodic prompts whose greedy continuation is the constant pattern, 0 to 1",
    "dead_zone": "share of positions of a text at which a change moves the prediction by a TV below 0.01, 0 to 1",
    "flip_rate": "share of edits that turn the right answer round that also turn the model's, 0 to 1",
    "edit_accuracy": "balanced accuracy of the answers before and after such edits, 0 to 1; chance is 0.5",
}

COST = Cost(seconds=45.0, setting="draws", least=2, most=16, fixed=27.0)
"""Curves grow with their draws; periods, positions and edits do not."""

# Up to here the theory speaks of how predictions move; a body on whose symbols little probability rests says nothing.
_TRUSTED_MASS = 0.5


@dataclass(frozen=True)
class Settings:
    """What a plan can set.

    Attributes
    ----------
    prompt : instruction in front of the patterns.
    common, rare : the two symbols of patterns; each must be a single token of the model.
    lengths : tokens of the bodies; the longest should be at least 64.
    fractions : shares of the body that change, beside a single change.
    draws : edited prompts for each share.
    epsilon : TV that counts as unnoticed.
    periods : longest period that is tested; those of 2, 4, 8, 12, 16, 24, 32, 48, 64 up to it are.
    text : file with a text for the dead zone; a built-in passage if not given.
    functions : functions of the standard library for edits of syntax.
    texts : edits of each of three kinds of short text at each of three lengths.
    """

    prompt: str = BINARY
    common: str = "0"
    rare: str = "1"
    lengths: tuple[int, ...] = (16, 64, 256)
    fractions: tuple[float, ...] = (0.05, 0.1, 0.4)
    draws: Annotated[int, Field(ge=1)] = 8
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.1
    periods: Annotated[int, Field(ge=4, le=64)] = 64
    text: str = ""
    functions: Annotated[int, Field(ge=2)] = 16
    texts: Annotated[int, Field(ge=1)] = 1


_PERIODS = (2, 4, 8, 12, 16, 24, 32, 48, 64)
_CAPTURE_LENGTH = 192


def check(model: LanguageModel, settings: Settings, run: Run) -> Evidence:
    """Check one model; see the module's text. Its limits are the keys of :data:`METRICS`.

    Raises
    ------
    InputError
        If a symbol is not a single token, the lengths do not fit, or the text is too short.
    """
    symbols = (settings.common, settings.rare)
    prompt = settings.prompt or None
    body = pattern(model, [symbols[0]], symbols=symbols, length=max(settings.lengths, default=1), prompt=prompt)
    text = _text(model, settings, run.seed)
    curve = continuity_curve(
        model,
        body,
        lengths=settings.lengths,
        fractions=settings.fractions,
        draws=settings.draws,
        epsilon=settings.epsilon,
        seed=run.seed,
        run=run,
    )
    chosen = [p for p in _PERIODS if p <= settings.periods]
    options: dict[str, Any] = {"symbols": symbols, "prompt": prompt, "seed": run.seed, "run": run}
    period = learnable_periods(model, periods=chosen, **options)
    capture = captures(model, periods=[p for p in chosen if p >= 4][::2], length=_CAPTURE_LENGTH, **options)
    profile = position_profile(model, text, length=min(128, len(text.ids)), seed=run.seed, run=run)
    some = syntax_edits(functions=settings.functions, most=900, seed=run.seed)
    some += text_edits(each=settings.texts, seed=run.seed)
    edit = decisive_edits(model, some, seed=run.seed, run=run)
    found = [
        findings.delta(curve, run.seed),
        findings.fading(curve, run.seed),
        findings.invariant(curve, run.seed),
        findings.largest_period(period),
        findings.captured(capture),
        findings.dead_zone(profile, run.seed),
        findings.flip_rate(edit),
        findings.edit_accuracy(edit, run.seed),
    ]
    if curve.numbers["symbol_mass"] < _TRUSTED_MASS:
        found = [_doubted(finding, curve.numbers["symbol_mass"]) for finding in found[:5]] + found[5:]
    worst = edit.rows.sort_values("delta").head(12)
    return run.evidence(
        f"Continuity of {model.source}",
        "isolation-continuity",
        "check",
        found,
        tables=[
            Table("curve", "How far the prediction moves with length and share of changed tokens", summary(curve.rows)),
            Table("periods", "Which periods the model holds; 0 is the constant pattern", period.rows),
            Table("pairs", "Which patterns are held together; 0 is the constant pattern", pair_matrix(period)),
            Table("captures", "How periodic prompts are continued", capture.rows),
            Table("profile", "A single change by its position in the text", profile.rows),
            Table("edits", "Edits that turn the right answer round", edit.rows),
            Table("worst-edits", "Edits that moved the answer least, or the wrong way", worst),
        ],
        figures=[
            figures.curve({"Constant pattern": curve.rows}),
            figures.periods({f"{settings.common!r} and {settings.rare!r}": period.rows}),
            figures.profile({"text": profile.rows}),
            figures.edits(edit.rows),
        ],
        device=str(model.device),
    )


def _text(model: LanguageModel, settings: Settings, seed: int) -> Body:
    from touchstone.files import read_text

    if not settings.text:
        return passage(model, seed=seed)
    found = passage(model, read_text(settings.text, "text"), seed=seed)
    if len(found.ids) < 24:
        raise InputError(f"text {settings.text}: {len(found.ids)} tokens; expected at least 24")
    return found


def _doubted(finding: Finding, mass: float) -> Finding:
    """The same finding undecided: the model does not continue the pattern in the first place."""
    reason = f" Not decided: before any change only {mass:.2f} of the probability is on the pattern's symbols."
    return Finding(
        finding.id, finding.statement + reason, "undecided", finding.measured, finding.against, finding.limit
    )
