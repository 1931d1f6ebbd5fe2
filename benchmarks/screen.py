"""From a click to the last thing drawn, in a real Chromium, and how much the server sends for it.

In the page, whatever changes what is seen leaves its time: elements and text that come, go or
change, canvases that are painted. What nobody sees does not count: the words that a canvas keeps
for a screen reader, tools that wait for the pointer. An act begins with the pointer or the key that
starts it and ends with the last such change before the page has been still for a while. The
server's share is the time from the page's first word to it to its last word back. Processor time of
server and browser, which a busy machine changes little, goes up to the end of that stillness. Bytes
are those of responses and of web socket frames, without the program of the page itself, which a
browser keeps.

The atlas, the visits and the slider use the bundled BERT; token maps use a small GPT-2 of seeded
random weights that reads as many tokens as are asked for, one a byte. The act is taken `--rounds`
times, with another head or value each time, and the median is reported.
"""

import importlib
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from urllib.parse import quote

import psutil
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.pruning import bytes_tokenizer
from benchmarks.turns import MIB, Noted

HELP = "from click to drawn in a real Chromium, and bytes sent"
NO_BROWSER = 2
STILL = 1200
"""Milliseconds without a change after which an act is over."""
LIMIT = 180_000
VIEW = ("/media/", "/_stcore/", "/component")
"""What addresses of a view hold; the other responses are the program, which a browser keeps."""
PAGES = Path(__file__).parents[1] / "pages"
INSPECTOR = "Head_inspector"
WATCH = """
window.drawn = {begin: 0, last: 0, sent: 0, heard: 0};
const mark = () => { window.drawn.last = performance.now(); };
for (const kind of ["pointerdown", "keydown"])
  addEventListener(kind, () => {
    window.drawn.begin = performance.now();
    window.drawn.sent = 0;
  }, true);
window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", () => { window.drawn.heard = performance.now(); });
  }
  send(...given) {
    window.drawn.sent ||= performance.now();
    super.send(...given);
  }
};
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
const inside = (node) => (node.nodeType === 1 ? node : (node.host ?? node.parentElement));
const drawing = (node) => node?.closest(status) === null && node.closest("canvas") === null
  && node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
const watch = (root) => new MutationObserver((changes) => {
  if (changes.some((change) => drawing(inside(change.target)))) mark();
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
    parser.add_argument("--rounds", type=int, default=5, choices=range(1, 10), metavar="1…9")


def measure(args: Namespace) -> dict[str, object]:
    screenshots = browser_tools("tools.screenshots")
    found = Noted({"rounds": args.rounds})
    with (
        tempfile.TemporaryDirectory() as folder,
        screenshots.server() as address,
        screenshots.chromium() as browser,
    ):
        model = tiny_folder(Path(folder) / "tiny-gpt2", max(args.tokens))
        for name in ("first", "second"):
            with _opened(browser) as tab:
                visit = tab.visit(_link(address))
                found.add(flat(f"{name}_visit", [visit]))
        found.add({"program_mib": visit.program / MIB})
        with _opened(browser) as tab:
            _overview(tab, address, args.rounds, found)
            _slider(tab, address, args.rounds, found)
            for tokens in args.tokens:
                _head_inspector(
                    tab, _link(address, INSPECTOR, str(model)), tokens, args.rounds, found
                )
        with _opened(browser) as tab:
            _every_page(tab, address, found)
    views = {
        key: value for key, value in found.items() if key.endswith("_mib") and key != "program_mib"
    }
    return found | {"largest_view_mib": max(views.values())}


def browser_tools(module: str) -> ModuleType:
    """What needs playwright, which is no requirement of the app or of the other benchmarks."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        print(f"{missing.name} is not installed, so no browser was started", file=sys.stderr)
        raise SystemExit(NO_BROWSER) from None


def tiny_folder(folder: Path, positions: int) -> Path:
    """A checkpoint of four layers of twelve heads of seeded random weights; a token is a byte."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=4, n_head=12, n_embd=192, n_positions=positions, vocab_size=256,
        initializer_range=0.2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    bytes_tokenizer().save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Act:
    """Milliseconds from an act to the last change on the screen, those of them that the server
    took, milliseconds of processor time of the server and of the browser, and bytes received
    meanwhile: for the view, and of the page's own program."""

    milliseconds: float
    server: float
    received: int
    server_processor: float = 0.0
    browser_processor: float = 0.0
    program: int = 0


