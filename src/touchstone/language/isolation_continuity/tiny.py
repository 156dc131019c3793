"""Small networks to train from nothing: a transformer with a choice of positions and attention, and a control.

Positions that stay in a compact set (rotary, sinusoidal, none) are those the theorem speaks of. An index that grows
with the prompt, a bias that grows with the distance (ALiBi) and logits scaled by log n are not covered; a GRU has no
attention at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from touchstone.errors import InputError

__all__ = ["Architecture", "Gru", "Positions", "Scaling", "TinyTransformer", "build"]

Positions = Literal["rope", "sinusoidal", "nope", "index", "alibi"]
Scaling = Literal["softmax", "logn"]


@dataclass(frozen=True)
class Architecture:
    """What is trained.

    Attributes
    ----------
    positions : ``rope``, ``sinusoidal``, ``nope`` (none), ``index`` (n / trained length as an input) or ``alibi``.
    attention : ``softmax``, or ``logn``: logits multiplied by log n / log(trained length).
    recurrent : a GRU in place of the transformer; the two above then do not matter.
    layers, width, heads : sizes; the defaults are those of the method's description, about 60 000 parameters.
    vocabulary : number of tokens.
    """

    positions: Positions = "rope"
    attention: Scaling = "softmax"
    recurrent: bool = False
    layers: int = 2
    width: int = 48
    heads: int = 3
    vocabulary: int = 4

    def __post_init__(self) -> None:
        if self.positions not in get_args(Positions):
            raise InputError(f"positions {self.positions!r}: expected one of {', '.join(get_args(Positions))}")
        if self.attention not in get_args(Scaling):
            raise InputError(f"attention {self.attention!r}: expected softmax or logn")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise InputError(f"width {self.width}: expected an even multiple of heads {self.heads}")

    @property
    def name(self) -> str:
        """Short name for tables."""
        if self.recurrent:
            return "gru"
        return self.positions + (" + log n" if self.attention == "logn" else "")

    @property
    def covered(self) -> bool:
        """Whether the theorem covers it: compact positions and continuous, unscaled attention."""
        return not self.recurrent and self.attention == "softmax" and self.positions in ("rope", "sinusoidal", "nope")


def build(architecture: Architecture, *, trained_length: int, seed: int = 0) -> nn.Module:
    """A network with fresh weights; ``trained_length`` scales what grows with the prompt."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if architecture.recurrent:
            return Gru(architecture)
        return TinyTransformer(architecture, trained_length)


class TinyTransformer(nn.Module):
    """Pre-norm decoder with GELU MLPs of width 4d and an output layer of its own; ids [B, T] to logits [B, T, V]."""

    def __init__(self, architecture: Architecture, trained_length: int) -> None:
        super().__init__()
        if trained_length < 2:
            raise InputError(f"trained_length {trained_length}: expected 2 or more")
        self.architecture = architecture
        self.trained_length = trained_length
        width = architecture.width
        self.embedding = nn.Embedding(architecture.vocabulary, width)
        self.index = nn.Linear(1, width, bias=False) if architecture.positions == "index" else None
        self.blocks = nn.ModuleList(_Block(architecture, trained_length) for _ in range(architecture.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, architecture.vocabulary)

    def forward(self, ids: Tensor, last_only: bool = False) -> Tensor:
        steps = torch.arange(ids.shape[1], device=ids.device)
        x = self.embedding(ids)
        if self.architecture.positions == "sinusoidal":
            x = x + _sinusoids(steps, self.architecture.width)
        if self.index is not None:
            x = x + self.index((steps.float() / self.trained_length).unsqueeze(-1))
        for block in self.blocks:
            x = block(x, steps)
        return self.head(self.norm(x[:, -1:] if last_only else x))


class Gru(nn.Module):
    """The recurrent control, about as large."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width = architecture.width
        self.embedding = nn.Embedding(architecture.vocabulary, width)
        self.body = nn.GRU(width, width + width // 2, num_layers=architecture.layers, batch_first=True)
        self.head = nn.Linear(width + width // 2, architecture.vocabulary)

    def forward(self, ids: Tensor, last_only: bool = False) -> Tensor:
        states, _ = self.body(self.embedding(ids))
        return self.head(states[:, -1:] if last_only else states)


class _Block(nn.Module):
    def __init__(self, architecture: Architecture, trained_length: int) -> None:
        super().__init__()
        width = architecture.width
        self.architecture = architecture
        self.trained_length = trained_length
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        x = x + self._attend(self.before_attention(x), steps)
        return x + self.mlp(self.before_mlp(x))

    def _attend(self, x: Tensor, steps: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = self.architecture.heads
        q, k, v = (
            part.reshape(rows, length, heads, width // heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        if self.architecture.positions == "rope":
            q, k = _rotate(q, steps), _rotate(k, steps)
        if self.architecture.attention == "logn":
            scale = torch.log(steps.float() + 1) / math.log(self.trained_length)
            q = q * scale.unsqueeze(-1)
        bias = _alibi(steps, heads) if self.architecture.positions == "alibi" else None
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


def _rotate(x: Tensor, steps: Tensor) -> Tensor:
    """RoPE with base 10⁴ over the whole head (Su et al. 2021)."""
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = steps.unsqueeze(-1).float() * rates
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def _sinusoids(steps: Tensor, width: int) -> Tensor:
    half = width // 2
    rates = 10_000.0 ** (-torch.arange(half, device=steps.device) / half)
    angles = steps.unsqueeze(-1).float() * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _alibi(steps: Tensor, heads: int) -> Tensor:
    """Bias −m (i − j) with m = 2^(−8 h / heads) (Press et al. 2022), −∞ above the diagonal."""
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=steps.device) / heads)
    distance = (steps.unsqueeze(1) - steps.unsqueeze(0)).float()
    bias = -slopes.view(-1, 1, 1) * distance
    return bias.masked_fill(distance < 0, float("-inf"))
