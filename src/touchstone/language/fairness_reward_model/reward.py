"""The fairness reward model: a score in [0, 1] for a step of reasoning, 1 for unbiased."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from touchstone.errors import InputError
from touchstone.language.fairness_reward_model.chains import Chain, Context, texts_of
from touchstone.language.fairness_reward_model.labels import mentions_group
from touchstone.language.fairness_reward_model.linear import LinearHead, States, Words
from touchstone.language.fairness_reward_model.lm import LmHead, Training
from touchstone.language.fairness_reward_model.voting import Aggregate, aggregate
from touchstone.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["FairnessRewardModel", "outcome_labels"]

_SCHEMA = "touchstone.frm/1"
Backend = Literal["linear", "lm"]
Unit = Literal["step", "chain"]


class FairnessRewardModel:
    """Learns which steps of reasoning are biased, and scores chains by it (arXiv 2507.11344).

    Parameters
    ----------
    backend : ``"linear"``, a logistic head on frozen features, or ``"lm"``, a language model with a one-logit head
        trained through LoRA (the paper trains Llama-3.2-1B whole).
    encoder : whose states are the features; without one the features are TF-IDF of words and word pairs. Needed for
        ``"lm"``.
    context : what of the question a step is read with; training and use are the same. The official code's is the first
        step with it, later ones alone.
    aggregate : from steps' scores to a chain's, see :func:`aggregate`.
    unit : ``"step"`` scores steps (a process reward model), ``"chain"`` whole chains as one text (an outcome reward
        model, the paper's ablation).
    mentions : words of which a step has to hold one to be scored at all; others score 1, for a step that names no group
        says nothing about one. Keeps a model learnt on few domains from judging words it has never seen. ``None``
        scores all.
    strength, balanced : of the linear head; unbalanced as in the paper.
    training : of the ``"lm"`` backend.
    seed : of what is random.

    Raises
    ------
    InputError
        If an option is unknown, or ``"lm"`` has no encoder.
    """

    def __init__(
        self,
        backend: Backend = "linear",
        encoder: LanguageModel | None = None,
        *,
        context: Context = "first",
        aggregate: Aggregate = "mean",
        unit: Unit = "step",
        mentions: Sequence[str] | None = None,
        strength: float = 5.0,
        balanced: bool = False,
        training: Training | None = None,
        seed: int = 0,
    ) -> None:
        if backend not in ("linear", "lm") or unit not in ("step", "chain"):
            raise InputError(f"backend {backend!r}, unit {unit!r}: expected linear or lm, and step or chain")
        if backend == "lm" and encoder is None:
            raise InputError("encoder: the lm backend needs a language model")
        texts_of(Chain(("a",), None), context)
        self.backend, self.encoder = backend, encoder
        self.context: Context = context
        self.aggregate: Aggregate = aggregate
        self.unit: Unit = unit
        if mentions is not None and (isinstance(mentions, str) or not mentions):
            raise InputError("mentions: expected a list of words, or None")
        self.mentions = None if mentions is None else tuple(mentions)
        self.training, self.seed = training or Training(), seed
        self._head = LinearHead(strength, balanced=balanced)
        self._features: Words | States = Words() if encoder is None else States(encoder)
        self._lm: LmHead | None = None
        self._fitted = False

    def fit(
        self,
        steps: Sequence[str],
        labels: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        checkpoint: str | Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> FairnessRewardModel:
        """Learn from steps as they are read (see :func:`texts_of`) and labels, 1 for unbiased, 0 for biased.

        Parameters
        ----------
        sample_weight : weight of each step.
        checkpoint, progress : of the ``"lm"`` backend: see :meth:`LmHead.fit`.

        Raises
        ------
        InputError
            If lengths differ, a label is neither 0 nor 1, or only one of them is there.
        """
        if isinstance(steps, str):
            raise InputError("steps: expected a list of texts, got a single string")
        y = np.asarray(labels)
        if y.shape != (len(steps),) or not np.isin(y, (0, 1)).all():
            raise InputError(f"labels: expected {len(steps)} of 0 and 1, one a step; leave steps without a label out")
        if len(np.unique(y)) < 2:
            raise InputError("labels: all are the same; expected biased and unbiased steps")
        weight = None if sample_weight is None else np.asarray(sample_weight, dtype=float)
        if weight is not None and (weight.shape != y.shape or (weight < 0).any()):
            raise InputError(f"sample_weight: expected {len(steps)} numbers of at least 0")
        if self.backend == "lm":
            assert self.encoder is not None
            self._lm = LmHead(self.encoder, self.training, seed=self.seed)
            self._lm.fit(steps, y.astype(np.int64), weight, checkpoint=checkpoint, progress=progress)
        else:
            self._features.fit(steps)
            self._head.fit(self._features(steps), y.astype(np.int64), weight)
        self._fitted = True
        return self

    def score_steps(self, steps: Sequence[str]) -> NDArray[np.float64]:
        """Score of each step in [0, 1], [steps]; equal steps are scored once.

        Raises
        ------
        InputError
            If the model is not fitted yet.
        """
        if not self._fitted:
            raise InputError("reward model: not fitted yet")
        if isinstance(steps, str):
            raise InputError("steps: expected a list of texts, got a single string")
        places: dict[str, int] = {}
        order = [places.setdefault(step, len(places)) for step in steps]
        distinct = list(places)
        if not distinct:
            return np.zeros(0)
        scores = (
            self._lm.probability(distinct) if self._lm is not None else self._head.probability(self._features(distinct))
        )
        if self.mentions is not None:
            there = [mentions_group(step, self.mentions) for step in distinct]
            scores = np.where(there, scores, 1.0)
        return scores[order]

    def score_chains(self, chains: Sequence[Chain]) -> NDArray[np.float64]:
        """Score of each chain; NaN for one without steps. All their steps are scored at once."""
        texts = [self._texts(chain) for chain in chains]
        flat = self.score_steps([text for part in texts for text in part])
        ends = np.cumsum([0, *(len(part) for part in texts)])
        return np.array([aggregate(flat[a:b].tolist(), self.aggregate) for a, b in pairwise(ends)])

    def explain(self, chain: Chain) -> list[tuple[str, float]]:
        """Steps of a chain with their scores, the lowest first: what cost it its weight."""
        scores = self.score_steps(texts_of(chain, self.context))
        found = [(step, float(score)) for step, score in zip(chain.steps, scores, strict=True)]
        return sorted(found, key=lambda pair: pair[1])

    def _texts(self, chain: Chain) -> list[str]:
        texts = texts_of(chain, self.context)
        return texts if self.unit == "step" or not texts else ["\n\n".join(texts)]

    def save(self, path: str | Path) -> Path:
        """Write it as safetensors with a JSON record; an encoder is named, not saved."""
        if not self._fitted:
            raise InputError("reward model: not fitted yet")
        record: dict[str, Any] = {
            "schema": _SCHEMA,
            "backend": self.backend,
            "context": self.context,
            "aggregate": self.aggregate,
            "unit": self.unit,
            "mentions": self.mentions,
        }
        if self._lm is not None:
            arrays, extra = self._lm.state()
            return write_tensors(path, arrays, record | {"lm": extra})
        arrays, extra = self._features.state()
        arrays |= {"weights": self._head.weights, "bias": np.array([self._head.bias])}
        return write_tensors(path, arrays, record | {"features": self._features.kind, "state": extra})

    @classmethod
    def load(cls, path: str | Path, encoder: LanguageModel | None = None) -> FairnessRewardModel:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        encoder : the model that it reads states of, or was trained on.

        Raises
        ------
        InputError
            If the file is damaged, or the encoder is missing or another.
        """
        arrays, record = read_tensors(path, _SCHEMA, "reward model")
        try:
            made = cls(
                record["backend"], encoder if record.get("features") != "words" else None, context=record["context"],
                aggregate=record["aggregate"], unit=record["unit"], mentions=record["mentions"],
            )  # fmt: skip
            if record["backend"] == "lm":
                assert encoder is not None
                made._lm = LmHead.restore(arrays, record["lm"], encoder)
            else:
                kind, state = record["features"], record["state"]
                made._features = (
                    Words.restore(arrays, state) if kind == "words" else States.restore(arrays, state, encoder)
                )
                made._head.weights, made._head.bias = arrays["weights"], float(arrays["bias"][0])
        except (KeyError, TypeError, IndexError) as error:
            raise InputError(f"reward model {path}: damaged ({error})") from None
        made._fitted = True
        return made


def outcome_labels(chains: Sequence[Chain], truth: Sequence[str]) -> list[int]:
    """Outcome labels in place of a judge's (the paper's ablation): every step of a chain whose answer is right is 1."""
    if len(chains) != len(truth):
        raise InputError(f"chains {len(chains)}, truth {len(truth)}: expected equal lengths")
    return [int(chain.answer == label) for chain, label in zip(chains, truth, strict=True) for _ in chain.steps]
