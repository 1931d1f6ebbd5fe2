"""From a click to the last thing drawn, in a real Chromium, and how much the server sends for it.

In the page, whatever changes what is seen leaves its time: elements and text that come, go or
change, canvases that are painted. An act begins with the pointer or the key that starts it and ends
with the last such change before the page has been still for a while. Bytes are those of responses
and of web socket frames.

The atlas, the first visit and the slider use the bundled BERT; token maps use a small GPT-2 of
seeded random weights that reads 1,024 tokens, one a byte. The act is taken `--rounds` times, with
another head or value each time, and the median is reported.
"""

import importlib
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import quote

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.pruning import bytes_tokenizer

HELP = "from click to drawn in a real Chromium, and bytes sent"
NO_BROWSER = 2
STILL = 1200
"""Milliseconds without a change after which an act is over."""
LIMIT = 300_000
MIB = 2**20
WATCH = """
window.drawn = {begin: 0, last: 0};
const mark = () => { window.drawn.last = performance.now(); };
for (const kind of ["pointerdown", "keydown"])
  addEventListener(kind, () => { window.drawn.begin = performance.now(); }, true);
for (const name of ["drawImage", "putImageData", "fillText", "fillRect", "stroke", "fill"]) {
  const plain = CanvasRenderingContext2D.prototype[name];
  CanvasRenderingContext2D.prototype[name] = function (...given) {
    mark();
    return plain.apply(this, given);
  };
}
const seen = {subtree: true, childList: true, characterData: true,
              attributes: true, attributeFilter: ["d", "href", "xlink:href", "src", "transform"]};
const status = '[data-testid="stStatusWidget"], [data-testid="stHeader"]';
const inside = (node) => (node.nodeType === 1 ? node : node.parentElement);
const watch = (root) => new MutationObserver((changes) => {
  if (changes.some((change) => !inside(change.target)?.closest(status))) mark();
}).observe(root, seen);
watch(document);
const attach = Element.prototype.attachShadow;
Element.prototype.attachShadow = function (options) {
  const root = attach.call(this, options);
  watch(root);
  return root;
};
"""
STEADY = f"""() => {{
  const signs = '[data-test-script-state="running"], [data-testid="stSkeleton"]';
  const busy = document.querySelector(signs);
  return !busy && performance.now() - Math.max(drawn.last, drawn.begin) > {STILL};
}}"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256, 512, 1024])
    parser.add_argument("--rounds", type=int, default=5)


def measure(args: Namespace) -> dict[str, object]:
    screenshots = _browser_tools()
    found: dict[str, object] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        screenshots.server() as address,
        screenshots.chromium() as browser,
    ):
        model = tiny_folder(Path(folder) / "tiny-gpt2", max(args.tokens))
        for name in ("first", "second"):
            with _opened(browser) as tab:
                found |= flat(f"{name}_visit", [tab.visit(_link(address))])
        with _opened(browser) as tab:
            found |= _overview(tab, address, args.rounds)
            found |= _slider(tab, address, args.rounds)
            for tokens in args.tokens:
                found |= _head_inspector(tab, address, model, tokens, args.rounds)
    largest = max(value for key, value in found.items() if "_mib" in key)
    return found | {"largest_view_mib": largest, "rounds": args.rounds}


def _browser_tools():
    """The server and the Chromium; playwright is no requirement of the app or of benchmarks."""
    try:
        return importlib.import_module("tools.screenshots")
    except ModuleNotFoundError as missing:
        print(f"{missing.name} is not installed, so no screen was timed", file=sys.stderr)
        raise SystemExit(NO_BROWSER) from None


def tiny_folder(folder: Path, positions: int) -> Path:
    """A checkpoint of four layers of four heads with seeded random weights; a token is a byte."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=4, n_head=4, n_embd=64, n_positions=positions, vocab_size=256,
        initializer_range=0.2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    bytes_tokenizer().save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Act:
    """Milliseconds from the act to the last change on the screen, and bytes received meanwhile."""

    milliseconds: float
    received: int


