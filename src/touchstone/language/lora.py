"""LoRA as a parametrisation of the blocks' matrices, and adapters that are shipped in place of whole copies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from touchstone.errors import InputError
from touchstone.tensors import read_tensors, write_tensors

__all__ = ["add_lora", "apply_adapter", "merge_lora", "save_adapter"]

_SCHEMA = "touchstone.adapter/1"


class _LowRank(nn.Module):
    def __init__(self, weight: Tensor, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        self.scale = scale
        rows, columns = weight.shape
        self.down = nn.Parameter(torch.randn(rank, columns, generator=generator).to(weight) / columns**0.5)
        self.up = nn.Parameter(torch.zeros(rows, rank).to(weight))

    def forward(self, weight: Tensor) -> Tensor:
        return torch.addmm(weight, self.up, self.down, alpha=self.scale)


def add_lora(module: nn.Module, blocks: str, rank: int, seed: int, *, scale: float = 1.0) -> dict[str, nn.Parameter]:
    """Put adapters on every matrix of the blocks; the new parameters by name. ``scale`` multiplies their product."""
    generator = torch.Generator().manual_seed(seed)
    found = [
        (name, part)
        for name, part in module.get_submodule(blocks).named_modules()
        if isinstance(getattr(part, "weight", None), nn.Parameter) and part.weight.dim() == 2
    ]
    chosen: dict[str, nn.Parameter] = {}
    for name, part in found:
        low = _LowRank(part.weight, rank, scale, generator)
        parametrize.register_parametrization(part, "weight", low)
        chosen |= {f"{blocks}.{name}.down": low.down, f"{blocks}.{name}.up": low.up}
    return chosen


def merge_lora(module: nn.Module) -> dict[str, Tensor]:
    """Fold all adapters into the weights; their factors by name of the weight, the scale in ``up``."""
    factors: dict[str, Tensor] = {}
    for name, part in list(module.named_modules()):
        if parametrize.is_parametrized(part, "weight"):
            low = part.parametrizations["weight"][0]
            factors[f"{name}.weight:down"] = low.down.detach().clone()
            factors[f"{name}.weight:up"] = low.scale * low.up.detach()
            parametrize.remove_parametrizations(part, "weight", leave_parametrized=True)
    return factors


def save_adapter(factors: Mapping[str, Tensor], path: str | Path) -> Path:
    """Write LoRA factors: what a recipient needs beside the base model."""
    if not factors:
        raise InputError("adapter: there is none; train with trainable='lora'")
    arrays = {name: value.cpu().numpy() for name, value in factors.items()}
    return write_tensors(path, arrays, {"schema": _SCHEMA})


def apply_adapter(module: nn.Module, path: str | Path) -> None:
    """Add the factors of a file to the weights of a base model."""
    tensors, _ = read_tensors(path, _SCHEMA, "adapter")
    weights = dict(module.named_parameters())
    names = sorted({name.rsplit(":", 1)[0] for name in tensors})
    for name in names:
        if name not in weights:
            raise InputError(f"adapter {path}: the model has no weight {name!r}")
        up, down = (torch.from_numpy(tensors[f"{name}:{part}"]) for part in ("up", "down"))
        if (up.shape[0], down.shape[1]) != tuple(weights[name].shape):
            raise InputError(f"adapter {path}: {name} has another shape in this model")
        with torch.no_grad():
            weights[name].add_((up @ down).to(weights[name]))
