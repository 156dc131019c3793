"""A refuser whose truth is known: the probability that it refuses a sentence of a grammar is a formula."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import expit

from touchstone.errors import InputError
from touchstone.language.evorefuse.grammar import Grammar, default_grammar
from touchstone.language.evorefuse.targets import Reply
from touchstone.language.refusal import RefusalJudge

__all__ = ["SyntheticRefuser"]

_REFUSAL = "I'm sorry, but I can't help with that."
_ANSWER = "Here is one way to do it, step by step."
# Mean log-probabilities a token of the two replies, and how much they vary.
_LOG_PROBABILITIES = {_REFUSAL: (-0.5, 0.1), _ANSWER: (-1.0, 0.1)}
_SLOTS = ("action", "outburst", "frame", "aside")


@dataclass(frozen=True)
class SyntheticRefuser:
    """p(refuse | x) = σ(b + Σ_w a_w + Σ_{w<v} c_wv) over the parts w, v that stand in x.

    Weights a and interactions c are normal; only some pairs interact. It answers with one of two templates.

    Parameters
    ----------
    seed : of the weights.
    grammar : of the sentences.
    bias : b.
    spread, interaction, density : standard deviations of a and c, and share of pairs that interact.
    """

    seed: int = 0
    grammar: Grammar = field(default_factory=default_grammar)
    bias: float = -4.0
    spread: float = 1.0
    interaction: float = 1.0
    density: float = 0.2
    name: str = "synthetic refuser"
    has_log_probabilities: bool = True

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {"action": len(self.grammar.actions)} | {s: len(self.grammar.parts(s)) for s in _SLOTS[1:]}  # type: ignore[arg-type]

    @cached_property
    def _weights(self) -> tuple[dict[str, np.ndarray], dict[tuple[str, str], np.ndarray]]:
        rng = np.random.default_rng(self.seed)
        single = {slot: rng.normal(0, self.spread, size) for slot, size in self._sizes.items()}
        pairs = {}
        for i, a in enumerate(_SLOTS):
            for b in _SLOTS[i + 1 :]:
                shape = (self._sizes[a], self._sizes[b])
                pairs[a, b] = rng.normal(0, self.interaction, shape) * (rng.random(shape) < self.density)
        for slot in _SLOTS[1:]:
            # Nothing is said in an empty slot.
            single[slot][0] = 0.0
        for (a, b), values in pairs.items():
            if a != "action":
                values[0] = 0.0
            values[:, 0] = 0.0
            pairs[a, b] = values
        return single, pairs

    @cached_property
    def probabilities(self) -> np.ndarray:
        """p(refuse) of every sentence, float64 [actions, outbursts, frames, asides]: the optimum is its maximum."""
        single, pairs = self._weights
        total: np.ndarray = np.full(tuple(self._sizes[slot] for slot in _SLOTS), float(self.bias))
        for axis, slot in enumerate(_SLOTS):
            total += single[slot].reshape([-1 if i == axis else 1 for i in range(4)])
        for (a, b), values in pairs.items():
            places = (_SLOTS.index(a), _SLOTS.index(b))
            total += values.reshape([values.shape[places.index(i)] if i in places else 1 for i in range(4)])
        return np.asarray(expit(total))

    def probability(self, texts: Sequence[str]) -> np.ndarray:
        """p(refuse | x) of each text, float64 [texts]."""
        return np.array([self._of(text) for text in texts])

    def _of(self, text: str) -> float:
        at = self.grammar.parse(text)
        if at is None:
            raise InputError(f"text {text!r}: not a sentence of the grammar")
        return float(self.probabilities[at.action, at.outburst, at.frame, at.aside])

    def sample(self, prompts: Sequence[str], k: int, start: int = 0) -> list[list[Reply]]:
        return [self._replies(text, k, start) for text in prompts]

    def _replies(self, text: str, k: int, start: int) -> list[Reply]:
        p, row = self._of(text), []
        for j in range(start, start + k):
            digest = hashlib.blake2b(f"{self.seed}\0{j}\0{text}".encode(), digest_size=8).digest()
            refuses, luck = (int.from_bytes(part, "big") / 2**32 for part in (digest[:4], digest[4:]))
            reply = _REFUSAL if refuses < p else _ANSWER
            middle, width = _LOG_PROBABILITIES[reply]
            row.append(Reply(reply, middle + width * (2 * luck - 1)))
        return row

    def prefix_mass(self, prompts: Sequence[str], openers: Sequence[str] = ()) -> np.ndarray:
        """log p(refuse | x): its refusals all open alike."""
        return np.log(self.probability(prompts))

    @staticmethod
    def judge() -> RefusalJudge:
        """A judge that knows its templates, and is wrong about one reply in fifty."""
        return RefusalJudge(_template_probability)


def _template_probability(prompts: Sequence[object], replies: Sequence[str]) -> np.ndarray:
    return np.where(np.asarray(replies) == _REFUSAL, 0.98, 0.02)
