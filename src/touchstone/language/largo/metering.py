"""What an attack costs: tokens read by the model, a backward pass counted double, texts tried on the guard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from touchstone.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from touchstone.language.model import LanguageModel

__all__ = ["Meter"]


@dataclass
class Meter:
    """Counts what the model reads while :meth:`watching`.

    Attributes
    ----------
    budget : token-forwards after which no further round begins; ``None`` for no end.
    max_checks : texts tried on the guarded model after which no further one is; ``None`` for no end.
    read : tokens that went forward, padding included.
    learnt : those of them whose pass is followed by a backward one.
    checks : texts tried on the guarded model so far.
    """

    budget: int | None = None
    max_checks: int | None = None
    read: int = 0
    learnt: int = 0
    checks: int = 0

    def __post_init__(self) -> None:
        for name in ("budget", "max_checks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} {value}: expected 1 or more, or None")

    @property
    def spent(self) -> int:
        """Token-forwards: a pass that is followed by a backward one counts three times."""
        return self.read + 2 * self.learnt

    @property
    def is_over(self) -> bool:
        """Whether either limit is reached."""
        return (self.budget is not None and self.spent >= self.budget) or self.checks_left == 0

    @property
    def checks_left(self) -> int | None:
        """Texts that may still be tried; ``None`` for any number."""
        return None if self.max_checks is None else max(0, self.max_checks - self.checks)

    @contextmanager
    def watching(self, model: LanguageModel) -> Iterator[Meter]:
        """Count every token that enters the model's first block inside the block."""

        def count(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            states = arguments[0] if arguments else named["hidden_states"]
            tokens = states.shape[0] * states.shape[1]
            self.read += tokens
            if torch.is_grad_enabled() and states.requires_grad:
                self.learnt += tokens

        handle = model.blocks[0].register_forward_pre_hook(count, with_kwargs=True)
        try:
            yield self
        finally:
            handle.remove()
