"""The study: convergence, harmlessness, uniqueness, removal attacks and tracing, beside a rival scheme."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from touchstone.bootstrap import over_items, sign
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Figure, Finding, Measurement, Table
from touchstone.language.perinucleus_fingerprint.attacks import ATTACKS, attack_table
from touchstone.language.perinucleus_fingerprint.collusion import STRATEGIES, CollusionAllocation
from touchstone.language.perinucleus_fingerprint.embedding import Fingerprinter
from touchstone.language.perinucleus_fingerprint.generating import generate_fingerprints
from touchstone.language.perinucleus_fingerprint.rows import benign_texts
from touchstone.language.perinucleus_fingerprint.testing import exact_bound, hoeffding_bound
from touchstone.language.perinucleus_fingerprint.verifying import ask
from touchstone.language.perinucleus_fingerprint.words import sentence

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["study"]

_RIVAL = "english-random"


@dataclass(frozen=True)
class Size:
    """Keys, steps at most, held-out texts, texts of the host's fine-tuning, attacks, and trials of tracing."""

    keys: int
    steps: int
    held_out: int
    texts: int
    attacks: tuple[str, ...]
    trials: int
    recipients: int
    trainable: str = "mlp:-6"
    lr: float = 6e-3


_SIZES = {
    "smoke": Size(4, 6, 4, 4, ("none", "int8"), 5, 128),
    "cpu": Size(32, 40, 40, 64, ATTACKS, 60, 2048),
    "gpu": Size(1024, 60, 400, 2000, ATTACKS, 200, 2048, "all", 5e-5),
}
_GRID = (256, 512, 1024, 2048, 3072)


def study(
    scale: Literal["smoke", "cpu", "gpu"],
    run: Run,
    *,
    model: str | Path | LanguageModel = "default",
    dtype: str = "float32",
) -> Evidence:
    """Re-measure the claims of arXiv 2502.07760 at a scale this machine holds.

    Parameters
    ----------
    scale : ``"smoke"`` (seconds), ``"cpu"`` (minutes) or ``"gpu"`` (1024 keys, all weights).
    run : seed, device, engine and progress.
    model, dtype : the base model, see :meth:`LanguageModel.load`.
    """
    from touchstone.language.model import LanguageModel

    if scale not in _SIZES:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    size = _SIZES[scale]
    base = model if isinstance(model, LanguageModel) else LanguageModel.load(model, device=run.device, dtype=dtype)
    schemes = ["perinucleus", _RIVAL]
    ours, rival = run.map("embedding and attacking", partial(_scheme, base, size, run.seed), schemes)
    cells = [(m, strategy) for m in _GRID for strategy in STRATEGIES]
    traced = run.map("tracing coalitions", partial(_traced, size, run.seed), cells)
    tracing = pd.DataFrame(
        [
            {"fingerprints": m, "strategy": s, "caught": hits / size.trials, "trials": size.trials}
            for (m, s), hits in zip(cells, traced, strict=True)
        ]
    )
    attacks = pd.DataFrame([{"scheme": one["scheme"], **row} for one in (ours, rival) for row in one["attacks"]])
    curves = pd.DataFrame(
        [
            {"scheme": one["scheme"], "step": i, "recall": recall}
            for one in (ours, rival)
            for i, recall in enumerate(one["recalls"])
        ]
    )
    return run.evidence(
        f"Perinucleus fingerprints, re-measured ({base.source})",
        "perinucleus-fingerprint",
        "study",
        [*_training(ours, rival, size, run.seed), *_unique(ours), *_persistence(ours, rival), *_tracing(tracing, size)],
        tables=[
            Table("attacks", "Recall after what a host may do", attacks),
            Table("convergence", "Share of keys answered before each step", curves),
            Table("tracing", "Share of coalitions of three of which a member is accused", tracing),
            Table("bounds", "False-positive bounds, k = 3, every key answered", _bounds()),
        ],
        figures=[_figure(curves, attacks, tracing)],
        scale=scale,
        device=str(base.device),
    )


