"""What an attacker reads next-token logits from: a model, a function, an API that releases a part, or a log of them.

A source is asked to read a batch of prompts; what it gives back is advanced token by token and narrowed to the rows
that go on, so that one decoding loop serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.batching import Batch, Prefix, pad_left, prefill, step
from touchstone.language.model import LanguageModel
from touchstone.tensors import read_tensors, write_tensors

__all__ = ["Function", "Local", "Reading", "Released", "SavedLogits", "Source"]

_LOG_SCHEMA = "touchstone.logit-log/1"


class Reading(Protocol):
    """Prompts that were read: ``logits`` float32 [B, V] of what follows each."""

    logits: Tensor

    def advance(self, tokens: Tensor) -> None:
        """Read one more token a row, int64 [B]."""

    def select(self, rows: Tensor) -> None:
        """Keep the given rows only."""


class Source(Protocol):
    """Gives readings of prompts; ``vocabulary`` is the number of logits, or 0 where it is not known before."""

    @property
    def vocabulary(self) -> int: ...

    def read(self, prompts: Sequence[Sequence[int]]) -> Reading: ...


@dataclass
class Local:
    """A model on this machine."""

    model: LanguageModel

    @property
    def vocabulary(self) -> int:
        return int(self.model.module.config.get_text_config().vocab_size)

    def read(self, prompts: Sequence[Sequence[int]]) -> Reading:
        return _LocalReading(self.model, prompts)


class _LocalReading:
    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._rows = torch.arange(len(prompts), device=model.device)
        with threads.suiting(model):
            self._prefix = prefill(model, prompts, range(len(prompts)))
        self.logits = self._prefix.logits.float()

    def advance(self, tokens: Tensor) -> None:
        mask = torch.cat([self._prefix.mask, self._prefix.mask.new_ones((len(tokens), 1))], dim=1)
        with threads.suiting(self._model), self._model.reading(Batch(self._rows, prompt=False)):
            logits = step(self._model, tokens.unsqueeze(-1), mask, self._prefix.cache, 1)[:, -1]
        self._prefix = Prefix(self._prefix.cache, mask, logits)
        self.logits = logits.float()

    def select(self, rows: Tensor) -> None:
        self._prefix, self._rows = self._prefix.select(rows), self._rows[rows]
        self.logits = self.logits[rows]


@dataclass
class Function:
    """Any function from token ids and mask, int64 [B, T] padded on the left, to logits [B, T, V] or [B, V].

    It is called with the whole sequences at every step.
    """

    call: Callable[[Tensor, Tensor], Tensor]
    pad: int = 0
    vocabulary: int = 0

    def read(self, prompts: Sequence[Sequence[int]]) -> Reading:
        return _FunctionReading(self, prompts)


class _FunctionReading:
    def __init__(self, source: Function, prompts: Sequence[Sequence[int]]) -> None:
        self._source = source
        self._ids, self._mask = pad_left(prompts, source.pad, torch.device("cpu"))
        self._read()

    def _read(self) -> None:
        found = self._source.call(self._ids, self._mask)
        self.logits = (found[:, -1] if found.dim() == 3 else found).float()

    def advance(self, tokens: Tensor) -> None:
        self._ids = torch.cat([self._ids, tokens.unsqueeze(-1).to(self._ids)], dim=1)
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(tokens), 1))], dim=1)
        self._read()

    def select(self, rows: Tensor) -> None:
        self._ids, self._mask, self.logits = self._ids[rows], self._mask[rows], self.logits[rows]


@dataclass
class Released:
    """What a service lets out: log-probabilities at a temperature, the largest few of them, rounded or with noise.

    Attributes
    ----------
    source : the model behind the service.
    top_k : only so many of the largest are released; 0 releases all. The others count as -inf.
    decimals : they are rounded to so many decimals of a nat; ``None`` leaves them.
    temperature : they are divided by it first.
    noise : standard deviation of Gaussian noise in nats, drawn anew for every token.
    seed : of the noise.
    """

    source: Source
    top_k: int = 0
    decimals: int | None = None
    temperature: float = 1.0
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.top_k < 0 or self.noise < 0 or not self.temperature > 0:
            raise InputError("top_k, noise, temperature: expected 0 or more, 0 or more, above 0")

    @property
    def vocabulary(self) -> int:
        return self.source.vocabulary

    def read(self, prompts: Sequence[Sequence[int]]) -> Reading:
        return _ReleasedReading(self, self.source.read(prompts))

    def of(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """What is released of logits [B, V]."""
        found = (logits / self.temperature).log_softmax(-1)
        if self.noise:
            found = found + self.noise * torch.randn(found.shape, generator=generator).to(found)
        if self.decimals is not None:
            found = found.round(decimals=self.decimals)
        if self.top_k and self.top_k < found.shape[-1]:
            values, places = found.topk(self.top_k, dim=-1)
            found = torch.full_like(found, -torch.inf).scatter(-1, places, values)
        return found


class _ReleasedReading:
    def __init__(self, release: Released, reading: Reading) -> None:
        self._release, self._reading = release, reading
        self._generator = torch.Generator().manual_seed(release.seed)
        self.logits = release.of(reading.logits, self._generator)

    def advance(self, tokens: Tensor) -> None:
        self._reading.advance(tokens)
        self.logits = self._release.of(self._reading.logits, self._generator)

    def select(self, rows: Tensor) -> None:
        self._reading.select(rows)
        self.logits = self.logits[rows]


@dataclass
class SavedLogits:
    """Logits that were logged along earlier replies of a service: all that an attacker has when the model is retired.

    A state is looked up by its tokens: the logged one that has most of them, each as far from the end, so that a path
    that has left the logged one by a word is still read beside it. Where not one agrees, nothing is known (all -inf),
    and decoding takes the other model alone.

    Attributes
    ----------
    contexts : int64 [P, L], the last ``L`` tokens before each logged position, -1 where there were fewer.
    places, values : the logged tokens and their log-probabilities, int64 and float32 [P, k], largest first.
    vocabulary : number of logits of the model.
    """

    contexts: Tensor
    places: Tensor
    values: Tensor
    vocabulary: int

    @classmethod
    def log(
        cls,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        top_k: int = 0,
        context: int = 64,
        batch_size: int = 16,
    ) -> SavedLogits:
        """What a service that logs logits keeps of its greedy replies to ``prompts``; ``top_k`` 0 keeps all."""
        contexts, places, values = [], [], []
        stops = model.stop_ids
        source = Local(model)
        with torch.inference_mode():
            for start in range(0, len(prompts), batch_size):
                paths = [list(ids) for ids in prompts[start : start + batch_size]]
                reading = source.read(paths)
                for _ in range(max_new_tokens):
                    kept = (reading.logits.log_softmax(-1)).topk(top_k or reading.logits.shape[-1], dim=-1)
                    contexts += [_last(path, context) for path in paths]
                    places.append(kept.indices.cpu())
                    values.append(kept.values.cpu())
                    tokens = kept.indices[:, 0].tolist()
                    going = [i for i, token in enumerate(tokens) if token not in stops]
                    if not going:
                        break
                    paths = [[*paths[i], tokens[i]] for i in going]
                    reading.select(torch.tensor(going, device=model.device))
                    reading.advance(torch.tensor([path[-1] for path in paths], device=model.device))
        return cls(torch.tensor(contexts), torch.cat(places), torch.cat(values), source.vocabulary)

    def read(self, prompts: Sequence[Sequence[int]]) -> Reading:
        return _SavedReading(self, prompts)

    def save(self, path: str | Path) -> Path:
        """Write the log as one safetensors file."""
        arrays = {name: getattr(self, name).numpy() for name in ("contexts", "places", "values")}
        return write_tensors(path, arrays, {"schema": _LOG_SCHEMA, "vocabulary": self.vocabulary})

    @classmethod
    def load(cls, path: str | Path) -> SavedLogits:
        """Read what :meth:`save` wrote; raises :class:`InputError` if it is damaged."""
        arrays, record = read_tensors(path, _LOG_SCHEMA, "logit log")
        found = {name: torch.from_numpy(np.array(arrays[name])) for name in ("contexts", "places", "values")}
        return cls(**found, vocabulary=int(record["vocabulary"]))

    def known(self, paths: Sequence[Sequence[int]]) -> Tensor:
        """Logits [B, V] of the nearest logged states; -inf where a token was not logged."""
        width = self.contexts.shape[1]
        asked = torch.tensor([_last(path, width) for path in paths])
        # A row at a time: all rows at once would hold [B, P, L] comparisons.
        agreed = [((self.contexts == path) & (path >= 0)).sum(-1).max(dim=0) for path in asked]
        best, place = (torch.stack([getattr(one, part) for one in agreed]) for part in ("values", "indices"))
        found = torch.full((len(paths), self.vocabulary), -torch.inf)
        found.scatter_(-1, self.places[place], self.values[place])
        found[best == 0] = -torch.inf
        return found


class _SavedReading:
    def __init__(self, log: SavedLogits, prompts: Sequence[Sequence[int]]) -> None:
        self._log, self._paths = log, [list(ids) for ids in prompts]
        self.logits = log.known(self._paths)

    def advance(self, tokens: Tensor) -> None:
        for path, token in zip(self._paths, tokens.tolist(), strict=True):
            path.append(token)
        self.logits = self._log.known(self._paths)

    def select(self, rows: Tensor) -> None:
        self._paths = [self._paths[i] for i in rows.tolist()]
        self.logits = self.logits[rows.to(self.logits.device)]


def _last(path: Sequence[int], width: int) -> list[int]:
    tail = list(path)[-width:]
    return [-1] * (width - len(tail)) + tail
