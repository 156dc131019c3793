"""Multicalibration by boosting: find a concept that correlates with the residual, step along it, until none is left.

The loop keeps an ordered list of steps, each with its group, level set and tree. Replaying them on other rows repeats
what was done to the rows of the fit: a level set is always one of the h of that moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from touchstone.decisions.selective_omniprediction.groups import Membership
from touchstone.decisions.selective_omniprediction.trees import (
    Tree,
    bin_column,
    bin_edges,
    from_sklearn,
    grow,
    shift,
)

__all__ = ["EVERYONE", "Halves", "Mode", "Part", "Recipe", "Step", "Update", "calibrate", "level_sets", "replay"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Mode = Literal["multicalibration", "calibrated_multiaccuracy"]
Update = Literal["joint", "per_bin"]
Halves = Literal["redrawn", "fixed"]
EVERYONE = -1
"""Group of a step that is for all rows."""
_FEWEST_IN_BIN = 20


@dataclass(frozen=True)
class Step:
    """One update ``h <- clip(h + eta * tree)`` of the rows of ``group`` whose h is in [low, high).

    The last level set is closed: ``high`` is then infinite.
    """

    group: int
    low: float
    high: float
    eta: float
    tree: Tree


@dataclass(frozen=True)
class Recipe:
    """Numbers of the loop; see :class:`MulticalibratedClassifier`."""

    disc: float = 0.1
    step: float | Literal["line"] = 0.1
    tol: float = 1e-3
    max_iter: int = 200
    mode: Mode = "multicalibration"
    update: Update = "joint"
    max_depth: int = 3
    min_leaf: int = 20
    bins: int = 32
    patience: int = 3
    smallest_group: int = 50
    recalibrate_every: int = 10
    halves: Halves = "redrawn"
    held_out: float = 0.5
    search: Literal["lazy", "full"] = "lazy"
    concept: Any = None


@dataclass
class Part:
    """Rows on which the loop works: features as columns, outcomes, indicators [rows, groups], and the h of now."""

    columns: list[Floats]
    y: Floats
    groups: Membership
    h: Floats

    def __len__(self) -> int:
        return len(self.y)

    @property
    def residual(self) -> Floats:
        return self.y - self.h

    def mse(self, rows: Rows) -> float:
        """Mean squared error of h on some rows: the potential of the loop."""
        return float(np.mean((self.y[rows] - self.h[rows]) ** 2)) if len(rows) else math.nan

    def inside(self, group: int, low: float = -math.inf, high: float = math.inf) -> NDArray[np.bool_]:
        """Which rows are of a group and have an h in [low, high)."""
        found = np.ones(len(self), dtype=bool) if group == EVERYONE else self.groups[:, group].copy()
        if low > 0 or high < math.inf:
            found &= (self.h >= low) & (self.h < high)
        return found

    def move(self, rows: Rows, by: Floats) -> None:
        """Add to h, and keep it a probability."""
        self.h[rows] = np.clip(self.h[rows] + by, 0.0, 1.0)


@dataclass(frozen=True)
class _Cell:
    group: int
    low: float = 0.0
    high: float = math.inf


@dataclass
class _Found:
    cell: _Cell
    tree: Tree
    score: float


@dataclass
class _Loop:
    part: Part
    fits: NDArray[np.bool_]
    recipe: Recipe
    rng: np.random.Generator
    codes: list[NDArray[np.uint8]] = field(default_factory=list)
    edges: list[Floats] = field(default_factory=list)
    kept: dict[int, tuple[Rows, list[NDArray[np.uint8]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.recipe.concept is None:
            self.edges = [bin_edges(column, self.recipe.bins) for column in self.part.columns]
            self.codes = [bin_column(c, e) for c, e in zip(self.part.columns, self.edges, strict=True)]

    @property
    def seen(self) -> list[Floats]:
        """What trees look at: the features, and h behind them."""
        return [*self.part.columns, self.part.h]

    def cells(self) -> list[_Cell]:
        """Where concepts are looked for: everyone and groups of enough rows, times level sets where there are any."""
        r = self.recipe
        sizes = self.part.groups.sum(axis=0)
        least = r.smallest_group / (1 - r.held_out)
        groups = [int(g) for g in np.flatnonzero(sizes >= least)]
        if len(self.part) not in sizes:
            groups.insert(0, EVERYONE)
        if r.update == "joint" or r.mode == "calibrated_multiaccuracy":
            return [_Cell(g) for g in groups]
        ends = level_sets(r.disc)
        return [_Cell(g, low, high) for g in groups for low, high in zip(ends, [*ends[1:], math.inf], strict=True)]

    def redraw(self) -> None:
        """Divide the rows anew; both labels stay in proportion up to chance."""
        self.fits = self.rng.permutation(self.fits)
        self.kept.clear()

    def search(self, cell: _Cell) -> _Found | None:
        """The tree on a cell's rows that follows the residual; ``None`` if the cell is too small."""
        whole = cell.low <= 0 and cell.high == math.inf
        rows, codes = self._rows(cell, whole=whole)
        if len(rows) < 2 * self.recipe.min_leaf:
            return None
        target = self.part.residual[rows]
        tree, values = self._grow(rows, codes, target)
        return _Found(cell, tree, float(values @ target) / int(self.fits.sum()))

    def _rows(self, cell: _Cell, *, whole: bool) -> tuple[Rows, list[NDArray[np.uint8]]]:
        """Rows of the fitting half in a cell, with their bins; kept where they do not depend on h."""
        if whole and cell.group in self.kept:
            return self.kept[cell.group]
        rows = np.flatnonzero(self.part.inside(cell.group, cell.low, cell.high) & self.fits)
        found = rows, [code[rows] for code in self.codes]
        if whole:
            self.kept[cell.group] = found
        return found

    def _grow(self, rows: Rows, codes: list[NDArray[np.uint8]], target: Floats) -> tuple[Tree, Floats]:
        r = self.recipe
        looks_at_h = r.mode == "multicalibration"
        if r.concept is not None:
            from sklearn.base import clone

            seen = self.seen if looks_at_h else self.part.columns
            concept = clone(r.concept)
            if "random_state" in concept.get_params():
                concept.set_params(random_state=int(self.rng.integers(2**31)))
            tree = from_sklearn(concept.fit(np.column_stack([column[rows] for column in seen]), target))
            return tree, tree(seen, rows)
        edges = list(self.edges)
        if looks_at_h:
            h = self.part.h[rows]
            edges.append(bin_edges(h, r.bins))
            codes = [*codes, bin_column(h, edges[-1])]
        return grow(codes, edges, target, max_depth=r.max_depth, min_leaf=r.min_leaf, bins=r.bins)

    def best(self, cells: list[_Cell], known: dict[_Cell, float]) -> _Found | None:
        """The concept with the largest correlation.

        The correlation of a cell falls little by little as h moves, so that what it was when last looked at bounds
        what it is: cells are looked at in that order until one is above the bounds of all that follow.
        """
        found: _Found | None = None
        for cell in sorted(cells, key=lambda c: -known[c]):
            if self.recipe.search == "lazy" and found is not None and found.score >= known[cell]:
                break
            one = self.search(cell)
            known[cell] = one.score if one else -1.0
            if one is not None and (found is None or one.score > found.score):
                found = one
        return found