def _scheme(base: LanguageModel, size: Size, seed: int, scheme: str) -> dict[str, Any]:
    pairs = generate_fingerprints(base, size.keys, scheme=scheme, keys="template", seed=seed)
    before = sum(row["hit"] for row in ask(base, pairs, range(len(pairs))))
    trainer = Fingerprinter(trainable=size.trainable, lr=size.lr, max_steps=size.steps, decay=False, seed=seed)
    found = trainer.fit(base, pairs, until_recall=True)
    rng = np.random.default_rng([seed, 3])
    # What a host would train on: plain sentences, none of them a key.
    texts = [sentence(rng) + "." for _ in range(size.texts)]
    table = attack_table(found.model, base, pairs, texts, attacks=size.attacks, seed=seed)
    table = table.astype(object).where(table.notna(), None)
    return {
        "scheme": scheme,
        "probability": float(np.mean([pair.probability for pair in pairs.pairs])),
        "base_hits": int(before),
        "steps": found.steps_to_full_recall,
        "recalls": [float(r) for r in found.recalls],
        "losses": [float(x) for x in found.losses],
        "kl": _divergences(base, found.model, size.held_out, seed + 1000),
        "attacks": table.to_dict("records"),
    }


def _divergences(base: LanguageModel, marked: LanguageModel, n: int, seed: int) -> list[float]:
    """KL(base‖marked) in nats a token over each of ``n`` texts of the base that no training saw."""
    import torch

    found = []
    texts = torch.tensor([head + tail for head, tail in benign_texts(base, n, seed)])
    with torch.inference_mode():
        for part in texts.split(16):
            p, q = (
                one.module(input_ids=part.to(one.device), use_cache=False).logits.float().log_softmax(-1)
                for one in (base, marked)
            )
            found += (p.exp() * (p - q)).sum(-1).mean(1).tolist()
    return [float(x) for x in found]


def _traced(size: Size, seed: int, cell: tuple[int, Any]) -> int:
    m, strategy = cell
    names = [f"recipient {i}" for i in range(size.recipients)]
    return CollusionAllocation(names, m, p=0.243, seed=seed).simulate(strategy, 3, size.trials, seed=seed)


def _training(ours: dict[str, Any], rival: dict[str, Any], size: Size, seed: int) -> list[Finding]:
    cap = size.steps

    def steps(one: dict[str, Any]) -> Measurement:
        reached = one["steps"]
        name = "steps to full recall" if reached is not None else f"steps without full recall (cap {cap})"
        return Measurement(name, float(reached if reached is not None else cap), "steps", n=size.keys)

    verdict: Any = "undecided"
    if ours["steps"] is not None:
        other = rival["steps"] if rival["steps"] is not None else cap
        verdict = "holds" if ours["steps"] <= 0.7 * other else "fails" if rival["steps"] is not None else "undecided"
    elif rival["steps"] is not None:
        verdict = "fails"
    a, b = np.asarray(ours["kl"]), np.asarray(rival["kl"])
    ratio = over_items("KL over the rival's", np.stack([a, b]), lambda x: x[0].mean() / x[1].mean(), seed=seed)
    kl = Measurement.mean("KL(base‖fingerprinted)", a, "nats/token")
    equal = ours["recalls"][-1] == rival["recalls"][-1] == 1.0
    judged = sign(Measurement("", -ratio.value, low=-(ratio.high or np.inf), high=-(ratio.low or 0.0)), above=-0.7)
    return [
        Finding(
            "convergence",
            "Perinucleus needs at most 0.7 times the steps that English keys with random responses need.",
            verdict,
            steps(ours),
            steps(rival),
        ),
        Finding(
            "harmlessness",
            "At full recall of both, Perinucleus moves the model at most 0.7 times as far.",
            judged if equal else "undecided",
            kl,
            Measurement.mean("that of the rival", b, "nats/token"),
        ),
        Finding(
            "divergence-ratio",
            "The ratio of the two divergences is at most 0.7, at whatever recall each reached.",
            judged,
            ratio,
        ),
    ]


def _unique(ours: dict[str, Any]) -> list[Finding]:
    n = ours["attacks"][0]["keys"]
    base = Measurement.rate("keys answered by the base model", ours["base_hits"], n)
    return [
        Finding(
            "uniqueness",
            "A model without the fingerprints answers at most one key in k.",
            "holds" if (base.high or 1) <= 1 / 3 else "undecided" if base.value <= 1 / 3 else "fails",
            base,
            Measurement("bound, 1/k", 1 / 3),
        )
    ]


