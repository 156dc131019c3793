"""One-time pads: each hides one input of one layer, is gone from the store, and refuses to hide another."""

from __future__ import annotations

import secrets
from collections import defaultdict, deque

import numpy as np
import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.loro.factors import KEY_BYTES, Stream

__all__ = ["Pad", "PadStore"]


class Pad:
    """Noise δ [tokens, n] for one input, and what the masked layer makes of it, δW' [tokens, m]."""

    def __init__(self, layer: str, number: int, noise: Tensor, image: Tensor) -> None:
        self.layer, self.number, self._noise, self._image = layer, number, noise, image
        self._used = False

    def hide(self, x: Tensor) -> Tensor:
        """x + δ.

        Raises
        ------
        InputError
            If it has hidden an input before, or is too short for this one.
        """
        if self._used:
            raise InputError(
                f"pad {self.number} of {self.layer}: was used before; the difference of two inputs would show"
            )
        if len(self._noise) < len(x):
            raise InputError(f"pads of {self.layer}: made for {len(self._noise)} tokens, the input has {len(x)}")
        self._used = True
        return x + self._noise[: len(x)].to(x)

    def taken_from(self, y: Tensor) -> Tensor:
        """The masked layer's output without what the noise made of it."""
        return y - self._image[: len(y)].to(y)


class PadStore:
    """Pads of every layer, made ahead of time where the weights are.

    Parameters
    ----------
    scale : standard deviation of the noise. Noise far above the inputs hides them better and costs accuracy, since it
        is taken away again in float32.
    """

    def __init__(self, *, scale: float = 1.0) -> None:
        if not scale > 0:
            raise InputError(f"scale {scale}: expected a number above 0")
        self._scale = scale
        # A key of its own: pads of another store, or of another run, are others.
        self._key = secrets.token_bytes(KEY_BYTES)
        self._left: defaultdict[str, deque[Pad]] = defaultdict(deque)
        self._made: defaultdict[str, int] = defaultdict(int)

    def refill(self, layer: str, weight: Tensor, *, tokens: int, count: int) -> None:
        """Make ``count`` pads for inputs of up to ``tokens`` tokens of a layer with masked weight W' [n, m]."""
        if tokens < 1 or count < 1:
            raise InputError(f"tokens {tokens}, count {count}: expected 1 or more")
        for _ in range(count):
            number = self._made[layer]
            self._made[layer] += 1
            drawn = self._scale * Stream(self._key, f"{number} {layer}").normal((tokens, weight.shape[0]))
            noise = torch.from_numpy(drawn.astype(np.float32))
            self._left[layer].append(Pad(layer, number, noise, noise @ weight))

    def left(self, layer: str) -> int:
        """Pads that a layer has left."""
        return len(self._left[layer])

    def take(self, layer: str) -> Pad:
        """The next pad of a layer, which is gone from the store.

        Raises
        ------
        InputError
            If the store has none left.
        """
        if not self._left[layer]:
            raise InputError(f"pads of {layer}: none left; refill the store before the next input")
        return self._left[layer].popleft()
