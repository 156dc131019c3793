"""Prompts: what a user types, as text or as a list of messages, and files of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from touchstone.errors import InputError
from touchstone.files import read_text

__all__ = ["Prompt", "as_messages", "read_prompts"]

Prompt = str | Sequence[Mapping[str, str]]
"""A user's message, or a list of ``{"role": …, "content": …}`` messages."""


def as_messages(prompt: Prompt, system: str | None = None) -> list[dict[str, str]]:
    """``prompt`` as a list of messages, ``system`` first."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    for message in messages:
        if not {"role", "content"} <= message.keys():
            raise InputError(f"prompt: a message needs 'role' and 'content', got {sorted(message)}")
    return [{"role": "system", "content": system}, *messages] if system is not None else messages


def read_prompts(path: str | Path, what: str = "prompts") -> list[str]:
    """One prompt a line; blank lines and lines that start with ``#`` are passed over.

    Raises
    ------
    InputError
        If the file is missing, not UTF-8, or holds no prompt.
    """
    lines = [line.strip() for line in read_text(path, what).splitlines()]
    prompts = [line for line in lines if line and not line.startswith("#")]
    if not prompts:
        raise InputError(f"{what} {path}: holds no prompt; expected one a line")
    return prompts
