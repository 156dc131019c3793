"""Names of a package that are imported on first use (PEP 562), so that importing the package loads nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["exports"]

# Distributions of the extra ``language``; a module of ours that cannot be found is a bug, and shows as one.
_LANGUAGE = ("torch", "transformers", "safetensors", "tokenizers", "gguf")


def exports(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's ``__getattr__``.

    Parameters
    ----------
    package : its ``__name__``.
    places : for each public name the module of the package that holds it.

    Raises
    ------
    MissingExtraError
        When a name is asked for whose module needs torch or its companions, and they are not installed.
    """

    def resolve(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{places[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name not in _LANGUAGE:
                raise
            from touchstone.errors import MissingExtraError

            raise MissingExtraError(package, "language") from None

    return resolve
