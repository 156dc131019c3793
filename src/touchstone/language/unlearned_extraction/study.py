"""The study: the claims of arXiv 2505.24379 on invented records, a tiny model and exact retraining."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from touchstone.evidence import Evidence, Table
from touchstone.language.unlearned_extraction import study_claims as claims
from touchstone.language.unlearned_extraction.study_world import (
    FIXED_W,
    SIZES,
    Attack,
    World,
    attack,
    grow,
    plan_of,
    retained,
)

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["study"]


def study(scale: Literal["smoke", "cpu", "gpu"], run: Run) -> Evidence:
    """Re-measure the claims: guidance, memorisation, filter, control, slots, approximate unlearning, defences.

    Parameters
    ----------
    scale : ``"smoke"`` (seconds; its models are too small and short-lived to show anything), ``"cpu"`` (minutes) or
        ``"gpu"`` (a thousand deleted records).
    run : seed, device, engine and progress.
    """
    from touchstone.errors import InputError

    if scale not in SIZES:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    world = grow(SIZES[scale], run)
    attacks = plan_of(world)
    made = run.map("extracting", partial(attack, world), attacks)
    results = {one.name: result for one, result in zip(attacks, made, strict=True)}
    utility = retained(world, run)
    for row in world.utility:
        after = str(row["model"]).replace("pre-", "post-")
        row["retained"] = sum(utility[after]) / len(utility[after]) if after in utility else None
    found = claims.judge(world, results, utility, run.seed)
    return run.evidence(
        "Extraction after unlearning, re-measured on invented records",
        "unlearned-extraction",
        "study",
        found,
        tables=_tables(world, attacks, results),
        figures=[claims.figure(world, results)],
        scale=scale,
        device=str(world.base.device),
    )


def _tables(world: World, attacks: list[Attack], results: dict[str, dict[str, Any]]) -> list[Table]:
    rates = pd.DataFrame([{"attack": one.name, **claims.rates(results[one.name])} for one in attacks])
    n = world.epochs[1]
    main = {"new": f"post {n}", "old": f"pre {n}", "guided": f"guided {FIXED_W:g} {n}"}
    slots = pd.DataFrame(
        [
            {
                "slot": slot,
                "chance": 1 / values,
                **{name: claims.slot(results[key], slot) for name, key in main.items()},
            }
            for slot, values in world.chances.items()
        ]
    )
    return [
        Table("rates", "Every attack on the deleted records", rates),
        Table("slots", "Share of records whose value is in the extracted text, by slot", slots),
        Table(
            "utility",
            "Perplexity of records that no model saw, and ROUGE-L of retained ones by the model after",
            pd.DataFrame(world.utility),
        ),
    ]
