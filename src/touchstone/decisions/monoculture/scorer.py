"""Risk scores of a language model: how likely it is to answer with one key rather than the other."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["LEAST_MASS", "LMScorer", "RiskScores", "ScoreCache"]

LEAST_MASS = 0.1
"""A row on whose answers the model puts less than this is flagged (the constant of folktexts)."""


@dataclass(frozen=True)
class RiskScores:
    """Scores of prompts.

    Attributes
    ----------
    score : ``P(A+) / (P(A+) + P(A-))``, float32 [prompts]; A+ is the answer of outcome 1.
    mass : probability of both answers together, float32 [prompts].
    """

    score: NDArray[np.float32]
    mass: NDArray[np.float32]

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """Where the model hardly considers either answer."""
        return self.mass < LEAST_MASS


class ScoreCache:
    """Scores on disk by a hash of model, prompt and keys, so that an interrupted run goes on where it stopped.

    Parameters
    ----------
    path : a SQLite file; made if it is not there.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._store = sqlite3.connect(path, timeout=60)
            self._store.execute("create table if not exists scores (key blob primary key, score real, mass real)")
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"score cache {path}: cannot be used ({error})") from None

    def get(self, keys: Sequence[bytes]) -> dict[bytes, tuple[float, float]]:
        """Known scores and masses among ``keys``."""
        found: dict[bytes, tuple[float, float]] = {}
        for begin in range(0, len(keys), 500):
            part = list(keys[begin : begin + 500])
            marks = ",".join("?" * len(part))
            rows = self._store.execute(f"select key, score, mass from scores where key in ({marks})", part)
            found.update({bytes(key): (score, mass) for key, score, mass in rows})
        return found

    def put(self, rows: Sequence[tuple[bytes, float, float]]) -> None:
        """Keep scores; they are on disk when this returns."""
        with self._store:
            self._store.executemany("insert or replace into scores values (?, ?, ?)", rows)

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()


class LMScorer:
    """Reads risk scores off a language model's next-token probabilities.

    Each answer's key is looked up with and without a space in front, and the variant with more mass counts, since
    tokenizers differ in which one follows ``Answer:``.

    Parameters
    ----------
    model : a language model, or a transformers module if ``tokenizer`` is given.
    tokenizer : of the module.
    chat : whether a prompt is sent as a chat: the question as the user's message, and its last line (``Answer:``) as
        the beginning of the reply. ``None`` does so if the model has a chat template; base models have none.
    batch_size : most prompts in a batch.
    cache : known scores; none are kept if not given.
    name : what the model is called in the cache; its source if not given. Another model must have another name.

    Raises
    ------
    InputError
        If scores are to be kept of a model that has no name of its own.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        chat: bool | None = None,
        batch_size: int = 32,
        cache: ScoreCache | None = None,
        name: str = "",
    ) -> None:
        if tokenizer is not None:
            from touchstone.language.model import LanguageModel

            model = LanguageModel(model, tokenizer)
        self.model: LanguageModel = model
        templated = getattr(self.model.tokenizer, "chat_template", None) is not None
        if chat and not templated:
            raise InputError(f"chat: model {self.model.source} has no chat template")
        self.chat = templated if chat is None else chat
        self.batch_size = batch_size
        self.cache = cache
        self.name = name or self.model.source
        if cache is not None and self.name == "in memory":
            raise InputError("name: expected one for a model in memory whose scores are kept")

    def risk_scores(
        self,
        prompts: Sequence[str],
        keys: tuple[str, str] = ("A", "B"),
        progress: Callable[[int], None] | None = None,
    ) -> RiskScores:
        """Scores of ``prompts`` whose answers of outcome 0 and 1 have these ``keys``.

        Parameters
        ----------
        prompts : ending where the answer follows.
        keys : of the two answers.
        progress : called with the number of prompts just finished, known ones included.
        """
        names = [self._name(prompt, keys) for prompt in prompts]
        known = self.cache.get(names) if self.cache else {}
        first = {name: i for i, name in reversed(list(enumerate(names))) if name not in known}
        todo = sorted(first.values(), key=lambda i: len(prompts[i]))
        if progress is not None and len(todo) < len(prompts):
            progress(len(prompts) - len(todo))
        # A few batches at a time: what is scored is on disk before the next ones begin.
        stride = self.batch_size * 8
        for begin in range(0, len(todo), stride):
            rows = todo[begin : begin + stride]
            score, mass = self._score([prompts[i] for i in rows], keys, progress)
            found = [(names[i], float(s), float(m)) for i, s, m in zip(rows, score, mass, strict=True)]
            known.update({name: (s, m) for name, s, m in found})
            if self.cache:
                self.cache.put(found)
        pairs = np.array([known[name] for name in names], dtype=np.float32).reshape(-1, 2)
        return RiskScores(pairs[:, 0], pairs[:, 1])

    def _score(
        self, prompts: Sequence[str], keys: tuple[str, str], progress: Callable[[int], None] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        pieces = [f" {key}" for key in keys] + list(keys)
        found = self.model.log_likelihood(
            [_conversation(prompt) for prompt in prompts] if self.chat else prompts,
            pieces,
            chat=self.chat,
            batch_size=self.batch_size,
            progress=progress,
        )
        p = np.exp(found.total).reshape(len(prompts), 2, 2)
        mass = p.sum(axis=2)
        best = np.argmax(mass, axis=1)
        chosen = p[np.arange(len(prompts)), best]
        total = chosen.sum(axis=1)
        return np.divide(chosen[:, 1], total, out=np.full(len(total), 0.5), where=total > 0), total

    def _name(self, prompt: str, keys: tuple[str, str]) -> bytes:
        text = "\x00".join((self.name, str(self.chat), *keys, prompt))
        return hashlib.sha256(text.encode()).digest()[:16]


def _conversation(prompt: str) -> list[dict[str, str]]:
    """A user's message, and a reply begun with the prompt's last line."""
    question, _, begun = prompt.rpartition("\n")
    if not question:
        return [{"role": "user", "content": prompt}]
    return [{"role": "user", "content": question}, {"role": "assistant", "content": begun}]
