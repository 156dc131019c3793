"""Race: scores of steps and the vote, against loops, on chains of real cases.

The official scorer runs one step a forward pass. Ours drops repeated steps, sorts the rest by length and batches them.
The vote over a grid of temperatures is one matrix operation a temperature, against a loop over cases and chains.

    python benchmarks/fairness_scoring.py [--cases 6] [--chains 32] [--repeats 3]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import numpy as np

from touchstone.language import LanguageModel
from touchstone.language.fairness_reward_model import FairnessRewardModel
from touchstone.language.fairness_reward_model.compas import evidence, load
from touchstone.language.fairness_reward_model.simulation import corpus, simulate
from touchstone.language.fairness_reward_model.study_cases import ballots

TAUS = (math.inf, 0.8, 0.4, 0.2, 0.05, 0.01)


def timed(work: Callable[[], np.ndarray], repeats: int) -> tuple[float, np.ndarray]:
    times, found = [], np.zeros(0)
    for _ in range(repeats):
        began = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - began)
    return statistics.median(times), found


def looped_vote(answers: np.ndarray, scores: np.ndarray) -> np.ndarray:
    decided = np.zeros((len(TAUS), len(answers)), dtype=int)
    for t, tau in enumerate(TAUS):
        for i, (said, row) in enumerate(zip(answers, scores, strict=True)):
            top = max(row)
            weights = [1.0 if math.isinf(tau) else math.exp((score - top) / tau) for score in row]
            shares = {0: 0.0, 1: 0.0}
            for answer, weight in zip(said, weights, strict=True):
                shares[int(answer)] += weight / sum(weights)
            decided[t, i] = max(shares, key=lambda answer: (shares[answer], -answer))
    return decided


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=6)
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    model = LanguageModel.load()
    learnt = corpus(n=120)
    reward = FairnessRewardModel(encoder=model, context="none").fit(learnt.steps, learnt.labels)
    chains = simulate(evidence(load(), each=max(1, chosen.cases // 2)), chains=chosen.chains)
    flat = [chains.texts[i] for i in chains.steps.ravel() if i >= 0]
    some = flat[:: max(1, len(flat) // 200)]

    plain, first = timed(lambda: np.array([reward.score_steps([step])[0] for step in some]), 1)
    ours, second = timed(lambda: reward.score_steps(some), chosen.repeats)
    gap = float(np.abs(first - second).max())
    print(f"{len(some)} steps, {len(set(some))} different: {plain / ours:.1f} times a pass a step, within {gap:.0e}")
    distinct = list(dict.fromkeys(flat))
    plain, first = timed(lambda: np.array([reward.score_steps([step])[0] for step in distinct]), 1)
    ours, second = timed(lambda: reward.score_steps(distinct), chosen.repeats)
    gap = float(np.abs(first - second).max())
    print(f"{len(distinct)} steps, all different: {plain / ours:.1f} times a pass a step, within {gap:.0e}")

    wide = simulate(evidence(load(), each=500), chains=32)
    words = FairnessRewardModel(context="none").fit(learnt.steps, learnt.labels)
    votes = ballots(wide, words.score_steps(wide.texts))
    plain, first = timed(lambda: looped_vote(votes.answers, votes.scores), 1)
    ours, second = timed(lambda: np.stack([votes.vote(tau).answer for tau in TAUS]), chosen.repeats)
    same, size = float((first == second).mean()), f"{len(votes.answers)} cases at {len(TAUS)} temperatures"
    print(f"vote on {size}: {plain / ours:.0f} times a loop, {same:.2f} of the decisions the same")


if __name__ == "__main__":
    main()
