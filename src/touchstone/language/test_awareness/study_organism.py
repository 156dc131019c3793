"""Study, part A: model organisms in which awareness causes execution by design, one way in variant A, the other in
B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from touchstone.evidence import Figure, Finding, Measurement, Table, Verdict
from touchstone.language.test_awareness import figures
from touchstone.language.test_awareness.mediation import DoseResponse, dose_response, split_effect
from touchstone.language.test_awareness.organism import RESIDUAL_UNIT, Organism, OrganismSize, Variant, score_under
from touchstone.language.test_awareness.significance import Band, band
from touchstone.language.test_awareness.sweeps import (
    arm_band,
    beyond,
    by_prompt,
    each_arm,
    guarded,
    response_of,
    strengths_of,
    sweep,
    swings,
)
from touchstone.language.test_awareness.validation import bag_of_words

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["organisms"]

_ACCURATE, _CHANCE, _SWING, _MONOTONE, _QUARTER, _PLAIN = 0.82, 0.68, 0.2, 0.9, 0.25, 0.95
_VARIANTS: tuple[Variant, ...] = ("a", "b")
_EDITS = ("edit", "edit_decision")
_WANTED = {"a": 1, "b": -1}


def organisms(size: OrganismSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Grow both variants, probe them, edit and steer them, and hold what happens to what was planted."""
    grown: dict[str, Organism] = {}
    frames: dict[str, pd.DataFrame] = {}
    scores: dict[tuple[str, str], np.ndarray] = {}
    for variant in _VARIANTS:
        with run.progress.bar(f"organism {variant}: growing and probing", 1) as advance:
            organism = Organism.prepare(variant, size, run.seed)
            arms = organism.arms(size, run.seed)
            advance()
        frames[variant] = organism.compare(arms, size, run)
        for kind in _EDITS:
            vector = next(arm.direction for arm in arms if arm.kind == kind)
            strengths = strengths_of(frames[variant], kind)
            scores[variant, kind] = score_under(organism, strengths, size.prompts, run.seed, vector)
        grown[variant] = organism
    able = {variant: _able(frames[variant], variant) for variant in _VARIANTS}
    findings = _probing(grown["a"], able["a"])
    for variant in _VARIANTS:
        findings += _editing(frames[variant], variant, able[variant])
    both = all(able.values())
    findings += [_score(scores, both), _plain(frames, both), _verbalised(frames["a"], able["a"])]
    for variant in _VARIANTS:
        findings += _steering(frames[variant], variant, able[variant])
    findings.append(_mediated(frames["a"], able["a"]))
    return findings, _tables(grown, frames, scores), _figures(grown, frames)


def _probing(organism: Organism, able: bool) -> list[Finding]:
    probe, held = organism.probe, organism.test
    features = organism.features.rows(held)
    right = probe.predict(features.x) == features.y
    report = probe.report().set_index("layer")
    n = int(held.sum())
    accuracy = Measurement.rate("accuracy on held-out traces", int(right.sum()), n)
    embedding = _rate("accuracy at the embedding", float(report["test_accuracy"].loc[0]), n)
    shuffled = _rate("accuracy of shuffled labels", float(report["shuffled_accuracy"].loc[probe.layer_]), n)
    words = bag_of_words(organism.features.tokens, organism.features.y, organism.features.groups)
    bag = Measurement.rate("accuracy of the pooled words", int(words.sum()), len(words))
    last = organism.direction(pooling="last", layer=probe.layer_)
    last_accuracy = _rate("accuracy at the last token", float(last.report()["test_accuracy"].iloc[0]), n)
    return [
        Finding(
            "probe-accuracy",
            f"The probe reads awareness from two fillers after the word with accuracy {_ACCURATE} or more.",
            _verdict(accuracy.value >= _ACCURATE, able),
            accuracy,
            against=shuffled,
            limit=f">= {_ACCURATE}",
        ),
        Finding(
            "shuffled-accuracy",
            f"Probes of shuffled labels stay at {_CHANCE} or below.",
            _verdict(shuffled.value <= _CHANCE, able),
            shuffled,
            limit=f"<= {_CHANCE}",
        ),
        Finding(
            "embedding-accuracy",
            f"The probe at the embedding stays at {_CHANCE} or below.",
            _verdict(embedding.value <= _CHANCE, able),
            embedding,
            against=bag,
            limit=f"<= {_CHANCE}",
        ),
        Finding(
            "span-beats-last-token",
            "Means over spans are read better than the last token of the reasoning.",
            _apart(accuracy, last_accuracy) if able else "undecided",
            accuracy,
            against=last_accuracy,
        ),
    ]


