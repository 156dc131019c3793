"""Masks of low rank from a small pool of shared factors; what a layer takes follows from a key and its name."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError

__all__ = [
    "KEY_BYTES",
    "Choice",
    "Distribution",
    "MaskKind",
    "Pool",
    "Stream",
    "bytes_per_layer",
    "bytes_pooled",
]

KEY_BYTES = 32
Distribution = Literal["normal", "uniform"]
MaskKind = Literal["lowrank", "fwht"]


class Stream:
    """Bytes that follow from a key and a name: SHAKE-256 of both and of the number of the call.

    Not a generator of numpy's: those can be computed on from what they gave, so that one input that an attacker knows
    would tell the pads of all that follow.

    Parameters
    ----------
    key : 32 bytes.
    name : what they are for; another name gives independent bytes.
    """

    def __init__(self, key: bytes, name: str) -> None:
        if len(key) != KEY_BYTES:
            raise InputError(f"key: {len(key)} bytes; expected {KEY_BYTES}")
        self._key, self._name, self._calls = key, name.encode("utf-8"), 0

    def take(self, count: int) -> bytes:
        """``count`` fresh bytes."""
        message = self._key + self._calls.to_bytes(8, "big") + self._name
        self._calls += 1
        return hashlib.shake_256(message).digest(count)

    def words(self, shape: tuple[int, ...]) -> NDArray[np.uint32]:
        """Words of 32 bits, each equally likely."""
        return np.frombuffer(self.take(4 * math.prod(shape)), dtype="<u4").astype(np.uint32).reshape(shape)

    def uniform(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Numbers in (0, 1), of 53 bits."""
        words = np.frombuffer(self.take(8 * math.prod(shape)), dtype="<u8") >> np.uint64(11)
        found: NDArray[np.float64] = (words.astype(np.float64) + 0.5) / 2.0**53
        return found.reshape(shape)

    def normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Standard normal numbers (Box and Muller 1958)."""
        u, v = self.uniform(shape), self.uniform(shape)
        found: NDArray[np.float64] = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)
        return found

    def integers(self, below: int, count: int) -> list[int]:
        """Integers from 0 to ``below`` − 1; of 53 bits, so that none is favoured by more than ``below`` / 2⁵³."""
        return [int(x) for x in self.uniform((count,)) * below]

    def permutation(self, size: int) -> NDArray[np.int64]:
        """An order of ``size`` things."""
        return np.argsort(self.uniform((size,)), kind="stable")


@dataclass(frozen=True)
class Choice:
    """What a layer's mask is made of: D = Σ_k α_k B_j(k) A_i(k).

    Attributes
    ----------
    left, right : places j and i in the pools of the layer's input and output width.
    weight : α.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    weight: tuple[float, ...]


class Pool:
    """Factors that layers share: ``size`` for each input width, [n, r], and for each output width, [r, m].

    Parameters
    ----------
    key : 32 secret bytes; the factors and every layer's choice follow from them.
    inputs, outputs : widths of the layers.
    rank : r of one factor pair.
    size : factors a width.
    terms : pairs a layer combines; the mask's rank is at most ``terms`` × ``rank``.
    distribution : ``"normal"`` with mean 0, or ``"uniform"`` on [0, 0.1) as in the official code, whose mean puts most
        of the mask into one direction.

    Raises
    ------
    InputError
        If a number is below 1, or the rank is not below a width.
    """

    def __init__(
        self,
        key: bytes,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        rank: int = 24,
        size: int = 4,
        terms: int = 2,
        distribution: Distribution = "normal",
    ) -> None:
        if min(rank, size, terms) < 1:
            raise InputError(f"rank {rank}, pool {size}, terms {terms}: expected 1 or more")
        widths = sorted({*inputs, *outputs})
        if not widths or rank > widths[0]:
            raise InputError(f"rank {rank}: expected at most the smallest width, {widths[0] if widths else 0}")
        if distribution not in ("normal", "uniform"):
            raise InputError(f"distribution {distribution!r}: expected 'normal' or 'uniform'")
        self.key, self.rank, self.size, self.terms = key, rank, size, terms
        self.distribution: Distribution = distribution
        self.left = {n: self._drawn(f"left {n}", (size, n, rank)) for n in sorted(set(inputs))}
        self.right = {m: self._drawn(f"right {m}", (size, rank, m)) for m in sorted(set(outputs))}

    def _drawn(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        stream = Stream(self.key, name)
        drawn = stream.normal(shape) if self.distribution == "normal" else 0.1 * stream.uniform(shape)
        return drawn.astype(np.float32)

    def choice(self, layer: str, scale: float = 1.0) -> Choice:
        """What the mask of a layer is made of; ``scale`` multiplies it."""
        stream = Stream(self.key, f"layer {layer}")
        places = stream.integers(self.size, 2 * self.terms)
        weights = [float(scale * x) / math.sqrt(self.terms) for x in stream.normal((self.terms,))]
        return Choice(tuple(places[::2]), tuple(places[1::2]), tuple(weights))

    def mask(self, n: int, m: int, choice: Choice) -> NDArray[np.float32]:
        """The mask D, [n, m]."""
        if n not in self.left or m not in self.right:
            raise InputError(f"width {n} × {m}: the pool has no factors of it")
        left = np.concatenate([self.left[n][j] for j in choice.left], axis=1)
        right = np.concatenate(
            [np.float32(w) * self.right[m][i] for i, w in zip(choice.right, choice.weight, strict=True)], axis=0
        )
        found: NDArray[np.float32] = left @ right
        return found

    def spread(self, n: int, m: int, choice: Choice) -> float:
        """Standard deviation of the entries of a mask with these weights, as it is drawn on average."""
        one = 1.0 if self.distribution == "normal" else (0.1 / math.sqrt(12)) ** 2 + 0.05**2
        return math.sqrt(sum(w * w for w in choice.weight) * self.rank) * one

    @property
    def bytes(self) -> int:
        """Bytes of the factors in float32 and of the key."""
        return 4 * sum(a.size for part in (self.left, self.right) for a in part.values()) + len(self.key)


def bytes_per_layer(shapes: Mapping[str, tuple[int, int]], rank: int) -> int:
    """Bytes of factors if every layer had its own: 4 Σ r (n + m)."""
    return 4 * rank * sum(n + m for n, m in shapes.values())


def bytes_pooled(shapes: Mapping[str, tuple[int, int]], rank: int, size: int) -> int:
    """Bytes of shared factors and the key: 4 P r (Σ distinct n + Σ distinct m) + 32."""
    inputs, outputs = {n for n, _ in shapes.values()}, {m for _, m in shapes.values()}
    return 4 * size * rank * (sum(inputs) + sum(outputs)) + KEY_BYTES
