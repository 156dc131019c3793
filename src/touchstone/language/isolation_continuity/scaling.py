"""What to hold the curve against: the same network untrained, and the same model with attention scaled by log n."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["log_n_attention", "rounded", "untrained"]


@contextmanager
def log_n_attention(model: LanguageModel, *, reference: int = 64) -> Iterator[LanguageModel]:
    """Multiply attention logits by max(1, log n / log ``reference``) at the n-th token while the block runs.

    Scaled like this, attention is no longer bound by the theorem: a single token can keep its weight however long the
    prompt. A model that was not trained so pays for it elsewhere.

    Raises
    ------
    InputError
        If the architecture has no separate query projections, or ``reference`` is below 2.
    """
    if reference < 2:
        raise InputError(f"reference {reference}: expected 2 or more")
    projections = [
        module
        for name, module in model.module.named_modules()
        if name.endswith("q_proj") and isinstance(module, nn.Linear)
    ]
    if not projections:
        raise InputError(f"model {model.source}: no query projections named q_proj to scale")
    scale: dict[str, Tensor] = {}

    def remember(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        places = kwargs.get("position_ids")
        if places is None:
            raise InputError("log_n_attention: a forward pass came without position_ids")
        scale["now"] = (torch.log(places.float() + 1) / math.log(reference)).clamp(min=1.0).unsqueeze(-1)

    def multiply(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        # Rotary positions turn queries and keep their length, so scaling before them is scaling after.
        return output * scale["now"].to(output.dtype)

    with ExitStack() as stack:
        handles = [model.module.base_model.register_forward_pre_hook(remember, with_kwargs=True)]
        handles += [projection.register_forward_hook(multiply) for projection in projections]
        for handle in handles:
            stack.callback(handle.remove)
        yield model


def untrained(model: LanguageModel, *, seed: int = 0) -> LanguageModel:
    """The same architecture and tokenizer with fresh random weights."""
    from transformers import AutoModelForCausalLM

    from touchstone.language.model import LanguageModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(model.module.config)
    module = module.to(model.device, next(model.module.parameters()).dtype)
    return LanguageModel(module, model.tokenizer, source=f"{model.source}, untrained", threads=model.threads)


@contextmanager
def rounded(model: LanguageModel) -> Iterator[LanguageModel]:
    """Compute in bfloat16 while the block runs: what rounding alone changes is the floor of every other change."""
    with torch.autocast(model.device.type, dtype=torch.bfloat16):
        yield model
