"""Touchstone checks a machine-learning model, remedies what it finds, and proves what a method is worth."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from touchstone.audit import run_audit as run_audit
    from touchstone.errors import InputError as InputError
    from touchstone.errors import MissingExtraError as MissingExtraError
    from touchstone.errors import TouchstoneError as TouchstoneError
    from touchstone.evidence import Evidence as Evidence
    from touchstone.plan import load_plan as load_plan
    from touchstone.run import Run as Run
    from touchstone.study import run_studies as run_studies

__version__ = "0.1.0"

_EXPORTS = {
    "Evidence": "touchstone.evidence",
    "InputError": "touchstone.errors",
    "MissingExtraError": "touchstone.errors",
    "Run": "touchstone.run",
    "TouchstoneError": "touchstone.errors",
    "load_plan": "touchstone.plan",
    "run_audit": "touchstone.audit",
    "run_studies": "touchstone.study",
}
__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
