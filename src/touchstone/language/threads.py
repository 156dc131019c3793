"""How many torch threads to compute with. Two can be many times slower than one, so it is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["fastest", "limited", "suiting"]

_TINY = 5_000_000


def fastest(module: nn.Module, device: torch.device) -> int:
    """The fastest thread count for ``module``: ``$TOUCHSTONE_THREADS`` if set, one if it is tiny, else measured."""
    fixed = os.environ.get("TOUCHSTONE_THREADS")
    if fixed:
        if not fixed.isdigit() or int(fixed) < 1:
            raise InputError(f"TOUCHSTONE_THREADS={fixed!r}: expected a whole number of 1 or more")
        return int(fixed)
    here = torch.get_num_threads()
    if device.type != "cpu" or here == 1:
        return here
    if sum(parameter.numel() for parameter in module.parameters()) < _TINY:
        return 1
    return min((here, 1), key=_seconds)


def _seconds(count: int) -> float:
    """Time of a matrix product of the size of one block's work on a few dozen tokens, best of three."""
    a, b = torch.ones((64, 1024)), torch.ones((1024, 1024))
    best = float("inf")
    with limited(count), torch.inference_mode():
        for _ in range(3):
            start = time.perf_counter()
            for _ in range(8):
                a @ b
            best = min(best, time.perf_counter() - start)
    return best


@contextmanager
def suiting(model: LanguageModel) -> Iterator[None]:
    """Compute with the threads that suit the model inside the block; measured the first time it is asked."""
    if model.threads is None:
        model.threads = fastest(model.module, model.device)
    with limited(model.threads):
        yield


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Compute with ``count`` torch threads inside the block."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
