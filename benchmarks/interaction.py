"""Server time of what a person does on pages 1 to 4 without a forward pass.

A move is the whole of what the server does for it: the page's script runs again, numbers are
computed, figures are written as Vega-Lite and packed for the browser. It is run without a browser
(streamlit's AppTest), whose own reading of the answer is in the figure too. `first` is a section
opened on a text that the process has not seen: the passes, the certificate and the rest.

Each move is made several times to another place each time, so nothing is answered from what was
kept of the very same place. Wall time and this process's processor time: a busy machine stretches
the first much more.
"""

import logging
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from streamlit.testing.v1 import AppTest

import attnprobe as ap
from benchmarks.turns import Noted

HELP = "server time of slider moves, switches and head changes on pages 1 to 4"
PAGES = Path(__file__).parents[1] / "pages"
SECONDS = 600.0

Act = Callable[[AppTest, int], AppTest]


@dataclass(frozen=True)
class Section:
    """One section of one page, and what is done there: name to an act, given how often before."""

    page: str
    part: str
    moves: Mapping[str, Act]

    @property
    def name(self) -> str:
        return self.part or "inspector"

    @property
    def title(self) -> str:
        return self.page.split("_", 1)[1].removesuffix(".py").replace("_", " ")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", default="bundled:bert")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--rounds", type=int, default=3)


def measure(args: Namespace) -> Mapping[str, object]:
    logging.getLogger("streamlit").setLevel(logging.ERROR)
    found = Noted()
    found.add({"model": args.model, "rounds": args.rounds})
    reader = ap.load(args.model, device="cpu").reader
    for tokens in args.tokens:
        length = tokens - len(reader.prefix) - len(reader.suffix)
        found.add(_at(args.model, " cat" * length, tokens, args.rounds))
    return found


def _at(model: str, text: str, tokens: int, rounds: int) -> dict[str, float | str]:
    """Medians in milliseconds of every move, and the slowest of them."""
    figures: dict[str, float | str] = {}
    moves: dict[str, tuple[float, float]] = {}
    for section in SECTIONS:
        app, first, _ = _timed(lambda section=section: _opened(section, model, text))
        figures[f"{section.name}_first_ms_T{tokens}"] = first
        for name, act in section.moves.items():
            moves[f"{section.name}_{name}"] = _moved(app, act, rounds)
    for name, (wall, processor) in moves.items():
        figures |= {f"{name}_ms_T{tokens}": wall, f"{name}_cpu_ms_T{tokens}": processor}
    slowest = max(moves, key=lambda name: moves[name][1])
    return figures | {
        f"slowest_move_T{tokens}": slowest,
        f"slowest_move_ms_T{tokens}": moves[slowest][0],
        f"slowest_move_cpu_ms_T{tokens}": moves[slowest][1],
        f"median_move_cpu_ms_T{tokens}": median(processor for _, processor in moves.values()),
    }


def _opened(section: Section, model: str, text: str) -> AppTest:
    app = AppTest.from_file(str(PAGES / section.page), default_timeout=SECONDS)
    place = {"model": model, "layer": "1", "head": "0"}
    for name, value in (place | ({"part": section.part} if section.part else {})).items():
        app.query_params[name] = value
    app.session_state["typed"] = text
    return _whole(app.run())


def _whole(app: AppTest) -> AppTest:
    """The page, if it has no error on it: a message is drawn faster than figures are."""
    wrong = [*app.exception, *app.error]
    if wrong:
        raise SystemExit(f"the page shows an error: {wrong[0].value}")
    return app


def _moved(app: AppTest, act: Act, rounds: int) -> tuple[float, float]:
    """Medians of wall and processor time, after one move that does not count."""
    times = [_timed(lambda i=i: _whole(act(app, i)))[1:] for i in range(rounds + 1)][1:]
    return median(wall for wall, _ in times), median(processor for _, processor in times)


def _timed(act: Callable[[], AppTest]) -> tuple[AppTest, float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    app = act()
    spent = time.perf_counter() - wall, time.process_time() - processor
    return app, 1000 * spent[0], 1000 * spent[1]


def _head(title: str) -> Act:
    return lambda app, i: app.number_input(key=f"head:{title}").set_value(i + 1).run()


def _words(key: str, words: Sequence[str]) -> Act:
    """Another of the words that stand side by side."""

    def act(app: AppTest, i: int) -> AppTest:
        buttons = next(each for each in app.get("button_group") if each.key == key)
        return buttons.set_value(words[(i + 1) % len(words)]).run()

    return act


def _slide(kind: str, key: str, values: Sequence[float]) -> Act:
    return lambda app, i: getattr(app, kind)(key=key).set_value(values[i % len(values)]).run()


def _box(label: str) -> Act:
    """Another line of a selectbox."""

    def act(app: AppTest, i: int) -> AppTest:
        box = next(each for each in app.selectbox if each.label == label)
        return box.select_index((i + 1) % len(box.options)).run()

    return act


def _switch(key: str) -> Act:
    return lambda app, i: app.toggle(key=key).set_value(i % 2 == 0).run()


_SCALING, _SCRATCH = "2_Logits_and_scaling.py", "3_From_scratch.py"
_JACOBIAN = "4_Saturation_and_Jacobian.py"
_NORMS = ("jacobian_frobenius", "jacobian_spectral", "jacobian_max", "jacobian_trace")


def _sections() -> tuple[Section, ...]:
    inspector = Section("1_Head_inspector.py", "", {})
    scaling, scratch, jacobian = (
        _head(Section(page, "", {}).title) for page in (_SCALING, _SCRATCH, _JACOBIAN)
    )
    factors = (2.0, 4.0, 0.5, 8.0)
    return (
        Section(
            inspector.page,
            "",
            {
                "head": _head(inspector.title),
                "kind": _words("view:widget", ("weights", "raw logits", "scaled logits")),
            },
        ),
        Section(
            _SCALING,
            "spread",
            {"head": scaling, "scope": _words("scaling_histogram", ("this head", "this layer"))},
        ),
        Section(
            _SCALING,
            "captured",
            {"slider": _slide("select_slider", "scaling:factor", factors), "head": scaling},
        ),
        Section(_SCALING, "pairs", {"head": scaling, "query": _box("Query")}),
        Section(_SCRATCH, "certificate", {"head": scratch}),
        Section(_SCRATCH, "faults", {"head": scratch}),
        Section(
            _SCRATCH,
            "steps",
            {"head": scratch, "step": _words("scratch_step", ("Q", "QKᵀ", "softmax", "W_O"))},
        ),
        Section(_SCRATCH, "facts", {"head": scratch}),
        Section(
            _JACOBIAN,
            "heads",
            {
                "threshold": _slide("slider", "jacobian:threshold", (0.5, 0.6, 0.7, 0.8)),
                "head": jacobian,
            },
        ),
        Section(_JACOBIAN, "bounds", {"norm": _words("jacobian_norm", _NORMS), "head": jacobian}),
        Section(_JACOBIAN, "row", {"query": _box("Query"), "head": jacobian}),
        Section(
            _JACOBIAN,
            "gradient",
            {"norm": _words("gradient_norm", _NORMS[:2][::-1]), "head": jacobian},
        ),
        Section(_JACOBIAN, "sinks", {"renormalised": _switch("sinks:renormalised")}),
    )


SECTIONS = _sections()
