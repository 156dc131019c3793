"""Hiding queries, keys and values: a secret order of the dimensions inside each head.

Additive pads do not survive the product of queries and keys. One permutation of both leaves it as it is; another one of
the values is undone on the trusted side. Rotary positions are applied before. The values' sizes stay visible, their
places do not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language.loro.factors import Stream

__all__ = ["NAME", "hide_heads", "orders"]

NAME = "touchstone_permuted"


def orders(key: bytes, name: str, width: int) -> tuple[Tensor, Tensor]:
    """The secret orders of a layer's heads: one for queries and keys, one for values."""
    stream = Stream(key, f"heads {name}")
    first, second = (torch.from_numpy(stream.permutation(width)) for _ in range(2))
    return first, second


def hide_heads(module: nn.Module, key: bytes) -> None:
    """Have a transformers model attend to permuted queries, keys and values.

    Raises
    ------
    InputError
        If the model is none of transformers with exchangeable attention.
    """
    setter = getattr(module, "set_attn_implementation", None)
    parts = [
        (name, part)
        for name, part in module.named_modules()
        if hasattr(part, "head_dim") and hasattr(part, "layer_idx")
    ]
    if setter is None or not parts:
        raise InputError("policy 'full': expected a transformers model whose attention can be exchanged")
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    for name, part in parts:
        part._loro_orders = orders(key, name, int(part.head_dim))
        part._loro_seen = None
    AttentionInterface.register(NAME, _permuted)
    # Without a mask of its own, an attention of this name would read padding.
    AttentionMaskInterface.register(NAME, sdpa_mask)
    setter(NAME)


def _permuted(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    first, second = (order.to(query.device) for order in module._loro_orders)  # type: ignore[union-attr]
    hidden = query[..., first], key[..., first], value[..., second]
    if module._loro_seen is not None:
        module._loro_seen.append(tuple(part.detach().cpu() for part in hidden))  # type: ignore[union-attr,operator]
    out, weights = sdpa_attention_forward(module, *hidden, attention_mask, **options)
    restored = torch.empty_like(out)
    restored[..., second] = out
    return restored, weights
