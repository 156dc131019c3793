"""Ask a model whether a triple holds: the probabilities of Yes, No and Unknown, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError
from touchstone.language.knowledge_unlearning_eval.graph import Triple

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["ANSWERS", "REJECTED", "TEMPLATES", "Probes", "TripleProbe", "entropy_bits"]

ANSWERS = ("Yes", "No", "Unknown", "Other")
REJECTED = np.inf
_TOP = 5

_SYSTEM = (
    "You know much about facts. You are told a relation between two entities and say whether it is correct, incorrect, "
    "or unknown to you. Answer with one word.\n"
    "Relation 'wrote' from Shakespeare to Hamlet. Answer: Yes\n"
    "Relation 'located in' from Shakespeare to Hamlet. Answer: No\n"
    "Relation 'influenced by' from Hamlet to Existentialism. Answer: Unknown\n"
)
# Ways to ask; ``plain`` is for models trained on bare triples. Underscores become spaces, which tokenise better.
TEMPLATES = {
    "complete": _SYSTEM + "In the triple ({head}, ?, {tail}), does the relation '{relation}' fit? Answer:",
    "relation": _SYSTEM + "Relation '{relation}' from {head} to {tail}. Answer:",
    "plain": "{head} {relation} {tail} ?",
}


@dataclass(frozen=True)
class Probes:
    """What a model says of triples.

    Attributes
    ----------
    options : probabilities of Yes, No, Unknown among all tokens, [triples, 3].
    entropy : in bits, [triples]; infinite where Yes is not the likeliest answer.
    answer : index into :data:`ANSWERS`, [triples].
    """

    options: NDArray[np.float64]
    entropy: NDArray[np.float64]
    answer: NDArray[np.int64]

    def admitted(self, u_star: float) -> NDArray[np.bool_]:
        """Whether the model holds each triple true with at most ``u_star`` bits of doubt."""
        return self.entropy <= u_star


@dataclass
class TripleProbe:
    """Reads next-token probabilities after a question about a triple.

    Parameters
    ----------
    model : a language model; or with ``logits`` any function.
    template : a name of :data:`TEMPLATES`, or a text with ``{head}``, ``{relation}`` and ``{tail}``.
    temperature : of all probabilities, fitted on the model before unlearning and used for the one after it too.
    mode : ``"top5"`` renormalises the five likeliest tokens (the official code), which catches a model that has lost
        the format; ``"three"`` the three options (the paper's text). At 1 bit the two differ.
    batch_size : questions at once; what they have in common is read once.
    logits : in place of the model's, a function from triples to logits [triples, V] and the ids of the options.
    """

    model: LanguageModel
    template: str = "complete"
    temperature: float = 1.0
    mode: Literal["top5", "three"] = "top5"
    batch_size: int = 256
    logits: Callable[[Sequence[Triple]], NDArray[np.float64]] | None = None
    _kept: dict[Triple, NDArray[np.float64]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise InputError(f"temperature {self.temperature}: expected more than 0")
        if self.mode not in ("top5", "three"):
            raise InputError(f"mode {self.mode!r}: expected 'top5' or 'three'")
        text = TEMPLATES.get(self.template, self.template)
        lacking = [part for part in ("{head}", "{relation}", "{tail}") if part not in text]
        if lacking:
            raise InputError(f"template: expected a name ({', '.join(TEMPLATES)}) or a text with {lacking[0]}")
        self._text = text
        gap = "" if text == TEMPLATES["plain"] else " "
        firsts = [self.model.encode_continuation(f"{gap}{word}") for word in ANSWERS[:3]]
        self._ids = [ids[0] for ids in firsts if ids]
        if len(set(self._ids)) < 3:
            raise InputError("options: Yes, No and Unknown do not begin with three different tokens in this model")

    def raw(self, triples: Sequence[Triple]) -> NDArray[np.float64]:
        """Logits that matter, [triples, 8]: of the three options, then the five largest, without temperature.

        Kept by triple: neighbourhoods of targets overlap.
        """
        new = list(dict.fromkeys(one for one in triples if one not in self._kept))
        if new:
            found = self._read(new)
            self._kept.update(zip(new, found, strict=True))
        return np.stack([self._kept[one] for one in triples]) if len(triples) else np.zeros((0, 10))

    def score(self, triples: Sequence[Triple]) -> Probes:
        """Probabilities, entropies and answers."""
        return self._probes(self.raw(triples), self.temperature)

    def prompts(self, triples: Sequence[Triple]) -> list[str]:
        """The questions as text."""
        plain = self._text == TEMPLATES["plain"]
        return [
            self._text.format(**{k: v if plain else v.replace("_", " ") for k, v in one._asdict().items()})
            for one in triples
        ]

    def _probes(self, raw: NDArray[np.float64], temperature: float) -> Probes:
        options, top, ids = raw[:, :3] / temperature, raw[:, 3:8] / temperature, raw[:, 9]
        whole = raw[:, 8]
        p_options = np.exp(raw[:, :3] - whole[:, None])
        best = np.argmax(options, axis=1)
        if self.mode == "three":
            p = _softmax(options)
            entropy = np.where(best == 0, entropy_bits(p), REJECTED)
            return Probes(p_options, entropy, best)
        p = _softmax(top)
        # The likeliest token of all is an option or something else.
        match = np.array([self._ids.index(int(i)) if int(i) in self._ids else 3 for i in ids], dtype=np.int64)
        return Probes(p_options, np.where(match == 0, entropy_bits(p), REJECTED), match)

    def _read(self, triples: list[Triple]) -> NDArray[np.float64]:
        if self.logits is not None:
            return _summary(np.asarray(self.logits(triples), dtype=np.float64), self._ids)
        import torch

        from touchstone.language import threads
        from touchstone.language.batching import batches, common_head, prefill

        ids = self.model.encode(self.prompts(triples), chat=False)
        found = np.zeros((len(ids), 10))
        with torch.inference_mode(), threads.suiting(self.model):
            head = common_head(self.model, ids, min(map(len, ids)) - 1)
            for rows in batches([len(row) for row in ids], self.batch_size, budget=16384):
                logits = prefill(self.model, [ids[i] for i in rows], rows, head).logits
                found[rows] = _summary(logits.double().cpu().numpy(), self._ids)
        return found


def entropy_bits(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy of each row of probabilities, in bits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log2(p), 0.0)
    return np.asarray(-terms.sum(axis=-1))


def _summary(logits: NDArray[np.float64], options: Sequence[int]) -> NDArray[np.float64]:
    """Options' logits, the five largest, the log of the sum of all, and the likeliest token."""
    largest = np.sort(logits, axis=1)[:, ::-1][:, :_TOP]
    if largest.shape[1] < _TOP:
        largest = np.pad(largest, ((0, 0), (0, _TOP - largest.shape[1])), constant_values=-np.inf)
    top = logits.max(axis=1)
    whole = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return np.column_stack([logits[:, list(options)], largest, whole, logits.argmax(axis=1)])


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
