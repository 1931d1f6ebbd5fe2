"""Writing a file whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attnprobe.errors import ExportFailed


def write(path: Path | str, data: bytes) -> Path:
    """Put `data` at `path`: a reader finds the old file or the whole new one, never a part.

    Raises ExportFailed when the folder is missing or cannot be written, and for a path that is no
    ordinary file: a device or a pipe would be replaced by one.
    """
    target = Path(path)
    with _explained(target):
        if target.exists() and not target.is_file():
            raise ExportFailed(f"{target} is no ordinary file; choose the name of a new file")
        _replace(target, data)
    return target


def require_place(path: Path | str) -> None:
    """Makes the folder that `path` is to lie in; raises ExportFailed if nothing can be put there.

    Asked before a long computation, so that its result is not lost for want of a place.
    """
    target = Path(path)
    with _explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent), suppress(FileNotFoundError):
            target.lstat()  # raises for a name that no file can have


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise ExportFailed(
            f"{target} could not be written ({reason}); choose a folder that you may write to"
        ) from error


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
