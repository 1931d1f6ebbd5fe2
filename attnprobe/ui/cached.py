"""The only bridge between pages and results: each is computed once and kept under one digest.

A digest is SHA-256 over everything that matters, so no array and no text is ever compared by a
sample or by a hash of its parts. The stores are bounded and shared by all sessions; what is in them
is read, never edited.
"""

import gc
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import pandas as pd
import torch

from attnprobe import sources
from attnprobe.models import LoadedModel, load
from attnprobe.scratch.certificate import certify
from attnprobe.text import Tokens
from attnprobe.trace import Trace
from attnprobe.trace import head_table as table_of_heads
from attnprobe.trace import trace as trace_of
from attnprobe.ui import cost
from attnprobe.ui.lock import TORCH, tick
from attnprobe.ui.view import View

T = TypeVar("T")
Tick = Callable[[], None]


class Store:
    """The last results by digest; the one used longest ago leaves first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str) -> Any:
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
            return self._kept.get(digest)

    def put(self, digest: str, result: Any) -> None:
        with self._lock:
            self._kept[digest] = result
            self._kept.move_to_end(digest)
            self._drop(self._most)

    def make_room(self) -> None:
        """Lets the oldest go before another one comes, where two at a time would be too many."""
        with self._lock:
            self._drop(self._most - 1)

    def _drop(self, most: int) -> None:
        while len(self._kept) > most:
            self._kept.popitem(last=False)


MODELS = Store(2)
TRACES = Store(6)
RESULTS = Store(96)


def digest_of(*parts: Any) -> str:
    """SHA-256 over `parts` as canonical JSON; raises TypeError for what JSON does not know."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def kept(store: Store, digest: str, make: Callable[[Tick], T]) -> T:
    """The result under `digest`, made once under the lock if it is not there."""
    result = store.get(digest)
    if result is not None:
        return result
    with TORCH.taken():
        tick()
        result = store.get(digest)
        if result is None:
            result = make(tick)
            store.put(digest, result)
    return result


def computed(view: View, name: str, parameters: dict[str, Any], function: Callable[[Tick], T]) -> T:
    """`function(tick)`, once for each model, text, `name` and `parameters` (JSON-like values)."""
    return kept(RESULTS, digest_of(name, parameters, view.digest), function)


def trace(view: View) -> Trace:
    """What every head computes on the view's text."""

    def make(tick: Tick) -> Trace:
        with cost.timed(view.loaded, len(view.tokens)):
            return trace_of(view.loaded, view.tokens, tick=tick)

    return kept(TRACES, digest_of("trace", view.digest), make)


def head_table(view: View) -> pd.DataFrame:
    """One row per head of the view's model on its text; see `attnprobe.head_table`."""
    traced = trace(view)
    return computed(view, "head_table", {}, lambda tick: table_of_heads(traced))


def certificate(loaded: LoadedModel, tokens: Tokens, digest: str) -> pd.DataFrame:
    """The running model against its re-implementation on this text, stage by stage."""
    return kept(
        RESULTS,
        digest_of("certificate", digest),
        lambda tick: certify(loaded, tokens, tick=tick),
    )


def read(loaded: LoadedModel, text: str, window: tuple[int, int] | None, begin: bool) -> Tokens:
    """The text as tokens, read once."""
    typed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    digest = digest_of("read", loaded.key, typed, window, begin)
    return kept(RESULTS, digest, lambda tick: loaded.read(text, window=window, begin=begin))


def count(loaded: LoadedModel, text: str) -> int:
    """How many tokens the text has, special tokens included, whatever the limit."""
    typed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return kept(
        RESULTS, digest_of("count", loaded.key, typed), lambda tick: loaded.reader.count(text)
    )


def model(name: str, device: str, dtype: str, revision: str | None) -> LoadedModel:
    """A loaded model, shared by all sessions; at most two are in memory.

    The one used longest ago is let go before a third is read, but not for a name that leads
    nowhere.
    """
    digest = digest_of(name, device, dtype, revision, _stamp(name))
    found = MODELS.get(digest)
    if found is not None:
        return found
    with TORCH.taken():
        tick()
        found = MODELS.get(digest)
        if found is None:
            sources.find(name, revision)
            MODELS.make_room()
            _free()
            found = load(name, device=device, dtype=dtype, revision=revision)
            MODELS.put(digest, found)
    return found


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _stamp(name: str) -> list[list[Any]]:
    """When and how large the files of a folder are: a folder that was written again is new."""
    folder = sources.local_folder(name)
    if folder is None:
        return []
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [[path.name, path.stat().st_mtime_ns, path.stat().st_size] for path in files]
