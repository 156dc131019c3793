"""Legibility: how well value and trait can be told from an option's text, and how to make the two alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from touchstone.errors import InputError
from touchstone.language.deep_value_benchmark.attributes import Attribute, Attributes

__all__ = ["AuditReport", "audit", "matched"]

_GAP = 0.05
# A phrase stands beside this many others, so that the accuracy depends little on which they are.
_BESIDE = 6


@dataclass(frozen=True)
class AuditReport:
    """How legible values and traits are to a classifier that never saw the family of phrases.

    Attributes
    ----------
    value_acc : accuracy of telling a value from the one it is paired with; 0.5 is chance.
    trait_acc : accuracy of telling a trait's pole from the other.
    overlap : phrases of a trait and of a value that share a word other than the commonest.
    n_families : families of values and of traits.
    """

    value_acc: float
    trait_acc: float
    overlap: float
    n_families: tuple[int, int]

    @property
    def gap(self) -> float:
        """By how much traits are more legible than values."""
        return self.trait_acc - self.value_acc

    @property
    def warning(self) -> str:
        """What to say where the two differ by more than five points; empty otherwise."""
        if abs(self.gap) <= _GAP:
            return ""
        more, less = ("traits", "values") if self.gap > 0 else ("values", "traits")
        low, high = sorted((self.trait_acc, self.value_acc))
        return (
            f"{more} can be read from the text better than {less} can (accuracy {high:.2f} against {low:.2f}): "
            "the rate mixes what is preferred with what is legible; match_signal makes them alike"
        )


def audit(attributes: Attributes, *, seed: int = 0) -> AuditReport:
    """Accuracy of TF-IDF and logistic regression on pairs of attributes, with whole families held out."""
    return AuditReport(
        _value_acc(attributes, seed),
        _trait_acc(attributes, seed),
        _overlap(attributes),
        (len(attributes.deep[0].families), len(attributes.shallow[0].families)),
    )


def matched(attributes: Attributes, *, seed: int = 0) -> Attributes:
    """The attributes without the families that make traits and values unequally legible.

    Of all choices of at least two families of each, the one that drops fewest among those within five points, or the
    one that comes closest.
    """

    def subsets(count: int) -> list[tuple[int, ...]]:
        return [kept for size in range(count, 1, -1) for kept in combinations(range(count), size)]

    deep, shallow = (range(len(group[0].families)) for group in (attributes.deep, attributes.shallow))
    # Chosen on other texts than an audit with the same seed will see.
    seed += 1_000_003
    values = {kept: _value_acc(attributes.families(kept, shallow), seed) for kept in subsets(len(deep))}
    traits = {kept: _trait_acc(attributes.families(deep, kept), seed) for kept in subsets(len(shallow))}
    choices = [
        (abs(traits[t] - values[v]), len(deep) + len(shallow) - len(v) - len(t), v, t) for v in values for t in traits
    ]
    close = [choice for choice in choices if choice[0] <= _GAP]
    _, _, v, t = min(close, key=lambda c: (c[1], c[0])) if close else min(choices)
    return attributes.families(v, t)


def _value_acc(attributes: Attributes, seed: int) -> float:
    pairs = [(a, b) for a, b in attributes.value_pairs if a.name < b.name]
    return _accuracy(pairs, [a.phrases for a in attributes.shallow], seed)


def _trait_acc(attributes: Attributes, seed: int) -> float:
    pairs = [(a, b) for a, b in attributes.trait_pairs if a.name < b.name]
    return _accuracy(pairs, [a.phrases for a in attributes.deep], seed)


def _accuracy(pairs: Sequence[tuple[Attribute, Attribute]], others: Sequence[Sequence[str]], seed: int) -> float:
    """Mean over pairs of the accuracy on held-out families; every phrase stands beside one of the other kind."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    if not pairs:
        raise InputError("audit: no pair of attributes")
    rng = np.random.default_rng(seed)
    beside = [phrase for phrases in others for phrase in phrases]
    scores = []
    for pair in pairs:
        texts, labels, families = [], [], []
        for label, attribute in enumerate(pair):
            for f, family in enumerate(attribute.families):
                for phrase in family:
                    for other in rng.choice(beside, _BESIDE):
                        texts.append(" and ".join((phrase, other) if rng.random() < 0.5 else (other, phrase)))
                        labels.append(label)
                        families.append(f)
        y, groups = np.array(labels), np.array(families)
        # Words that only the held-out family has get no weight: that they are in the vocabulary tells nothing.
        x = TfidfVectorizer(ngram_range=(1, 2)).fit_transform(texts)
        for held in sorted(set(families)):
            train = groups != held
            model = LogisticRegression(C=10.0, solver="liblinear").fit(x[train], y[train])
            scores.append(float((model.predict(x[~train]) == y[~train]).mean()))
    return float(np.mean(scores))


def _overlap(attributes: Attributes) -> float:
    """Share of the content words of trait phrases that also stand in value phrases."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    def words(group: Sequence[Attribute]) -> set[str]:
        found = {word.strip(".,") for a in group for phrase in a.phrases for word in phrase.lower().split()}
        return found - ENGLISH_STOP_WORDS

    traits = words(attributes.shallow)
    return len(traits & words(attributes.deep)) / max(1, len(traits))
