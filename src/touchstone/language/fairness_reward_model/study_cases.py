"""Real cases, simulated chains: every way to decide, on the same chains, at every seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.bootstrap import clustered, sign
from touchstone.errors import MissingExtraError
from touchstone.evidence import Figure, Finding, Measurement, Table
from touchstone.language.fairness_reward_model import compas, figures
from touchstone.language.fairness_reward_model.baselines import keyword_scores
from touchstone.language.fairness_reward_model.chains import Chain
from touchstone.language.fairness_reward_model.fairness import choose_tau, gaps, paired_p
from touchstone.language.fairness_reward_model.reward import FairnessRewardModel, outcome_labels
from touchstone.language.fairness_reward_model.simulation import (
    Shift,
    Simulated,
    corpus,
    moderation,
    simulate,
)
from touchstone.language.fairness_reward_model.voting import Ballots

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["CaseSize", "ballots", "real_cases"]

TAUS = (0.8, 0.4, 0.2, 0.05, 0.01)
_LABELS = ("0", "1")
_SHARP = "fairness-weighted, τ = 0.01"


@dataclass(frozen=True)
class CaseSize:
    """How much is measured: seeds, test cases of each group, chains a case."""

    seeds: int
    each: int
    chains: int


def ballots(chains: Simulated, by_text: NDArray[np.float64], how: str = "mean") -> Ballots:
    """Ballots of simulated chains from scores of their distinct steps."""
    return Ballots(_LABELS, chains.answers, chains.scores(by_text, how))


def real_cases(size: CaseSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Findings on real cases."""
    try:
        import fairlearn  # noqa: F401
    except ImportError:
        raise MissingExtraError("Comparing with fairlearn", "fairness") from None
    parts = run.map("deciding real cases", partial(_one, size), [run.seed + k for k in range(size.seeds)])
    rows = pd.DataFrame([row for part in parts for row in part["arms"]])
    extra = pd.DataFrame([part["extra"] for part in parts])
    means = rows.groupby("arm", sort=False).mean(numeric_only=True).drop(columns="seed").reset_index()
    means["tau"] = [_tau(name) for name in means["arm"]]
    tables = [
        Table("arms", "Every way to decide, means over seeds; gaps in [0, 1], their sum in [0, 2]", means),
        Table("seeds", "The same at each seed", rows),
    ]
    return _findings(rows, extra, size, run.seed), tables, [figures.frontier(means)]


def _tau(arm: str) -> float | None:
    if arm == "majority":
        return math.inf
    return float(arm.rsplit("= ", 1)[1]) if arm.startswith("fairness-weighted, τ") else None


def _one(size: CaseSize, seed: int) -> dict[str, Any]:
    frame = compas.load()
    cases = compas.evidence(frame, each=size.each, seed=seed)
    chains = simulate(cases, chains=size.chains, seed=seed)
    learnt = corpus(seed=seed)
    model = FairnessRewardModel(context="none").fit(learnt.steps, learnt.labels)
    by_text = model.score_steps(chains.texts)
    said = _decided(chains, by_text, cases, frame, seed)
    rows = [_row(name, seed, answer, chains) for name, answer in said.items()]
    truth = chains.label
    p = paired_p(truth, said[_SHARP] == 1, said["majority"] == 1, chains.group, seed=seed)
    keywords = keyword_scores(chains.texts)
    extra = {
        "p": p,
        "auc": _auc(~chains.biased, chains.scores(by_text)),
        "auc_keywords": _auc(~chains.biased, chains.scores(keywords)),
        **_nothing_to_mend(size, cases, by_text, chains, seed),
        **_chosen(size, frame, model, seed),
    }
    return {"arms": rows, "extra": extra}


