"""Files that are whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from touchstone.errors import InputError

__all__ = [
    "cache_folder",
    "locked",
    "read_jsonl",
    "read_text",
    "write_bytes",
    "write_jsonl",
    "write_text",
    "written_folder",
]


def cache_folder() -> Path:
    """Where downloads and trained organisms are kept: ``$TOUCHSTONE_CACHE``, else the user's cache folder."""
    chosen = os.environ.get("TOUCHSTONE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache") / "touchstone"


@contextmanager
def written_folder(folder: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes ``folder`` if the block ends without an exception.

    Parameters
    ----------
    folder : final place; its parents are made.
    replace : if false, an existing ``folder`` is an error; if true, it is exchanged for the new one, and
        where two processes do so at once, the last one to end stands.

    Raises
    ------
    InputError
        If the folder exists and ``replace`` is false, or the place cannot be written.
    """
    target = Path(folder)
    if target.exists() and not replace:
        raise InputError(f"{target}: already exists; nothing was written")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None
    try:
        yield new
        new.chmod(0o755)
        if replace and target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            os.replace(target, old / "old")
            os.replace(new, target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(new, target)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


@contextmanager
def locked(folder: str | Path) -> Iterator[Path]:
    """Make ``folder`` and hold it for this process while the block runs; a killed process lets go of it.

    Raises
    ------
    InputError
        If another process holds it, or it cannot be written.
    """
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        stream = (target / ".lock").open("a")
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None
    with stream:
        try:
            _lock(stream.fileno())
        except OSError:
            raise InputError(f"{target}: another run is writing there; choose another --out") from None
        yield target


def _lock(handle: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 file as a whole, by way of a temporary file in the same folder."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file as a whole, by way of a temporary file in the same folder.

    Raises
    ------
    InputError
        If the place cannot be written; what was there stays.
    """
    target = Path(path)
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None


def read_text(path: str | Path, what: str = "file") -> str:
    """Read a UTF-8 file; raises :class:`InputError` naming ``what`` if it is missing or not UTF-8."""
    path = Path(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{what} {path}: cannot be read ({error.strerror or error})") from None


def write_jsonl(path: str | Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write one JSON object a line; NaN and infinities are refused, for JSON has none."""
    write_text(path, "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records))


def read_jsonl(path: str | Path, what: str = "file", *, texts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Objects of a file with one a line; blank lines are passed over.

    Parameters
    ----------
    what : names the file in messages.
    texts : keys that every object must have, with a text that is not empty.

    Raises
    ------
    InputError
        With the line that is not such an object; or if there is none.
    """
    records = []
    for number, line in enumerate(read_text(path, what).splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{what} {path}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"{place}: not JSON ({error})") from None
        if not isinstance(record, dict):
            raise InputError(f"{place}: expected a JSON object")
        missing = [key for key in texts if not isinstance(record.get(key), str) or not record[key].strip()]
        if missing:
            raise InputError(f"{place}: expected an object with the text {missing[0]!r}")
        records.append(record)
    if not records:
        raise InputError(f"{what} {path}: holds no record; expected one JSON object a line")
    return records