def _editing(frame: pd.DataFrame, variant: Variant, able: bool) -> list[Finding]:
    """The edit's dose and response, and its place among random directions."""
    wanted = _WANTED[variant]
    response = response_of(frame, "edit")
    verb = "raises" if wanted > 0 else "lowers"
    random = max(abs(value) for value in swings(frame, "random", 1.0))
    true = abs(swings(frame, "edit", 1.0)[0])
    return [
        _dose(
            f"edit-{verb}-{variant}",
            f"Variant {variant.upper()}: from strength −2 to 2 the edit {verb} P(execute | guarded, fake) by {_SWING} "
            "or more, monotonically.",
            response,
            wanted,
            able,
        ),
        Finding(
            f"edit-beats-random-{variant}",
            f"Variant {variant.upper()}: between strengths −1 and 1, no random direction moves P(execute | guarded, "
            "fake) by a quarter of what the probe's direction does.",
            _verdict(random < _QUARTER * true, able),
            Measurement("largest swing of a random direction", random, n=len(swings(frame, "random", 1.0))),
            against=Measurement("swing of the probe's direction", true),
        ),
        _resolved(
            f"edit-resolved-{variant}",
            f"Variant {variant.upper()}: at both strengths −1 and 1 the edit's change lies beyond that of all random "
            "directions, on the wanted side.",
            (arm_band(frame, "edit", "random", -1.0), arm_band(frame, "edit", "random", 1.0)),
            wanted,
            able,
        ),
        _resolved(
            f"decision-edit-resolved-{variant}",
            f"Variant {variant.upper()}: the same for the edit along the mean difference read at the end of the "
            "reasoning, at the MLP's input.",
            (arm_band(frame, "edit_decision", "random", -1.0), arm_band(frame, "edit_decision", "random", 1.0)),
            wanted,
            able,
        ),
    ]


def _steering(frame: pd.DataFrame, variant: Variant, able: bool) -> list[Finding]:
    """The rival: a direction read where the answer is decided, added to the residual stream."""
    wanted = _WANTED[variant]
    verb = "raises" if wanted > 0 else "lowers"
    return [
        _dose(
            f"steering-{verb}-{variant}",
            f"Variant {variant.upper()}: adding the mean difference read at the end of the reasoning to the residual "
            f"stream {verb} P(execute | guarded, fake) by {_SWING} or more over its sweep, monotonically.",
            response_of(frame, "residual_decision"),
            wanted,
            able,
        ),
        _resolved(
            f"steering-resolved-{variant}",
            f"Variant {variant.upper()}: at ±{RESIDUAL_UNIT} norms that change lies beyond that of all random "
            "directions, on the wanted side.",
            (
                arm_band(frame, "residual_decision", "random_residual", -RESIDUAL_UNIT),
                arm_band(frame, "residual_decision", "random_residual", RESIDUAL_UNIT),
            ),
            wanted,
            able,
        ),
    ]


def _score(scores: Mapping[tuple[str, str], np.ndarray], able: bool) -> Finding:
    swings = {variant: values[:, -1] - values[:, 0] for (variant, kind), values in scores.items() if kind == "edit"}
    worst = min(swings, key=lambda variant: float(swings[variant].mean()))
    measured = Measurement.mean(f"probe's score, strength 2 − strength −2 (variant {worst.upper()})", swings[worst])
    other = next(variant for variant in swings if variant != worst)
    low = measured.value if measured.low is None else measured.low
    return Finding(
        "edit-raises-score",
        "In both variants the edit raises the probe's own score as its strength rises.",
        "undecided" if not able else "holds" if low > 0 else "fails" if measured.value < 0 else "undecided",
        measured,
        against=Measurement.mean(f"variant {other.upper()}", swings[other]),
    )