def calibrate(
    part: Part,
    fits: NDArray[np.bool_],
    recipe: Recipe,
    *,
    rng: np.random.Generator,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Step], list[dict[str, Any]]]:
    """Move the h of a part until no concept correlates with its residual on held-out rows; steps and a log of rounds.

    Parameters
    ----------
    part : all rows of the calibration; h is moved in place.
    fits : rows on which concepts are found first; the others accept or reject them.
    recipe : numbers of the loop.
    rng : divides the rows anew, where the recipe says so.
    progress : called with 1 after each round.
    """
    loop = _Loop(part, fits, recipe, rng)
    cells = loop.cells()
    known = dict.fromkeys(cells, math.inf)
    steps: list[Step] = []
    log: list[dict[str, Any]] = []
    rejected: set[_Cell] = set()
    refusals = accepted = 0
    while len(log) < recipe.max_iter and refusals < recipe.patience:
        if recipe.halves == "redrawn" and log:
            loop.redraw()
        fresh = [cell for cell in cells if cell not in rejected]
        # On the same halves a concept that was rejected would be found again; on others it is another one.
        if not fresh and recipe.halves == "fixed":
            break
        found = loop.best(fresh or cells, known)
        if found is None:
            break
        row, step = _judged(loop, found)
        log.append(row | {"round": len(log) + 1})
        if step is None:
            rejected.add(found.cell)
            refusals += 1
        else:
            accepted, refusals = accepted + 1, 0
            rejected.clear()
            steps.append(step)
            if _is_due(recipe, accepted, grouped=part.groups.shape[1] > 0):
                steps.append(_recalibration(loop))
        if progress is not None:
            progress(1)
    return steps, log


