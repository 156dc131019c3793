"""Causal language models: load one, let it write, score, read and edit it, and the methods that check it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from touchstone.language.layout import Site as Site
    from touchstone.language.model import LanguageModel as LanguageModel

# Resolved on first use, so that importing the room loads neither torch nor transformers.
_EXPORTS = {"LanguageModel": "touchstone.language.model", "Site": "touchstone.language.layout"}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_EXPORTS[name]), name)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "transformers", "safetensors", "tokenizers", "gguf"):
            from touchstone.errors import MissingExtraError

            raise MissingExtraError("touchstone.language", "language") from None
        raise
