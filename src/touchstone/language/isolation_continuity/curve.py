"""Probe 1: how far the next-token distribution moves with the share of a prompt that changes, and with its length.

The theorem: for every ε there is a δ that does not depend on the length, such that two prompts of equal length with the
same end that differ in less than a share δ of their tokens have predictions within ε. So at a fixed share the change
should not depend on the length, and a single change should fade as the prompt grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.errors import InputError
from touchstone.language.isolation_continuity import divergence
from touchstone.language.isolation_continuity.bodies import Body, draw_edits, nested_edits
from touchstone.language.isolation_continuity.reading import next_log_probs
from touchstone.language.isolation_continuity.report import Report
from touchstone.run import Run

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["FRACTIONS", "LENGTHS", "Cells", "continuity_curve", "delta_hat", "invariance", "single_slope", "summary"]

LENGTHS = (16, 64, 256, 1024)
FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.4)


def continuity_curve(
    model: LanguageModel,
    body: Body,
    *,
    lengths: Sequence[int] = LENGTHS,
    fractions: Sequence[float] = FRACTIONS,
    single_lengths: Sequence[int] | None = None,
    draws: int = 8,
    epsilon: float = 0.1,
    from_length: int = 64,
    seed: int = 0,
    label: str = "continuity curve",
    run: Run | None = None,
) -> Report:
    """Change of the next-token distribution after k = round(f·N) random changes in N tokens (arXiv 2505.10606).

    A single change (f = 1/N) is always measured beside ``fractions``. One edited sequence serves all lengths: each
    prefix holds its own share of changes.

    Parameters
    ----------
    body : head, tokens and what they may become.
    lengths : tokens of the body, N; the defaults are those of the method's description.
    fractions : shares f of the body that change. A length at which f makes no whole change is passed over.
    single_lengths : lengths for the single change; ``lengths`` if not given.
    draws : edited sequences for each share.
    epsilon : TV that ``delta_hat`` allows.
    from_length : shortest N that counts for the headline numbers; below, few models have settled on the pattern.

    Returns
    -------
    Report whose ``rows`` hold one draw each: ``length``, ``k``, ``fraction`` (of the body), ``fraction_of_prompt``
    (head included), ``wanted`` (the f asked for; 0 for the single change), ``draw``, ``tv``, ``linf``, ``kl``,
    ``top1_same``, ``entropy_base`` and ``symbol_mass`` (P of the body's symbols before any change; 1 for text). Its
    ``numbers``: ``delta_hat``, ``single_change`` (mean TV at the longest N), ``slope``, ``invariance`` and ``floor``
    (TV between two readings of the unchanged prompt, alone and in a batch).

    Raises
    ------
    InputError
        If a length is longer than the body or leaves nothing to change, or a share changes no token at any length.
    """
    wanted = _checked(body, lengths, fractions, draws)
    singles = wanted if single_lengths is None else _checked(body, single_lengths, (), draws)
    items: list[dict[str, Any]] = [{"fraction": f, "lengths": wanted} for f in fractions]
    items += [{"fraction": 0.0, "lengths": [n]} for n in singles]
    unit = partial(_unit, model, body, draws, seed)
    found = (run or Run()).map(label, unit, items)
    rows = pd.DataFrame([row for part in found for row in part["rows"]])
    late = rows[rows["length"] >= from_length]
    late = rows if late.empty else late
    longest = rows[(rows["length"] == singles[-1]) & (rows["wanted"] == 0)]
    numbers = {
        "delta_hat": delta_hat(Cells.of(late), epsilon),
        "single_change": float(longest["tv"].mean()),
        "slope": single_slope(Cells.of(rows)),
        "invariance": invariance(Cells.of(late)),
        "floor": max(part["floor"] for part in found),
        "symbol_mass": float(late["symbol_mass"].min()),
    }
    settings = {
        "body": body.name,
        "head_tokens": len(body.head),
        "draws": draws,
        "epsilon": epsilon,
        "from_length": from_length,
    }
    return Report("curve", model.source, model.decode(body.head), seed, rows, numbers, settings)


@dataclass(frozen=True)
class Cells:
    """TV of a curve as an array: ``tv`` [draws, cells], with the length, wanted and actual share of each cell."""

    tv: NDArray[np.float64]
    length: NDArray[np.int64]
    wanted: NDArray[np.float64]
    fraction: NDArray[np.float64]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> Cells:
        """From the rows of a report. A cell that some draw lacks, because nothing changed there, is left out."""
        table = rows.pivot_table(index="draw", columns=["length", "wanted"], values="tv").dropna(axis=1)
        shares = rows.groupby(["length", "wanted"])["fraction"].mean()
        keys = list(table.columns)
        return cls(
            table.to_numpy(dtype=float),
            np.array([key[0] for key in keys], dtype=np.int64),
            np.array([key[1] for key in keys], dtype=float),
            np.array([shares[key] for key in keys], dtype=float),
        )

    def drawn(self, rng: np.random.Generator) -> Cells:
        """As many draws, taken again at random with all of their cells."""
        return replace(self, tv=self.tv[rng.integers(len(self.tv), size=len(self.tv))])


def delta_hat(cells: Cells, epsilon: float) -> float:
    """Largest measured share below which the 95 % quantile of TV stays within ε at every length; 0 if none does."""
    beyond = cells.fraction[np.quantile(cells.tv, 0.95, axis=0) > epsilon]
    within = cells.fraction[cells.fraction < (beyond.min() if len(beyond) else np.inf)]
    return float(within.max()) if len(within) else 0.0


def single_slope(cells: Cells) -> float:
    """Slope of log mean TV of a single change on log N; expected negative. NaN with fewer than two lengths."""
    means = cells.tv.mean(axis=0)
    kept = (cells.wanted == 0) & (means > 0)
    if len(set(cells.length[kept])) < 2:
        return float("nan")
    return float(np.polyfit(np.log(cells.length[kept]), np.log(means[kept]), 1)[0])


def invariance(cells: Cells) -> float:
    """Largest gap between the mean TV of two lengths at the same share; NaN with fewer than two lengths."""
    means = cells.tv.mean(axis=0)
    shares = {w for w in cells.wanted.tolist() if w > 0 and (cells.wanted == w).sum() > 1}
    return max((float(np.ptp(means[cells.wanted == w])) for w in shares), default=float("nan"))


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a length and share: means over draws, and the 95 % quantile of TV."""
    return (
        rows.groupby(["length", "wanted"], sort=True)
        .agg(
            k=("k", "first"),
            fraction=("fraction", "first"),
            tv_mean=("tv", "mean"),
            tv_q95=("tv", _q95),
            linf_mean=("linf", "mean"),
            kl_mean=("kl", "mean"),
            top1_same=("top1_same", "mean"),
            entropy_base=("entropy_base", "first"),
            symbol_mass=("symbol_mass", "first"),
            draws=("tv", "size"),
        )
        .reset_index()
    )


def _q95(values: pd.Series) -> float:
    return float(np.quantile(values, 0.95))


def _unit(model: LanguageModel, body: Body, draws: int, seed: int, item: dict[str, Any]) -> dict[str, Any]:
    """All draws of one share (``fraction`` 0: of one change at one length), with the unchanged prompt beside them."""
    lengths, fraction = [int(n) for n in item["lengths"]], float(item["fraction"])
    rng = np.random.default_rng([seed, lengths[-1], round(fraction * 1e6)])
    longest, head = lengths[-1], len(body.head)
    edited, counts = [], []
    for _ in range(draws):
        if fraction:
            positions, count = nested_edits(lengths, fraction, body.guard, rng)
        else:
            positions, count = draw_edits(longest, 1, body.guard, rng), {longest: 1}
        edited.append(body.edited(longest, positions, rng))
        counts.append(count)
    base = [*body.head, *body.ids[:longest]]
    after = [head + n - 1 for n in lengths]
    found = next_log_probs(model, [base, *edited], after)
    floor = divergence.total_variation(next_log_probs(model, [base], [after[-1]])[0], found[0, -1:])
    rows = []
    for j, n in enumerate(lengths):
        p, q = found[0, j], found[1:, j]
        columns = {
            "tv": divergence.total_variation(p, q),
            "linf": divergence.largest_gap(p, q),
            "kl": divergence.kullback_leibler(p, q),
            "top1_same": (q.argmax(-1) == p.argmax()).astype(float),
        }
        mass = float(np.exp(p[list(body.symbols)]).sum()) if body.symbols else 1.0
        for i in range(draws):
            k = counts[i][n]
            if k == 0:
                continue
            rows.append(
                {"length": n, "k": k, "fraction": k / n, "fraction_of_prompt": k / (head + n)}
                | {"wanted": fraction, "draw": i}
                | {name: float(values[i]) for name, values in columns.items()}
                | {"entropy_base": float(divergence.entropy(p)), "symbol_mass": mass}
            )
    return {"rows": rows, "floor": float(floor.max())}


def _checked(body: Body, lengths: Sequence[int], fractions: Sequence[float], draws: int) -> list[int]:
    wanted = sorted(set(lengths))
    if not wanted or draws < 1:
        raise InputError("lengths, draws: expected at least one length and one draw")
    if wanted[0] <= body.guard:
        raise InputError(f"length {wanted[0]}: nothing can change, the last {body.guard} tokens stay")
    if wanted[-1] > len(body.ids):
        raise InputError(f"length {wanted[-1]}: the body {body.name!r} has {len(body.ids)} tokens")
    for f in fractions:
        if not 0 < f < 1:
            raise InputError(f"fraction {f}: expected more than 0 and less than 1")
        if round(f * wanted[-1]) < 1:
            raise InputError(f"fraction {f}: changes no token of {wanted[-1]}")
    return wanted