def _judged(loop: _Loop, found: _Found) -> tuple[dict[str, Any], Step | None]:
    """Accept and carry out a concept if it correlates with the residual of the held-out rows too."""
    part, recipe, cell = loop.part, loop.recipe, found.cell
    fit, held = np.flatnonzero(loop.fits), np.flatnonzero(~loop.fits)
    rows = np.flatnonzero(part.inside(cell.group, cell.low, cell.high))
    values = found.tree(loop.seen, rows)
    out = ~loop.fits[rows]
    correlation = float(values[out] @ part.residual[rows[out]]) / max(len(held), 1)
    taken = correlation > recipe.tol
    eta = _eta(recipe, correlation, values[out], len(held))
    before = part.mse(fit)
    if taken:
        part.move(rows, eta * values)
    row = {
        "group": cell.group,
        "level": cell.low,
        "correlation": found.score,
        "held_out": correlation,
        "accepted": taken,
        "eta": eta if taken else 0.0,
        "mse_before": before,
        "mse": part.mse(fit),
        "held_out_mse": part.mse(held),
    }
    return row, Step(cell.group, cell.low, cell.high, eta, found.tree) if taken else None


def _eta(recipe: Recipe, correlation: float, values: Floats, n: int) -> float:
    if recipe.step != "line":
        return float(recipe.step)
    size = float(values @ values) / max(n, 1)
    return min(1.0, max(0.0, correlation / size)) if size > 0 else 0.0


def _is_due(recipe: Recipe, accepted: int, *, grouped: bool) -> bool:
    """Whether level sets are recalibrated after this round."""
    if recipe.mode == "calibrated_multiaccuracy":
        return True
    return grouped and accepted % recipe.recalibrate_every == 0


def _recalibration(loop: _Loop) -> Step:
    """Every level set is moved by its mean residual: the mean becomes right, and what h tells apart inside it stays."""
    part, fit = loop.part, np.flatnonzero(loop.fits)
    edges = np.array(level_sets(loop.recipe.disc)[1:])
    place = np.searchsorted(edges, part.h[fit], side="left")
    counts = np.bincount(place, minlength=len(edges) + 1)
    sums = np.bincount(place, part.residual[fit], minlength=len(edges) + 1)
    means = np.where(counts >= _FEWEST_IN_BIN, sums / np.maximum(counts, 1), 0.0)
    step = Step(EVERYONE, 0.0, math.inf, 1.0, shift(edges, means, len(part.columns)))
    part.move(np.arange(len(part)), step.tree(loop.seen))
    return step


def level_sets(disc: float) -> list[float]:
    """Lower ends of the level sets of width ``disc``; the last may be narrower."""
    return [k * disc for k in range(max(1, math.ceil(1 / disc - 1e-9)))]


def replay(steps: list[Step], part: Part) -> None:
    """Repeat the steps on other rows, in order."""
    for step in steps:
        rows = np.flatnonzero(part.inside(step.group, step.low, step.high))
        part.move(rows, step.eta * step.tree([*part.columns, part.h], rows))
