"""The layers that are protected: which ones, their weights as [n, m], and how their inputs and outputs are laid out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from touchstone.errors import InputError

__all__ = ["Layer", "find", "unprotected"]


@dataclass(frozen=True)
class Layer:
    """A linear layer y = xW + b.

    Attributes
    ----------
    name : its qualified name in the model.
    kind : ``"linear"`` (weight stored as Wᵀ), ``"conv1d"`` (transformers' ``Conv1D``, stored as W) or ``"pointwise"``
        (a convolution of kernel 1, whose channels come second).
    n, m : widths of input and output.
    """

    name: str
    kind: str
    n: int
    m: int

    def weight(self, module: nn.Module) -> Tensor:
        """W, [n, m], a view of the module's parameter."""
        stored: Tensor = module.weight  # type: ignore[assignment]
        if self.kind == "conv1d":
            return stored
        return stored.flatten(1).T if self.kind == "pointwise" else stored.T

    def rows(self, value: Tensor) -> Tensor:
        """An input or output of the layer as [..., width]."""
        return value.movedim(1, -1) if self.kind == "pointwise" else value

    def back(self, rows: Tensor) -> Tensor:
        """The inverse of :meth:`rows`."""
        return rows.movedim(-1, 1) if self.kind == "pointwise" else rows


def find(module: nn.Module, targets: str | Sequence[str] = "all-linear") -> list[Layer]:
    """Layers to protect, in the model's order.

    Parameters
    ----------
    targets : ``"all-linear"``, a regular expression that a whole name matches, or a list of names or their ends. With
        ``"all-linear"`` a head that shares its weights with the embedding is left out: its plain table would give the
        mask away.

    Raises
    ------
    InputError
        If nothing matches, or a layer that is named is not linear or shares its weights.
    """
    tied = _shared(module)
    found = []
    for name, part in module.named_modules():
        layer = _layer(name, part)
        if layer is None or not _wanted(name, targets):
            continue
        if id(part.weight) in tied:
            if targets == "all-linear":
                continue
            raise InputError(f"targets: {name} shares its weights with another layer, which would give its mask away")
        found.append(layer)
    if not found:
        raise InputError(f"targets {targets!r}: no linear layer of the model matches")
    return found


def unprotected(module: nn.Module, layers: Sequence[Layer]) -> list[str]:
    """Parameters that stay as they are: embeddings, norms, biases and tied heads."""
    hidden = {f"{layer.name}.weight" for layer in layers}
    return [name for name, _ in module.named_parameters() if name not in hidden]


def _layer(name: str, part: nn.Module) -> Layer | None:
    if isinstance(part, nn.Linear):
        return Layer(name, "linear", part.in_features, part.out_features)
    if type(part).__name__ == "Conv1D" and isinstance(getattr(part, "weight", None), Tensor):
        stored: Tensor = part.weight  # type: ignore[assignment]
        return Layer(name, "conv1d", int(stored.shape[0]), int(stored.shape[1]))
    if isinstance(part, nn.Conv1d | nn.Conv2d) and _is_pointwise(part):
        return Layer(name, "pointwise", part.in_channels, part.out_channels)
    return None


def _is_pointwise(part: nn.Conv1d | nn.Conv2d) -> bool:
    plain = part.groups == 1 and set(part.kernel_size) == {1} and set(part.stride) == {1}
    return plain and not isinstance(part.padding, str) and not any(part.padding)


def _wanted(name: str, targets: str | Sequence[str]) -> bool:
    if targets == "all-linear":
        return True
    if isinstance(targets, str):
        try:
            return re.fullmatch(targets, name) is not None
        except re.error as error:
            raise InputError(f"targets {targets!r}: not a regular expression ({error})") from None
    return any(name == one or name.endswith(f".{one}") for one in targets)


def _shared(module: nn.Module) -> set[int]:
    seen: dict[int, int] = {}
    for _, part in module.named_modules():
        weight: Any = part._parameters.get("weight")
        if isinstance(weight, torch.nn.Parameter):
            seen[id(weight)] = seen.get(id(weight), 0) + 1
    return {place for place, count in seen.items() if count > 1}
