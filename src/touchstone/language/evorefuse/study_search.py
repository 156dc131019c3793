"""Study, part A: the search and its ablations on a refuser whose optimum is known by enumeration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.bootstrap import clustered, sign
from touchstone.evidence import Figure, Finding, Measurement, Table
from touchstone.language.evorefuse import figures
from touchstone.language.evorefuse.baselines import best_of_n, noise
from touchstone.language.evorefuse.fitness import Scorer
from touchstone.language.evorefuse.judging import Panel
from touchstone.language.evorefuse.metrics import diversity
from touchstone.language.evorefuse.rules import default_rules
from touchstone.language.evorefuse.search import EvoRefuse
from touchstone.language.evorefuse.synthetic import SyntheticRefuser

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["SearchSize", "search_arms"]

FULL, PLAIN, GREEDY, RANDOM, BEST, SEEDS = (
    "full",
    "no recombination",
    "greedy (τ = 0)",
    "no fitness",
    "best of N",
    "seeds unchanged",
)
_ARMS: dict[str, dict[str, Any]] = {
    FULL: {},
    PLAIN: {"pairs": 0},
    GREEDY: {"tau0": 0.0, "tau_f": 0.0, "beta": 0.0},
    RANDOM: {},
}
# More rounds than the budget pays for, so that the budget decides.
_ROUNDS = 60
_CLOSE, _MOST = 0.95, 0.9
# A loss of p(refuse) that is still called none.
_MARGIN = 0.02


@dataclass(frozen=True)
class SearchSize:
    """Landscapes, seeds on each, and fitness evaluations a seed."""

    repeats: int
    seeds: int
    budget: int = 150


def search_arms(size: SearchSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """All arms on the same landscapes with the same seeds and budget."""
    jobs = [(arm, repeat) for repeat in range(size.repeats) for arm in (*_ARMS, BEST)]
    label = f"search on known refusers ({size.repeats} × {size.seeds} seeds, {size.budget} calls)"
    done = run.map(label, partial(_arm, run.seed, size.seeds, size.budget), jobs)
    results = dict(zip(jobs, done, strict=True))
    probabilities = {
        arm: np.array([results[arm, r]["probability"] for r in range(size.repeats)]) for arm in (*_ARMS, BEST)
    }
    probabilities[SEEDS] = np.array([results[FULL, r]["seeds"] for r in range(size.repeats)])
    optimum = np.array([results[FULL, r]["optimum"] for r in range(size.repeats)])
    table = _table(probabilities, optimum, results, size)
    calls = {arm: np.array([results[arm, r]["calls"] for r in range(size.repeats)]) for arm in _ARMS}
    return (
        _findings(probabilities, optimum, calls, size, run.seed),
        [Table("search-arms", "Search: arms at equal budget on refusers with a known optimum", table)],
        [figures.search(_curves(results, size), optimum.mean())],
    )


def _arm(seed: int, seeds: int, budget: int, job: tuple[str, int]) -> dict[str, Any]:
    """One arm on one landscape."""
    arm, repeat = job
    # Far apart, so that the landscapes of neighbouring study seeds differ.
    refuser = SyntheticRefuser(1000 * seed + repeat)
    rules = default_rules(refuser.grammar)
    starts = refuser.grammar.seeds()[:seeds]
    best = float(refuser.probabilities.max())
    if arm == BEST:
        scorer = Scorer([refuser], judge=refuser.judge(), first=0)
        panel = Panel(rules["judges"])
        texts = best_of_n(starts, scorer, budget, mutators=rules["mutators"], panel=panel, seed=repeat)
        return {"probability": refuser.probability(texts).tolist(), "texts": texts}
    options = _ARMS[arm] | ({"fitness": partial(noise, repeat)} if arm == RANDOM else {})
    search = EvoRefuse(
        refuser, **rules, rounds=_ROUNDS, budget=budget, refusal=refuser.judge(), first=0, seed=repeat, **options
    )
    out = search.run(starts)
    paths = [[e for e in out.history if e["seed"] == i] for i in range(seeds)]
    curves = [[(e["calls"], refuser.probability([e["best"]])[0]) for e in path] for path in paths]
    return {
        "probability": refuser.probability(out.instructions).tolist(),
        "texts": out.instructions,
        "seeds": refuser.probability(starts).tolist(),
        "optimum": best,
        "curves": curves,
        "calls": [next((c for c, p in curve if p >= _MOST * best), budget + 1) for curve in curves],
    }


def _table(
    probabilities: dict[str, np.ndarray], optimum: np.ndarray, results: dict[Any, Any], size: SearchSize
) -> pd.DataFrame:
    texts = {arm: [t for r in range(size.repeats) for t in results[arm, r]["texts"]] for arm in (*_ARMS, BEST)}
    rich = diversity(texts).set_index("set")
    rows = []
    for arm, values in probabilities.items():
        row = {
            "arm": arm,
            "p(refuse)": values.mean(),
            "within 5 % of the optimum": (values >= _CLOSE * optimum[:, None]).mean(),
        }
        if arm in rich.index:
            row |= {"distinct": len(set(texts[arm])), "msttr": rich.at[arm, "msttr"], "mtld": rich.at[arm, "mtld"]}
        rows.append(row)
    return pd.DataFrame(rows)


def _findings(
    probabilities: dict[str, np.ndarray], optimum: np.ndarray, calls: dict[str, np.ndarray], size: SearchSize, seed: int
) -> list[Finding]:
    full = probabilities[FULL]

    found = clustered("p(refuse), search", full, seed=seed)
    at = f"at {size.budget} target calls"

    def over(id: str, arm: str, claim: str, least: float = 0.0) -> Finding:
        gain = clustered("gain", full - probabilities[arm], seed=seed)
        interval = "" if gain.low is None else f" [{gain.low:.3f}, {gain.high:.3f}]"
        statement = f"{claim} (paired gain {gain.value:.3f}{interval})."
        against = clustered(f"p(refuse), {arm}", probabilities[arm], seed=seed)
        return Finding(id, statement, sign(gain, above=least), found, against)

    close = {arm: (values >= _CLOSE * optimum[:, None]).astype(float) for arm, values in probabilities.items()}
    reached = clustered("share within 5 % of the optimum", close[FULL], seed=seed)
    nearer = clustered("difference of shares", close[FULL] - close[BEST], seed=seed)
    quick, slow = (float(np.median(calls[arm])) for arm in (FULL, PLAIN))
    sooner = clustered(
        f"calls to {_MOST:.0%} of the optimum saved by recombination",
        calls[PLAIN] - calls[FULL],
        seed=seed,
        unit="calls",
    )
    return [
        over("search-over-seeds", SEEDS, "The search finds what is refused where the seeds are not"),
        over("search-over-no-fitness", RANDOM, f"The search beats mutation without fitness {at}"),
        over("search-over-best-of-n", BEST, f"The search beats the best of N random mutants {at}"),
        over(
            "search-over-greedy",
            GREEDY,
            f"Annealing is no worse than greedy acceptance {at}, within {_MARGIN:g}",
            -_MARGIN,
        ),
        over(
            "search-over-no-recombination",
            PLAIN,
            f"Recombination does no harm {at}, within {_MARGIN:g}",
            -_MARGIN,
        ),
        Finding(
            "recombination-saves-calls",
            f"With recombination a search gets to {_MOST:.0%} of the optimum in fewer calls "
            f"(medians {quick:.0f} and {slow:.0f}; those that never do count {size.budget + 1}).",
            sign(sooner),
            sooner,
        ),
        Finding(
            "search-near-optimum",
            "The search ends within 5 % of the optimum more often than the best of N.",
            sign(nearer),
            reached,
            Measurement(BEST, float(close[BEST].mean())),
        ),
    ]


def _curves(results: dict[Any, Any], size: SearchSize) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean true p(refuse) of the best so far against calls, for every arm that has a course."""
    grid = np.arange(1, size.budget + 1)
    found = {}
    for arm in _ARMS:
        rows = []
        for repeat in range(size.repeats):
            for curve, start in zip(results[arm, repeat]["curves"], results[arm, repeat]["seeds"], strict=True):
                calls = np.array([1, *(c for c, _ in curve)])
                values = np.array([start, *(p for _, p in curve)])
                rows.append(values[np.searchsorted(calls, grid, side="right") - 1])
        found[arm] = (grid, np.mean(rows, axis=0))
    found[BEST] = (grid[-1:], np.array([np.mean([results[BEST, r]["probability"] for r in range(size.repeats)])]))
    return found
