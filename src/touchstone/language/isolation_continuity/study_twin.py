"""Part C of the study: small networks trained from nothing, with positions that the theorem covers and others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from touchstone.bootstrap import clustered
from touchstone.evidence import Figure, Finding, Limit, Measurement, Table, Verdict
from touchstone.language.isolation_continuity import figures
from touchstone.language.isolation_continuity.tiny import Architecture
from touchstone.language.isolation_continuity.twin import (
    Patterns,
    Recall,
    pattern_scores,
    recall_scores,
    train_patterns,
    train_recall,
)
from touchstone.run import Run

__all__ = ["ARCHITECTURES", "TwinSize", "twin"]

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "rope": {},
    "sinusoidal": {"positions": "sinusoidal"},
    "nope": {"positions": "nope"},
    "index": {"positions": "index"},
    "alibi": {"positions": "alibi"},
    "rope + log n": {"attention": "logn"},
    "gru": {"recurrent": True},
}
"""What is compared: three that the theorem covers, and four that it does not."""

_CAPTURED = Limit("<", 0.05)
_RIGHT = Limit(">=", 0.9)


@dataclass(frozen=True)
class TwinSize:
    """How large this part is."""

    recall: Recall
    networks: tuple[str, ...]
    seeds: int
    bits: tuple[int, ...]
    rows: int
    patterns: Patterns | None
    longest_times: int = 4


def twin(size: TwinSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Train, and measure where the constant prompt captures its neighbour and which patterns are held together."""
    items = [{"network": name, "seed": run.seed + s} for name in size.networks for s in range(size.seeds)]
    parts = run.map("training on recall", partial(_recall, size.recall, size.bits, size.rows), items)
    table = pd.DataFrame([row for part in parts for row in part])
    found = _recall_findings(table, size, run.seed)
    means = table.groupby(["network", "covered", "bits"], sort=False).mean(numeric_only=True).reset_index()
    tables = [Table("recall", "First-bit recall over the number of bits, means over seeds", means.drop(columns="seed"))]
    pictures = [figures.recall(means, size.recall.longest)]
    if size.patterns is not None:
        more = _pattern_part(size.patterns, size.longest_times, run)
        found += more[0]
        tables += more[1]
    return found, tables, pictures


