"""Steering planes on disk: one safetensors file, with all that is not a tensor as JSON in its header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from touchstone.errors import InputError
from touchstone.files import write_bytes
from touchstone.language.angular_steering.plane import SteeringPlane
from touchstone.language.layout import Site

__all__ = ["SCHEMA", "load", "save"]

SCHEMA = "touchstone.steering-plane/1"

_TENSORS = ("b1", "b2", "candidates")
_RECORDED = (
    "chosen",
    "explained_variance",
    "cos_b1_pc0",
    "model",
    "architecture",
    "select",
    "second",
    "space",
    "version",
)


def save(plane: SteeringPlane, path: Path) -> Path:
    """See :meth:`SteeringPlane.save`."""
    from safetensors.torch import save as to_bytes

    record = {
        "schema": SCHEMA,
        "sites": [str(site) for site in plane.sites],
        "diagnostics": {name: _plain(column) for name, column in plane.diagnostics.items()},
        **{name: getattr(plane, name) for name in _RECORDED},
    }
    data = to_bytes(
        {name: getattr(plane, name).contiguous().cpu() for name in _TENSORS},
        metadata={"format": "pt", "touchstone": json.dumps(record)},
    )
    write_bytes(path, data)
    return path


def load(path: Path) -> SteeringPlane:
    """See :meth:`SteeringPlane.load`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {}).get("touchstone", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"plane {path}: cannot be read as safetensors ({str(error)[:120]})") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise InputError(f"plane {path}: not a steering plane of schema {SCHEMA!r}")
    try:
        plane = SteeringPlane(
            **{name: tensors[name] for name in _TENSORS},
            sites=tuple(Site.parse(text) for text in record["sites"]),
            diagnostics=pd.DataFrame(record["diagnostics"]),
            **{name: record[name] for name in _RECORDED},
        )
        _check(plane)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"plane {path}: damaged ({type(error).__name__}: {str(error)[:120]})") from None
    return plane


def _check(plane: SteeringPlane) -> None:
    width, points = plane.b1.shape[0], len(plane.sites)
    if plane.b2.shape != (width,) or plane.candidates.shape != (points, width) or len(plane.diagnostics) != points:
        raise ValueError("shapes do not agree")
    basis = torch.stack([plane.b1, plane.b2]).double()
    if not torch.allclose(basis @ basis.T, torch.eye(2, dtype=torch.float64), atol=1e-4):
        raise ValueError("the axes are not orthonormal")


def _plain(column: pd.Series) -> list[Any]:
    """A column as JSON holds it: NaN (of points that were dropped) becomes null."""
    return [None if item != item else item for item in column.tolist()]
