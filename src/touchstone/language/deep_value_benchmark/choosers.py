"""Who answers: models by log-probability or by text, learners of preferences, and oracles that check the meter."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from touchstone.errors import InputError
from touchstone.language.deep_value_benchmark.prompting import ANSWER, Style, parse, rendered
from touchstone.language.deep_value_benchmark.trials import Item, Letter, Trial

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = [
    "Answer",
    "Asked",
    "Chooser",
    "LinearPreferenceLearner",
    "LogProbChooser",
    "MixtureOracle",
    "RandomChooser",
    "ShallowOracle",
    "TextChooser",
    "ValueOracle",
]


@dataclass(frozen=True)
class Asked:
    """A trial with the order in which its test's options stand."""

    trial: Trial
    swap: bool = False

    @property
    def test(self) -> Item:
        """The test as it is shown."""
        return self.trial.test.swapped if self.swap else self.trial.test

    @property
    def deep(self) -> Letter:
        """Which option, as shown, carries the value."""
        return "A" if (self.trial.deep == "A") != self.swap else "B"


@dataclass(frozen=True)
class Answer:
    """What was chosen.

    Attributes
    ----------
    choice : ``None`` where no choice could be read.
    margin : how much the first option is preferred: log p(A) − log p(B) in nats, or a learner's score.
    raw : the reply.
    """

    choice: Letter | None
    margin: float | None = None
    raw: str = ""

    @classmethod
    def of(cls, margin: float, raw: str = "") -> Answer:
        """The choice that a margin means."""
        return cls("A" if margin > 0 else "B" if margin < 0 else None, margin, raw)


class Chooser(Protocol):
    """Answers trials."""

    def choose(self, asked: Sequence[Asked], style: Style = "baseline") -> list[Answer]:
        """One answer for each trial, in their order. Trials of one tuple with the same N come together."""


@dataclass(frozen=True)
class ValueOracle:
    """Always takes the value: its rate is 1."""

    def choose(self, asked: Sequence[Asked], style: Style = "baseline") -> list[Answer]:
        """See :class:`Chooser`."""
        return [Answer.of(1.0 if one.deep == "A" else -1.0) for one in asked]


@dataclass(frozen=True)
class ShallowOracle:
    """Always takes the trait of the examples: its rate is 0, and its control accuracy 1."""

    def choose(self, asked: Sequence[Asked], style: Style = "baseline") -> list[Answer]:
        """See :class:`Chooser`."""
        return [Answer.of(1.0 if one.test.a.shallow == one.trial.case.trait else -1.0) for one in asked]


@dataclass(frozen=True)
class RandomChooser:
    """Tosses a coin for every prompt."""

    seed: int = 0

    def choose(self, asked: Sequence[Asked], style: Style = "baseline") -> list[Answer]:
        """See :class:`Chooser`."""
        return [Answer.of(float(_toss(self.seed, one.trial.id, one.swap) - 0.5)) for one in asked]


@dataclass(frozen=True)
class MixtureOracle:
    """Takes the value in a share ``p`` of the trials, else the trait; the same in both orders."""

    p: float
    seed: int = 0

    def choose(self, asked: Sequence[Asked], style: Style = "baseline") -> list[Answer]:
        """See :class:`Chooser`."""
        if not 0 <= self.p <= 1:
            raise InputError(f"p {self.p}: expected 0 to 1")
        values, traits = ValueOracle().choose(asked), ShallowOracle().choose(asked)
        tossed = [_toss(self.seed, one.trial.id, False) < self.p for one in asked]
        return [v if deep else s for v, s, deep in zip(values, traits, tossed, strict=True)]


def _toss(seed: int, id: str, swap: bool) -> float:
    return float(np.random.default_rng([seed, zlib.crc32(id.encode()), int(swap)]).random())


@dataclass(frozen=True)
class LogProbChooser:
    """Compares log p(" A") with log p(" B") after a reply that begins with "Option"; no decoding.

    The examples that trials share are read once for all of them.

    Attributes
    ----------
    model : the model.
    system : system message.
    batch_size : most prompts in a batch.
    """

    model: LanguageModel
    system: str | None = None
    batch_size: int = 32
    unit: ClassVar[str] = "nats"

    def choose(self, asked: Sequence[Asked], style: Style = "baseline") -> list[Answer]:
        """See :class:`Chooser`."""
        if style == "cot":
            raise InputError("style 'cot': needs a reply to think in; use text mode")
        templated = getattr(self.model.tokenizer, "chat_template", None) is not None
        groups: dict[tuple[str, int], list[int]] = {}
        for i, one in enumerate(asked):
            groups.setdefault((one.trial.case.id, one.trial.shots), []).append(i)
        margins = np.empty(len(asked))
        for places in groups.values():
            texts = [rendered(asked[i].trial, style, swap=asked[i].swap) for i in places]
            prompts: list[Any] = [f"{text}\n\n{ANSWER}" for text in texts]
            if templated:
                prompts = [
                    [{"role": "user", "content": text}, {"role": "assistant", "content": ANSWER}] for text in texts
                ]
            scores = self.model.log_likelihood(
                prompts, [" A", " B"], system=self.system, batch_size=self.batch_size
            ).total
            margins[places] = scores[:, 0] - scores[:, 1]
        return [Answer.of(float(margin)) for margin in margins]


