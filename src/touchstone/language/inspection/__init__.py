"""Inspect AI: each language check as a task, a local model with its edits as a model provider.

``inspect eval touchstone/over_refusal --model touchstone/default`` finds both by the entry point ``touchstone`` of
the group ``inspect_ai``, which imports this package. Needs ``pip install 'touchstone-ml[inspect]'``.
"""

from __future__ import annotations

from touchstone.language.inspection.provider import TouchstoneAPI, touchstone_api
from touchstone.language.inspection.tasks import TASKS

__all__ = ["TASKS", "TouchstoneAPI", "touchstone_api"]
