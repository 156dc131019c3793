"""Causal language models: load one, let it write, score, read and edit it, and the methods that check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.layout import Site as Site
    from touchstone.language.model import LanguageModel as LanguageModel

# Resolved on first use, so that importing the room loads neither torch nor transformers.
_EXPORTS = {"LanguageModel": "model", "Site": "layout"}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
