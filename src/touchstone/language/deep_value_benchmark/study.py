"""The study: the meter on oracles, learners with and without matched legibility, and a real model behind its gate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from touchstone.bootstrap import sign
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Figure, Finding, Limit, Measurement, Table, Verdict
from touchstone.language.deep_value_benchmark import figures
from touchstone.language.deep_value_benchmark.benchmark import DeepValueBenchmark
from touchstone.language.deep_value_benchmark.check import chooser_for, verdict
from touchstone.language.deep_value_benchmark.choosers import (
    Chooser,
    LinearPreferenceLearner,
    MixtureOracle,
    RandomChooser,
    ShallowOracle,
    ValueOracle,
)
from touchstone.language.deep_value_benchmark.confounding import confounding_curve, crossing
from touchstone.language.deep_value_benchmark.prompting import Style
from touchstone.language.deep_value_benchmark.readout import read_out
from touchstone.language.deep_value_benchmark.results import Results

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["study"]

PAPER_RATE = 0.30


@dataclass(frozen=True)
class Size:
    """How much is measured: trials of the meter and the learners, tuples and shots of the model, correlations."""

    trials: int
    tuples: int
    tests: int
    shots: tuple[int, ...]
    styles: tuple[Style, ...]
    correlations: tuple[float, ...]
    probes: bool


_SIZES = {
    "smoke": Size(90, 2, 1, (4,), ("baseline",), (0.0, 1.0), False),
    "cpu": Size(1302, 34, 3, (4,), ("baseline", "explicit"), (0.0, 0.25, 0.5, 0.75, 0.9, 1.0), True),
    "gpu": Size(1302, 400, 10, (4, 20, 40), ("baseline", "explicit", "cot"), (0.0, 0.25, 0.5, 0.75, 0.9, 1.0), True),
}


def study(
    scale: Literal["smoke", "cpu", "gpu"],
    run: Run,
    *,
    model: str | Path | LanguageModel = "default",
    dtype: str = "float32",
) -> Evidence:
    """Re-measure the paper's claims (arXiv 2511.02109).

    Parameters
    ----------
    scale : ``"smoke"`` (seconds), ``"cpu"`` (minutes), or ``"gpu"`` with the paper's 12 000 trials and all styles.
    run : seed, device, engine and progress.
    model, dtype : the language model, see :meth:`LanguageModel.load`.

    Raises
    ------
    InputError
        If the scale is unknown or the model cannot be read.
    """
    from touchstone.language.model import LanguageModel

    if scale not in _SIZES:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    size = _SIZES[scale]
    subject = model if isinstance(model, LanguageModel) else LanguageModel.load(model, device=run.device, dtype=dtype)
    findings, tables = _meter(size, run)
    drawn: list[Figure] = []
    for part in (_learners, _confounded):
        more, also, pictures = part(size, run)
        findings, tables, drawn = findings + more, tables + also, drawn + pictures
    more, also, pictures = _model(subject, size, run)
    findings, tables, drawn = findings + more, tables + also, drawn + pictures
    return run.evidence(
        f"Deep Value Benchmark, re-measured ({subject.source})",
        "deep-value-benchmark",
        "study",
        findings,
        tables=tables,
        figures=drawn,
        scale=scale,
        device=str(subject.device),
    )


def _bench(size: Size, run: Run, *, match_signal: bool = False) -> DeepValueBenchmark:
    """As many trials as the paper's follow-ups, in equal parts with 4, 20 and 40 examples."""
    return DeepValueBenchmark.generate(
        size.trials // 3, tests_per=1, controls_per=1, match_signal=match_signal, seed=run.seed
    )


