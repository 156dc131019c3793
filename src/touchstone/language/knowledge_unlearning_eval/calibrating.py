"""Temperature scaling of a probe on true and false triples, and the calibration error before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from touchstone.errors import InputError
from touchstone.language.knowledge_unlearning_eval.graph import KnowledgeGraph, Triple
from touchstone.language.knowledge_unlearning_eval.probing import TripleProbe

__all__ = ["Calibration", "calibration_error", "choose_template", "corruptions", "fit_temperature"]


@dataclass(frozen=True)
class Calibration:
    """Result of :func:`fit_temperature`: T, and the expected calibration error before and after it."""

    temperature: float
    ece_before: float
    ece_after: float
    n: int


def fit_temperature(probe: TripleProbe, true: Sequence[Triple], false: Sequence[Triple]) -> Calibration:
    """Fit T by the likelihood of Yes on true and of No on false triples, among the three options; sets it on the probe.

    Fit it on the model before unlearning and use it for the one after: fitted anew, it would hide damage.

    Raises
    ------
    InputError
        If either list is empty.
    """
    if not true or not false:
        raise InputError("true, false: expected triples of both")
    logits = probe.raw([*true, *false])[:, :3]
    label = np.r_[np.zeros(len(true), dtype=int), np.ones(len(false), dtype=int)]

    def loss(log_t: float) -> float:
        return float(-np.log(np.maximum(_p(logits, np.exp(log_t))[np.arange(len(label)), label], 1e-12)).mean())

    found = minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded", options={"xatol": 1e-6})
    temperature = float(np.exp(found.x))
    before, after = (calibration_error(_p(logits, t), label) for t in (1.0, temperature))
    probe.temperature = temperature
    return Calibration(temperature, before, after, len(label))


def calibration_error(p: NDArray[np.float64], label: NDArray[np.int64], bins: int = 10) -> float:
    """Expected calibration error: mean gap between confidence and accuracy over equal bins of the confidence."""
    confidence, right = p.max(axis=1), p.argmax(axis=1) == label
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    total = 0.0
    for b in range(bins):
        here = place == b
        if here.any():
            total += here.mean() * abs(confidence[here].mean() - right[here].mean())
    return float(total)


def corruptions(graph: KnowledgeGraph, n: int, seed: int = 0) -> list[Triple]:
    """Triples that do not hold though their kinds fit: a true one with its tail exchanged for another of its kind."""
    rng = np.random.default_rng(seed)
    by_kind: dict[str, list[str]] = {}
    for name in graph.entities:
        by_kind.setdefault(graph.kinds.get(name, ""), []).append(name)
    found: list[Triple] = []
    for _ in range(50 * n):
        if len(found) == n:
            break
        one = graph.triples[rng.integers(len(graph.triples))]
        others = by_kind[graph.kinds.get(one.tail, "")]
        made = Triple(one.head, one.relation, others[rng.integers(len(others))])
        if made not in graph and made.tail != made.head and made not in found:
            found.append(made)
    return found


def choose_template(
    probe: TripleProbe, true: Sequence[Triple], false: Sequence[Triple], names: Sequence[str] = ("complete", "relation")
) -> tuple[str, dict[str, float]]:
    """The template that tells most true from false triples, and the accuracy of each."""
    accuracy = {}
    for name in names:
        one = TripleProbe(probe.model, name, probe.temperature, probe.mode, probe.batch_size)
        answers = one.score([*true, *false]).answer
        accuracy[name] = float(((answers == 0) == (np.arange(len(answers)) < len(true))).mean())
    return max(accuracy, key=accuracy.__getitem__), accuracy


def _p(logits: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    scaled = logits / temperature
    shifted = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
