"""The evolutionary search for harmless instructions that a target refuses (EVOREFUSE, arXiv 2505.23473)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from touchstone.errors import InputError
from touchstone.language.evorefuse.archive import Archive
from touchstone.language.evorefuse.climb import Climb, read_checkpoint, write_checkpoint
from touchstone.language.evorefuse.fitness import Fitness, Scorer
from touchstone.language.evorefuse.judging import Judge, Panel
from touchstone.language.evorefuse.mutants import Mutant, Mutator, Recombiner
from touchstone.language.evorefuse.result import EvoResult, Found
from touchstone.language.evorefuse.targets import REFUSAL_OPENERS, as_target
from touchstone.language.refusal import RefusalJudge

__all__ = ["EvoRefuse", "acceptance", "temperature"]


def temperature(t: int, tau0: float = 0.1, beta: float = 0.005, tau_f: float = 0.05) -> float:
    """τ_t = max(τ_f, τ_0 − β t)."""
    return max(tau_f, tau0 - beta * t)


def acceptance(new: float, old: float, tau: float) -> float:
    """δ = min(1, exp((F′ − F) / τ)); at τ = 0 only what is no worse is accepted."""
    if new >= old:
        return 1.0
    return math.exp((new - old) / tau) if tau > 0 else 0.0


class EvoRefuse:
    """Evolves harmless instructions towards those that the target refuses most confidently.

    Every round, for every seed: mutate the current instruction in all ways, keep the mutants that all judges call
    harmless, score them, recombine random pairs of the best, judge and score those too, and move to the best of the
    round with the probability of simulated annealing. Seeds go through the rounds together, so that the target sees
    large batches.

    Parameters
    ----------
    target : a :class:`LanguageModel`, a :class:`RemoteModel`, an object with ``sample(prompts, k)``, or a list of
        these.
    mutators, recombiner, judges : see :func:`default_rules` and :func:`llm_writers`; at least two judges, which
        must agree.
    fitness : ``"elbo"``, ``"prefix_mass"`` or a function from texts to numbers, see :class:`Scorer`.
    lam, k : weight of confidence and replies a text, for ``elbo``; the paper's values.
    top, pairs : how many of a round's best are parents (L), and pairs of them that are recombined (N); the paper's
        values.
    rounds : rounds (I); 5 is the official code's.
    tau0, beta, tau_f : temperature of acceptance, τ_t = max(τ_f, τ_0 − β t); the paper's values.
    tries : how often mutation is repeated while no mutant is harmless; after that the instruction stays for this round.
    mutants : how many of the mutators are used a round, drawn at random; ``None`` uses all. The official code stops at
        4 harmless mutants.
    budget : most fitness evaluations a seed; ``None`` sets no bound. Of a generation that would exceed it, the first
        are scored.
    over : with several targets, look at their ``"mean"`` fitness or at the ``"worst"``.
    refusal : judge of replies that gives p̂; ``None`` takes ``RefusalJudge("tfidf")``. Report with another one: a
        search finds the errors of the judge it is led by.
    first : see :class:`Scorer`.
    openers : for ``prefix_mass``.
    system, max_new_tokens : system message and length of replies, for targets that are models.
    archive : keeps the best of every cell of what was seen, see :class:`Archive`.
    explore : with an archive, chance that a seed's round begins from one of its elites rather than from where it
        stands.
    seed : every random number follows from it.

    Raises
    ------
    InputError
        If there are no judges or a single one, k < 1, or τ_f > τ_0.
    """

    def __init__(
        self,
        target: Any,
        *,
        mutators: Sequence[Mutator],
        recombiner: Recombiner | None,
        judges: Sequence[Judge],
        fitness: Fitness | Callable[[Sequence[str]], Sequence[float] | np.ndarray] = "elbo",
        lam: float = 0.03,
        k: int = 10,
        top: int = 4,
        pairs: int = 2,
        rounds: int = 5,
        tau0: float = 0.1,
        beta: float = 0.005,
        tau_f: float = 0.05,
        tries: int = 3,
        mutants: int | None = None,
        budget: int | None = None,
        over: Literal["mean", "worst"] = "mean",
        refusal: RefusalJudge | None = None,
        first: int = 3,
        openers: Sequence[str] = REFUSAL_OPENERS,
        system: str | None = None,
        max_new_tokens: int = 50,
        archive: Archive | None = None,
        explore: float = 0.0,
        seed: int = 0,
    ) -> None:
        least = {"top": (top, 1), "pairs": (pairs, 0), "rounds": (rounds, 1), "tries": (tries, 1)}
        for name, (value, low) in least.items():
            if value < low:
                raise InputError(f"{name} {value}: expected {low} or more")
        if not 0 <= tau_f <= tau0 or beta < 0:
            raise InputError(f"tau0 {tau0}, beta {beta}, tau_f {tau_f}: expected tau0 >= tau_f >= 0 and beta >= 0")
        if not mutators:
            raise InputError("mutators: expected at least one")
        if mutants is not None and not 1 <= mutants <= len(mutators):
            raise InputError(f"mutants {mutants}: expected 1 to {len(mutators)}")
        if not 0 <= explore <= (archive is not None):
            raise InputError(f"explore {explore}: expected 0 to 1, and 0 without an archive")
        if budget is not None and budget < 1:
            raise InputError(f"budget {budget}: expected 1 or more")
        self.panel = Panel(judges)
        targets = target if isinstance(target, list | tuple) else [] if target is None else [target]
        adapted = [as_target(one, system=system, max_new_tokens=max_new_tokens, seed=seed) for one in targets]
        self.scorer = Scorer(adapted, fitness, refusal, lam, k, over, first, openers)
        self.mutators, self.recombiner, self.archive = list(mutators), recombiner, archive
        self.top, self.pairs, self.rounds, self.tries, self.budget = top, pairs, rounds, tries, budget
        self.tau0, self.beta, self.tau_f, self.seed = tau0, beta, tau_f, seed
        self.mutants, self.explore = mutants, explore
        self.config: dict[str, Any] = {
            "targets": [one.name for one in adapted],
            "mutators": [mutator.name for mutator in mutators],
            "fitness": fitness if isinstance(fitness, str) else "function",
        }
        self.config |= {"lam": lam, "k": k, "top": top, "pairs": pairs, "rounds": rounds, "tau0": tau0, "beta": beta}
        self.config |= {"tau_f": tau_f, "tries": tries, "mutants": mutants, "budget": budget, "over": over}
        self.config |= {
            "first": first,
            "explore": explore,
            "system": system,
            "max_new_tokens": max_new_tokens,
            "seed": seed,
        }

    def run(
        self,
        seeds: Sequence[str],
        *,
        checkpoint: str | Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> EvoResult:
        """Search from every seed.

        Parameters
        ----------
        seeds : instructions to start from. One that the judges do not call harmless is a start, but never a result.
        checkpoint : a JSON file that is written after every round; if it is there, the search goes on from it.
        progress : called with the number of rounds just finished.

        Raises
        ------
        InputError
            If there are no seeds, one is empty, or the checkpoint belongs to another search.
        """
        if isinstance(seeds, str) or len(seeds) == 0 or not all(text.strip() for text in seeds):
            raise InputError("seeds: expected a list of at least one instruction, none of them empty")
        path = None if checkpoint is None else Path(checkpoint)
        if path is not None and path.exists():
            climbs = read_checkpoint(path, self.config, seeds, self)
        else:
            climbs = self._start(seeds)
        if progress is not None and climbs[0].round:
            progress(climbs[0].round)
        for t in range(climbs[0].round, self.rounds):
            self._round(climbs, t)
            if path is not None:
                write_checkpoint(path, self.config, climbs, self)
            if progress is not None:
                progress(1)
        return self._result(climbs)

    def _start(self, seeds: Sequence[str]) -> list[Climb]:
        streams = np.random.SeedSequence(self.seed).spawn(len(seeds))
        climbs = [Climb(text, text, np.random.default_rng(s)) for text, s in zip(seeds, streams, strict=True)]
        safe = self.panel.harmless(list(seeds), [""] * len(seeds))
        values = self._score(climbs, [[text] for text in seeds], 0)
        for climb, harmless, (value,) in zip(climbs, safe, values, strict=True):
            climb.value = value
            if harmless:
                self._keep(climb, [(Mutant(climb.seed, "", "seed"), value)])
        return climbs

    def _round(self, climbs: list[Climb], t: int) -> None:
        active = [climb for climb in climbs if self._left(climb) > 0]
        self._jump(active)
        fresh = self._cut(active, self._harmless_mutants(active))
        values = self._score(active, [[m.text for m in row] for row in fresh], self.top)
        scored = [list(zip(row, found, strict=True)) for row, found in zip(fresh, values, strict=True)]
        if self.pairs and self.recombiner is not None:
            children = self._cut(active, self._children(active, scored))
            values = self._score(active, [[m.text for m in row] for row in children], 1)
            for row, new, found in zip(scored, children, values, strict=True):
                row += zip(new, found, strict=True)
        for climb, row in zip(active, scored, strict=True):
            self._keep(climb, row)
            self._move(climb, row, t)
        for climb in climbs:
            climb.round = t + 1

    def _jump(self, climbs: list[Climb]) -> None:
        if self.archive is None or not self.explore or not self.archive.elites:
            return
        elites = self.archive.best()
        for climb in climbs:
            if climb.rng.random() < self.explore:
                climb.current = elites[int(climb.rng.integers(len(elites)))]
                climb.value = self.scorer.value(climb.current)

    def _harmless_mutants(self, climbs: list[Climb]) -> list[list[Mutant]]:
        """Mutants of every climb's instruction that all judges call harmless; tried again where there are none."""
        found: list[list[Mutant]] = [[] for _ in climbs]
        for _ in range(self.tries):
            without = [i for i, row in enumerate(found) if not row]
            if not without:
                break
            made: list[list[Mutant | None]] = [[] for _ in without]
            chosen = [self._choice(climbs[i].rng) for i in without]
            for number, mutator in enumerate(self.mutators):
                asked = [j for j in range(len(without)) if number in chosen[j]]
                some = [climbs[without[j]] for j in asked]
                new = mutator([climb.current for climb in some], [climb.rng for climb in some]) if some else []
                for j, mutant in zip(asked, new, strict=True):
                    made[j].append(mutant)
            for i, row in zip(without, self._judged([climbs[i] for i in without], made), strict=True):
                found[i] = row
        return found

    def _choice(self, rng: np.random.Generator) -> set[int]:
        every = len(self.mutators)
        if self.mutants is None or self.mutants == every:
            return set(range(every))
        return {int(i) for i in rng.choice(every, size=self.mutants, replace=False)}

    def _children(self, climbs: list[Climb], scored: list[list[tuple[Mutant, float]]]) -> list[list[Mutant]]:
        """Harmless children of random pairs of every climb's best mutants."""
        assert self.recombiner is not None
        first, second, rngs, owner = [], [], [], []
        for i, (climb, row) in enumerate(zip(climbs, scored, strict=True)):
            best = sorted(row, key=lambda pair: -pair[1])[: self.top]
            if len(best) < 2:
                continue
            for _ in range(self.pairs):
                a, b = climb.rng.choice(len(best), size=2, replace=False)
                first.append(best[a][0].text)
                second.append(best[b][0].text)
                rngs.append(climb.rng)
                owner.append(i)
        made: list[list[Mutant | None]] = [[] for _ in climbs]
        for i, child in zip(owner, self.recombiner(first, second, rngs) if first else [], strict=True):
            made[i].append(child)
        return self._judged(climbs, made)

    def _judged(self, climbs: list[Climb], made: list[list[Mutant | None]]) -> list[list[Mutant]]:
        """The new ones among ``made`` that all judges call harmless, each text once."""
        new = [
            list({m.text: m for m in row if m is not None and m.text.strip() and m.text != climb.current}.values())
            for climb, row in zip(climbs, made, strict=True)
        ]
        flat = [mutant for some in new for mutant in some]
        verdicts = iter(self.panel.harmless([m.text for m in flat], [m.reason for m in flat]))
        kept = []
        for climb, some in zip(climbs, new, strict=True):
            safe = [mutant for mutant in some if next(verdicts)]
            climb.rejected += len(some) - len(safe)
            kept.append(safe)
        return kept

    def _left(self, climb: Climb) -> float:
        return math.inf if self.budget is None else self.budget - len(climb.tried)

    def _cut(self, climbs: list[Climb], rows: list[list[Mutant]]) -> list[list[Mutant]]:
        """What the budget of each climb still pays for; texts that it tried before cost nothing."""
        kept = []
        for climb, row in zip(climbs, rows, strict=True):
            left, some = self._left(climb), []
            for mutant in row:
                costs = mutant.text not in climb.tried
                if costs and left < 1:
                    continue
                left -= costs
                some.append(mutant)
            kept.append(some)
        return kept

    def _score(self, climbs: list[Climb], groups: list[list[str]], keep: int) -> list[list[float]]:
        for climb, group in zip(climbs, groups, strict=True):
            climb.tried.update(group)
        return self.scorer.score(groups, keep)

    def _keep(self, climb: Climb, row: list[tuple[Mutant, float]]) -> None:
        for mutant, value in row:
            if not self.scorer.exact(mutant.text):
                continue
            climb.see(mutant, value)
            if self.archive is not None:
                self.archive.add(mutant.text, value)

    def _move(self, climb: Climb, row: list[tuple[Mutant, float]], t: int) -> None:
        tau = temperature(t, self.tau0, self.beta, self.tau_f)
        # Drawn whether it is needed or not, so that one more rejected mutant does not shift what follows.
        luck = float(climb.rng.random())
        entry: dict[str, Any] = {"round": t, "state": climb.current, "fitness": climb.value, "harmless": len(row)}
        if row:
            mutant, value = max(row, key=lambda pair: pair[1])
            delta = acceptance(value, climb.value, tau)
            accepted = luck < delta
            entry |= {"proposal": mutant.text, "proposal_fitness": value, "origin": mutant.origin}
            entry |= {"tau": tau, "delta": delta, "accepted": accepted}
            if accepted:
                climb.current, climb.value = mutant.text, value
        climb.history.append(entry | {"best": climb.best, "best_fitness": climb.best_value, "calls": len(climb.tried)})

    def _result(self, climbs: list[Climb]) -> EvoResult:
        found = {text: self._found(climb, text) for climb in climbs for text in climb.seen}
        history = [{"seed": i} | entry for i, climb in enumerate(climbs) for entry in climb.history]
        return EvoResult(
            best=[self._found(climb, climb.best) for climb in climbs if climb.best is not None],
            history=history,
            n_calls=self.scorer.calls,
            n_samples=self.scorer.samples,
            candidates=sorted(found.values(), key=lambda one: (-one.fitness, one.instruction)),
            rejected=sum(climb.rejected for climb in climbs),
            disagreements=list(self.panel.disagreements),
            without=[climb.seed for climb in climbs if climb.best is None],
            notes=list(self.scorer.notes),
            config=dict(self.config),
        )

    def _found(self, climb: Climb, text: str) -> Found:
        mutant = climb.seen[text]
        refusal, reply = self.scorer.evidence(text)
        return Found(climb.seed, text, self.scorer.value(text), mutant.reason, mutant.origin, refusal, reply)
