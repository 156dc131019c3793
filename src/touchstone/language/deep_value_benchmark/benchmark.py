"""The benchmark: generated or loaded tuples, run on a chooser."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.files import write_text
from touchstone.language.deep_value_benchmark.attributes import Attributes, default_attributes
from touchstone.language.deep_value_benchmark.auditing import AuditReport, audit, matched
from touchstone.language.deep_value_benchmark.choosers import Answer, Asked, Chooser
from touchstone.language.deep_value_benchmark.prompting import Style
from touchstone.language.deep_value_benchmark.results import Results, read_lines
from touchstone.language.deep_value_benchmark.trials import Case, Generator, Item, Option, Trial, drawn_cases
from touchstone.run import Run

__all__ = ["SCHEMA", "DeepValueBenchmark"]

SCHEMA = "touchstone.deep-value-trials/1"
Order = Literal["random", "both"]


@dataclass(frozen=True)
class DeepValueBenchmark:
    """Trials in which a user's past choices confound a value with a trait, and a test sets the two against each other.

    Attributes
    ----------
    cases : tuples with their items.
    shots : numbers of examples.
    tests_per : tests of each tuple and number of examples.
    controls_per : control trials of each, in which value and trait agree.
    attributes : what options carry; ``None`` for trials that were loaded or written by a generator.
    seed : of the user names.
    config : how it was generated.
    exact : whether a tuple is asked with all of its examples alone, as in files of the authors.
    """

    cases: tuple[Case, ...]
    shots: tuple[int, ...]
    tests_per: int
    controls_per: int = 0
    attributes: Attributes | None = None
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    exact: bool = False

    def __post_init__(self) -> None:
        ids = [case.id for case in self.cases]
        twice = next((id for id in ids if ids.count(id) > 1), None) if len(set(ids)) < len(ids) else None
        if twice is not None:
            raise InputError(f"case {twice!r}: its id stands twice")
        if not self.shots or min(self.shots) < 1:
            raise InputError(f"shots {list(self.shots)}: expected numbers of 1 or more")
        for case in self.cases:
            if not self.exact and len(case.training) < max(self.shots):
                raise InputError(f"case {case.id}: {len(case.training)} examples, but {max(self.shots)} shots")
            if len(case.tests) < self.tests_per or len(case.controls) < self.controls_per:
                raise InputError(f"case {case.id}: fewer tests or controls than asked for")
            for item in (*case.training, *case.tests, *case.controls):
                if not item.a.text.strip() or not item.b.text.strip():
                    raise InputError(f"case {case.id}: an option has no text")

    @classmethod
    def generate(
        cls,
        n_tuples: int = 400,
        *,
        tests_per: int = 10,
        controls_per: int = 0,
        shots: Sequence[int] = (4, 20, 40),
        values: Sequence[str] | None = None,
        traits: Sequence[str] | None = None,
        contexts: Sequence[str] | None = None,
        attributes: Attributes | None = None,
        generator: Generator | None = None,
        match_signal: bool = False,
        correlation: float = 1.0,
        seed: int = 0,
    ) -> DeepValueBenchmark:
        """Draw tuples and write their items; the defaults are the paper's 12 000 trials.

        Parameters
        ----------
        n_tuples : tuples, spread evenly over the contexts.
        tests_per, controls_per : trials of each tuple and number of shots.
        shots : numbers of examples; the examples of a smaller one are the first of a larger.
        values, traits, contexts : names to keep; ``None`` keeps all.
        attributes : your own table of what should and should not generalise; ``None`` for the built-in one.
        generator : writes the options; ``None`` joins phrases.
        match_signal : drop families of phrases until value and trait are as legible as each other.
        correlation : ρ between value and trait in the examples; the paper's is 1.
        seed : the same seed gives the same trials, byte for byte.

        Raises
        ------
        InputError
            If a name is unknown, a number is out of range, or a set is left with a single value.
        """
        if n_tuples < 1 or tests_per < 1 or controls_per < 0:
            raise InputError(f"n_tuples {n_tuples}, tests_per {tests_per}: expected 1 or more")
        table = (attributes or default_attributes()).only(values, traits, contexts)
        table = matched(table, seed=seed) if match_signal else table
        shots = tuple(int(n) for n in shots)
        if not shots or min(shots) < 1:
            raise InputError(f"shots {list(shots)}: expected numbers of 1 or more")
        cases = drawn_cases(
            table,
            n_tuples,
            training=max(shots),
            tests=tests_per,
            controls=controls_per,
            seed=seed,
            generator=generator,
            correlation=correlation,
        )
        config = {"n_tuples": n_tuples, "match_signal": match_signal, "correlation": correlation, "seed": seed}
        # What a generator of your own wrote is not in the table: there is nothing to audit.
        return cls(tuple(cases), shots, tests_per, controls_per, None if generator else table, seed, config)

    @property
    def trials(self) -> list[Trial]:
        """All trials: the tests, then the controls, of every tuple and number of examples."""
        rng = np.random.default_rng([self.seed, 1])
        found = []
        for case in self.cases:
            # One name a tuple: prompts that share their examples then share their head to the last example.
            user = f"U{rng.integers(10**6):06d}"
            for shots in (len(case.training),) if self.exact else self.shots:
                kinds: tuple[tuple[Literal["conflict", "control"], tuple[Item, ...]], ...] = (
                    ("conflict", case.tests[: self.tests_per]),
                    ("control", case.controls[: self.controls_per]),
                )
                for kind, items in kinds:
                    for k, item in enumerate(items):
                        found.append(Trial(f"{case.id}/{shots}/{kind}-{k}", case, shots, item, user, kind))
        return found

    def audit(self) -> AuditReport:
        """How legible values and traits are; see :class:`AuditReport`."""
        if self.attributes is None:
            raise InputError("audit: reads joined phrases; these trials were loaded, or a generator wrote them")
        return audit(self.attributes, seed=self.seed)

    def run(
        self,
        chooser: Chooser,
        *,
        style: Style = "baseline",
        order: Order = "both",
        limit: int | None = None,
        run: Run | None = None,
        name: str = "",
    ) -> Results:
        """Ask all trials.

        Parameters
        ----------
        chooser : who answers.
        style : ``"baseline"``, ``"explicit"`` or ``"cot"``.
        order : ``"both"`` asks every trial in both orders, so that a bias towards a position cancels; ``"random"``
            asks it in the one that was drawn.
        limit : most trials; a random choice of them.
        run : progress, and a journal from which an interrupted run goes on.
        name : of the chooser, for reports.

        Raises
        ------
        InputError
            If the chooser returns the wrong number of answers.
        """
        if order not in ("random", "both"):
            raise InputError(f"order {order!r}: expected 'random' or 'both'")
        trials = self.trials
        if limit is not None and limit < len(trials):
            rng = np.random.default_rng([self.seed, 2])
            kept = np.sort(rng.permutation(len(trials))[: max(1, limit)])
            trials = [trials[i] for i in kept]
        groups: dict[tuple[str, int], list[Trial]] = {}
        for trial in trials:
            groups.setdefault((trial.case.id, trial.shots), []).append(trial)
        ask = partial(_ask, chooser, style, order == "both")
        label = f"asking {name or type(chooser).__name__}, {style} [{_key(chooser, order, trials)}]"
        answered = (run or Run()).map(label, ask, list(groups.values()))
        rows = [row for part in answered for row in part]
        return Results(pd.DataFrame(rows), style, name or type(chooser).__name__, getattr(chooser, "unit", ""))

    def to_jsonl(self, path: str | Path) -> Path:
        """Write a header line and one line a tuple; whole or not at all."""
        head = {"schema": SCHEMA, "n": len(self.cases), "shots": self.shots, "tests_per": self.tests_per}
        head |= {"controls_per": self.controls_per, "seed": self.seed, "config": self.config}
        head["hash"] = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()[:16]
        lines = [json.dumps(record, ensure_ascii=False) for record in [head, *(asdict(case) for case in self.cases)]]
        write_text(path, "\n".join(lines) + "\n")
        return Path(path)

    @classmethod
    def from_jsonl(cls, path: str | Path) -> DeepValueBenchmark:
        """Read what :meth:`to_jsonl` wrote."""
        head, rows = read_lines(path, SCHEMA, "trials")
        try:
            cases = tuple(_case(row) for row in rows)
            return cls(
                cases, tuple(head["shots"]), head["tests_per"], head["controls_per"], None, head["seed"], head["config"]
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"trials {path}: damaged ({type(error).__name__}: {error})") from None


def _key(chooser: Chooser, order: Order, trials: list[Trial]) -> str:
    """Changes with what is asked and of whom: a journal never answers for other texts or another chooser."""
    plain = (str, int, float, bool, type(None))
    who = {
        key: value if isinstance(value, plain) else getattr(value, "source", getattr(value, "__qualname__", ""))
        for key, value in getattr(chooser, "__dict__", {}).items()
    }
    digest = hashlib.sha256(json.dumps([type(chooser).__name__, who, order], default=str).encode())
    for case in {trial.case.id: trial.case for trial in trials}.values():
        digest.update(json.dumps(asdict(case)).encode())
    digest.update("".join(f"{trial.id}/{trial.user};" for trial in trials).encode())
    return digest.hexdigest()[:16]


def _ask(chooser: Chooser, style: Style, both: bool, trials: list[Trial]) -> list[dict[str, Any]]:
    asked = [Asked(trial, swap) for trial in trials for swap in ((False, True) if both else (False,))]
    answers = chooser.choose(asked, style)
    if len(answers) != len(asked):
        raise InputError(f"chooser: {len(answers)} answers to {len(asked)} prompts, from trial {trials[0].id} on")
    return [_row(one, answer) for one, answer in zip(asked, answers, strict=True)]


def _row(one: Asked, answer: Answer) -> dict[str, Any]:
    trial, case = one.trial, one.trial.case
    return {
        "trial": trial.id,
        "case": case.id,
        "kind": trial.kind,
        "shots": trial.shots,
        "context": case.context,
        "value": case.liked,
        "other_value": case.disliked,
        "trait": case.trait,
        "swap": one.swap,
        "deep": one.deep,
        "choice": answer.choice,
        "margin": answer.margin,
        "raw": answer.raw,
    }


def _case(row: dict[str, Any]) -> Case:
    def items(name: str) -> tuple[Item, ...]:
        return tuple(
            Item(i["context"], i["activity"], Option(**i["a"]), Option(**i["b"]), i["choice"]) for i in row[name]
        )

    plain = {key: row[key] for key in ("id", "context", "liked", "disliked", "trait", "other_trait")}
    return Case(**plain, training=items("training"), tests=items("tests"), controls=items("controls"))
