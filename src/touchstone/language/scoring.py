"""Log-likelihood of continuations: every prompt is read once, its continuations share its key/value cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from touchstone.language.batching import Batch, Prefix, batches, common_head, prefill, step

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Scores", "score"]

# Tokens whose logits are held at once: 1024 × 49 152 float32 are 200 MB.
_LOGIT_BUDGET = 1024
# Tokens in a batch, a shared head counted in every row, since every row holds a copy of its cache.
_BUDGET = 8 * _LOGIT_BUDGET


@dataclass(frozen=True)
class Scores:
    """Log-likelihoods of continuations.

    Attributes
    ----------
    total : Σ_t log p(token_t | prompt, tokens before it) in nats, float64 [prompts, continuations]; NaN where a
        prompt has fewer continuations than the longest list.
    tokens : number of tokens of each continuation, int64 of the same shape; 0 where there is none.
    """

    total: np.ndarray
    tokens: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Mean log-likelihood a token, in nats; NaN where there is no continuation."""
        return self.total / np.where(self.tokens > 0, self.tokens, 1)


def score(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[Sequence[int]]],
    *,
    batch_size: int,
    finished: Callable[[int], None] | None = None,
) -> Scores:
    """Scores of token sequences; ``continuations[i]`` follow ``prompts[i]``, none of them empty."""
    most = max((len(row) for row in continuations), default=0)
    total = np.full((len(prompts), most), np.nan)
    tokens = np.zeros((len(prompts), most), dtype=np.int64)
    width = max((len(ids) for row in continuations for ids in row), default=0)
    lengths = [len(ids) + len(row) * width for ids, row in zip(prompts, continuations, strict=True)]
    head = common_head(model, prompts, min((len(ids) for ids in prompts), default=1) - 1)
    for rows in batches(lengths, batch_size, budget=_BUDGET):
        prefix = prefill(model, [prompts[i] for i in rows], rows, head)
        pairs = [(k, j) for k, i in enumerate(rows) for j in range(len(continuations[i]))]
        pieces = [continuations[rows[k]][j] for k, j in pairs]
        sums = _continue(model, prefix, pieces, torch.tensor([k for k, _ in pairs], device=model.device), rows)
        for (k, j), value, ids in zip(pairs, sums, pieces, strict=True):
            total[rows[k], j], tokens[rows[k], j] = value, len(ids)
        if finished is not None:
            finished(len(rows))
    return Scores(total, tokens)


def _continue(
    model: LanguageModel, prefix: Prefix, pieces: list[Sequence[int]], owner: Tensor, rows: list[int]
) -> list[float]:
    """Log-likelihood of each piece after the prompt ``owner[i]`` of the batch."""
    width = max(len(ids) for ids in pieces)
    ids = torch.full((len(pieces), width), model.pad_id, dtype=torch.long)
    real = torch.zeros((len(pieces), width), dtype=torch.bool)
    for i, piece in enumerate(pieces):
        ids[i, : len(piece)] = torch.tensor(piece, dtype=torch.long)
        real[i, : len(piece)] = True
    ids, real = ids.to(model.device), real.to(model.device)
    prefix = prefix.select(owner)
    values = _log_probabilities(prefix.logits.unsqueeze(1), ids[:, :1])
    if width > 1:
        mask = torch.cat([prefix.mask, real[:, :-1].long()], dim=1)
        indices = torch.tensor(rows, dtype=torch.long, device=model.device)[owner]
        with model.reading(Batch(indices, prompt=False)):
            logits = step(model, ids[:, :-1], mask, prefix.cache, width - 1)
        values = torch.cat([values, _log_probabilities(logits, ids[:, 1:])], dim=1)
    return (values.double() * real).sum(-1).tolist()


def _log_probabilities(logits: Tensor, ids: Tensor) -> Tensor:
    """log p of ``ids`` [B, T] under ``logits`` [B, T, V], a few rows at a time to bound memory."""
    rows = max(1, _LOGIT_BUDGET // max(1, logits.shape[1]))
    parts = [
        part.float().gather(-1, index.unsqueeze(-1)).squeeze(-1) - part.float().logsumexp(-1)
        for part, index in zip(logits.split(rows), ids.split(rows), strict=True)
    ]
    return torch.cat(parts)
