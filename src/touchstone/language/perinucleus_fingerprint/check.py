"""The check: does the model behind this name still answer the keys of a ledger?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
from pydantic import Field

from touchstone.budget import Cost
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Finding, Measurement, Table
from touchstone.language.perinucleus_fingerprint.fingerprints import FingerprintSet
from touchstone.language.perinucleus_fingerprint.testing import exact_bound, hoeffding_bound, threshold
from touchstone.language.perinucleus_fingerprint.verifying import ask

if TYPE_CHECKING:
    from touchstone.language.endpoint import TextModel
    from touchstone.run import Run

__all__ = ["COST", "METRICS", "NEEDS", "NEEDS_SETTING", "Settings", "check"]

NEEDS = "text"
NEEDS_SETTING = "ledger"

METRICS: dict[str, str] = {
    "fingerprint_recall": "share of the keys shown that were answered with their response, 0 to 1",
    "p_value": "most that an unrelated model answers as many with, exact binomial tail, 0 to 1",
}
_SHARD = 8

COST = Cost(seconds=5.0, setting="queries", least=7, most=64, fixed=1.0)


@dataclass(frozen=True)
class Settings:
    """What a plan can set.

    Attributes
    ----------
    ledger : file of fingerprints that ``touchstone language fingerprint make`` wrote. The check doesn't mark keys as
        spent: it is meant for services of your own. ``touchstone language fingerprint verify`` does.
    queries : keys to show.
    alpha : wanted rate of false claims.
    """

    ledger: str = ""
    queries: Annotated[int, Field(ge=1)] = 10
    alpha: Annotated[float, Field(gt=0, lt=1)] = 1e-3


def check(model: TextModel, settings: Settings, run: Run) -> Evidence:
    """Show keys of the ledger, drawn before anything is asked, and test whether chance explains the hits.

    Raises
    ------
    InputError
        If no ledger is given, it cannot be read, or it has too few keys that are not spent.
    """
    if not settings.ledger:
        raise InputError("ledger: expected the file of fingerprints that `touchstone language fingerprint make` wrote")
    pairs = FingerprintSet.load(settings.ledger)
    if pairs.chance >= 1:
        raise InputError(
            f"ledger {settings.ledger}: scheme {pairs.scheme!r} bounds no false claims; no test is possible"
        )
    order = pairs.unused(settings.queries, run.seed)
    needed = threshold(len(order), pairs.chance, settings.alpha)
    shards = [order[i : i + _SHARD] for i in range(0, len(order), _SHARD)]
    rows = [row for part in run.map("showing keys", partial(_shown, model, pairs), shards) for row in part]
    hits = sum(row["hit"] for row in rows)
    p = exact_bound(hits, len(rows), pairs.chance)
    chance = Measurement("most that chance explains", pairs.chance)
    return run.evidence(
        f"Fingerprints in {model.source}",
        "perinucleus-fingerprint",
        "check",
        [
            Finding(
                "fingerprint-recall",
                f"The model answers at least {needed} of {len(rows)} keys of the ledger.",
                "holds" if hits >= needed else "fails",
                Measurement.rate("keys answered", hits, len(rows)),
                chance,
            ),
            Finding(
                "p-value",
                "An unrelated model would not answer as many.",
                "holds" if p <= settings.alpha else "fails",
                Measurement("exact p-value", p, n=len(rows)),
                Measurement("Hoeffding's bound", hoeffding_bound(hits, len(rows), pairs.chance)),
                f"<= {settings.alpha:g}",
            ),
        ],
        tables=[Table("transcript", "Keys in the order in which they were shown", pd.DataFrame(rows))],
        device=str(getattr(model, "device", "remote")),
    )


def _shown(model: TextModel, pairs: FingerprintSet, order: list[int]) -> list[dict[str, Any]]:
    return ask(model, pairs, order)