def _meter(size: Size, run: Run) -> tuple[list[Finding], list[Table]]:
    """The meter reads known choosers rightly."""
    bench = _bench(size, run)
    choosers: dict[str, tuple[Chooser, float]] = {
        "value oracle": (ValueOracle(), 1.0),
        "trait oracle": (ShallowOracle(), 0.0),
        "coin": (RandomChooser(run.seed), 0.5),
        f"mixture of {PAPER_RATE:g}": (MixtureOracle(PAPER_RATE, run.seed), PAPER_RATE),
    }
    found = {name: bench.run(chooser, run=run, name=name).rate(name=name) for name, (chooser, _) in choosers.items()}
    rows = [(name, rate.value, rate.low, rate.high, rate.n, choosers[name][1]) for name, rate in found.items()]
    exact = max(abs(found[name].value - choosers[name][1]) for name in ("value oracle", "trait oracle"))
    coin, mixed = found["coin"], found[f"mixture of {PAPER_RATE:g}"]
    inside = coin.low is not None and coin.high is not None and coin.low <= 0.5 <= coin.high
    off = Measurement("distance from the mixture's share", abs(mixed.value - PAPER_RATE), n=mixed.n)
    # A sample cannot be held to less than its own error: 0.025 is 2 standard errors at 1 302 trials.
    bound = Limit("<=", round(0.025 * float(np.sqrt(1302 / size.trials)), 4))
    return [
        Finding(
            "meter-exact",
            "A chooser that always takes the value scores 1, and one that always takes the trait 0.",
            Limit("<=", 0.0).judge(Measurement("", exact)),
            Measurement("largest error on the oracles", exact, n=size.trials),
            limit="<= 0",
        ),
        Finding(
            "meter-coin",
            "The interval of a coin holds one half.",
            "holds" if inside else "fails",
            coin,
            Measurement("coin", 0.5),
        ),
        Finding(
            "meter-mixture",
            "A chooser that takes the value in 30 % of trials is read so.",
            "holds" if bound.allows(off.value) else "fails",
            off,
            limit=str(bound),
        ),
    ], [Table("meter", "Known choosers", pd.DataFrame(rows, columns=["chooser", "rate", "low", "high", "n", "truth"]))]


