"""What a page looks at."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pandas as pd

from attnprobe.models import LoadedModel
from attnprobe.text import Tokens

Mode = Literal["light", "dark"]


@dataclass(frozen=True, eq=False)
class View:
    """One model, one text, one head, as the sidebar says, and the look of the page.

    `certificate` is the frame of `certify`, all of it ok. All but `mode` are None on a page that
    opened without a model.
    """

    loaded: LoadedModel | None
    tokens: Tokens | None
    layer: int | None
    head: int | None
    certificate: pd.DataFrame | None
    mode: Mode

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the model and the text: what results are kept under."""
        if self.loaded is None:
            return "no model"
        tokens = self.tokens
        parts = (self.loaded.key, tokens.text, tokens.ids, tokens.window)
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()
