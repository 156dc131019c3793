"""What protection costs: products timed at the shapes of real models, and bytes of secrets from a model's widths."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from touchstone.errors import InputError
from touchstone.language.loro.factors import bytes_per_layer, bytes_pooled

__all__ = ["SHAPES", "Timed", "layer_shapes", "memory", "timed"]


@dataclass(frozen=True)
class Widths:
    """A decoder of the Llama kind."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int


SHAPES: dict[str, Widths] = {
    "135M": Widths(576, 1536, 30, 9, 3),
    "3B": Widths(3072, 8192, 28, 24, 8),
    "7B": Widths(4096, 11008, 32, 32, 32),
    "8B": Widths(4096, 14336, 32, 32, 8),
}
"""SmolLM2-135M, Llama-3.2-3B, Llama-2-7B and Llama-3-8B."""


@dataclass(frozen=True)
class Timed:
    """Seconds of one block's products: on plain weights, and of the correction beside them."""

    plain: float
    correction: float

    @property
    def ratio(self) -> float:
        """One after the other, over plain."""
        return (self.plain + self.correction) / self.plain

    @property
    def overlapped(self) -> float:
        """Both at once on machines of their own, over plain."""
        return max(self.plain, self.correction) / self.plain


def layer_shapes(widths: Widths) -> dict[str, tuple[int, int]]:
    """Input and output width of every linear layer of the decoder, the head aside."""
    head = widths.hidden // widths.heads
    small = head * widths.kv_heads
    one = {
        "q": (widths.hidden, widths.hidden),
        "k": (widths.hidden, small),
        "v": (widths.hidden, small),
        "o": (widths.hidden, widths.hidden),
        "gate": (widths.hidden, widths.inner),
        "up": (widths.hidden, widths.inner),
        "down": (widths.inner, widths.hidden),
    }
    return {f"{i}.{name}": shape for i in range(widths.layers) for name, shape in one.items()}


def memory(shapes: Mapping[str, tuple[int, int]], *, rank: int = 24, pool: int = 4) -> dict[str, int]:
    """Bytes of secrets: factors of its own for each layer, and a shared pool with a key."""
    return {"per_layer": bytes_per_layer(shapes, rank), "pooled": bytes_pooled(shapes, rank, pool)}


def timed(widths: Widths, *, tokens: int = 256, rank: int = 24, terms: int = 2, repeats: int = 3) -> Timed:
    """Time the seven products of one block, and their corrections with factors shared by inputs.

    Query, key and value read one input, and so do gate and up: its products with factors are made once.
    """
    if tokens < 1 or repeats < 1:
        raise InputError(f"tokens {tokens}, repeats {repeats}: expected 1 or more")
    rng = torch.Generator().manual_seed(0)
    head = widths.hidden // widths.heads
    groups = [
        (widths.hidden, [widths.hidden, head * widths.kv_heads, head * widths.kv_heads]),
        (widths.hidden, [widths.hidden]),
        (widths.hidden, [widths.inner, widths.inner]),
        (widths.inner, [widths.hidden]),
    ]
    plain = correction = 0.0
    wide = rank * terms
    with torch.inference_mode():
        for n, outputs in groups:
            x = torch.randn(tokens, n, generator=rng)
            weights = [torch.randn(n, m, generator=rng) for m in outputs]
            left, right = torch.randn(n, wide, generator=rng), [torch.randn(wide, m, generator=rng) for m in outputs]
            results = _products(x, weights)
            plain += _seconds(partial(_products, x, weights), repeats)
            correction += _seconds(partial(_correct, x, left, right, results), repeats)
    return Timed(plain, correction)


def _products(x: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x @ weight for weight in weights]


def _correct(x: torch.Tensor, left: torch.Tensor, right: list[torch.Tensor], results: list[torch.Tensor]) -> None:
    products = x @ left
    for one, y in zip(right, results, strict=True):
        y.addmm_(products, one, alpha=-1)


def _seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
