"""Next-token distributions at many positions of many prompts, in few passes.

Causality makes it cheap: one pass over a sequence of N tokens holds the prediction after every one of its prefixes, so
that one edited sequence serves all lengths; what a batch has in common in front is read once; and the vocabulary's
matrix is applied only where a prediction is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.batching import Batch, read_head, shared_length

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["computing", "next_log_probs"]

# Distributions held at once: 64 × 49 152 float64 are 25 MB.
_PIECE = 64


@contextmanager
def computing(model: LanguageModel) -> Iterator[None]:
    """Inference with the thread count that suits the model."""
    with torch.inference_mode(), threads.suiting(model):
        yield


def next_log_probs(
    model: LanguageModel,
    rows: Sequence[Sequence[int]],
    after: Sequence[int],
    *,
    columns: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """log p of the next token after given positions of sequences of equal length.

    Parameters
    ----------
    rows : B token sequences of the same length T.
    after : positions 0 … T−1, in ascending order; the prediction is that of the token which follows them.
    columns : tokens whose log-probability is wanted; all if not given.

    Returns
    -------
    float32 [B, len(after), vocabulary or len(columns)]; the softmax is over the whole vocabulary either way.

    Raises
    ------
    InputError
        If the lengths differ, a position is outside, or the model's context is shorter than T.
    """
    length = _checked(model, rows, after)
    with computing(model):
        shared = shared_length(model, rows, min(after[0], length - 1))
        cache = read_head(model, rows[0][:shared], len(rows)) if shared else None
        device = model.device
        ids = torch.tensor([list(row[shared:]) for row in rows], dtype=torch.long, device=device)
        wanted = torch.tensor([p - shared for p in after], dtype=torch.long, device=device)
        extra: dict[str, Any] = {model.cache_argument: cache, "use_cache": cache is not None}
        if model.keeps_logits:
            extra["logits_to_keep"] = wanted
        places = torch.arange(shared, length, device=device).expand(len(rows), -1)
        mask = torch.ones((len(rows), length), dtype=torch.long, device=device)
        with model.reading(Batch(torch.arange(len(rows), device=device), prompt=True)):
            output = model.module(input_ids=ids, attention_mask=mask, position_ids=places, **extra)
        logits = output.logits if model.keeps_logits else output.logits[:, wanted]
        return _normalised(logits, columns)


def _normalised(logits: torch.Tensor, columns: Sequence[int] | None) -> NDArray[np.float32]:
    flat = logits.reshape(-1, logits.shape[-1])
    kept = None if columns is None else torch.tensor(list(columns), dtype=torch.long, device=logits.device)
    parts = []
    for piece in flat.split(_PIECE):
        values = piece.float().log_softmax(-1)
        parts.append((values if kept is None else values[:, kept]).cpu())
    found = torch.cat(parts).numpy()
    return found.reshape(*logits.shape[:-1], found.shape[-1])


def _checked(model: LanguageModel, rows: Sequence[Sequence[int]], after: Sequence[int]) -> int:
    if not rows or not after:
        raise InputError("next_log_probs: expected at least one sequence and one position")
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise InputError(f"next_log_probs: expected sequences of equal length, got {min(lengths)} and {max(lengths)}")
    length = lengths.pop()
    if list(after) != sorted(set(after)) or after[0] < 0 or after[-1] >= length:
        raise InputError(f"after: expected ascending positions from 0 to {length - 1}")
    longest = getattr(model.module.config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise InputError(f"prompt: {length} tokens, but the model reads at most {longest}")
    return length