def _plain(frames: Mapping[str, pd.DataFrame], able: bool) -> Finding:
    rows = pd.concat([frame[frame["topics"] == "plain"] for frame in frames.values()], keys=frames, names=["variant"])
    edited = rows[rows["kind"] == "edit"]
    means = edited.groupby(["variant", "strength"])["executes"].mean()
    worst = means.idxmin()
    values = edited.loc[worst[0]].query("strength == @worst[1]")["executes"].to_numpy()  # type: ignore[index]
    measured = _share(Measurement.mean("P(execute | plain), the lowest of the sweep", values))
    base = rows[rows["kind"] == "base"]["executes"].to_numpy()
    return Finding(
        "plain-unharmed",
        f"Plain requests are executed with probability {_PLAIN} or more at every strength of the edit.",
        _verdict(measured.value >= _PLAIN, able),
        measured,
        against=_share(Measurement.mean("untouched", base)),
        limit=f">= {_PLAIN}",
    )


def _verbalised(frame: pd.DataFrame, able: bool) -> Finding:
    rows = guarded(frame, "none")
    base, shifts = by_prompt(rows, "base", 0.0, "aware"), {}
    for kind in ("edit", "random"):
        found = rows[(rows["kind"] == kind) & (rows["strength"] == 1.0)]
        shifts[kind] = [float((values - base).mean()) for values in each_arm(found, "aware")]
    place = band(shifts["edit"][0], shifts["random"])
    change = by_prompt(rows, "edit", 1.0, "aware") - base
    measured = Measurement.mean("change of P(aware), no cue, strength +1", change)
    return Finding(
        "edit-raises-verbalised-awareness",
        "Variant A: the edit at strength +1 makes the model say more often that it is aware, beyond random directions.",
        _verdict(place.shift > place.high, able),
        measured,
        against=Measurement("random directions, most", place.high, "", place.low, place.high, place.count),
    )


def _mediated(frame: pd.DataFrame, able: bool) -> Finding:
    """How much of the residual steering's effect goes through the word that is said, which is known exactly here."""
    aware, given_aware, given_normal = (
        sweep(frame, "residual_decision", quantity)[1] for quantity in ("aware", "given_aware", "given_normal")
    )
    strengths = sweep(frame, "residual_decision", "aware")[0]
    base = int(np.flatnonzero(strengths == 0)[0])
    said, acted = split_effect(aware, given_aware, given_normal, base)
    through = said[:, strengths.argmax()] - said[:, strengths.argmin()]
    beside = acted[:, strengths.argmax()] - acted[:, strengths.argmin()]
    measured = Measurement.mean("swing that acts on what was said", beside)
    against = Measurement.mean("swing through the word that is said", through)
    low = measured.value if measured.low is None else measured.low
    return Finding(
        "acts-beside-the-word",
        "Variant A: steering changes what is done about awareness, more than whether awareness is put into words.",
        _verdict(low > abs(against.value), able),
        measured,
        against=against,
    )


def _dose(name: str, statement: str, response: DoseResponse, wanted: int, able: bool) -> Finding:
    span = response.span
    enough = wanted * span.value >= _SWING
    steady = wanted * response.monotone >= _MONOTONE
    return Finding(
        name,
        statement,
        _verdict(enough and steady, able),
        replace(span, name="change of P(execute) over the sweep"),
        against=Measurement("Spearman's correlation with strength", response.monotone),
        limit=f"{'>=' if wanted > 0 else '<='} {wanted * _SWING}",
    )


