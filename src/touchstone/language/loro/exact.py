"""The bit-exact mode: int8 weights, masks modulo 2³², so that a mask is uniform and is taken away without rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError
from touchstone.language.loro.factors import Stream

__all__ = ["ExactLinear", "quantised"]

Words = NDArray[np.uint32]


def quantised(values: NDArray[np.float64], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """Values as int8 and their scales along ``axis``: value ≈ int8 × scale, symmetric, largest magnitude 127."""
    top = np.abs(values).max(axis=axis, keepdims=True)
    scale = np.where(top > 0, top / 127, 1.0)
    return np.rint(values / scale).astype(np.int8), scale


@dataclass(frozen=True)
class ExactLinear:
    """A layer of int8 weights, masked modulo 2³².

    Attributes
    ----------
    hidden : W + BA mod 2³², what the untrusted side has, [n, m].
    scale : of the weights, [1, m]; it is in plain sight.
    left, right : secret factors B [n, r], A [r, m], uniform modulo 2³².
    """

    hidden: Words
    scale: NDArray[np.float64]
    left: Words
    right: Words

    @classmethod
    def of(cls, weight: NDArray[np.float64], key: bytes, name: str, *, rank: int = 24) -> ExactLinear:
        """Quantise W [n, m] and mask it.

        Raises
        ------
        InputError
            If the rank is below 1, or products could exceed 32 bits.
        """
        n, m = weight.shape
        if not 1 <= rank <= min(n, m):
            raise InputError(f"rank {rank}: expected 1 to {min(n, m)}")
        if n * 127 * 127 >= 2**31:
            raise InputError(f"weight: {n} rows; sums of {n} products of int8 do not fit 32 bits")
        stream = Stream(key, f"exact {name}")
        left, right = (stream.words(shape) for shape in ((n, rank), (rank, m)))
        whole, scale = quantised(weight, axis=0)
        return cls(_words(whole) + left @ right, scale, left, right)

    def untrusted(self, x: NDArray[np.int8]) -> Words:
        """What the untrusted side computes: xW′ mod 2³², x [tokens, n] of int8."""
        return _words(x) @ self.hidden

    def trusted(self, x: NDArray[np.int8]) -> Words:
        """The correction (xB)A mod 2³²."""
        return (_words(x) @ self.left) @ self.right

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """y for x [tokens, n]: that of the quantised layer, to the last bit."""
        given, scale = quantised(x, axis=1)
        return (self.untrusted(given) - self.trusted(given)).astype(np.int32) * scale * self.scale

    def plain(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same from unmasked int8 weights."""
        given, scale = quantised(x, axis=1)
        weight = (self.hidden - self.left @ self.right).astype(np.int32)
        return (given.astype(np.int64) @ weight.astype(np.int64)) * scale * self.scale


def _words(values: NDArray[np.int8]) -> Words:
    return values.astype(np.int32).view(np.uint32)