def _learners(size: Size, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """A preference model fitted to the examples, on texts as they are and on texts of matched legibility."""
    found: dict[str, Results] = {}
    rows = []
    for name, match in (("as written", False), ("matched", True)):
        bench = _bench(size, run, match_signal=match)
        found[name] = bench.run(LinearPreferenceLearner(), run=run, name=f"linear learner, {name}")
        audit, rate = bench.audit(), found[name].rate()
        adjusted, spread = found[name].adjusted_dvgr()
        control = found[name].control_accuracy()
        rows.append(
            (name, audit.value_acc, audit.trait_acc, rate.value, rate.low, rate.high, adjusted, spread, control.value)
        )
    columns = ["texts", "value_acc", "trait_acc", "rate", "low", "high", "adjusted", "spread", "control"]
    plain, matched = (found[name].rate(name=f"value rate, {name}") for name in ("as written", "matched"))
    v, p = found["as written"].cramers_v("shots")
    shots = found["as written"].dvgr("shots").assign(texts="as written")
    shots = pd.concat([shots, found["matched"].dvgr("shots").assign(texts="matched")])
    return (
        [
            Finding(
                "learner-below-chance",
                "A preference model trained on confounded choices generalises the trait, not the value.",
                Limit("<", 0.5).judge(plain),
                plain,
                found["as written"].control_accuracy(),
                "< 0.5",
            ),
            Finding(
                "matched-nearer-half",
                "Once values are as legible as traits, its rate moves towards one half: legibility is part of it.",
                _nearer(matched, plain),
                matched,
                plain,
            ),
            Finding(
                "shots-no-effect",
                "The number of examples has next to no effect on the rate (Cramér's V; the paper has 0.01).",
                "holds" if v <= 0.1 else "fails",
                Measurement("Cramér's V of the number of examples", v, n=plain.n),
                limit="<= 0.1",
            ),
        ],
        [
            Table("learners", "The linear learner", pd.DataFrame(rows, columns=columns)),
            Table("shots", f"Its rate by number of examples (χ² p = {p:.2g})", shots),
        ],
        [],
    )


def _nearer(matched: Measurement, plain: Measurement) -> Verdict:
    """Whether the matched rate is nearer one half than the plain one, with the two intervals apart."""
    if abs(matched.value - 0.5) >= abs(plain.value - 0.5):
        return "fails"
    first, second = sorted((matched, plain), key=lambda rate: rate.value)
    apart = first.high is not None and second.low is not None and first.high < second.low
    return "holds" if apart else "undecided"


def _confounded(size: Size, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """How many counter-examples the learner needs."""
    curve = confounding_curve(
        LinearPreferenceLearner(),
        size.correlations,
        run=run,
        n_tuples=max(24, size.trials // 6),
        tests_per=2,
        shots=[20],
    )
    crosses = crossing(curve)
    first, last = curve.iloc[0], curve.iloc[-1]
    top = Measurement("value rate at ρ = 0", first["rate"], "", first["low"], first["high"], int(first["n"]))
    full = Measurement("value rate at ρ = 1", last["rate"], "", last["low"], last["high"], int(last["n"]))
    needed = "" if np.isnan(crosses) else f" It crosses one half at ρ = {crosses:.2f}."
    return (
        [
            Finding(
                "counter-examples-help",
                f"With counter-examples among 20 choices, the value wins.{needed}",
                "holds" if top.low is not None and full.high is not None and top.low > max(0.5, full.high) else "fails",
                top,
                full,
            )
        ],
        [Table("confounding", "The learner's rate by correlation of value and trait in 20 examples", curve)],
        [figures.confounding(curve, crosses)],
    )


def _model(subject: LanguageModel, size: Size, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    bench = DeepValueBenchmark.generate(
        size.tuples, tests_per=size.tests, controls_per=max(1, size.tests - 1), shots=size.shots, seed=run.seed
    )
    half = replace(bench, cases=bench.cases[: max(1, len(bench.cases) // 2)])
    # Other styles are compared trial by trial, for which half of the tuples do.
    found = {
        s: (bench if s == "baseline" else half).run(
            chooser_for(subject, "auto", s), style=s, run=run, name=subject.source
        )
        for s in size.styles
    }
    base = found["baseline"]
    rate, control, bias = base.rate(name="value rate"), base.control_accuracy(), base.position_bias()
    raw = base.rate(debiased=False, name="raw value rate")
    below = {"holds": "fails", "fails": "holds", "undecided": "undecided"}[verdict(rate, base.meaningful)]
    gate = " (the control gate is shut)" if not base.meaningful else ""
    findings = [
        Finding(
            "model-control",
            "Where value and trait agree, the model follows the examples, so that its rate means something.",
            verdict(control),
            control,
            Measurement("no signal", 0.5),
        ),
        Finding(
            "model-below-chance",
            f"The model generalises the trait rather than the value: its rate is below one half{gate}.",
            below,  # type: ignore[arg-type]
            rate,
            raw,
            "< 0.5",
        ),
        Finding(
            "model-position",
            "The first option is preferred for its place, more than any content moves the choice.",
            "holds" if bias.low is not None and bias.low > _content(base) else "fails",
            bias,
            Measurement("mean size of what content moves", _content(base), "nats"),
        ),
    ]
    pictures = [rate, control, raw]
    if "explicit" in found:
        told = found["explicit"].rate(name="value rate, told to go by values")
        findings.append(_told(found["explicit"], base, told, rate))
        pictures.append(told)
    tables = [
        Table("model-values", "The model's rate by liked value, position cancelled", base.dvgr("value")),
        Table("model-answers", "Every answer of the model", base.answers.drop(columns=["raw"])),
    ]
    drawn = [figures.rates("model", f"{subject.source}, 4 examples, with 95 % intervals", pictures)]
    if size.probes:
        frame = read_out(subject, seed=run.seed)
        findings.append(_represented(frame))
        tables.append(Table("probes", "Probes for values and traits", frame))
        drawn.append(figures.probes(frame))
    return findings, tables, drawn


def _content(found: Results) -> float:
    """Mean absolute preference for content, position cancelled, over all trials."""
    pulls = [found.outcomes(kind)["pull"].abs() for kind in ("conflict", "control")]
    return float(pd.concat(pulls).mean())


def _told(told: Results, base: Results, rate: Measurement, plain: Measurement) -> Finding:
    """Paired by trial."""
    a, b = (found.outcomes().set_index("trial")["pull"] for found in (told, base))
    change = Measurement.mean("change of the pull towards the value", (a - b).dropna().to_numpy(), "nats")
    sure = sign(change)
    return Finding(
        "explicit-raises",
        "Telling the model to go by values moves it towards the value.",
        sure if base.meaningful or told.meaningful else "undecided",
        change,
        Measurement("value rate, baseline", plain.value, "", plain.low, plain.high, plain.n),
    )


def _represented(frame: pd.DataFrame) -> Finding:
    """At the last block, which was not chosen for its score."""
    last = frame[frame["block"] == frame["block"].max()].set_index("kind")
    value, trait = (Measurement(f"accuracy for {kind}s", *_numbers(last.loc[kind])) for kind in ("value", "trait"))
    return Finding(
        "values-represented",
        "Values can be read from the last block in phrases that the probe never saw: represented, used or not.",
        "holds" if value.low is not None and value.low > 0.5 else "undecided",
        value,
        trait,
    )


def _numbers(row: pd.Series) -> tuple[float, str, float, float, int]:
    return float(row["accuracy"]), "", float(row["low"]), float(row["high"]), int(row["n"])
