"""Probe 3: how far a learned pattern reaches: prompts that belong to another pattern, yet are continued as this one.

A greedy continuation equals a given one exactly if every token of it is the likeliest after the prompt and the tokens
before it. So nothing has to be generated: both candidates are read once behind the prompt that they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.language.isolation_continuity.bodies import BINARY, Body, draw_edits, pattern, symbol
from touchstone.language.isolation_continuity.reading import next_log_probs
from touchstone.language.isolation_continuity.report import Report
from touchstone.run import Run

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Pattern", "attractor_basin", "built_in_patterns", "captures"]


@dataclass(frozen=True)
class Pattern:
    """A prompt with the continuation that its pattern demands: the body's tokens after ``length``."""

    body: Body
    length: int
    follows: int

    def __post_init__(self) -> None:
        if self.follows < 1 or self.length + self.follows > len(self.body.ids):
            raise InputError(
                f"pattern {self.body.name!r}: expected a body of at least {self.length} + {self.follows} tokens, "
                f"got {len(self.body.ids)}"
            )


def built_in_patterns(model: LanguageModel, *, length: int = 96) -> list[Pattern]:
    """A constant, two periodic sequences, a counting list and a sentence said again and again."""
    found = []
    for motif in ("0", "01", "0001"):
        follows = 2 * max(len(motif), 2)
        found.append(Pattern(pattern(model, list(motif), length=length + follows), length, follows))
    for name, prompt, text, follows in (
        ("counting", "Count on.", ", ".join(str(i) for i in range(1, length)), 4),
        ("sentence", "Go on.", "The door is shut and the light is on. " * (length // 4), 8),
    ):
        ids = model.encode_continuation(text.strip())
        rivals = tuple(sorted(set(ids)))
        body = Body(name, tuple(model.encode([prompt])[0]), tuple(ids), rivals)
        found.append(Pattern(body, min(length, len(ids) - follows), follows))
    return found


def attractor_basin(
    model: LanguageModel,
    patterns: Sequence[Pattern],
    *,
    fractions: Sequence[float] = (0.05, 0.1, 0.2, 0.4),
    draws: int = 4,
    seed: int = 0,
    label: str = "attractor basins",
    run: Run | None = None,
) -> Report:
    """Share of corrupted prompts that are still continued by the pattern, against the share of corrupted tokens.

    Parameters
    ----------
    patterns : what is corrupted, and how it goes on.
    fractions : shares of the body that change, at random places and never the last token.
    draws : corrupted prompts at each share.

    Returns
    -------
    Report with ``rows`` of ``pattern``, ``fraction`` (0 is the unchanged prompt), ``captured`` (share of draws whose
    whole greedy continuation is the pattern's), ``first`` (share whose first token is) and ``draws``. ``numbers``:
    ``noise_radius``, the largest share up to which at least half of the draws of every pattern that the model
    continues at all are captured; NaN if it continues none.
    """
    if not patterns or draws < 1:
        raise InputError("patterns, draws: expected at least one of each")
    if any(not 0 < f < 1 for f in fractions):
        raise InputError(f"fractions {tuple(fractions)}: expected more than 0 and less than 1")
    items = [{"pattern": i, "fraction": f} for i in range(len(patterns)) for f in (0.0, *sorted(fractions))]
    found = (run or Run()).map(label, partial(_unit, model, list(patterns), draws, seed), items)
    rows = pd.DataFrame(found)
    known = rows.loc[(rows["fraction"] == 0) & (rows["captured"] == 1), "pattern"]
    shares = rows[rows["pattern"].isin(known) & (rows["fraction"] > 0)].groupby("fraction")["captured"].min()
    radius = float("nan") if not len(known) else 0.0
    for fraction, captured in shares.items():
        if captured < 0.5:
            break
        radius = float(str(fraction))
    numbers = {"noise_radius": radius, "patterns_continued": float(len(known))}
    return Report("basin", model.source, "", seed, rows, numbers, {"draws": draws})


def captures(
    model: LanguageModel,
    *,
    periods: Sequence[int] = (4, 8, 16, 32, 64),
    length: int = 256,
    symbols: Sequence[str] = ("0", "1"),
    prompt: str | None = BINARY,
    seed: int = 0,
    label: str = "capture by the constant pattern",
    run: Run | None = None,
) -> Report:
    """Which periodic prompts are continued as if they were the constant one.

    Each prompt ends where its rare symbol is due; its distance to the constant prompt is about 1/p.

    Parameters
    ----------
    periods : p; two periods are continued.
    length : tokens of the prompt's body.
    symbols : the common and the rare symbol.

    Returns
    -------
    Report with ``rows`` of ``period``, ``fraction`` (changed share of the constant prompt), ``captured`` (the greedy
    continuation of 2p tokens is constant) and ``followed`` (it is the period's). ``numbers``: ``captured`` (share of
    the periods) and ``radius`` (largest share of changed tokens with capture; 0 if none).
    """
    if not periods or min(periods) < 2 or max(periods) > length // 2:
        raise InputError(f"periods: expected from 2 to half of the length, {length // 2}")
    if len(symbols) != 2:
        raise InputError(f"symbols {tuple(symbols)}: expected two")
    ids = [symbol(model, text) for text in symbols]
    head = [] if prompt is None else model.encode([prompt])[0]
    unit = partial(_capture, model, head, ids, length)
    rows = pd.DataFrame((run or Run()).map(label, unit, sorted(set(periods))))
    taken = rows[rows["captured"]]
    numbers = {
        "captured": float(rows["captured"].mean()),
        "radius": float(taken["fraction"].max()) if len(taken) else 0.0,
    }
    return Report("capture", model.source, model.decode(head), seed, rows, numbers, {"length": length})


def _capture(model: LanguageModel, head: list[int], ids: list[int], length: int, period: int) -> dict[str, Any]:
    # Position t holds the rare symbol if a multiple of the period lies between it and the first due position.
    steps = np.arange(length + 2 * period)
    own = [ids[int(bit)] for bit in (steps - length) % period == 0]
    constant = own[:length] + [ids[0]] * (2 * period)
    matches = _follows(model, [[*head, *constant], [*head, *own]], len(head) + length)
    changed = sum(token != ids[0] for token in own[:length])
    return {
        "period": int(period),
        "fraction": changed / length,
        "captured": bool(matches[0].all()),
        "followed": bool(matches[1].all()),
    }


def _unit(
    model: LanguageModel, patterns: Sequence[Pattern], draws: int, seed: int, item: dict[str, Any]
) -> dict[str, Any]:
    chosen, fraction = patterns[item["pattern"]], float(item["fraction"])
    body, length = chosen.body, chosen.length
    rng = np.random.default_rng([seed, int(item["pattern"]), round(fraction * 1e6)])
    tail = list(body.ids[length : length + chosen.follows])
    k = max(1, round(fraction * length)) if fraction else 0
    rows = []
    for _ in range(draws if k else 1):
        places = draw_edits(length, k, body.guard, rng) if k else []
        rows.append(body.edited(length, places, rng) + tail)
    matches = _follows(model, rows, len(body.head) + length)
    return {
        "pattern": body.name,
        "fraction": fraction,
        "captured": float(matches.all(axis=1).mean()),
        "first": float(matches[:, 0].mean()),
        "draws": len(rows),
    }


def _follows(model: LanguageModel, rows: list[list[int]], start: int) -> np.ndarray:
    """Whether each token from ``start`` on is the likeliest where it stands, bool [rows, tokens]."""
    after = list(range(start - 1, len(rows[0]) - 1))
    top = next_log_probs(model, rows, after).argmax(-1)
    return np.asarray(top == np.array([row[start:] for row in rows]))
