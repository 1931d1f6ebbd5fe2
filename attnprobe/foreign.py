"""What other libraries raise on files that are damaged or do not fit, as one sentence."""

from contextlib import AbstractContextManager
from types import TracebackType

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from yaml import YAMLError

from attnprobe.errors import UnsupportedModel

_FAILURES = (
    OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ArithmeticError,
    StopIteration, SafetensorError, StrictDataclassError, YAMLError,
)  # fmt: skip


class refusing(AbstractContextManager):
    """What a library raises in the block on a person's files becomes an `UnsupportedModel`.

    Its sentence is `what`, the first line of the library's own, and `remedy`. The tokenizers
    library raises plain `Exception`; more special exceptions that are not known here are defects
    and pass, as does an `AttnprobeError`.
    """

    def __init__(self, what: str, remedy: str = "the files may be damaged or not belong together"):
        self.what = what
        self.remedy = remedy

    def __exit__(
        self, kind: type | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if isinstance(error, _FAILURES) or kind is Exception:
            raise UnsupportedModel(f"{self.what}: {_first_line(error)}; {self.remedy}") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300].rstrip(".;")
