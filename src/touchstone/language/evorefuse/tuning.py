"""Plain fine-tuning of a small model on prompts and replies: the loss on replies alone, AdamW, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["tune"]


def tune(
    model: LanguageModel,
    groups: Sequence[Sequence[tuple[str, str]]],
    *,
    steps: int = 150,
    rate: float = 1e-3,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> float:
    """Train all weights of ``model`` in place on pairs of prompt and reply.

    For tiny models, where a trainer's fixed costs are most of the time. Larger ones go through :func:`mitigate`.

    Parameters
    ----------
    groups : kinds of pairs; every step takes some of each, drawn with replacement.
    steps, rate : optimiser steps, and constant learning rate of AdamW.
    sizes : pairs of each group in a step; ``None`` takes 21 of each.
    threads : torch threads; a second one slows tiny models.

    Returns
    -------
    loss : mean over the last tenth of the steps, in nats a reply token.
    """
    if not groups or not all(groups):
        raise InputError("groups: expected at least one, none of them empty")
    counts = [21] * len(groups) if sizes is None else list(sizes)
    if len(counts) != len(groups) or steps < 1:
        raise InputError(f"sizes, steps: expected a size for each of {len(groups)} groups, and 1 step or more")
    encoded = [_encoded(model, pairs) for pairs in groups]
    rng = np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(model.module.parameters(), lr=rate)
    losses = []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model.module.train()
        for _ in range(steps):
            picked = [rows[i] for rows, n in zip(encoded, counts, strict=True) for i in rng.integers(len(rows), size=n)]
            losses.append(_step(model, optimiser, picked))
            if progress is not None:
                progress(1)
    finally:
        model.module.eval()
        torch.set_num_threads(before)
    return float(torch.stack(losses[-max(1, steps // 10) :]).mean())


def _encoded(model: LanguageModel, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
    prompts = model.encode([prompt for prompt, _ in pairs])
    end = sorted(model.stop_ids)[:1]
    return [(ids, [*model.encode_continuation(reply), *end]) for ids, (_, reply) in zip(prompts, pairs, strict=True)]


def _step(
    model: LanguageModel, optimiser: torch.optim.Optimizer, rows: list[tuple[list[int], list[int]]]
) -> torch.Tensor:
    width = max(len(a) + len(b) for a, b in rows)
    ids = torch.full((len(rows), width), model.pad_id)
    labels = torch.full((len(rows), width), -100)
    for i, (prompt, reply) in enumerate(rows):
        text = torch.tensor(prompt + reply)
        ids[i, : len(text)] = text
        labels[i, len(prompt) : len(text)] = text[len(prompt) :]
    # Padding is on the right, where a causal model's other positions cannot see it: no mask is needed.
    logits = model.module(input_ids=ids.to(model.device), use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten().to(model.device), ignore_index=-100
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.module.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return loss.detach()