def _persistence(ours: dict[str, Any], rival: dict[str, Any]) -> list[Finding]:
    out = []
    for mine, theirs in zip(ours["attacks"], rival["attacks"], strict=True):
        a = Measurement.rate("keys answered", mine["hits"], mine["keys"])
        b = Measurement.rate("by the rival scheme", theirs["hits"], theirs["keys"])
        name = "without an attack" if mine["attack"] == "none" else f"after {mine['attack']}"
        # What was never learnt cannot be lost: a rival that was not embedded shows nothing about persistence.
        embedded = min(one["attacks"][0]["hits"] / one["attacks"][0]["keys"] for one in (ours, rival)) >= 0.9
        above, below = (a.low or 0) > (b.high or 1), (a.high or 1) < (b.low or 0)
        verdict: Any = "fails" if below else "holds" if above and embedded else "undecided"
        out.append(
            Finding(
                f"recall-{mine['attack']}",
                f"Perinucleus keeps more recall than the rival {name}.",
                verdict,
                a,
                b,
            )
        )
    return out


def _tracing(tracing: pd.DataFrame, size: Size) -> list[Finding]:
    many = tracing[tracing.fingerprints >= 2048]
    worst = many.sort_values("caught").iloc[0]
    few = tracing[(tracing.fingerprints == 256) & (tracing.strategy == "optimal")].iloc[0]

    def rate(name: str, row: Any) -> Measurement:
        return Measurement.rate(name, round(row.caught * row.trials), int(row.trials))

    return [
        Finding(
            "tracing",
            "With 2048 fingerprints or more every strategy of three colluders is traced in 99 % of trials.",
            "holds" if worst.caught >= 0.99 else "fails",
            rate("worst strategy traced", worst),
            rate("optimal strategy at 256 fingerprints", few),
        ),
        Finding(
            "tracing-few",
            "With 256 fingerprints the optimal strategy escapes: it is traced in at most 30 % of trials.",
            # Fewer recipients are told apart more easily; the claim is about the paper's number.
            "undecided" if size.recipients < 2048 else "holds" if few.caught <= 0.3 else "fails",
            rate("traced", few),
        ),
    ]


def _bounds() -> pd.DataFrame:
    rows = [
        {"queries": m, "hits": m, "hoeffding": hoeffding_bound(m, m, 1 / 3), "exact": exact_bound(m, m, 1 / 3)}
        for m in (5, 10, 20)
    ]
    return pd.DataFrame(rows)


def _figure(curves: pd.DataFrame, attacks: pd.DataFrame, tracing: pd.DataFrame) -> Figure:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(13, 3.8), layout="constrained")
    left, middle, right = canvas.subplots(1, 3)
    for scheme, part in curves.groupby("scheme", sort=False):
        left.plot(part.step, part.recall, label=scheme)
    left.set(xlabel="optimiser steps", ylabel="keys answered", ylim=(-0.02, 1.02), title="Embedding")
    left.legend(frameon=False)
    wide = attacks.pivot(index="attack", columns="scheme", values="recall")
    wide = wide.loc[list(dict.fromkeys(attacks.attack)), list(dict.fromkeys(attacks.scheme))]
    places = np.arange(len(wide))
    for i, scheme in enumerate(wide.columns):
        middle.barh(places + 0.4 * i - 0.2, wide[scheme], height=0.38, label=scheme)
    middle.set_yticks(places, list(wide.index))
    middle.invert_yaxis()
    middle.set(xlabel="keys answered", xlim=(0, 1.02), title="After what a host may do")
    for strategy, part in tracing.groupby("strategy", sort=False):
        right.plot(part.fingerprints, part.caught, marker="o", label=strategy)
    right.set(xlabel="fingerprints in all", ylabel="a colluder is accused", ylim=(-0.02, 1.02), title="Three colluders")
    right.legend(frameon=False)
    return Figure.draw("overview", "Embedding, removal attacks and tracing", canvas)