class Tab:
    """A tab that knows when it was last drawn and what it has received."""

    def __init__(self, page) -> None:
        self.page = page
        self.received = self.program = 0
        page.add_init_script(WATCH)
        page.on("websocket", lambda socket: socket.on("framereceived", self._frame))
        page.on("requestfinished", self._response)

    def _frame(self, payload: str | bytes) -> None:
        self.received += len(payload)

    def _response(self, request) -> None:
        size = request.sizes()["responseBodySize"]
        if any(part in request.url for part in VIEW):
            self.received += size
        else:
            self.program += size

    def visit(self, url: str) -> Act:
        """Opens a page; counted from the navigation."""
        begin = self._begin()
        self.page.goto(url)
        return self._drawn(begin)

    def act(self, do: Callable[[], object]) -> Act:
        """Does something with the pointer or a key."""
        begin = self._begin()
        before = self.page.evaluate("performance.now()")
        do()
        self.page.wait_for_function("before => drawn.last > before", arg=before)
        return self._drawn(begin)

    def _begin(self) -> dict[str, float]:
        self.received = self.program = 0
        return processor_seconds()

    def _drawn(self, begin: Mapping[str, float]) -> Act:
        self.page.get_by_text("Certificate").first.wait_for()
        self.page.wait_for_function(STEADY)
        drawn = self.page.evaluate("drawn")
        asked = drawn["sent"] or drawn["begin"]
        used = {who: 1000 * (now - begin[who]) for who, now in processor_seconds().items()}
        return Act(
            drawn["last"] - drawn["begin"],
            max(0.0, drawn["heard"] - asked),
            self.received,
            max(0.0, used["server"]),
            max(0.0, used["browser"]),
            self.program,
        )


def processor_seconds() -> dict[str, float]:
    """Used so far by the server and by the browser, which are this process's children."""
    found = {"server": 0.0, "browser": 0.0}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            name = "server" if "streamlit" in process.cmdline() else "browser"
            found[name] += times.user + times.system
    return found


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
    """Medians of the times, and the most that one of them received."""
    return {
        f"{name}_ms": median(act.milliseconds for act in acts),
        f"{name}_server_ms": median(act.server for act in acts),
        f"{name}_server_cpu_ms": median(act.server_processor for act in acts),
        f"{name}_browser_cpu_ms": median(act.browser_processor for act in acts),
        f"{name}_mib": max(act.received for act in acts) / MIB,
    }


def _overview(tab: Tab, address: str, rounds: int, found: Noted) -> None:
    """Another colour of the atlas, another head chosen in the sidebar, a head of the atlas."""
    tab.visit(_link(address))
    page, colours = tab.page, ("Peak", "Effective keys", "Entropy")

    def colour(number: int) -> Act:
        page.get_by_role("combobox", name="Colour by").click()
        page.wait_for_timeout(STILL)
        option = page.get_by_role("option").nth(number % len(colours))
        return tab.act(option.click)

    colour(1)
    found.add(flat("atlas", [colour(2 + number) for number in range(rounds)]))
    found.add(flat("overview_head_change", _heads(tab, rounds)))


def _heads(tab: Tab, rounds: int) -> list[Act]:
    """The next head in the sidebar, which nobody has looked at before; the first is not counted."""
    field = tab.page.get_by_label("Head", exact=True)
    return [tab.act(lambda: field.press("ArrowUp")) for _ in range(rounds + 1)][1:]


def _slider(tab: Tab, address: str, rounds: int, found: Noted) -> None:
    """The scale of captured logits, one step further each time."""
    tab.visit(_link(address, "Logits_and_scaling", part="captured"))
    thumb = tab.page.get_by_role("slider").first
    thumb.focus()
    acts = [tab.act(lambda: tab.page.keyboard.press("ArrowRight")) for _ in range(rounds + 1)]
    found.add(flat("scale_slider", acts[1:]))


def _head_inspector(tab: Tab, link: str, tokens: int, rounds: int, found: Noted) -> None:
    """A text of so many tokens analysed, then its other heads, cold and warm."""
    tab.visit(link)
    found.add(flat(f"analyse_T{tokens}", [_analysed(tab, words(tokens))]))
    found.add(flat(f"token_map_T{tokens}", _heads(tab, rounds)))


def _analysed(tab: Tab, text: str) -> Act:
    tab.page.get_by_label("Text", exact=True).fill(text)
    return tab.act(tab.page.get_by_role("button", name="Analyse").click)


def _every_page(tab: Tab, address: str, found: Noted) -> None:
    """Each page, reached by its link in the sidebar, with a text as long as the BERT reads."""
    tab.visit(_link(address))
    found.add(flat("page_Overview_T512", [_analysed(tab, LONGEST)]))
    for name in (path.stem.split("_", 1)[1] for path in sorted(PAGES.glob("[0-9]*.py"))):
        to = tab.page.get_by_role("link", name=name.replace("_", " "), exact=True)
        found.add(flat(f"page_{name}_T512", [tab.act(to.click)]))


def words(tokens: int) -> str:
    """A text of so many bytes."""
    return ("the cat sat on the mat and saw a bird fly over it " * 40)[:tokens]


LONGEST = "the cat sat on the mat and saw a bird fly over it " * 39 + "now we go"
"""512 tokens of a tokenizer that has every word, with one before and one after them."""
