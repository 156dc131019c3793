"""What an attacker with public weights and a tenth of the private data rebuilds, by each way of hiding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.bootstrap import clustered, sign
from touchstone.evidence import Figure, Finding, Measurement, Table
from touchstone.language.loro import figures
from touchstone.language.loro.rivals import rivals
from touchstone.language.loro.stealing import (
    classifier,
    digits,
    observation_attack,
    score,
    steal,
    train,
    weights_of,
    with_weights,
)

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["StealSize", "stealing"]

_RANK = 4
_BLACK = "black box, public start"
_EARLIER = ("last layer inside", "first layer inside", "sparse noise", "scalar", "permutation", "ShadowNet")


@dataclass(frozen=True)
class StealSize:
    """How much is measured: seeds; noisy copies of an image; epochs of the public network, the private one and the
    attacker; runs of which the attacker keeps the best."""

    seeds: int
    copies: int = 8
    pretrain: int = 8
    tune: int = 10
    epochs: int = 40
    runs: int = 5


def stealing(size: StealSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Findings on what can be stolen."""
    parts = run.map("stealing protected networks", partial(_one, size), [run.seed + k for k in range(size.seeds)])
    frame = pd.DataFrame([row for part in parts for row in part["rows"]])
    means = frame.groupby("defence", sort=False).mean(numeric_only=True).drop(columns="seed").reset_index()
    black = frame[frame["defence"] == _BLACK].set_index("seed")["tuned"]
    victim = np.array([part["victim"] for part in parts])

    def best(name: str) -> np.ndarray:
        mine = frame[frame["defence"] == name]
        return mine[["undone", "tuned"]].max(axis=1).to_numpy(dtype=float)

    def mean(name: str, values: np.ndarray) -> Measurement:
        return clustered(name, values, seed=run.seed)

    shares = {name: mean(f"accuracy over the victim's, {name}", best(name) / victim) for name in _EARLIER}
    weakest = min(shares, key=lambda name: shares[name].value)
    masked = mean("accuracy over the black box's, LoRO", best("LoRO") / black.to_numpy())
    gain = best("LoRO, attacked by rank") - best("LoRO")
    half = mean("share of the way from the black box to no protection", gain / (best("no protection") - best("LoRO")))
    full = best("Hadamard, attacked by rank") - best("LoRO")
    left = Measurement(
        "relative error of the mask that is found", float(np.max([part["observed"] for part in parts])), n=len(parts)
    )
    findings = [
        Finding.held_to(
            "earlier-broken",
            "With public weights, every earlier way of hiding gives up at least 95 % of the private accuracy.",
            shares[weakest],
            ">= 0.95",
            mean("black box", black.to_numpy() / victim),
        ),
        Finding(
            "loro-as-black-box",
            "Without a look at its rank, LoRO leaves the attacker within 10 % of the black box.",
            "holds" if abs(masked.value - 1) <= 0.1 else "fails",
            masked,
            mean("no protection", best("no protection") / black.to_numpy()),
        ),
        Finding(
            "rank-gives-it-away",
            "Taking the mask's rank away, the attacker steals more than from the black box.",
            sign(mean("difference", gain)),
            mean("accuracy, attacked by rank", best("LoRO, attacked by rank")),
            mean("accuracy, black box", black.to_numpy()),
        ),
        Finding.held_to(
            "rank-share",
            "That is half of the way to an unprotected network.",
            half,
            ">= 0.5",
        ),
        Finding(
            "full-rank-holds",
            "Against a mask of full rank from signs and fast transforms the same attack gains nothing.",
            "holds" if mean("difference", full).value <= 0.01 else "fails",
            mean("accuracy, Hadamard attacked by rank", best("Hadamard, attacked by rank")),
            mean("accuracy, LoRO attacked by rank", best("LoRO, attacked by rank")),
        ),
        Finding(
            "seen-corrections",
            "Who sees a layer's inputs and corrections, as with weights_only, computes its mask.",
            "holds" if left.value <= 1e-6 else "fails",
            left,
            limit="<= 1e-06",
        ),
    ]
    means["over_victim"] = means[["undone", "tuned"]].max(axis=1) / victim.mean()
    means["over_black_box"] = means[["undone", "tuned"]].max(axis=1) / black.mean()
    tables = [
        Table("stealing", f"Accuracy that is stolen, means over seeds; the victim has {victim.mean():.3f}", means),
        Table("stealing-seeds", "The same at each seed", frame),
    ]
    return findings, tables, [figures.stolen(means, float(victim.mean()))]


def _one(size: StealSize, seed: int) -> dict[str, Any]:
    public_data, private, tenth, test = digits(seed, noise=0.3, copies=size.copies)
    public = classifier(2, seed=2 * seed)
    train(public, public_data, epochs=size.pretrain, seed=seed)
    victim = classifier(10, seed=2 * seed + 1)
    with_weights(victim, [*weights_of(public)[:-1], weights_of(victim)[-1]])
    train(victim, private, epochs=size.tune, rate=2e-4, seed=seed)
    options: dict[str, Any] = {"epochs": size.epochs, "runs": size.runs, "seed": seed}
    rows = []
    for name, start in ((_BLACK, public), ("black box, random start", None)):
        found = steal(None, victim, start, tenth, test, **options)
        rows.append({"defence": name, "seed": seed, "undone": found.undone, "tuned": found.tuned})
    for obfuscator in rivals(_RANK):
        found = steal(obfuscator, victim, public, tenth, test, **options)
        rows.append({"defence": obfuscator.name, "seed": seed, "undone": found.undone, "tuned": found.tuned})
    return {"rows": rows, "victim": score(victim, test), "observed": _observed(weights_of(victim)[1], seed)}


def _observed(weight: np.ndarray, seed: int) -> float:
    from touchstone.language.loro.rivals import LoRO

    rng = np.random.default_rng(seed)
    mask = LoRO(_RANK).hide(weight, 1, 3, rng).secret
    inputs = rng.standard_normal((weight.shape[0] + 8, weight.shape[0]))
    found = observation_attack(inputs, inputs @ mask)
    return float(np.linalg.norm(found - mask) / np.linalg.norm(mask))
