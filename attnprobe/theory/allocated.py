"""What a call really allocates: every allocation and release of PyTorch's CPU allocator."""

import json
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes that `call` had allocated at one time, beyond what was there before it.

    What it returns counts, blocks inside a fused kernel count; inputs do not. Read from the memory
    events of `torch.profiler`, so it is the same in every run and on every machine of one kind.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = call()
    changes = _changes(recorded)
    del kept
    return max(accumulate(changes, initial=0))


def _changes(recorded: profile) -> list[int]:
    """Bytes that came (positive) and went (negative), in order of time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    memory = [event for event in events if event.get("name") == "[memory]"]
    return [event["args"]["Bytes"] for event in sorted(memory, key=lambda event: event["ts"])]
