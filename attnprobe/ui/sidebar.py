"""The sidebar that all pages share: contents, model, text, head, certificate."""

from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.errors import StreamlitPageNotFoundError

from attnprobe.errors import AttnprobeError
from attnprobe.models import LoadedModel
from attnprobe.scratch.certificate import require
from attnprobe.text import Tokens
from attnprobe.trace import require_room
from attnprobe.ui import cached, cost, download, picker, state
from attnprobe.ui.errors import NotHere, plain
from attnprobe.ui.examples import EXAMPLES
from attnprobe.ui.picker import Asked
from attnprobe.ui.view import View

HOME = Path(__file__).parents[2]
DEFAULT_MODEL = "bundled:bert"
TYPED = "typed"


def view(page: str, *, needs_model: bool) -> View:
    """Draws the sidebar of a page and says what it says; raises the `AttnprobeError` of what fails.

    The page's name is in the widgets' keys, because a widget begins anew on every page.
    """
    now = state.chosen(DEFAULT_MODEL)
    with st.sidebar:
        contents()
        asked = picker.model(page, now)
        text = _text(page)
        below = st.container()
    try:
        return _loaded_view(page, now, asked, text, below)
    except AttnprobeError as error:
        state.write()
        if needs_model:
            raise
        if not isinstance(error, NotHere):
            below.caption(plain(str(error)))
        return View(None, None, None, None, None, mode())


def _loaded_view(page: str, now: dict[str, Any], asked: Asked, text: str, below) -> View:
    with below:
        loaded = _load(asked)
    picker.remember(asked.name)
    with below:
        tokens = _tokens(loaded, text)
        _head(page, now, loaded)
    state.write()
    require_room(loaded, len(tokens))
    half = View(loaded, tokens, now[state.LAYER], now[state.HEAD], None, mode())
    with st.spinner("Proving the numbers …", show_time=True):
        proof = cached.certificate(loaded, tokens, half.digest)
    with below:
        _certificate(proof)
    require(proof)
    return View(loaded, tokens, half.layer, half.head, proof, half.mode)


def _load(asked: Asked) -> LoadedModel:
    if not download.ready(asked.name, asked.revision):
        raise NotHere(
            f"{asked.name} is not on this machine; download it in the sidebar or choose another "
            "model"
        )
    with st.spinner(f"Loading {plain(asked.name)} …", show_time=True):
        return cached.model(asked.name, asked.device, asked.precision, asked.revision)


def mode() -> str:
    """ "light" or "dark", as the person's browser has it."""
    return "dark" if st.context.theme.type == "dark" else "light"


_ICONS = {
    "Head inspector": "grid_on",
    "Logits and scaling": "straighten",
    "From scratch": "verified",
    "Saturation and Jacobian": "gradient",
    "Pruning": "content_cut",
    "Perturbation": "shuffle",
    "Theory lab": "science",
}


def contents() -> None:
    """The pages as links, in the order of their file names."""
    files = sorted((HOME / "pages").glob("[0-9]*.py"))
    links = [("app.py", "Overview", "home")]
    links += [(f"pages/{path.name}", title_of(path), _ICONS.get(title_of(path))) for path in files]
    with st.container(gap="xxsmall"):
        for file, title, icon in links:
            # A page that is run by itself, without app.py, has no others to link to.
            with suppress(StreamlitPageNotFoundError):
                st.page_link(file, label=title, icon=f":material/{icon or 'insights'}:")


def title_of(path: Path) -> str:
    """1_Head_inspector.py as "Head inspector"."""
    return path.stem.split("_", 1)[1].replace("_", " ")


def _widget(page: str, now: MutableMapping[str, Any], key: str, draw) -> Any:
    """A widget that shows `now[key]` and, when the person changes it, changes that first."""
    place = f"{key}:{page}"

    def take() -> None:
        if st.session_state[place] is not None:
            now[key] = st.session_state[place]

    if st.session_state.get(place) != now[key]:
        st.session_state[place] = now[key]
    draw(place, take)
    return now[key]


