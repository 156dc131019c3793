"""Training that resumes: trained weights, the optimiser's state and a record, whole in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.tensors import read_tensors, write_tensors

__all__ = ["keep", "resume"]

_SCHEMA = "touchstone.checkpoint/1"


def keep(
    path: str | Path,
    identity: str,
    names: Sequence[str],
    parameters: Sequence[nn.Parameter],
    optimiser: torch.optim.Optimizer,
    record: Mapping[str, Any],
) -> None:
    """Write a checkpoint of an Adam-like optimiser; ``identity`` stands for the data and settings of the run."""
    tensors = {}
    for name, parameter in zip(names, parameters, strict=True):
        tensors[f"weight:{name}"] = parameter.detach().cpu().numpy()
        state = optimiser.state.get(parameter)
        if state:
            tensors[f"first:{name}"] = state["exp_avg"].cpu().numpy()
            tensors[f"second:{name}"] = state["exp_avg_sq"].cpu().numpy()
            tensors[f"step:{name}"] = state["step"].reshape(1).cpu().numpy()
    write_tensors(path, tensors, {**record, "schema": _SCHEMA, "identity": identity})


def resume(
    path: str | Path,
    identity: str,
    names: Sequence[str],
    parameters: Sequence[nn.Parameter],
    optimiser: torch.optim.Optimizer,
) -> dict[str, Any]:
    """Put weights and state back as they were; the record that was kept with them.

    Raises
    ------
    InputError
        If the file is damaged, or of a run on other data or with other settings.
    """
    tensors, record = read_tensors(path, _SCHEMA, "checkpoint")
    if record.get("identity") != identity:
        raise InputError(f"checkpoint {path}: of another run (other data or settings); remove it to start anew")

    def tensor(key: str, like: Tensor) -> Tensor:
        return torch.from_numpy(tensors[key].copy()).to(like)

    for name, parameter in zip(names, parameters, strict=True):
        with torch.no_grad():
            parameter.copy_(tensor(f"weight:{name}", parameter))
        if f"first:{name}" in tensors:
            optimiser.state[parameter] = {
                "step": torch.from_numpy(tensors[f"step:{name}"].copy()).reshape(()),
                "exp_avg": tensor(f"first:{name}", parameter),
                "exp_avg_sq": tensor(f"second:{name}", parameter),
            }
    return record
