"""The exceptions a user may meet. The command line turns each into one line and exit code 2."""

from __future__ import annotations

__all__ = ["InputError", "MissingExtraError", "OutOfTimeError", "TouchstoneError"]


class TouchstoneError(Exception):
    """Base of every error that Touchstone raises on purpose; its message is one clear line."""


class InputError(TouchstoneError, ValueError):
    """An argument, a file or a plan is not what was expected; the message names it and what was expected."""


class MissingExtraError(TouchstoneError, ImportError):
    """A feature needs an optional dependency; the message names the ``pip install`` that mends it."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency: pip install 'touchstone-ml[{extra}]'")


class OutOfTimeError(TouchstoneError):
    """The time that a run was given is over."""
