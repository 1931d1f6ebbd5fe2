"""Writing a file whole or not at all."""

import os
import tempfile
from pathlib import Path

from attnprobe.errors import ExportFailed


def write(path: Path | str, data: bytes) -> Path:
    """Put `data` at `path`: a reader finds the old file or the whole new one, never a part.

    Raises ExportFailed when the folder is missing or cannot be written.
    """
    target = Path(path)
    try:
        _replace(target, data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ExportFailed(
            f"{target} could not be written ({reason}); choose a folder that you may write to"
        ) from error
    return target


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