def _decided(
    chains: Simulated, by_text: NDArray[np.float64], cases: compas.Evidence, frame: pd.DataFrame, seed: int
) -> dict[str, NDArray[np.int64]]:
    votes = ballots(chains, by_text)
    said = {"first chain": votes.first().answer, "majority": votes.vote(math.inf).answer}
    said |= {f"fairness-weighted, τ = {tau:g}": votes.vote(tau).answer for tau in TAUS}
    said["log-mean, τ 0.2"] = ballots(chains, by_text, "log_mean").vote(0.2).answer
    said["minimum, τ 0.05"] = ballots(chains, by_text, "min").vote(0.05).answer
    said["best of N"] = votes.best().answer
    said["keyword filter, τ 0.01"] = ballots(chains, keyword_scores(chains.texts)).vote(0.01).answer
    for name, scores in _variants(chains, seed).items():
        said[f"{name}, τ 0.01"] = Ballots(_LABELS, chains.answers, scores).vote(0.01).answer
    said["unbiased chains only (oracle)"] = votes.keeping(~chains.biased).vote(math.inf).answer
    said["evidence only (floor)"] = (cases.logit > 0).astype(np.int64)
    said["fairlearn, sees the group"] = _fairlearn(cases, frame, seed)
    return said


def _variants(chains: Simulated, seed: int) -> dict[str, NDArray[np.float64]]:
    """The paper's ablations: labels by outcome, and whole chains in place of steps; learnt on chains of moderation."""
    task = moderation(each=60, chains=12, seed=seed + 1)
    flat = [
        Chain(tuple(task.texts[i] for i in row if i >= 0), str(int(answer)))
        for rows, answers in zip(task.steps, task.answers, strict=True)
        for row, answer in zip(rows, answers, strict=True)
    ]
    right = [str(int(label)) for label in np.repeat(task.label, task.answers.shape[1])]
    judged = [int(not b) for b in task.biased.ravel()]
    steps = [step for chain in flat for step in chain.steps]
    wrong = {task.texts[i] for rows in task.steps[..., -1:] for row in rows for i in row if i >= 0}
    whole = ["\n\n".join(chain.steps) for chain in flat]
    outcomes = [int(chain.answer == label) for chain, label in zip(flat, right, strict=True)]
    read = [
        "\n\n".join(chains.texts[i] for i in row if i >= 0) for row in chains.steps.reshape(-1, chains.steps.shape[-1])
    ]
    shape = chains.answers.shape

    def fitted(texts: list[str], labels: list[int]) -> FairnessRewardModel:
        return FairnessRewardModel(context="none").fit(texts, labels)

    by_step = {
        "steps labelled by a judge": fitted(steps, [int(step not in wrong) for step in steps]),
        "steps labelled by outcome": fitted(steps, outcome_labels(flat, right)),
    }
    by_chain = {
        "chains labelled by a judge": fitted(whole, judged),
        "chains labelled by outcome": fitted(whole, outcomes),
    }
    found = {name: chains.scores(model.score_steps(chains.texts)) for name, model in by_step.items()}
    return found | {name: model.score_steps(read).reshape(shape) for name, model in by_chain.items()}


def _fairlearn(cases: compas.Evidence, frame: pd.DataFrame, seed: int) -> NDArray[np.int64]:
    """What a practitioner with labels would try: thresholds by group on the evidence, fitted on other cases."""
    from fairlearn.postprocessing import ThresholdOptimizer
    from sklearn.base import BaseEstimator

    class Given(BaseEstimator):
        """The evidence's logit, which is known already."""

        _estimator_type = "classifier"
        classes_ = np.array([0, 1])

        def fit(self, x: Any, y: Any) -> Given:
            return self

        def predict(self, x: Any) -> Any:
            return np.asarray(x)[:, 0]

        def __sklearn_is_fitted__(self) -> bool:
            return True

    others = frame.drop(index=cases.cases.index).reset_index(drop=True)
    most = min(int((others["race"] == name).sum()) for name in compas.GROUPS) - 1
    other = compas.evidence(others, each=min(len(cases.label), most), seed=seed + 1000)
    tool = ThresholdOptimizer(
        estimator=Given(), constraints="equalized_odds", prefit=True, predict_method="predict"
    ).fit(other.logit[:, None], other.label.astype(int), sensitive_features=other.group)
    found: NDArray[np.int64] = np.asarray(
        tool.predict(cases.logit[:, None], sensitive_features=cases.group, random_state=seed)
    ).astype(np.int64)
    return found


