"""Cheap masks of full rank: D = S₁HS₂HS₃HS₄, random signs and fast Hadamard transforms.

Their spectrum has no gap, so that there is no rank to take away; and nothing is kept but the key. With two transforms
in place of three, HS₂H has no eigenvalues but ±1, and a block of it that is not square can lack rank.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.loro.factors import Stream

__all__ = ["HadamardMask", "fwht"]


def fwht(x: Tensor) -> Tensor:
    """xH/√N along the last dimension, whose length N is a power of two; it is its own inverse."""
    size = x.shape[-1]
    if size & (size - 1) or size == 0:
        raise InputError(f"length {size}: expected a power of two")
    shape, step = x.shape, 1
    out = x.reshape(-1, size)
    while step < size:
        pairs = out.reshape(-1, size // (2 * step), 2, step)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        out = torch.stack([first + second, first - second], dim=2).reshape(-1, size)
        step *= 2
    return (out / math.sqrt(size)).reshape(shape)


class HadamardMask:
    """A layer's mask of full rank.

    Parameters
    ----------
    key, layer : from which the signs follow.
    n, m : widths; the transform's length is the next power of two.
    scale : standard deviation of the mask's entries.
    """

    def __init__(self, key: bytes, layer: str, n: int, m: int, *, scale: float = 1.0) -> None:
        self.n, self.m = n, m
        self.size = 1 << (max(n, m) - 1).bit_length()
        signs = np.where(Stream(key, f"signs {layer}").uniform((4, self.size)) < 0.5, -1.0, 1.0)
        self._signs = torch.from_numpy(signs.astype(np.float32))
        # Entries of an orthogonal matrix have a mean square of 1/N.
        self._scale = scale * math.sqrt(self.size)

    def apply(self, x: Tensor) -> Tensor:
        """xD for x [tokens, n], in O(N log N) a token."""
        first, second, third, fourth = self._signs.to(x)
        padded = torch.nn.functional.pad(x, (0, self.size - self.n))
        return self._scale * (fwht(fwht(fwht(padded * first) * second) * third) * fourth)[..., : self.m]

    def matrix(self) -> NDArray[np.float64]:
        """D, [n, m]."""
        found: NDArray[np.float64] = self.apply(torch.eye(self.n, dtype=torch.float64)).numpy()
        return found
