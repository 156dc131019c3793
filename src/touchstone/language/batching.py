"""Token sequences as batches: sorted by length, padded on the left, with a prefix they share computed once."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = [
    "Batch",
    "Head",
    "Prefix",
    "batches",
    "common_head",
    "pad_left",
    "positions_of",
    "prefill",
    "read_head",
    "shared_length",
    "step",
]

# A shared prefix shorter than this costs more in its own forward pass than it saves.
_SHORTEST_SHARED_PREFIX = 16


@dataclass(frozen=True)
class Batch:
    """What the rows of the forward pass under way stand for; edits that differ by row read it.

    Attributes
    ----------
    rows : for each row, the index of the prompt among those the caller passed, int64 [B]; ``None`` while a prefix
        shared by several prompts is computed.
    prompt : whether the pass reads a prompt (true) or a continuation of it (false).
    """

    rows: Tensor | None
    prompt: bool


@dataclass
class Prefix:
    """Prompts already read: their key/value cache, the mask of real tokens and the logits that follow them.

    Shapes: ``mask`` int64 [B, T], ``logits`` float [B, V].
    """

    cache: Any
    mask: Tensor
    logits: Tensor

    def select(self, rows: Tensor) -> Prefix:
        """The same for the given rows; repeats are allowed. The cache is changed in place."""
        self.cache.batch_select_indices(rows)
        return Prefix(self.cache, self.mask[rows], self.logits[rows])


@dataclass(frozen=True)
class Head:
    """Tokens with which all prompts of a call begin, and their key/value cache of one row."""

    ids: tuple[int, ...]
    cache: Any


def batches(lengths: Sequence[int], batch_size: int, budget: int | None = None) -> Iterator[list[int]]:
    """Indices in batches of similar length, longest first.

    Parameters
    ----------
    lengths : length of each sequence, in tokens.
    batch_size : most sequences in a batch.
    budget : most tokens in a batch, padding included; one sequence may exceed it alone.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        size = batch_size
        if budget is not None:
            size = max(1, min(size, budget // max(1, lengths[order[start]])))
        yield order[start : start + size]
        start += size


def pad_left(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and mask, int64 [B, T], padded on the left."""
    width = max((len(row) for row in rows), default=0)
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        if len(row):
            ids[i, width - len(row) :] = torch.tensor(row, dtype=torch.long)
            mask[i, width - len(row) :] = 1
    return ids.to(device), mask.to(device)


def positions_of(mask: Tensor) -> Tensor:
    """Position of every token among the real ones before it, int64 [B, T]; 0 on padding."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def step(model: LanguageModel, ids: Tensor, mask: Tensor, cache: Any, keep: int) -> Tensor:
    """One forward pass over ``ids`` [B, S] after ``cache``; ``mask`` [B, T] covers both. Logits [B, keep, V]."""
    positions = positions_of(mask)[:, -ids.shape[1] :]
    extra: dict[str, Any] = {model.cache_argument: cache, "use_cache": cache is not None}
    if model.keeps_logits:
        extra["logits_to_keep"] = keep
    output = model.module(input_ids=ids, attention_mask=mask, position_ids=positions, **extra)
    logits: Tensor = output.logits
    return logits[:, -keep:]


def prefill(
    model: LanguageModel, prompts: Sequence[Sequence[int]], rows: Sequence[int], head: Head | None = None
) -> Prefix:
    """Read a batch of prompts once. ``rows`` are their indices among the caller's prompts, ``head`` what all share."""
    device = model.device
    indices = torch.tensor(rows, dtype=torch.long, device=device)
    shared = shared_length(model, prompts, min(len(row) for row in prompts) - 1, head)
    cache = read_head(model, prompts[0][:shared], len(prompts), head)
    ids, mask = pad_left([row[shared:] for row in prompts], model.pad_id, device)
    mask = torch.cat([torch.ones((len(prompts), shared), dtype=torch.long, device=device), mask], dim=1)
    with model.reading(Batch(indices, prompt=True)):
        logits = step(model, ids, mask, cache, 1)
    return Prefix(cache, mask, logits[:, -1])


def common_head(model: LanguageModel, prompts: Sequence[Sequence[int]], most: int) -> Head | None:
    """What all prompts of a call have in common, read once for all of its batches; ``None`` where it is not worth it.

    ``most`` is the largest number of tokens that may be shared.
    """
    shared = shared_length(model, prompts, most)
    return Head(tuple(prompts[0][:shared]), read_head(model, prompts[0][:shared], 1)) if shared else None


def shared_length(model: LanguageModel, prompts: Sequence[Sequence[int]], most: int, head: Head | None = None) -> int:
    """Length of the head that all prompts have in common, at most ``most`` tokens; 0 where sharing is not worth it.

    Never less than a ``head`` that was read already.
    """
    known = 0 if head is None else len(head.ids)
    if len(prompts) < 2 or not model.shares_prefixes:
        return known
    low, high = min(map(list, prompts)), max(map(list, prompts))
    shared = known
    while shared < most and low[shared] == high[shared]:
        shared += 1
    return shared if shared - known >= _SHORTEST_SHARED_PREFIX else known


def read_head(model: LanguageModel, ids: Sequence[int], copies: int, head: Head | None = None) -> Any:
    """A key/value cache that holds ``ids``, read once, for each of ``copies`` rows; an empty one for no tokens.

    Of ``ids`` what ``head`` holds is copied from there.
    """
    cache = _new_cache(model) if head is None else copy.deepcopy(head.cache)
    known = 0 if head is None else len(head.ids)
    if len(ids) > known:
        rest = torch.tensor([list(ids[known:])], dtype=torch.long, device=model.device)
        mask = torch.ones((1, len(ids)), dtype=torch.long, device=model.device)
        with model.reading(Batch(None, prompt=True)):
            extra = {model.cache_argument: cache, "use_cache": True}
            places = positions_of(mask)[:, known:]
            model.module.base_model(input_ids=rest, attention_mask=mask, position_ids=places, **extra)
    if len(ids):
        cache.batch_repeat_interleave(copies)
    return cache


def _new_cache(model: LanguageModel) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=model.module.config)
