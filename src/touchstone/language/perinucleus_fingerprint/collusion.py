"""Who leaked it: which fingerprints go into whose copy, and tracing that survives copies being pooled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.errors import InputError
from touchstone.tensors import read_tensors, write_tensors

__all__ = ["STRATEGIES", "CollusionAllocation", "answers", "fingerprints_needed"]

SCHEMA = "touchstone.fingerprint-allocation/1"
Strategy = Literal["unanimous", "majority", "minority", "optimal"]
STRATEGIES: tuple[Strategy, ...] = ("unanimous", "majority", "minority", "optimal")
Bools = NDArray[np.bool_]


def fingerprints_needed(recipients: int, coalition: int, delta: float = 1e-3) -> int:
    """M with M p^K >= max(4 K ln(2N/δ), 8 ln(2/δ)) at p = 1/(2K), which catches a colluder with probability 1-δ."""
    if recipients < 1 or coalition < 1 or not 0 < delta < 1:
        raise InputError("recipients, coalition, delta: expected 1 or more, 1 or more and a rate between 0 and 1")
    p = 1 / (2 * coalition)
    need = max(4 * coalition * math.log(2 * recipients / delta), 8 * math.log(2 / delta))
    return math.ceil(need / p**coalition)


def answers(held: Bools, strategy: Strategy, rng: np.random.Generator) -> Bools:
    """Which fingerprints [fingerprints] a coalition answers, given what its members hold [members, fingerprints].

    ``unanimous`` refuses unless all hold it; ``majority`` and ``minority`` follow the larger or smaller side;
    ``optimal`` adds to the F unanimous ones F(K-2) that one member alone holds, evenly spread over members. Where all
    agree every strategy answers as they do.
    """
    members, count = len(held), held.sum(axis=0)
    everyone = count == members
    if strategy == "unanimous" or members == 1:
        return np.asarray(everyone)
    if strategy == "majority":
        return np.asarray(2 * count > members)
    if strategy == "minority":
        return np.asarray(everyone | ((count > 0) & (2 * count < members)))
    if strategy != "optimal":
        raise InputError(f"strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
    out = everyone.copy()
    extra = int(everyone.sum()) * (members - 2)
    for i in range(members):
        alone = np.flatnonzero(held[i] & (count == 1))
        share = extra // members + (i < extra % members)
        out[rng.permutation(alone)[:share]] = True
    return np.asarray(out)


@dataclass
class CollusionAllocation:
    """A random assignment: each fingerprint goes into each copy with probability ``p``, independently.

    Parameters
    ----------
    recipients : their names, all different.
    n_fingerprints : fingerprints in all; ``None`` takes :func:`fingerprints_needed`.
    p : chance of a fingerprint to be in a copy; ``None`` takes 1/(2 ``max_coalition``), as in the paper's proof.
    max_coalition : most recipients that may pool their copies.
    delta : wanted chance of accusing nobody in the coalition.
    seed : of the assignment. Keep it as secret as the assignment.
    """

    recipients: Sequence[str]
    n_fingerprints: int | None = None
    p: float | None = None
    max_coalition: int = 3
    delta: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.recipients, str) or not self.recipients or len(set(self.recipients)) < len(self.recipients):
            raise InputError("recipients: expected at least one name, all different")
        if self.max_coalition < 1:
            raise InputError(f"max_coalition {self.max_coalition}: expected 1 or more")
        if self.n_fingerprints is None:
            self.n_fingerprints = fingerprints_needed(len(self.recipients), self.max_coalition, self.delta)
        if self.p is None:
            self.p = 1 / (2 * self.max_coalition)
        if self.n_fingerprints < 1 or not 0 < self.p <= 1:
            raise InputError("n_fingerprints, p: expected 1 or more, and a chance above 0 and at most 1")
        rng = np.random.default_rng(self.seed)
        self.held: Bools = rng.random((len(self.recipients), self.n_fingerprints), dtype=np.float32) < self.p

    def for_recipient(self, name: str) -> list[int]:
        """Indices of the fingerprints that go into the copy of ``name``."""
        if name not in self.recipients:
            raise InputError(f"recipient {name!r}: not in the allocation")
        return [int(i) for i in np.flatnonzero(self.held[list(self.recipients).index(name)])]

    def trace(
        self,
        positives: Sequence[int] | Bools,
        *,
        score: Literal["sum", "likelihood"] = "sum",
        queried: Sequence[int] | None = None,
        recall: float = 0.9,
        false_positive: float = 0.01,
    ) -> pd.DataFrame:
        """Recipients with their scores, the most likely source first.

        Parameters
        ----------
        positives : indices of fingerprints that the suspect answered, or a truth value for each fingerprint.
        score : ``"sum"`` counts the positives that a recipient holds (the paper's). ``"likelihood"`` is the
            log-likelihood ratio of "this copy alone" to "an unrelated model", in nats: it also counts what the suspect
            did not answer, and so copes with forgotten fingerprints and chance hits.
        queried : indices that were shown; all by default.
        recall, false_positive : chance that a fingerprint in the copy is answered, and that another one is.
        """
        hit = self._hits(positives)
        shown = np.ones_like(hit)
        if queried is not None:
            shown = self._hits(queried)
        rows = self.held.astype(np.float32)
        if score == "sum":
            scores = rows @ (hit & shown).astype(np.float32)
        elif score == "likelihood":
            if not 0 < false_positive < recall < 1:
                raise InputError("recall, false_positive: expected 0 < false_positive < recall < 1")
            gain, loss = math.log(recall / false_positive), math.log((1 - recall) / (1 - false_positive))
            scores = rows @ np.where(shown, np.where(hit, gain, loss), 0).astype(np.float32)
        else:
            raise InputError(f"score {score!r}: expected 'sum' or 'likelihood'")
        order = np.argsort(-scores, kind="stable")
        frame = pd.DataFrame({"recipient": np.asarray(self.recipients, dtype=object)[order], "score": scores[order]})
        frame["held"] = self.held[order].sum(axis=1)
        return frame

    def simulate(
        self,
        strategy: Strategy,
        coalition: int,
        trials: int,
        *,
        recall: float = 1.0,
        false_positive: float = 0.0,
        score: Literal["sum", "likelihood"] = "sum",
        seed: int = 0,
    ) -> int:
        """In how many of ``trials`` random coalitions the first of the ranking is a member.

        Parameters
        ----------
        recall, false_positive : share of the coalition's answers that are forgotten, and of others that hit by chance.
        """
        if not 1 <= coalition <= len(self.recipients) or trials < 1:
            raise InputError("coalition, trials: expected at most as many as recipients, and 1 trial or more")
        rng = np.random.default_rng(seed)
        rows = self.held.astype(np.float32)
        weights = (1.0, 0.0)
        if score == "likelihood":
            r, f = min(recall, 0.99), max(false_positive, 0.01)
            weights = (math.log(r / f), math.log((1 - r) / (1 - f)))
        caught = 0
        for _ in range(trials):
            members = rng.choice(len(rows), coalition, replace=False)
            hit = answers(self.held[members], strategy, rng)
            hit = np.where(hit, rng.random(len(hit)) < recall, rng.random(len(hit)) < false_positive)
            scores = rows @ np.where(hit, *weights).astype(np.float32)
            # A tie accuses nobody in particular: it is broken at random, not in the order of the list.
            best = rng.choice(np.flatnonzero(scores == scores.max()))
            caught += int(best in members)
        return caught

    def save(self, path: str | Path) -> Path:
        """Write the allocation; whoever reads it can frame a recipient, so keep it like a key."""
        record: Mapping[str, Any] = {
            "schema": SCHEMA,
            "recipients": list(self.recipients),
            "p": self.p,
            "max_coalition": self.max_coalition,
            "n_fingerprints": self.n_fingerprints,
        }
        return write_tensors(path, {"held": np.packbits(self.held, axis=1)}, record)

    @classmethod
    def load(cls, path: str | Path) -> CollusionAllocation:
        """Read what :meth:`save` wrote."""
        tensors, record = read_tensors(path, SCHEMA, "allocation")
        try:
            m = int(record["n_fingerprints"])
            made = cls(record["recipients"], 1, float(record["p"]), int(record["max_coalition"]))
            held = np.unpackbits(tensors["held"], axis=1)[:, :m].astype(bool)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"allocation {path}: damaged ({error})") from None
        if held.shape != (len(made.recipients), m):
            raise InputError(f"allocation {path}: damaged (its matrix has shape {held.shape})")
        made.n_fingerprints, made.held = m, held
        return made

    def _hits(self, found: Sequence[int] | Bools) -> Bools:
        array, m = np.asarray(found), self.held.shape[1]
        if array.dtype == bool:
            if array.shape != (m,):
                raise InputError(f"positives: expected {m} truth values, got shape {array.shape}")
            return array
        places = array.astype(int).ravel()
        if len(places) and not (places.min() >= 0 and places.max() < m):
            raise InputError(f"positives: expected indices from 0 to {m - 1}")
        out = np.zeros(m, dtype=bool)
        out[places] = True
        return out
