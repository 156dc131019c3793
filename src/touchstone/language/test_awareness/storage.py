"""State on disk: tensors with a JSON header, as one safetensors file that is whole or absent."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from touchstone.errors import InputError

__all__ = ["read_tensors", "write_bytes", "write_tensors"]


def write_tensors(path: str | Path, tensors: Mapping[str, np.ndarray], record: Mapping[str, Any]) -> Path:
    """Write arrays and their record; raises :class:`InputError` if the place cannot be written."""
    from safetensors.numpy import save

    data = save(
        {name: np.ascontiguousarray(array) for name, array in tensors.items()},
        metadata={"touchstone": json.dumps(record)},
    )
    return write_bytes(path, data)


def read_tensors(path: str | Path, schema: str, what: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and record of a file of :func:`write_tensors` with the given schema.

    Raises
    ------
    InputError
        Naming ``what``, if the file is missing, damaged or of another schema.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            record = json.loads((file.metadata() or {}).get("touchstone", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{what} {path}: cannot be read as safetensors ({str(error)[:120]})") from None
    if not isinstance(record, dict) or record.get("schema") != schema:
        raise InputError(f"{what} {path}: not of schema {schema!r}")
    return tensors, record


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write a file as a whole, by way of a temporary file in the same folder."""
    target = Path(path)
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None
    return target
