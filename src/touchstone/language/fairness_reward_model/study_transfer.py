"""Transfer: a reward model that learnt one kind of bias, used on another kind and another task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from touchstone.bootstrap import clustered
from touchstone.evidence import Figure, Finding, Measurement, Table
from touchstone.language.fairness_reward_model import compas, figures
from touchstone.language.fairness_reward_model.fairness import gaps
from touchstone.language.fairness_reward_model.reward import FairnessRewardModel
from touchstone.language.fairness_reward_model.simulation import CORPORA, Simulated, corpus, moderation, simulate
from touchstone.language.fairness_reward_model.study_cases import ballots

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["TransferSize", "transfer"]


@dataclass(frozen=True)
class TransferSize:
    """How much is measured: seeds, and cases of each group."""

    seeds: int
    each: int


def transfer(size: TransferSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Findings on transfer."""
    parts = run.map("carrying reward models over", partial(_one, size), [run.seed + k for k in range(size.seeds)])
    rows = pd.DataFrame([row for part in parts for row in part])
    means = rows.groupby(["learnt_from", "task"], sort=False).mean(numeric_only=True).drop(columns="seed").reset_index()
    auc = clustered("AUC of the chain score", rows.groupby("seed")["auc"].mean().to_numpy(), seed=run.seed)
    worst = means.iloc[int(means["eodds_ratio"].to_numpy().argmax())]
    ratio = Measurement(
        f"largest gap over the majority's ({worst.learnt_from} to {worst.task})", float(worst.eodds_ratio), n=len(means)
    )
    findings = [
        Finding.held_to(
            "transfer-auc",
            "Reward models that learnt one kind of bias tell biased chains about others apart, mean AUC at least 0.8.",
            auc,
            ">= 0.8",
        ),
        Finding.held_to(
            "transfer-gap",
            "Each of them brings the equalized-odds gap on each task to at most 0.8 of the majority's, at τ = 0.01.",
            ratio,
            "<= 0.8",
        ),
    ]
    table = Table("transfer", "What each reward model learnt from, and what it does on each task", means)
    return findings, [table], [figures.transfer(means)]


def _one(size: TransferSize, seed: int) -> list[dict[str, Any]]:
    from sklearn.metrics import roc_auc_score

    cases = compas.evidence(compas.load(), each=size.each, seed=seed)
    tasks: dict[str, Simulated] = {
        "risk": simulate(cases, seed=seed),
        "moderation": moderation(each=size.each, seed=seed),
    }
    rows = []
    for domain in CORPORA:
        learnt = corpus([domain], seed=seed)
        model = FairnessRewardModel(context="none").fit(learnt.steps, learnt.labels)
        for name, chains in tasks.items():
            by_text = model.score_steps(chains.texts)
            votes = ballots(chains, by_text)
            plain, sharp = (
                gaps(chains.label, votes.vote(tau).answer == 1, chains.group)["eodds_sum"] for tau in (math.inf, 0.01)
            )
            auc = float(roc_auc_score(~chains.biased.ravel(), chains.scores(by_text).ravel()))
            rows.append({"learnt_from": domain, "task": name, "seed": seed, "auc": auc, "eodds_ratio": sharp / plain})
    return rows
