"""What a result was measured on: versions, processor, device and threads."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["describe"]

_PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas", "torch", "transformers", "ray")


def describe(device: str = "cpu", packages: Sequence[str] = _PACKAGES) -> dict[str, Any]:
    """The ``environment`` of an Evidence: nothing in it names the machine, the user or a path."""
    return {
        "touchstone": _version("touchstone-ml") or "unknown",
        "python": platform.python_version(),
        "packages": {name: found for name in packages if (found := _version(name))},
        "cpu": _processor(),
        "device": device,
        "threads": _threads(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _threads() -> int:
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    import os

    return os.cpu_count() or 1