@dataclass(frozen=True)
class TextChooser:
    """Reads the choice from a written reply.

    Attributes
    ----------
    model : anything with ``generate(prompts, max_new_tokens=…)``, local or remote, or a function from a list of
        prompts to a list of replies.
    system : system message, for a model.
    max_new_tokens : length of a reply; ``None`` takes 10, and 160 for the style ``"cot"``.
    legacy : read replies as the reference script does, see :func:`parse`.
    """

    model: Any
    system: str | None = None
    max_new_tokens: int | None = None
    legacy: bool = False

    def choose(self, asked: Sequence[Asked], style: Style = "baseline") -> list[Answer]:
        """See :class:`Chooser`; raises :class:`InputError` if the number of replies is wrong."""
        texts = [rendered(one.trial, style, swap=one.swap) for one in asked]
        if hasattr(self.model, "generate"):
            length = self.max_new_tokens or (160 if style == "cot" else 10)
            replies = self.model.generate(texts, system=self.system, max_new_tokens=length)
        else:
            replies = list(self.model(texts))
        if len(replies) != len(texts):
            first = asked[0].trial.id if asked else "none"
            raise InputError(f"chooser: {len(replies)} replies to {len(texts)} prompts, from trial {first} on")
        answers = []
        for reply in replies:
            choice = parse(reply, legacy=self.legacy)
            margin = {"A": 1.0, "B": -1.0}[choice] if choice else None
            answers.append(Answer(choice, margin, reply))
        return answers


class LinearPreferenceLearner:
    """A preference model fitted to the examples of each trial: logistic regression on differences of features.

    The transparent reference of a reward model: x = φ(chosen) − φ(rejected), no intercept, L2 penalty.

    Parameters
    ----------
    features : φ, from a list of texts to an array [texts, features]; ``None`` for TF-IDF of words and word pairs.
        With the activations of a model it is a reward model on that backbone.
    c : inverse strength of the penalty.
    """

    def __init__(self, features: Callable[[list[str]], np.ndarray] | None = None, *, c: float = 1.0) -> None:
        if c <= 0:
            raise InputError(f"c {c}: expected more than 0")
        self.features = features
        self.c = c

    def choose(self, asked: Sequence[Asked], style: Style = "baseline") -> list[Answer]:
        """See :class:`Chooser`; the style has no meaning for a learner."""
        groups: dict[tuple[str, int], list[int]] = {}
        for i, one in enumerate(asked):
            groups.setdefault((one.trial.case.id, one.trial.shots), []).append(i)
        margins = np.empty(len(asked))
        for places in groups.values():
            train = [_ordered(item) for item in asked[places[0]].trial.training]
            tests = [(asked[i].test.a.text, asked[i].test.b.text) for i in places]
            margins[places] = self.fit_choose(train, tests)
        return [Answer.of(float(margin)) for margin in margins]

    def fit_choose(self, train: Sequence[tuple[str, str]], tests: Sequence[tuple[str, str]]) -> np.ndarray:
        """Margins of the first text of each test pair after fitting to pairs (chosen, rejected), float64 [tests]."""
        from sklearn.linear_model import LogisticRegression

        if not train:
            raise InputError("train: expected at least one pair")
        texts = [text for pair in (*train, *tests) for text in pair]
        x = self._phi(texts, 2 * len(train))
        differences = x[0::2] - x[1::2]
        fitted, asked = differences[: len(train)], differences[len(train) :]
        doubled = np.concatenate([fitted, -fitted])
        signs = np.repeat([1, -1], len(train))
        model = LogisticRegression(C=self.c, fit_intercept=False, solver="liblinear").fit(doubled, signs)
        margins: np.ndarray = asked @ model.coef_[0]
        return margins

    def _phi(self, texts: list[str], known: int) -> np.ndarray:
        """Features; the vocabulary and its weights come from the first ``known`` texts, the examples, alone."""
        if self.features is not None:
            return np.asarray(self.features(texts), dtype=float)
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectoriser = TfidfVectorizer(ngram_range=(1, 2)).fit(texts[:known])
        found: np.ndarray = vectoriser.transform(texts).toarray()
        return found


def _ordered(item: Item) -> tuple[str, str]:
    """Chosen, rejected."""
    return (item.a.text, item.b.text) if item.choice == "A" else (item.b.text, item.a.text)