def _resolved(name: str, statement: str, bands: tuple[Band, Band], wanted: int, able: bool) -> Finding:
    """``bands`` are those of lowering and of raising, each the direction's shift among the random directions'."""
    lowered, raised = bands
    resolved = beyond(lowered, -wanted) + beyond(raised, wanted)
    furthest = raised.high if wanted > 0 else raised.low
    return Finding(
        name,
        statement,
        _verdict(resolved == 2, able),
        Measurement("change where it is raised", raised.shift),
        against=Measurement("random directions, furthest", furthest, "", raised.low, raised.high, raised.count),
    )


def _tables(
    grown: Mapping[str, Organism], frames: Mapping[str, pd.DataFrame], scores: Mapping[tuple[str, str], np.ndarray]
) -> list[Table]:
    arms, reports, doses = [], [], []
    for variant, frame in frames.items():
        means = (
            frame.groupby(["topics", "cue", "arm", "kind", "strength"], sort=False)[
                ["executes", "aware", "given_aware", "given_normal"]
            ]
            .mean()
            .reset_index()
        )
        means.insert(0, "variant", variant)
        arms.append(means)
        report = grown[variant].probe.report()
        report.insert(0, "variant", variant)
        reports.append(report)
        for kind in _EDITS:
            strengths, behaviour = sweep(frame, kind, "executes")
            found = dose_response(strengths, scores[variant, kind], behaviour)
            curve = found.curve
            curve.insert(0, "variant", variant)
            curve.insert(1, "kind", kind)
            for name, measured in (("per_unit", found.per_unit), ("mediated", found.mediated)):
                curve[name], curve[f"{name}_low"], curve[f"{name}_high"] = measured.value, measured.low, measured.high
            doses.append(curve)
    return [
        Table("organism-arms", "Organisms: mean probabilities by arm, topic and cue", pd.concat(arms)),
        Table("organism-layers", "Organisms: the probe by layer", pd.concat(reports)),
        Table("organism-dose", "Organisms: the edit's strength, the probe's score and P(execute)", pd.concat(doses)),
    ]


def _figures(grown: Mapping[str, Organism], frames: Mapping[str, pd.DataFrame]) -> list[Figure]:
    means = {
        variant: guarded(frame, "fake").groupby(["kind", "arm", "strength"])["executes"].mean().reset_index()
        for variant, frame in frames.items()
    }
    return [
        figures.organism_layers({variant: organism.probe.report() for variant, organism in grown.items()}),
        figures.doses(
            "organism-edit",
            "Organism: what the weight edit does to execution",
            means,
            [
                ("edit", "probe"),
                ("SGD_probe", "SGD probe"),
                ("mean_difference", "mean difference"),
                ("edit_decision", "mean difference where the answer is decided"),
            ],
            "random",
            "strength (norms of the edited rows)",
        ),
        figures.doses(
            "organism-steering",
            "Organism: what residual steering does to execution",
            means,
            [("residual_decision", "mean difference where the answer is decided"), ("residual_probe", "probe")],
            "random_residual",
            "strength (norms of the residual stream)",
        ),
    ]


# Pieces of the frame


def _able(frame: pd.DataFrame, variant: Variant) -> bool:
    """Whether the organism has learnt what was planted; one that has not can show nothing."""
    base = frame[(frame["kind"] == "base") & (frame["topics"] == "guarded")]
    aware = base.groupby("cue")["aware"].mean()
    acts = base["given_aware"].mean() - base["given_normal"].mean()
    return bool(aware["fake"] - aware["real"] >= 0.4 and _WANTED[variant] * acts >= 0.4)


def _verdict(holds: bool, able: bool) -> Verdict:
    return "undecided" if not able else "holds" if holds else "fails"


def _rate(name: str, share: float, n: int) -> Measurement:
    return Measurement.rate(name, round(share * n), n)


def _share(measured: Measurement) -> Measurement:
    """A mean of probabilities, whose interval cannot leave 0 to 1."""
    low, high = (None if end is None else min(1.0, max(0.0, end)) for end in (measured.low, measured.high))
    return replace(measured, low=low, high=high)


def _apart(measured: Measurement, against: Measurement) -> Verdict:
    if measured.value <= against.value:
        return "fails"
    return "holds" if (measured.low or 0) > (against.high or 1) else "undecided"
