"""Generation: batched, sorted by length, greedy or sampled, the same text whatever the batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.batching import Batch, Prefix, batches, common_head, prefill, step

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Sampling", "generate"]

Stream = Callable[[int, str], None]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes
    ----------
    temperature : 0 takes the likeliest token; above 0 samples.
    top_k : sample among the ``top_k`` likeliest tokens; 0 means all.
    top_p : sample among the fewest likeliest tokens whose probabilities sum to ``top_p``.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise InputError(f"temperature {self.temperature}: expected 0 or more")
        if self.top_k < 0:
            raise InputError(f"top_k {self.top_k}: expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p {self.top_p}: expected a number in (0, 1]")

    def choose(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Next tokens, int64 [B], from ``logits`` [B, V] and one uniform number a row, float [B]."""
        if self.temperature == 0:
            return logits.argmax(-1)
        probabilities, order = torch.softmax(logits.float() / self.temperature, -1).sort(
            stable=True, dim=-1, descending=True
        )
        mass = probabilities.cumsum(-1)
        if self.top_k:
            probabilities[:, self.top_k :] = 0
        # A token stays while the mass before it is below top_p, so that at least one always does.
        probabilities[mass - probabilities >= self.top_p] = 0
        mass = probabilities.cumsum(-1)
        place = torch.searchsorted(mass, (uniform * mass[:, -1]).unsqueeze(-1), right=True)
        last = (probabilities > 0).sum(-1, keepdim=True) - 1
        return order.gather(-1, torch.minimum(place, last)).squeeze(-1)


def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    batch_size: int,
    seed: int,
    stream: Stream | None,
    finished: Callable[[int], None] | None,
) -> list[list[int]]:
    """New token ids for every prompt, without the stop token. See :meth:`LanguageModel.generate`."""
    # One row of numbers a prompt, so that batch size and order cannot change what is sampled.
    noise = torch.rand((len(prompts), max_new_tokens), generator=torch.Generator().manual_seed(seed))
    replies: list[list[int]] = [[] for _ in prompts]
    head = common_head(model, prompts, min((len(row) for row in prompts), default=1) - 1)
    for rows in batches([len(row) for row in prompts], batch_size):
        prefix = prefill(model, [prompts[i] for i in rows], rows, head)
        _decode(model, prefix, rows, replies, noise, sampling, stop_ids, stream)
        if finished is not None:
            finished(len(rows))
    return replies


def _decode(
    model: LanguageModel,
    prefix: Prefix,
    rows: list[int],
    replies: list[list[int]],
    noise: Tensor,
    sampling: Sampling,
    stop_ids: frozenset[int],
    stream: Stream | None,
) -> None:
    device = model.device
    stops = torch.tensor(sorted(stop_ids), dtype=torch.long, device=device)
    active = torch.tensor(rows, dtype=torch.long, device=device)
    noise = noise.to(device)
    texts = {i: _Text(model) for i in rows} if stream is not None else {}
    for t in range(noise.shape[1]):
        tokens = sampling.choose(prefix.logits, noise[active, t])
        going = ~torch.isin(tokens, stops)
        if not bool(going.all()):
            keep = going.nonzero().squeeze(-1)
            if len(keep) == 0:
                return
            # Rows that are done leave the batch: their share of every later step is saved.
            prefix, active, tokens = prefix.select(keep), active[keep], tokens[keep]
        for i, token in zip(active.tolist(), tokens.tolist(), strict=True):
            replies[i].append(token)
            if stream is not None and (piece := texts[i].add(token)):
                stream(i, piece)
        if t + 1 == noise.shape[1]:
            return
        mask = torch.cat([prefix.mask, prefix.mask.new_ones((len(active), 1))], dim=1)
        with model.reading(Batch(active, prompt=False)):
            logits = step(model, tokens.unsqueeze(-1), mask, prefix.cache, 1)
        prefix = Prefix(prefix.cache, mask, logits[:, -1])


class _Text:
    """Turns tokens into pieces of text, holding back a character until all of its bytes are there."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._ids: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        self._ids.append(token)
        text = self._model.decode(self._ids)
        if text.endswith("�"):
            return ""
        piece, self._shown = text[len(self._shown) :], text
        return piece