def _recall(recipe: Recall, bits: tuple[int, ...], rows: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    architecture = Architecture(**ARCHITECTURES[item["network"]])
    network = train_recall(architecture, recipe, seed=item["seed"])
    found = recall_scores(network, bits, rows=rows, seed=item["seed"]).to_dict("records")
    label = {"network": item["network"], "covered": architecture.covered, "seed": item["seed"]}
    return [label | {str(key): value for key, value in row.items()} for row in found]


def _recall_findings(table: pd.DataFrame, size: TwinSize, seed: int) -> list[Finding]:
    trained = size.recall.longest
    rope = table[table["network"] == "rope"]
    inside = rope[rope["bits"] == trained]
    far, double = rope[rope["bits"] == 4 * trained], rope[rope["bits"] == 2 * trained]
    name = "TV between 0…0| and 10…0|"
    measured = clustered(f"{name} at 4 × the trained length", far["tv"].to_numpy(), seed=seed)
    generic = Measurement.rate("accuracy on random strings", int(double["hits"].sum()), int(double["rows"].sum()))
    learned = clustered(f"{name} at the trained length", inside["tv"].to_numpy(), seed=seed)
    findings = [
        Finding(
            "recall-captured",
            f"A rotary transformer trained on up to {trained} bits gives 0…0| and 10…0| predictions within"
            f" {_CAPTURED.bound:g} of each other at four times that length, having told them apart within it.",
            _both(_CAPTURED.judge(measured), "holds" if learned.value >= 0.9 else "undecided"),
            measured,
            against=learned,
            limit=str(_CAPTURED),
        ),
        Finding(
            "recall-generic",
            "At twice the trained length it still recalls the first bit of random strings.",
            _RIGHT.judge(generic),
            generic,
            limit=str(_RIGHT),
        ),
    ]
    last = table[table["bits"] == table["bits"].max()]
    for covered in (True, False):
        rows = last[last["covered"] == covered]
        if rows.empty:
            continue
        kind = "compact positions and plain attention" if covered else "positions, scaling or recurrence not covered"
        value = Measurement(f"largest TV at {int(table['bits'].max())} bits", float(rows["tv"].max()), n=len(rows))
        findings.append(
            Finding(
                "recall-all-covered" if covered else "recall-not-covered",
                f"Every network with {kind} ends within {_CAPTURED.bound:g}, whatever it does at shorter lengths.",
                _CAPTURED.judge(value),
                value,
                limit=str(_CAPTURED),
            )
        )
    blind = rope[(rope["bits"] > trained) & ~rope["constant_right"].astype(bool)]
    if len(blind) > 1:
        findings.append(_blind_spot(blind))
    return findings


def _blind_spot(blind: pd.DataFrame) -> Finding:
    """Perplexity does not see the error, since it is one token of many."""
    means = blind.groupby("bits")["perplexity_gap"].mean()
    first, last = int(means.index.min()), int(means.index.max())
    limit = Limit("<=", 0.02)
    measured = Measurement(
        f"gap at {last} bits", float(means[last]), "nats/token", n=int((blind["bits"] == last).sum())
    )
    return Finding(
        "perplexity-blind",
        f"Where the answer to 10…0| is wrong, its log-perplexity still tends to that of 0…0| as prompts grow: at {last}"
        f" bits they are within {limit.bound:g} nats a token.",
        limit.judge(measured),
        measured,
        against=Measurement(f"gap at {first} bits", float(means[first]), "nats/token", n=1),
        limit=str(limit),
    )


def _both(a: Verdict, b: Verdict) -> Verdict:
    return a if b == "holds" else b


def _pattern_part(recipe: Patterns, times: int, run: Run) -> tuple[list[Finding], list[Table]]:
    mixes = [{"share": recipe.constant_share}, {"share": 0.0}]
    longer = tuple(p for p in (4, 8, 16, 32, 48, 64, 96) if p <= times * recipe.length // 4)
    unit = partial(_patterns, recipe, longer, times, run.seed)
    table = pd.DataFrame([row for part in run.map("training on patterns", unit, mixes) for row in part])
    mixed = table[table["constant_share"] > 0]
    known = mixed[(mixed["times"] == 1) & mixed["period"].isin((0, *recipe.periods))]
    together = Measurement.rate("patterns held", int(known["learned"].sum()), len(known))
    far = mixed[(mixed["times"] == times) & (mixed["period"] > 0)]
    held = Measurement.rate(f"periods held at {times} × the length", int(far["learned"].sum()), len(far))
    suffix = Measurement.rate("suffix match", len(far), len(far))
    findings = [
        Finding(
            "patterns-together",
            f"Trained on the constant pattern and periods {', '.join(map(str, recipe.periods))}, a rotary transformer"
            " gives up at least one of them already at the trained length.",
            "holds" if together.value < 1 else "fails",
            together,
        ),
        Finding(
            "patterns-beyond",
            f"Of periods from {longer[0]} to {longer[-1]} it does not hold all at {times} times the trained length,"
            " while matching suffixes does.",
            "holds" if held.value < 1 else "fails",
            held,
            against=suffix,
        ),
    ]
    return findings, [Table("patterns", "Patterns held by a small transformer, with and without the constant", table)]


def _patterns(
    recipe: Patterns, periods: tuple[int, ...], times: int, seed: int, item: dict[str, float]
) -> list[dict[str, Any]]:
    mixed = replace(recipe, constant_share=item["share"])
    network = train_patterns(Architecture(), mixed, seed=seed)
    found: list[dict[Any, Any]] = []
    for factor in (1, 2, times):
        able = [p for p in periods if p <= factor * recipe.length // 2]
        found += pattern_scores(network, mixed, periods=[0, *able], times=(factor,)).to_dict("records")
    # JSON has no NaN; of the constant pattern nothing is due.
    return [
        {"constant_share": item["share"]} | {str(k): (0.0 if v != v else v) for k, v in row.items()} for row in found
    ]
