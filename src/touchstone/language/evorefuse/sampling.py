"""Sampled replies with their log-probabilities in one pass, probabilities of openers, and of every token of a reply.

A prompt is read once, whatever is asked after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.batching import Prefix, batches, prefill, step
from touchstone.language.decoding import Sampling

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Drawn", "draw", "openers_mass", "shortest", "token_log_probabilities"]

# Below so many weights a step costs the same for few rows as for many.
_TINY, _MANY = 5_000_000, 320
# Share of rows that go on below which the others are left out of the batch.
_SPARSE = 0.75


@dataclass(frozen=True)
class Drawn:
    """A sampled reply: its tokens without the stop token, and log p of each of them with the stop token, in nats."""

    ids: list[int]
    log_probabilities: list[float]


@contextmanager
def computing(model: LanguageModel) -> Iterator[None]:
    """Inference with the model's own thread count."""
    with torch.inference_mode(), threads.suiting(model):
        yield


def _fitting(model: LanguageModel, if_tiny: int, otherwise: int) -> int:
    size = sum(parameter.numel() for parameter in model.module.parameters())
    return if_tiny if size < _TINY else otherwise


def draw(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    k: int,
    *,
    start: int = 0,
    names: Sequence[str],
    sampling: Sampling,
    max_new_tokens: int,
    seed: int,
    rows: int = 0,
) -> list[list[Drawn]]:
    """Replies ``start`` … ``start`` + k − 1 to every prompt.

    Reply j of a prompt is fixed by ``seed``, its name and j: neither the other prompts, nor the batch size, nor whether
    the replies are drawn at once or in several calls changes it. Log-probabilities are the model's own, before
    temperature and truncation. ``rows`` is the most replies in a batch; 0 chooses by the size of the model.
    """
    rows = rows or _fitting(model, _MANY, 64)
    found: list[list[Drawn]] = [[Drawn([], []) for _ in range(k)] for _ in prompts]
    with computing(model):
        for group in batches([len(prompt) for prompt in prompts], max(1, rows // k)):
            prefix = prefill(model, [prompts[i] for i in group], group)
            owner = torch.arange(len(group), device=model.device).repeat_interleave(k)
            noise = torch.stack([_noise(seed, names[i], start + j, max_new_tokens) for i in group for j in range(k)])
            places = [found[i][j] for i in group for j in range(k)]
            _decode(model, prefix.select(owner), places, noise.to(model.device), sampling)
    return found


def _noise(seed: int, name: str, j: int, length: int) -> Tensor:
    digest = hashlib.sha256(f"{seed}\0{j}\0{name}".encode()).digest()
    return torch.rand(length, generator=torch.Generator().manual_seed(int.from_bytes(digest[:7], "big")))


def _decode(model: LanguageModel, prefix: Prefix, replies: list[Drawn], noise: Tensor, sampling: Sampling) -> None:
    stops = model.stop_ids
    going = list(range(len(replies)))
    for t in range(noise.shape[1]):
        logits = prefix.logits.float()
        tokens = _choose(sampling, logits, noise[:, t])
        values = (logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)).tolist()
        chosen, left = tokens.tolist(), []
        for row in going:
            replies[row].log_probabilities.append(values[row])
            if chosen[row] not in stops:
                replies[row].ids.append(chosen[row])
                left.append(row)
        going = left
        if not going or t + 1 == noise.shape[1]:
            return
        if len(going) < _SPARSE * len(replies):
            # Not at every end of a reply: to leave rows out copies the keys and values of all others.
            keep = torch.tensor(going, device=model.device)
            prefix, tokens, noise = prefix.select(keep), tokens[keep], noise[keep]
            replies, going = [replies[row] for row in going], list(range(len(going)))
        prefix = _read(model, prefix, tokens)


def _choose(sampling: Sampling, logits: Tensor, uniform: Tensor) -> Tensor:
    """Next tokens, int64 [B]. Without truncation the vocabulary need not be sorted, which is most of the time."""
    if sampling.temperature == 0 or sampling.top_k or sampling.top_p < 1:
        return sampling.choose(logits, uniform)
    mass = torch.softmax(logits / sampling.temperature, -1).cumsum(-1, dtype=torch.float64)
    place = torch.searchsorted(mass, uniform.double().unsqueeze(-1) * mass[:, -1:], right=True).squeeze(-1)
    return place.clamp(max=logits.shape[-1] - 1)


def _read(model: LanguageModel, prefix: Prefix, tokens: Tensor) -> Prefix:
    """The prefix with one more token a row."""
    mask = torch.cat([prefix.mask, prefix.mask.new_ones((len(tokens), 1))], dim=1)
    logits = step(model, tokens.unsqueeze(-1), mask, prefix.cache, 1)
    return Prefix(prefix.cache, mask, logits[:, -1])


def shortest(openers: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Openers as token ids without those that begin with another one: their probability is part of the other's.

    Raises
    ------
    InputError
        If there is none, or one has no tokens.
    """
    unique = sorted({tuple(ids) for ids in openers}, key=len)
    if not unique or not unique[0]:
        raise InputError("openers: expected at least one, none of them empty")
    kept: list[tuple[int, ...]] = []
    for ids in unique:
        if not any(ids[: len(other)] == other for other in kept):
            kept.append(ids)
    return kept


def openers_mass(
    model: LanguageModel, prompts: Sequence[Sequence[int]], openers: Sequence[Sequence[int]], *, rows: int = 0
) -> np.ndarray:
    """log Σ_j p(opener_j | prompt) in nats, float64 [prompts].

    Openers that share their first tokens share the passes over them: the openers are a tree, and each of its inner
    nodes is read once a prompt. ``rows`` is the most prompts in a batch; 0 chooses by the size of the model.
    """
    rows = rows or _fitting(model, _MANY, 24)
    tree = _tree(shortest(openers))
    found = np.full(len(prompts), -np.inf)
    with computing(model):
        for group in batches([len(prompt) for prompt in prompts], rows):
            prefix = prefill(model, [prompts[i] for i in group], group)
            total = _walk(model, prefix, tree, len(group))
            found[group] = total.cpu().numpy()
    return found


class _Node(dict[int, "_Node"]):
    """Children by token; a node without children ends an opener."""


def _tree(openers: Sequence[tuple[int, ...]]) -> _Node:
    root = _Node()
    for ids in openers:
        node = root
        for token in ids:
            node = node.setdefault(token, _Node())
    return root


def _walk(model: LanguageModel, prefix: Prefix, root: _Node, n: int) -> Tensor:
    """Level by level: rows are pairs of a prompt and an inner node, prompts innermost."""
    nodes = [root]
    reached = torch.zeros(n, dtype=torch.float64, device=model.device)
    total = torch.full((n,), -torch.inf, dtype=torch.float64, device=model.device)
    prompts = torch.arange(n, device=model.device)
    while True:
        values = torch.log_softmax(prefix.logits.float(), -1).double()
        inner: list[tuple[int, int, _Node]] = []
        next_reached = []
        for place, node in enumerate(nodes):
            here = slice(place * n, (place + 1) * n)
            for token, child in node.items():
                score = reached[here] + values[here, token]
                if child:
                    inner.append((place, token, child))
                    next_reached.append(score)
                else:
                    total = torch.logaddexp(total, score)
        if not inner:
            return total
        owner = torch.cat([prompts + place * n for place, _, _ in inner])
        tokens = torch.tensor([token for _, token, _ in inner], device=model.device).repeat_interleave(n)
        nodes, reached = [node for _, _, node in inner], torch.cat(next_reached)
        prefix = _read(model, prefix.select(owner), tokens)


def token_log_probabilities(
    model: LanguageModel, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]], *, rows: int = 16
) -> list[np.ndarray]:
    """log p of every token of each reply after its prompt, in nats, one float64 array a reply."""
    found: list[np.ndarray] = [np.empty(0)] * len(prompts)
    with computing(model):
        for group in batches([len(a) + len(b) for a, b in zip(prompts, replies, strict=True)], rows):
            width = max(len(replies[i]) for i in group)
            ids = torch.full((len(group), width), model.pad_id, dtype=torch.long)
            for row, i in enumerate(group):
                ids[row, : len(replies[i])] = torch.tensor(replies[i], dtype=torch.long)
            ids = ids.to(model.device)
            prefix = prefill(model, [prompts[i] for i in group], group)
            logits = prefix.logits.unsqueeze(1)
            if width > 1:
                # What follows a token cannot change what comes before it: padding on the right needs no mask.
                mask = torch.cat([prefix.mask, torch.ones_like(ids[:, :-1])], dim=1)
                logits = torch.cat([logits, step(model, ids[:, :-1], mask, prefix.cache, width - 1)], dim=1)
            for row, i in enumerate(group):
                values = torch.log_softmax(logits[row, : len(replies[i])].float(), -1)
                picked = values.gather(-1, ids[row, : len(replies[i])].unsqueeze(-1)).squeeze(-1)
                found[i] = picked.double().cpu().numpy()
    return found