class Tab:
    """A tab that knows when it was last drawn and what it has received."""

    def __init__(self, page) -> None:
        self.page = page
        self.received = 0
        page.add_init_script(WATCH)
        page.on("websocket", lambda socket: socket.on("framereceived", self._frame))
        page.on("requestfinished", self._response)

    def _frame(self, payload: str | bytes) -> None:
        self.received += len(payload)

    def _response(self, request) -> None:
        self.received += request.sizes()["responseBodySize"]

    def visit(self, url: str) -> Act:
        """Opens a page; counted from the navigation."""
        self.received = 0
        self.page.goto(url)
        self._wait()
        return Act(self.page.evaluate("drawn.last"), self.received)

    def act(self, do: Callable[[], object]) -> Act:
        """Does something with the pointer or a key."""
        self.received = 0
        before = self.page.evaluate("performance.now()")
        do()
        self.page.wait_for_function("before => drawn.last > before", arg=before, timeout=LIMIT)
        self._wait()
        return Act(self.page.evaluate("drawn.last - drawn.begin"), self.received)

    def _wait(self) -> None:
        self.page.get_by_text("Certificate").first.wait_for(timeout=LIMIT)
        self.page.wait_for_function(STEADY, timeout=LIMIT)


@contextmanager
def _opened(browser) -> Iterator[Tab]:
    """A tab of a new browser profile, with nothing in its cache."""
    context = browser.new_context(viewport={"width": 1280, "height": 1400})
    context.set_default_timeout(LIMIT)
    yield Tab(context.new_page())
    context.close()


def _link(address: str, page: str = "", model: str = "bundled:bert", **more: str) -> str:
    rest = "".join(f"&{key}={value}" for key, value in more.items())
    return f"{address}/{page}?model={quote(model, safe='')}&layer=2&head=1{rest}"


def flat(name: str, acts: Sequence[Act]) -> dict[str, float]:
    return {
        f"{name}_ms": median(act.milliseconds for act in acts),
        f"{name}_mib": max(act.received for act in acts) / MIB,
    }


def _overview(tab: Tab, address: str, rounds: int) -> dict[str, float]:
    """Another colour of the atlas, and another head chosen in the sidebar."""
    tab.visit(_link(address))
    page, colours = tab.page, ("Peak", "Effective keys", "Entropy")

    def colour(number: int) -> Act:
        page.get_by_role("combobox", name="Colour by").click()
        page.wait_for_timeout(STILL)
        option = page.get_by_role("option").nth(number % len(colours))
        return tab.act(option.click)

    colour(1)
    atlas = [colour(2 + number) for number in range(rounds)]
    heads = [_step(tab) for _ in range(rounds)]
    return flat("atlas", atlas) | flat("overview_head_change", heads)


def _step(tab: Tab) -> Act:
    """The next head, by the stepper in the sidebar."""
    stepper = tab.page.get_by_test_id("stNumberInput").filter(has_text="Head")
    up = stepper.get_by_test_id("stNumberInputStepUp")
    return tab.act(
        up.click if up.is_enabled() else stepper.get_by_test_id("stNumberInputStepDown").click
    )


def _slider(tab: Tab, address: str, rounds: int) -> dict[str, float]:
    """The scale of captured logits, one step further each time."""
    tab.visit(_link(address, "Logits_and_scaling", part="captured"))
    thumb = tab.page.get_by_role("slider").first
    thumb.focus()
    acts = [tab.act(lambda: tab.page.keyboard.press("ArrowRight")) for _ in range(rounds + 1)]
    return flat("scale_slider", acts[1:])


def _head_inspector(
    tab: Tab, address: str, model: Path, tokens: int, rounds: int
) -> dict[str, float]:
    """A text of so many tokens analysed, then its other heads, cold and warm."""
    tab.visit(_link(address, "Head_inspector", str(model)))
    page = tab.page
    page.get_by_label("Text", exact=True).fill(words(tokens))
    analysed = tab.act(page.get_by_role("button", name="Analyse").click)
    changes = [_step(tab) for _ in range(max(2, rounds))]
    return (
        flat(f"analyse_T{tokens}", [analysed])
        | flat(f"token_map_T{tokens}", changes)
        | {f"token_map_first_ms_T{tokens}": changes[0].milliseconds}
    )


def words(tokens: int) -> str:
    """A text of so many bytes."""
    return ("the cat sat on the mat and saw a bird fly over it " * 40)[:tokens]
