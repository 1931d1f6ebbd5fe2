"""The named failures that a person can act on.

Each message is one sentence that says what came, what was needed and what to do. The screen and the
command line print these as they are; any other exception is a defect of attnprobe.
"""

from collections.abc import Mapping
from typing import Any


class AttnprobeError(Exception):
    """Base of every failure that is explained to the person who caused it."""


class UnsupportedModel(AttnprobeError):
    """The checkpoint cannot be shown rightly: unknown attention, unsafe files, missing weights."""


class TooLarge(AttnprobeError):
    """The work would not fit into memory or would take unreasonably long."""


class DeviceFull(TooLarge):
    """An accelerator has no room left; the same work may fit on the CPU."""


class BadText(AttnprobeError):
    """The text yields nothing to look at: empty, blank, or not encodable."""


class TextTooLong(BadText):
    """The text has more tokens than the model has positions."""


class BadInput(AttnprobeError):
    """An argument, a file or a table does not have the form that is needed."""


class CertificateFailed(AttnprobeError):
    """The running model and its re-implementation disagree beyond the derived tolerance."""


class CaptureFailed(AttnprobeError):
    """A forward pass did not go through the captured attention once per layer."""


class Stopped(AttnprobeError):
    """The person stopped a run; what was finished is kept, in `kept` where there is no cache."""

    def __init__(self, message: str, kept: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kept = kept or {}


class ExportFailed(AttnprobeError):
    """A figure could not be turned into a file, or a file could not be written."""
