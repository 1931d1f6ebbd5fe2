"""What experiments on several texts begin with: which texts, and which read-out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import streamlit as st

from attnprobe import data, readout
from attnprobe.data import TextSet
from attnprobe.errors import BadInput
from attnprobe.export import Provenance
from attnprobe.loaded import LoadedModel
from attnprobe.readout import ReadOut
from attnprobe.text import Tokens
from attnprobe.ui.cached import computed
from attnprobe.ui.show import provenance
from attnprobe.ui.view import View

TOPICS, PROSE, TYPED, FILE = "Bundled topics", "Bundled prose", "Typed", "File"
SOURCES = (TOPICS, PROSE, TYPED, FILE)
USUAL = 40


@dataclass(frozen=True, eq=False)
class Experiment:
    """Texts and a read-out as the widgets say.

    `page` is the page's view, whose certificate stands. `view` has the set of texts in place of the
    sidebar's text, so that results are kept by what they depend on; `parameters` name the rest of
    it for a cache.
    """

    page: View
    view: View
    texts: TextSet
    readout: ReadOut

    @property
    def parameters(self) -> dict[str, object]:
        return {
            "readout": self.readout.statement,
            "sentences": [list(pair) for pair in self.texts.sentences.items()],
        }

    def provenance(self, **extra: object) -> Provenance:
        """For figures about a set of texts instead of the sidebar's text."""
        facts = {"texts": f"{self.texts.name}, {len(self.texts)} in all", **extra}
        made = provenance(self.page, read_out=self.readout.statement, **facts)
        return replace(made, text_digest=self.texts.digest, n_tokens=None)


def experiment(view: View) -> Experiment:
    """The widgets for texts and read-out, and what they say; raises `BadInput` in one sentence."""
    left, right = st.columns(2)
    with left:
        texts = _limited(_texts(view.loaded))
    with right:
        read, texts = _readout(view, texts)
    tokens = Tokens(texts.digest, (), (), (), (), (), 0)
    return Experiment(view, replace(view, tokens=tokens), texts, read)


def _texts(loaded: LoadedModel) -> TextSet:
    usual = PROSE if loaded.causal else TOPICS
    source = st.segmented_control(
        "Texts", SOURCES, default=usual, required=True, key="experiment_source",
        persist_state="session",
    )  # fmt: skip
    return _READ[source]()


def _typed() -> TextSet:
    value = st.text_area(
        "One text a line", key="experiment_typed", persist_state="session", height=160
    )
    return data.pasted(value)


def _file() -> TextSet:
    file = st.file_uploader(
        "A .txt file with a text a line, or .csv or .jsonl with `text` and perhaps `label`",
        type=["txt", "csv", "jsonl"],
        key="experiment_file",
    )
    if file is None:
        raise BadInput("no file is chosen yet; choose one, or take a bundled set of texts")
    return data.from_bytes(file.name, file.getvalue())


_READ: Mapping[str, Callable[[], TextSet]] = {
    TOPICS: lambda: data.bundled("topics"),
    PROSE: lambda: data.bundled("prose"),
    TYPED: _typed,
    FILE: _file,
}


def _limited(texts: TextSet) -> TextSet:
    if len(texts) < 3:
        return texts
    count = st.slider(
        "How many texts (evenly over the classes)",
        2, len(texts), min(USUAL, len(texts)), key=f"experiment_count:{texts.digest}",
        persist_state="session",
    )  # fmt: skip
    return texts.first(count)


def _readout(view: View, texts: TextSet) -> tuple[ReadOut, TextSet]:
    """The read-out, and the texts with the label sentences that it uses."""
    names = [*_OWN.get(view.loaded.head_kind, {}), SENTENCES]
    name = st.selectbox(
        "Read-out", names, key=f"experiment_readout:{view.loaded.head_kind}",
        persist_state="session",
    )  # fmt: skip
    if name == SENTENCES:
        return _label_sentences(view, texts)
    return _OWN[view.loaded.head_kind][name](view.loaded), texts


SENTENCES = "label sentences"
_OWN: Mapping[str, Mapping[str, Callable[[LoadedModel], ReadOut]]] = {
    "causal LM": {
        "next token, every position": readout.next_token,
        "next token, after the text": lambda loaded: readout.next_token(loaded, where="last"),
    },
    "masked LM": {
        "masked token, 15 % at once": readout.masked_token,
        "masked token, one at a time": lambda loaded: readout.masked_token(loaded, each=True),
    },
    "sequence classification": {"class": readout.classes},
}


def _label_sentences(view: View, texts: TextSet) -> tuple[ReadOut, TextSet]:
    value = st.text_area(
        "Label sentences, one a line: label = sentence",
        "\n".join(f"{label} = {sentence}" for label, sentence in texts.sentences.items()),
        key=f"experiment_sentences:{list(texts.sentences)}",
        persist_state="session",
        height=160,
    )
    temperature = st.number_input(
        "Temperature of the softmax over cosine similarities",
        0.001, 10.0, readout.TEMPERATURE, 0.01, format="%.3f",
        key="experiment_temperature", persist_state="session",
    )  # fmt: skip
    sentences = parsed(value)
    read = computed(
        replace(view, tokens=Tokens("", (), (), (), (), (), 0)),
        "label sentences",
        {"sentences": list(sentences.items()), "temperature": temperature},
        lambda tick: readout.label_sentences(view.loaded, sentences, temperature=temperature),
    )
    return read, replace(texts, sentences=sentences)


def parsed(value: str) -> dict[str, str]:
    """Lines `label = sentence` as a table; raises `BadInput` for a line without `=`."""
    pairs = [line.partition("=") for line in value.splitlines() if line.strip()]
    wrong = next((label for label, equals, _ in pairs if not equals), None)
    if wrong is not None:
        raise BadInput(f"the line {wrong[:40]!r} has no '='; write label = sentence")
    return {label.strip(): sentence.strip() for label, _, sentence in pairs}
