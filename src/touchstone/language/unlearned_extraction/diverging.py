"""Was this text deleted? The old model's log-probability of it less the new one's, and how well that tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.bootstrap import clustered
from touchstone.errors import InputError
from touchstone.evidence import Measurement
from touchstone.language.model import LanguageModel

__all__ = ["auc", "divergence", "rank_candidates"]


@dataclass(frozen=True)
class Divergence:
    """Σ_t [log p_old - log p_new] of texts, in nats, and their numbers of tokens."""

    total: NDArray[np.float64]
    tokens: NDArray[np.int64]

    @property
    def mean(self) -> NDArray[np.float64]:
        """Nats a token."""
        return self.total / self.tokens


def divergence(pre: LanguageModel, post: LanguageModel, texts: Sequence[str], *, batch_size: int = 32) -> Divergence:
    """How much likelier each text is under the old model; positive for what was deleted.

    Raises
    ------
    InputError
        If the models read a text as different numbers of tokens.
    """
    a, b = (model.text_log_likelihood(list(texts), batch_size=batch_size) for model in (pre, post))
    if not np.array_equal(a.tokens, b.tokens):
        raise InputError("pre, post: read a text as different tokens; expected two checkpoints of one model")
    return Divergence((a.total - b.total)[:, 0], a.tokens[:, 0])


def rank_candidates(
    pre: LanguageModel, post: LanguageModel, candidates: Sequence[str], *, batch_size: int = 32
) -> pd.DataFrame:
    """Candidates by their divergence, the likeliest to have been deleted first: ``text``, ``total``, ``mean``."""
    found = divergence(pre, post, candidates, batch_size=batch_size)
    table = pd.DataFrame({"text": list(candidates), "total": found.total, "mean": found.mean})
    return table.sort_values("total", ascending=False, ignore_index=True)


def auc(deleted: NDArray[np.float64], others: NDArray[np.float64], *, seed: int = 0) -> Measurement:
    """Chance that a deleted text diverges more than another one (ties count half), with its bootstrap interval."""
    wins = (deleted[:, None] > others[None]) + 0.5 * (deleted[:, None] == others[None])
    # Over deleted texts: they are the fewer and the ones whose owner asks.
    found = clustered("AUC of the divergence", wins.mean(axis=1), seed=seed)
    return Measurement(found.name, found.value, "", found.low, found.high, len(deleted))