def _text(page: str) -> str:
    place = f"text:{page}"
    st.session_state.setdefault(TYPED, EXAMPLES[0].text)
    st.session_state.setdefault(place, st.session_state[TYPED])
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(":small[Text]", width="stretch")
        with st.popover("Examples", type="tertiary", icon=":material/lightbulb:"):
            for example in EXAMPLES:
                st.button(
                    example.title,
                    key=f"example:{example.title}",
                    type="tertiary",
                    on_click=st.session_state.__setitem__,
                    args=(place, example.text),
                )
    with st.form("text form", border=False, enter_to_submit=False):
        typed = st.text_area("Text", key=place, height=120, label_visibility="collapsed")
        st.form_submit_button(
            "Analyse", type="primary", width="stretch", icon=":material/play_arrow:"
        )
    st.session_state[TYPED] = typed
    return typed


def _tokens(loaded: LoadedModel, text: str) -> Tokens:
    begin = loaded.reader.begin_id is not None and st.toggle(
        "Begin with the begin-of-text token",
        key="begin",
        persist_state="session",
        help="GPT-2 was trained on texts that follow one; its tokenizer does not add it by itself.",
    )
    total = cached.count(loaded, text) + begin
    if total <= loaded.max_tokens:
        tokens = cached.read(loaded, text, None, begin)
        st.caption(f"{total:,} of at most {loaded.max_tokens:,} tokens{cost.stated(loaded, total)}")
        return tokens
    room = loaded.reader.room - begin
    st.caption(
        f"The text is {total:,} tokens long and the model reads at most {loaded.max_tokens:,}: "
        "a window of it is shown."
    )
    left, right = st.columns(2)
    start = left.number_input(
        "From token", 0, total - 1, step=room // 2 or 1, key="window_start", persist_state="session"
    )
    length = right.number_input(
        "Length", 1, room, value=room, key=f"window_length:{room}", persist_state="session"
    )
    tokens = cached.read(loaded, text, (start, length), begin)
    st.caption(f"{len(tokens):,} tokens are shown{cost.stated(loaded, len(tokens))}")
    return tokens


def _head(page: str, now: MutableMapping[str, Any], loaded: LoadedModel) -> None:
    counts = {state.LAYER: loaded.n_layers, state.HEAD: loaded.n_heads}
    absent = [f"{key} {now[key]}" for key, count in counts.items() if now[key] >= count]
    for column, (key, count) in zip(st.columns(2), counts.items(), strict=True):
        now[key] = state.clamped(now[key], count)
        with column:
            _widget(page, now, key, _stepper(key, count))
    if absent:
        st.caption(
            f":material/info: There is no {' and no '.join(absent)} in this model of "
            f"{loaded.n_layers} layers of {loaded.n_heads} heads; the nearest is shown."
        )


def _stepper(key: str, count: int):
    def draw(place: str, take) -> None:
        st.number_input(
            key.capitalize(), 0, count - 1, step=1, key=place, on_change=take,
            help=f"0 to {count - 1}",
        )  # fmt: skip

    return draw


def _certificate(proof: pd.DataFrame) -> None:
    """The certificate as a badge that opens into its table."""
    worst = float((proof["max_abs_error"] / proof["tolerance"]).max())
    green = bool(proof["ok"].all())
    label = "Certificate holds" if green else "Certificate failed"
    with st.popover(
        f":{'green' if green else 'red'}[{label}]",
        icon=":material/verified:" if green else ":material/gpp_bad:",
        width="stretch",
    ):
        st.markdown(
            "The running model against attnprobe's own re-implementation, on this text. "
            f"The largest error is {worst:.2g} of its tolerance."
        )
        st.dataframe(proof, hide_index=True, width=520, height=420)
