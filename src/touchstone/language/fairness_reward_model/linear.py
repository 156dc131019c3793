"""A linear head on features of a step's text: words and word pairs, or the mean states of a frozen language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["LinearHead", "States", "Words"]


class Words:
    """TF-IDF of words and pairs of words, sublinear in their counts.

    Parameters
    ----------
    min_df : texts that a term must be in.
    """

    kind = "words"

    def __init__(self, min_df: int = 3) -> None:
        self.min_df = min_df
        self._vectorizer: Any = None

    def fit(self, texts: Sequence[str]) -> Words:
        """Learn the terms and their weights."""
        self._vectorizer = self._made(min_df=min(self.min_df, len(texts)))
        try:
            self._vectorizer.fit(texts)
        except ValueError:
            # Few and short texts may share no term.
            self._vectorizer = self._made(min_df=1).fit(texts)
        return self

    def __call__(self, texts: Sequence[str]) -> Any:
        """Sparse features [texts, terms]."""
        return self._vectorizer.transform(texts)

    def state(self) -> tuple[dict[str, NDArray[np.float64]], dict[str, Any]]:
        """Arrays and record from which :meth:`restore` makes the same."""
        terms = sorted(self._vectorizer.vocabulary_, key=self._vectorizer.vocabulary_.get)
        return {"idf": np.asarray(self._vectorizer.idf_)}, {"terms": terms, "min_df": self.min_df}

    @classmethod
    def restore(cls, arrays: dict[str, np.ndarray], record: dict[str, Any]) -> Words:
        """See :meth:`state`."""
        made = cls(int(record["min_df"]))
        terms = [str(term) for term in record["terms"]]
        if len(terms) != len(arrays["idf"]):
            raise InputError(f"reward model: {len(terms)} terms, but {len(arrays['idf'])} weights")
        made._vectorizer = made._made(vocabulary={term: i for i, term in enumerate(terms)})
        made._vectorizer.idf_ = arrays["idf"]
        return made

    def _made(self, **options: Any) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer

        pattern = r"(?u)\b\w[\w'-]*\b"
        return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=pattern, **options)


class States:
    """Mean states of the last block of a frozen language model, standardised on the training texts.

    Parameters
    ----------
    encoder : the model.
    batch_size : texts in a batch.
    """

    kind = "states"

    def __init__(self, encoder: LanguageModel, batch_size: int = 32) -> None:
        self.encoder, self.batch_size = encoder, batch_size
        self._mean = self._scale = np.zeros(0)

    def fit(self, texts: Sequence[str]) -> States:
        """Learn mean and scale of every coordinate."""
        read = self._read(texts)
        self._mean, self._scale = read.mean(axis=0), np.maximum(read.std(axis=0), 1e-6)
        return self

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Features [texts, width]."""
        return (self._read(texts) - self._mean) / self._scale

    def state(self) -> tuple[dict[str, NDArray[np.float64]], dict[str, Any]]:
        """Arrays and record from which :meth:`restore` makes the same, given the encoder."""
        return {"mean": self._mean, "scale": self._scale}, {"encoder": self.encoder.source}

    @classmethod
    def restore(cls, arrays: dict[str, np.ndarray], record: dict[str, Any], encoder: LanguageModel | None) -> States:
        """See :meth:`state`."""
        if encoder is None:
            raise InputError(f"encoder: this reward model reads states of {record['encoder']}; pass that model")
        if len(arrays["mean"]) != encoder.width:
            raise InputError(f"encoder: width {encoder.width}; this reward model was fitted on {len(arrays['mean'])}")
        made = cls(encoder)
        made._mean, made._scale = arrays["mean"], arrays["scale"]
        return made

    def _read(self, texts: Sequence[str]) -> NDArray[np.float64]:
        model = self.encoder
        site = model.as_site(f"output.{len(model.blocks) - 1}")
        read = model.activations(texts, [site], positions="mean", chat=False, batch_size=self.batch_size)[site]
        found: NDArray[np.float64] = read.numpy().astype(np.float64)
        return found


class LinearHead:
    """Logistic regression; kept as its coefficients, so that nothing has to be pickled.

    Parameters
    ----------
    strength : inverse of the L2 penalty, scikit-learn's ``C``.
    balanced : weigh the two labels alike, however rare one is.
    """

    def __init__(self, strength: float = 5.0, *, balanced: bool = False) -> None:
        if not strength > 0:
            raise InputError(f"strength {strength}: expected a number above 0")
        self.strength, self.balanced = strength, balanced
        self.weights, self.bias = np.zeros(0), 0.0

    def fit(self, features: Any, labels: NDArray[np.int64], sample_weight: NDArray[np.float64] | None) -> LinearHead:
        """Fit to labels 0 and 1."""
        from sklearn.linear_model import LogisticRegression

        kind = "balanced" if self.balanced else None
        found = LogisticRegression(C=self.strength, class_weight=kind, max_iter=2000).fit(
            features, labels, sample_weight=sample_weight
        )
        self.weights, self.bias = found.coef_[0].astype(np.float64), float(found.intercept_[0])
        return self

    def probability(self, features: Any) -> NDArray[np.float64]:
        """σ(f), [texts]."""
        from scipy.special import expit

        found: NDArray[np.float64] = expit(np.asarray(features @ self.weights).ravel() + self.bias)
        return found
