"""Probe 6: small networks trained on tasks that need a single token far away, or two patterns close to each other.

Recall: start, N random bits, a bar; predict the first bit. The prompts 0…0| and 10…0| end alike and differ in one token
of N + 2. Patterns: 0^{p−1}1 at a random phase, with and without the constant 0 in the mix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language.isolation_continuity.tiny import Architecture, build
from touchstone.language.threads import limited

__all__ = ["BAR", "START", "Patterns", "Recall", "pattern_scores", "recall_scores", "train_patterns", "train_recall"]

BAR, START = 2, 3
_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Recall:
    """Training of the recall task; defaults as described for the method."""

    shortest: int = 2
    longest: int = 24
    steps: int = 700
    batch: int = 48
    rate: float = 1e-3

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest or self.steps < 1 or self.batch < 1:
            raise InputError("recall: expected 1 <= shortest <= longest, and at least one step and row")


@dataclass(frozen=True)
class Patterns:
    """Training of the pattern task: ``constant_share`` of the rows are all zero, the rest have one of ``periods``."""

    periods: tuple[int, ...] = (4, 8, 16, 32)
    length: int = 96
    constant_share: float = 1 / 6
    steps: int = 500
    batch: int = 48
    rate: float = 2e-3

    def __post_init__(self) -> None:
        if not self.periods or min(self.periods) < 2 or max(self.periods) > self.length // 2:
            raise InputError(f"periods {self.periods}: expected from 2 to half of the length {self.length}")
        if not 0 <= self.constant_share < 1:
            raise InputError(f"constant_share {self.constant_share}: expected at least 0 and less than 1")


def train_recall(architecture: Architecture, recipe: Recall, *, seed: int = 0) -> nn.Module:
    """A network trained to repeat the first bit after the bar."""
    network = build(architecture, trained_length=recipe.longest, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=recipe.rate)
    # Without any spread of lengths in a batch nothing has to be padded.
    with limited(1):
        for _ in range(recipe.steps):
            n = int(torch.randint(recipe.shortest, recipe.longest + 1, (1,), generator=rng))
            bits = torch.randint(0, 2, (recipe.batch, n), generator=rng)
            loss = nn.functional.cross_entropy(network(_framed(bits), last_only=True)[:, 0], bits[:, 0])
            _step(optimiser, loss)
    return network.eval()


def recall_scores(network: nn.Module, lengths: Sequence[int], *, rows: int = 64, seed: int = 0) -> pd.DataFrame:
    """TV between the predictions after 0…0| and 10…0|, and accuracy on random strings, for each number of bits N.

    Returns
    -------
    ``bits``, ``tv``, ``constant_right`` (both of the two strings answered rightly), ``hits`` and ``rows`` of random
    strings, and ``perplexity_gap``: difference of the mean log-likelihood of the two answers, in nats a token of the
    prompt with its answer. A wrong answer costs one token of N + 3: perplexity does not see it.
    """
    rng = torch.Generator().manual_seed(seed)
    found = []
    with torch.inference_mode(), limited(1):
        for n in lengths:
            zeros = torch.zeros((2, n), dtype=torch.long)
            zeros[1, 0] = 1
            logp = _answers(network, zeros)
            p = logp.exp()
            bits = torch.randint(0, 2, (rows, n), generator=rng)
            hits = int((_answers(network, bits).argmax(-1) == bits[:, 0]).sum())
            found.append(
                {
                    "bits": int(n),
                    "tv": float(0.5 * (p[0] - p[1]).abs().sum()),
                    "constant_right": bool(p[0, 0] > 0.5 and p[1, 1] > 0.5),
                    "hits": hits,
                    "rows": rows,
                    "perplexity_gap": float((logp[0, 0] - logp[1, 1]) / (n + 3)),
                }
            )
    return pd.DataFrame(found)


def train_patterns(architecture: Architecture, recipe: Patterns, *, seed: int = 0) -> nn.Module:
    """A network trained on the patterns; the loss is taken on the second half, which can be predicted."""
    network = build(architecture, trained_length=recipe.length, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=recipe.rate)
    half = recipe.length // 2
    with limited(1):
        for _ in range(recipe.steps):
            ids = _pattern_rows(recipe, rng)
            logits = network(ids[:, :-1])[:, half:]
            _step(optimiser, nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, half + 1 :].flatten()))
    return network.eval()


def pattern_scores(
    network: nn.Module, recipe: Patterns, *, periods: Sequence[int], times: Sequence[int] = (1, 2, 4), rows: int = 16
) -> pd.DataFrame:
    """Accuracy where the 1 is due and where it is not, for each period (0: the constant) and length in trained lengths.

    Returns
    -------
    ``period``, ``times``, ``due_prob``, ``due_acc``, ``notdue_acc``, ``learned`` (both at least 0.9).
    """
    found = []
    with torch.inference_mode(), limited(1):
        for period in periods:
            for factor in times:
                ids, due = _phases(period, factor * recipe.length, rows)
                half = ids.shape[1] // 2
                logits = network(ids[:, :-1])[:, half:]
                p, top = logits.softmax(-1)[..., 1], logits.argmax(-1)
                here = due[:, half + 1 :]
                on = float((top == 1)[here].float().mean()) if here.any() else 1.0
                off = float((top == 0)[~here].float().mean())
                found.append(
                    {"period": int(period), "times": int(factor)}
                    | {"due_prob": float(p[here].mean()) if here.any() else math.nan}
                    | {"due_acc": on, "notdue_acc": off, "learned": min(on, off) >= 0.9}
                )
    return pd.DataFrame(found)


def _framed(bits: Tensor) -> Tensor:
    rows = bits.shape[0]
    return torch.cat([torch.full((rows, 1), START), bits, torch.full((rows, 1), BAR)], dim=1)


def _answers(network: nn.Module, bits: Tensor) -> Tensor:
    parts = [network(_framed(part), last_only=True)[:, 0].log_softmax(-1) for part in bits.split(_ROWS_AT_ONCE)]
    return torch.cat(parts)


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()


def _pattern_rows(recipe: Patterns, rng: torch.Generator) -> Tensor:
    """Rows of start and pattern, int64 [batch, length + 1]."""
    chosen = torch.tensor(recipe.periods)[torch.randint(len(recipe.periods), (recipe.batch,), generator=rng)]
    phase = (torch.rand(recipe.batch, generator=rng) * chosen).long()
    steps = torch.arange(recipe.length)
    bits = ((steps + phase.unsqueeze(1)) % chosen.unsqueeze(1) == 0).long()
    constant = torch.rand(recipe.batch, generator=rng) < recipe.constant_share
    bits[constant] = 0
    return torch.cat([torch.full((recipe.batch, 1), START), bits], dim=1)


def _phases(period: int, length: int, rows: int) -> tuple[Tensor, Tensor]:
    """Start and pattern at phases spread over the period, and where the 1 stands."""
    if period == 0:
        ids = torch.zeros((1, length + 1), dtype=torch.long)
        ids[:, 0] = START
        return ids, torch.zeros_like(ids, dtype=torch.bool)
    phase = torch.tensor(np.unique(np.linspace(0, period - 1, min(rows, period)).round().astype(int)))
    due = (torch.arange(length) + phase.unsqueeze(1)) % period == 0
    ids = torch.cat([torch.full((len(phase), 1), START), due.long()], dim=1)
    return ids, torch.cat([torch.zeros((len(phase), 1), dtype=torch.bool), due], dim=1)
