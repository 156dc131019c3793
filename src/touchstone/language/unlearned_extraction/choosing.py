"""Choose the guidance as an attacker must: without the truth, by how fluent the old model finds what is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.language.model import LanguageModel
from touchstone.language.unlearned_extraction.extractor import Extraction, GuidedExtractor

__all__ = ["CANDIDATES", "Choice", "choose_w", "repetition"]

CANDIDATES = (1.2, 1.4, 1.6, 2.0, 3.0)
_FALLBACK = 1.4


@dataclass(frozen=True)
class Choice:
    """A guidance chosen without the truth.

    Attributes
    ----------
    w : the largest candidate whose writing is as fluent as the old model's own, within the tolerance.
    table : for w = 1 and each candidate: mean log p_old a token, share of repeated 4-grams, and their difference.
    """

    w: float
    table: pd.DataFrame


def choose_w(
    extractor: GuidedExtractor,
    prefixes: Sequence[str],
    *,
    candidates: Sequence[float] = CANDIDATES,
    tolerance: float = 0.3,
    max_new_tokens: int = 64,
    batch_size: int = 16,
) -> Choice:
    """Try each guidance on all prefixes and take the largest that stays fluent; 1.4 if none does.

    Fluency is the mean log-probability of a written token under the old model less the share of repeated 4-grams.

    Parameters
    ----------
    tolerance : nats a token by which fluency may fall below that of w = 1.

    Raises
    ------
    InputError
        If the old model is not a local model: its probabilities of whole texts are needed.
    """
    model = getattr(extractor.pre, "model", None)
    if not isinstance(model, LanguageModel):
        raise InputError("w='auto': needs the old model itself; choose w")
    rows = []
    for w in (1.0, *candidates):
        written = extractor.at(w=w).generate(prefixes, max_new_tokens=max_new_tokens, batch_size=batch_size)
        likelihood = _likelihood(model, prefixes, written, batch_size)
        rows.append((w, likelihood, float(np.mean([repetition(one.ids) for one in written]))))
    table = pd.DataFrame(rows, columns=["w", "log_p_old", "repetition"])
    table["fluency"] = table["log_p_old"] - table["repetition"]
    fluent = table[(table["w"] > 1) & (table["fluency"] >= table["fluency"].iloc[0] - tolerance)]
    return Choice(float(fluent["w"].max()) if len(fluent) else _FALLBACK, table)


def repetition(ids: Sequence[int], n: int = 4) -> float:
    """Share of a text's n-grams that stood in it before; 0 for a text that is shorter."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _likelihood(model: LanguageModel, prefixes: Sequence[str], written: Sequence[Extraction], batch_size: int) -> float:
    """Mean log-probability a written token under the old model, over all texts."""
    import torch

    from touchstone.language import scoring, threads

    heads = model.encode(list(prefixes), chat=False)
    some = [i for i, one in enumerate(written) if one.ids]
    if not some:
        return -np.inf
    with torch.inference_mode(), threads.suiting(model):
        scores = scoring.score(model, [heads[i] for i in some], [[written[i].ids] for i in some], batch_size=batch_size)
    return float(scores.total.sum() / scores.tokens.sum())