def _nothing_to_mend(
    size: CaseSize, cases: compas.Evidence, by_text: NDArray[np.float64], chains: Simulated, seed: int
) -> dict[str, float]:
    """What weighing does to chains that hold no stereotype."""
    clean = simulate(cases, chains=size.chains, shift=Shift(often=(0.0, 0.0)), seed=seed)
    known = dict(zip(chains.texts, by_text, strict=True))
    votes = ballots(clean, np.array([known[text] for text in clean.texts]))
    plain, sharp = votes.vote(math.inf).answer, votes.vote(0.2).answer
    before, after = (gaps(clean.label, said == 1, clean.group)["eodds_sum"] for said in (plain, sharp))
    right = [float((said == clean.label).mean()) for said in (plain, sharp)]
    return {"clean_gap_change": after - before, "clean_accuracy_change": right[1] - right[0]}


def _chosen(size: CaseSize, frame: pd.DataFrame, model: FairnessRewardModel, seed: int) -> dict[str, float]:
    """A temperature certified on half of many cases, and what it costs on the other half."""
    most = min(int((frame["race"] == name).sum()) for name in compas.GROUPS) - 1
    cases = compas.evidence(frame, each=min(4 * size.each, most), seed=seed + 2000)
    chains = simulate(cases, chains=size.chains, seed=seed + 2000)
    votes = ballots(chains, model.score_steps(chains.texts))
    half = np.random.default_rng(seed).permutation(len(chains.label))
    learn, hold = half[: len(half) // 2], half[len(half) // 2 :]

    def part(rows: NDArray[np.int64]) -> Ballots:
        return Ballots(votes.labels, votes.answers[rows], votes.scores[rows])

    truth, group = chains.label.astype(int).astype(str), chains.group.astype(str)
    tau = choose_tau(part(learn), truth[learn].tolist(), group[learn].tolist(), positive="1", most_loss=0.05)
    plain, said = part(hold).vote(math.inf).answer, part(hold).vote(tau).answer
    right = chains.label[hold]
    return {
        "chosen_sharpness": 0.0 if math.isinf(tau) else 1 / tau,
        "chosen_loss": float((plain == right).mean() - (said == right).mean()),
        "chosen_gap": gaps(right, said == 1, chains.group[hold])["eodds_sum"],
        "chosen_plain_gap": gaps(right, plain == 1, chains.group[hold])["eodds_sum"],
    }


def _row(name: str, seed: int, answer: NDArray[np.int64], chains: Simulated) -> dict[str, Any]:
    right = answer == chains.label
    by_group = {f"accuracy_{n}": float(right[chains.group == g].mean()) for g, n in enumerate(("first", "second"))}
    found = gaps(chains.label, answer == 1, chains.group)
    return {
        "arm": name,
        "seed": seed,
        "accuracy": float(right.mean()),
        **by_group,
        "positive_rate": float((answer == 1).mean()),
        **found,
    }


def _auc(label: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(label.ravel(), score.ravel()))


def _findings(rows: pd.DataFrame, extra: pd.DataFrame, size: CaseSize, seed: int) -> list[Finding]:
    def column(arm: str, what: str = "eodds_sum") -> NDArray[np.float64]:
        values: NDArray[np.float64] = rows[rows["arm"] == arm][what].to_numpy(dtype=float)
        return values

    def mean(name: str, values: NDArray[np.float64]) -> Measurement:
        return clustered(name, values, seed=seed)

    gap = {arm: mean(f"equalized-odds gap, {arm}", column(arm)) for arm in dict.fromkeys(rows["arm"])}
    plain, sharp = column("majority"), column(_SHARP)
    ladder = np.stack([plain, *(column(f"fairness-weighted, τ = {tau:g}") for tau in TAUS)])
    # A rise from one temperature to the next sharper one, the largest; not above 0 if the gap never rises.
    rises = np.diff(ladder, axis=0)
    worst = rises.mean(axis=1).argmax()
    ratio = mean("gap at τ = 0.01 over the majority's", sharp / plain)
    loss = column("majority", "accuracy") - column(_SHARP, "accuracy")
    lost = mean("accuracy lost at τ = 0.01", loss)
    worst_p = Measurement("largest p over seeds", float(extra["p"].max()), n=len(extra))
    judge, outcome = column("steps labelled by a judge, τ 0.01"), column("steps labelled by outcome, τ 0.01")
    chain = column("chains labelled by a judge, τ 0.01")
    clean = mean("change of the gap", extra["clean_gap_change"].abs().to_numpy())
    harm = mean("change of the accuracy", extra["clean_accuracy_change"].abs().to_numpy())
    chosen = mean("accuracy lost on held-out cases", extra["chosen_loss"].to_numpy())
    return [
        Finding(
            "majority-amplifies",
            "A majority of biased chains is less fair than one chain.",
            sign(mean("difference", plain - column("first chain"))),
            gap["majority"],
            gap["first chain"],
        ),
        Finding(
            "sharper-is-fairer",
            "The equalized-odds gap never rises as τ falls from a plain vote over 0.8, 0.4, 0.2, 0.05 to 0.01.",
            "holds" if rises.mean(axis=1).max() <= 0 else "fails",
            mean("largest rise from one τ to the next", rises[worst]),
            limit="<= 0",
        ),
        Finding.held_to(
            "halves-the-gap",
            "At τ = 0.01 the equalized-odds gap is at most half of the majority's.",
            ratio,
            "<= 0.5",
        ),
        Finding.held_to(
            "keeps-accuracy",
            "At τ = 0.01 accuracy is at most 0.01 below the majority's.",
            lost,
            "<= 0.01",
        ),
        Finding(
            "significant",
            "At every seed the gap is smaller than the majority's with p < 0.01 (paired bootstrap of cases).",
            "holds" if worst_p.value < 0.01 else "fails",
            worst_p,
            limit="< 0.01",
        ),
        Finding(
            "finds-biased-chains",
            "A reward model learnt on other groups tells chains without a biased step better than a keyword filter.",
            sign(mean("difference", (extra["auc"] - extra["auc_keywords"]).to_numpy())),
            mean("AUC of the chain score", extra["auc"].to_numpy()),
            mean("AUC of the keyword filter", extra["auc_keywords"].to_numpy()),
        ),
        Finding(
            "judge-over-outcome",
            "Labels of steps by a judge make a fairer vote than labels by the outcome, at τ = 0.01.",
            sign(mean("difference", outcome - judge)),
            mean("gap, judge's labels", judge),
            mean("gap, outcome labels", outcome),
        ),
        Finding(
            "steps-over-chains",
            "Scores of steps make a fairer vote than scores of whole chains, both labelled by a judge, at τ = 0.01.",
            sign(mean("difference", chain - judge)),
            mean("gap, steps", judge),
            mean("gap, whole chains", chain),
        ),
        Finding(
            "no-harm",
            "Where no chain is biased, τ = 0.2 changes the gap by at most 0.05 and the accuracy by at most 0.02.",
            "holds" if clean.value <= 0.05 and harm.value <= 0.02 else "fails",
            clean,
            harm,
            "<= 0.05",
        ),
        Finding(
            "chosen-tau",
            "A τ certified on half of many cases to lose at most 0.05 of accuracy loses no more on the other half, and "
            "the gap there is smaller than the majority's.",
            "holds"
            if chosen.value <= 0.05 and float((extra["chosen_plain_gap"] - extra["chosen_gap"]).mean()) > 0
            else "fails",
            chosen,
            mean("gap there, over the majority's", (extra["chosen_gap"] / extra["chosen_plain_gap"]).to_numpy()),
            "<= 0.05",
        ),
    ]
