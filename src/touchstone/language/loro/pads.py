"""One-time pads: each hides one input of one layer, is consumed by it, and is never seen again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from touchstone.errors import InputError

__all__ = ["Pad", "PadStore"]


@dataclass(frozen=True)
class Pad:
    """Noise δ [tokens, n] and what the masked layer makes of it, δW' [tokens, m]; ``number`` counts a layer's pads."""

    number: int
    noise: Tensor
    image: Tensor


class PadStore:
    """Pads of every layer, made ahead of time where the weights are.

    Parameters
    ----------
    rng : where the noise comes from; secret.
    scale : standard deviation of the noise.
    """

    def __init__(self, rng: np.random.Generator, *, scale: float = 1.0) -> None:
        if not scale > 0:
            raise InputError(f"scale {scale}: expected a number above 0")
        self._rng, self._scale = rng, scale
        self._left: dict[str, list[Pad]] = {}
        self._used: dict[str, set[int]] = {}
        self._made: dict[str, int] = {}

    def refill(self, layer: str, weight: Tensor, *, tokens: int, count: int) -> None:
        """Make ``count`` pads for inputs of up to ``tokens`` tokens of a layer with masked weight W' [n, m]."""
        if tokens < 1 or count < 1:
            raise InputError(f"tokens {tokens}, count {count}: expected 1 or more")
        for _ in range(count):
            number = self._made.get(layer, 0)
            self._made[layer] = number + 1
            noise = torch.from_numpy(
                (self._scale * self._rng.standard_normal((tokens, weight.shape[0]))).astype(np.float32)
            )
            self._left.setdefault(layer, []).append(Pad(number, noise, noise @ weight))

    def left(self, layer: str) -> int:
        """Pads that a layer has left."""
        return len(self._left.get(layer, []))

    def take(self, layer: str, tokens: int) -> Pad:
        """The next pad of a layer, cut to ``tokens`` tokens; it is gone from the store.

        Raises
        ------
        InputError
            If the store has none left, or the next one is too short.
        """
        pads = self._left.get(layer, [])
        if not pads:
            raise InputError(f"pads of {layer}: none left; refill the store before the next input")
        if len(pads[0].noise) < tokens:
            raise InputError(f"pads of {layer}: made for {len(pads[0].noise)} tokens, the input has {tokens}")
        pad = pads.pop(0)
        self._spent(layer, pad.number)
        return Pad(pad.number, pad.noise[:tokens], pad.image[:tokens])

    def _spent(self, layer: str, number: int) -> None:
        used = self._used.setdefault(layer, set())
        if number in used:
            raise InputError(f"pad {number} of {layer}: was used before; the difference of two inputs would show")
        used.add(number)
