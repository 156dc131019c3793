"""Tables of predictions, scores and decisions: audit them, and route a query between models. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.decisions.predictions import Predictions as Predictions

_EXPORTS = {"Predictions": "predictions"}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
