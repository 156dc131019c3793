"""The study's claims: what each measured, what it is held against, and whether it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from touchstone.bootstrap import clustered, quotient, sign
from touchstone.drawing import axes
from touchstone.evidence import Figure, Finding, Measurement
from touchstone.language.unlearned_extraction.diverging import auc
from touchstone.language.unlearned_extraction.study_world import APPROXIMATE, FIXED_W, GRID, NOISES, World

__all__ = ["figure", "judge", "rates", "slot"]

_METRICS = ("rouge_l", "rouge_l_f1", "esr_90", "esr_100", "exact", "length_ratio")
Results = dict[str, dict[str, Any]]


def rates(result: dict[str, Any]) -> dict[str, float]:
    """Means of the metrics of one attack; the AUC for the divergence."""
    if "deleted" in result:
        return {"auc": auc(np.array(result["deleted"]), np.array(result["unseen"])).value}
    return {"w": result["w"], **{name: float(np.mean(result[name])) for name in _METRICS}}


def slot(result: dict[str, Any], name: str) -> float:
    """Share of queries whose value of a slot is in the extracted text."""
    return float(np.mean(result[f"slot_{name}"]))


def judge(world: World, results: Results, utility: dict[str, list[float]], seed: int) -> list[Finding]:
    """All findings."""
    return [
        *_guidance(world, results, seed),
        *_memorisation(world, results, seed),
        *_controls(world, results, seed),
        *_approximate(world, results, seed),
        *_defences(world, results, utility, seed),
        *_beyond(world, results, seed),
    ]


def _values(results: Results, name: str, metric: str = "rouge_l") -> NDArray[np.float64]:
    return np.asarray(results[name][metric], dtype=float)


def _gain(results: Results, of: str, over: str, seed: int, metric: str = "rouge_l") -> Measurement:
    difference = _values(results, of, metric) - _values(results, over, metric)
    return clustered(f"{metric}: {of} over {over}", difference, seed=seed)


def _mean(results: Results, name: str, seed: int) -> Measurement:
    return clustered(f"ROUGE-L of {name}", _values(results, name), seed=seed)


def _guidance(world: World, results: Results, seed: int) -> list[Finding]:
    n = world.epochs[1]
    guided, pre, post = f"guided {FIXED_W:g} {n}", f"pre {n}", f"post {n}"
    gain = _gain(results, guided, pre, seed)
    learnt = _gain(results, pre, post, seed)
    a, b = _values(results, guided, "esr_90"), _values(results, pre, "esr_90")
    ratio = quotient("records extracted to 0.9, guided over pre", a, b, seed=seed)
    some = Measurement.rate("records extracted to 0.9 by the old model alone", int(b.sum()), len(b))
    each = np.stack([_values(results, guided, f"slot_{s}") - _values(results, pre, f"slot_{s}") for s in world.chances])
    slots, every = each.mean(axis=1), each.mean(axis=0)
    slot_gain = clustered("values recovered: guided over pre", every, seed=seed)
    return [
        Finding("memorised", "The old model continues deleted records better than the new one.", sign(learnt), learnt,
                _mean(results, post, seed)),
        Finding("guidance-gain", f"Guided extraction (w = {FIXED_W:g}, fixed beforehand) recovers more of the deleted "
                "records than the old model alone.", sign(gain), gain, _mean(results, pre, seed)),
        Finding("extracted-ratio", "It extracts at least 1.3 times as many records nearly whole.",
                sign(ratio, above=1.3) if ratio.value == ratio.value else "undecided", ratio, some),
        Finding("slots", "It recovers more of the records' values, template words aside"
                f" (of six slots, {sum(x > 0 for x in slots)} gain).", sign(slot_gain), slot_gain),
    ]  # fmt: skip


def _memorisation(world: World, results: Results, seed: int) -> list[Finding]:
    first, middle, last = world.epochs
    best = []
    for n in world.epochs:
        means = {w: float(_values(results, f"guided {w:g} {n}").mean()) for w in GRID}
        best.append(max(means, key=means.__getitem__))
    fall = [_values(results, f"guided 2 {n}") - _values(results, f"pre {n}") for n in (first, last)]
    grown = clustered("gain of w = 2, longest over shortest training", fall[1] - fall[0], seed=seed)
    relative = [
        (_values(results, f"guided {FIXED_W:g} {n}").mean() / max(_values(results, f"pre {n}").mean(), 1e-9) - 1)
        for n in (middle, last)
    ]
    near = _values(results, f"pre {last}").mean()
    return [
        Finding("best-guidance", "The best guidance does not rise with memorisation "
                f"(best of the grid after {first}, {middle}, {last} epochs: {', '.join(f'{w:g}' for w in best)}).",
                "holds" if best[0] >= best[1] >= best[2] else "fails",
                Measurement("best w after the longest training", best[2], n=len(world.asked)),
                Measurement("after the shortest", best[0], n=len(world.asked))),
        Finding("strong-guidance", "What w = 2 gives falls as memorisation grows.", sign(Measurement(
            "", -grown.value, low=None if grown.high is None else -grown.high,
            high=None if grown.low is None else -grown.low)), grown),
        Finding("saturation", f"The relative gain shrinks as the old model nears full recall ({near:.2f} after {last} "
                "epochs).", "holds" if relative[1] < relative[0] else "fails",
                Measurement(f"relative gain after {last} epochs", relative[1], n=len(world.asked)),
                Measurement(f"after {middle}", relative[0], n=len(world.asked))),
    ]  # fmt: skip


def _controls(world: World, results: Results, seed: int) -> list[Finding]:
    n = world.epochs[1]
    filtered = _gain(results, "filter 0.01", f"guided {FIXED_W:g} {n}", seed)
    control = _gain(results, "control", "control alone", seed)
    inside = control.low is not None and control.high is not None and control.low <= 0 <= control.high
    return [
        Finding("filter", "At this guidance γ = 1e-2 and 1e-5 differ by less than 0.005.",
                "holds" if abs(filtered.value) < 0.005 else "fails", filtered),
        Finding("control", "Between two models neither of which saw the records, guidance gains nothing.",
                "holds" if inside or control.value <= 0 else "fails", control, _mean(results, "control alone", seed)),
    ]  # fmt: skip


def _approximate(world: World, results: Results, seed: int) -> list[Finding]:
    n = world.epochs[1]
    gains = {method: _gain(results, f"after {method}", f"pre {n}", seed) for method in APPROXIMATE}
    exact = _gain(results, "exact 1.2", f"pre {n}", seed)
    found = [
        Finding(f"approximate-{method.replace('+', '-')}", f"After {method.upper()}, guidance still gains.",
                sign(gain), gain, _mean(results, f"pre {n}", seed))
        for method, gain in gains.items()
    ]  # fmt: skip
    most = max(gains.values(), key=lambda one: one.value)
    over = {m: _gain(results, "exact 1.2", f"after {m}", seed) for m in APPROXIMATE}
    least = min(over.values(), key=lambda one: one.value)
    return [
        *found,
        Finding("exact-most", "Exact retraining gives the attack more than any approximate method.", sign(least),
                exact, most),
    ]  # fmt: skip


def _defences(world: World, results: Results, utility: dict[str, list[float]], seed: int) -> list[Finding]:
    n = world.epochs[1]
    gain = _gain(results, f"guided {FIXED_W:g} {n}", f"pre {n}", seed)
    extra = _gain(results, "extra data", f"pre {n}", seed)
    loss = _gain(results, f"guided {FIXED_W:g} {n}", "extra data", seed)
    strong = NOISES[-1]
    noisy = _gain(results, f"noise {strong:g}", f"noise {strong:g} alone", seed)
    with_noise, without = (np.asarray(utility[name]) for name in (f"post-noise-{strong:g}", f"post-{n}"))
    lost = clustered("ROUGE-L of retained records: without noise over with it", without - with_noise, seed=seed)
    return [
        Finding("extra-data", "Retraining with as much of other people's data takes away less than half of the gain.",
                "holds" if extra.value > gain.value / 2 and gain.value > 0 else "fails", extra, gain),
        Finding("extra-data-effect", "It takes something away.", sign(loss), loss),
        Finding("noise-gain", f"Gaussian noise (σ = {strong:g}) in the gradients of training ends the gain.",
                "holds" if noisy.low is not None and noisy.low <= 0 else "fails", noisy, gain),
        Finding("noise-utility", "It costs utility: the new model recovers less of the retained records.", sign(lost),
                lost, clustered("without noise", without, seed=seed)),
    ]  # fmt: skip


def _beyond(world: World, results: Results, seed: int) -> list[Finding]:
    n = world.epochs[1]
    pre = f"pre {n}"
    told = results["divergence"]
    separated = auc(np.array(told["deleted"]), np.array(told["unseen"]), seed=seed)
    live = _gain(results, f"guided {FIXED_W:g} {n}", pre, seed)
    saved = _gain(results, "saved logits", pre, seed)
    best = max(GRID, key=lambda w: _values(results, f"guided {w:g} {n}").mean())
    chosen = _gain(results, "automatic", pre, seed)
    oracle = _gain(results, f"guided {best:g} {n}", pre, seed)
    top, rounded = (_gain(results, name, pre, seed) for name in ("top-5", "rounded"))
    return [
        Finding("deleted-or-not", "The divergence of a text tells deleted records from unseen ones (AUC above 0.9).",
                sign(separated, above=0.9), separated, Measurement("chance", 0.5)),
        Finding("saved-logits", "Logits logged along greedy replies (the 20 largest) still give a gain once the old "
                "model is retired.", sign(saved), saved, live),
        Finding("automatic-guidance", f"The guidance chosen without the truth (w = {results['automatic']['w']:g}; best "
                f"of the grid {best:g}) gains.", sign(chosen), chosen, oracle),
        Finding("top-5-logits", "Releasing five log-probabilities only still gives the attack a gain.", sign(top), top,
                live),
        Finding("rounded-logits", "So does rounding them to a tenth of a nat.", sign(rounded), rounded, live),
    ]  # fmt: skip


def figure(world: World, results: Results) -> Figure:
    """ROUGE-L by guidance, for each length of training."""
    canvas, plot = axes(6.4, 3.6)
    for n in world.epochs:
        xs = [0.0, 1.0, *GRID]
        names = [f"post {n}", f"pre {n}", *(f"guided {w:g} {n}" for w in GRID)]
        plot.plot(xs, [_values(results, name).mean() for name in names], marker="o", label=f"{n} epochs")
    plot.axvline(1.0, color="0.7", linewidth=0.8)
    plot.set(xlabel="guidance w (0: new model alone, 1: old model alone)", ylabel="ROUGE-L recall", ylim=(0, 1.02))
    plot.legend(frameon=False)
    return Figure.draw("guidance", "How much of the deleted records is extracted", canvas)
