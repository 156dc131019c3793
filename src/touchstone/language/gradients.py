"""Gradients with respect to what a model is given, not to its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["frozen"]


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """No gradients of weights inside the block: they would only take time and memory."""
    learnt = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learnt:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learnt:
            parameter.requires_grad_(True)
