"""What experiments on several texts begin with: which texts, and which read-out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import streamlit as st

from attnprobe import data, readout
from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import BadInput
from attnprobe.export import Provenance
from attnprobe.loaded import LoadedModel
from attnprobe.readout import ReadOut
from attnprobe.text import Tokens
from attnprobe.ui.cached import computed
from attnprobe.ui.show import provenance
from attnprobe.ui.view import View

TOPICS, PROSE, TYPED, FILE = "Bundled topics", "Bundled prose", "Typed", "File"
THIS = "This text"
SOURCES = (TOPICS, PROSE, TYPED, FILE)
USUAL, FEW = 40, 8
PARAGRAPH = 128
"""Positions from which a model reads the bundled prose, a paragraph at a time."""


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
    make: Callable[[LoadedModel], ReadOut]

    def on(self, other: LoadedModel) -> "Experiment":
        """The same texts and kind of read-out for another model."""
        return replace(self, readout=self.make(other))

    @property
    def parameters(self) -> dict[str, object]:
        return {
            "readout": self.readout.statement,
            "sentences": [list(pair) for pair in self.texts.sentences.items()],
        }

    def provenance(self, **extra: object) -> Provenance:
        """For figures about a set of texts instead of the sidebar's text."""
        facts = {
            "texts": f"{self.texts.name}, {len(self.texts)} in all",
            "read-out": self.readout.statement,
        }
        made = provenance(self.page, **facts, **extra)
        return replace(made, text_digest=self.texts.digest, n_tokens=None)


def experiment(view: View, *, one_text: bool = False) -> Experiment:
    """The widgets for texts and read-out, and what they say; raises `BadInput` in one sentence.

    `one_text` is for experiments that mean something on a single text: they may take the sidebar's,
    begin with few texts, and read a language model after the text.
    """
    left, right = st.columns(2)
    with left:
        texts = _source(view, one_text)
        texts = _limited(_fitting(texts, view.loaded), FEW if one_text else USUAL)
    with right:
        read, make, texts = _readout(view, texts, last_first=one_text)
    tokens = Tokens(texts.digest, (), (), (), (), (), 0)
    return Experiment(view, replace(view, tokens=tokens), texts, read, make)


def _source(view: View, one_text: bool) -> TextSet:
    loaded = view.loaded
    usual = PROSE if loaded.causal and loaded.max_tokens >= PARAGRAPH else TOPICS
    sources = (THIS, *SOURCES) if one_text else SOURCES
    source = st.segmented_control(
        "Texts", sources, default=THIS if one_text else usual, required=True,
        key=f"experiment_source:{len(sources)}", persist_state="session",
    )  # fmt: skip
    if source == THIS:
        sentences = data.bundled("topics").sentences
        return TextSet("the sidebar's text", (LabelledText(view.tokens.text),), sentences)
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


def _fitting(texts: TextSet, loaded: LoadedModel) -> TextSet:
    """The texts that the model can read whole; says how many are left out."""
    counts = [loaded.reader.count(text.text) for text in texts.texts]
    least = 2 + len(loaded.reader.prefix) + len(loaded.reader.suffix)
    fitting = tuple(
        text
        for text, count in zip(texts.texts, counts, strict=True)
        if least <= count <= loaded.max_tokens
    )
    if not fitting:
        raise BadInput(
            f"none of the {len(texts)} texts fits: the model reads {least} to "
            f"{loaded.max_tokens:,} tokens; choose shorter or longer texts"
        )
    if len(fitting) < len(texts):
        st.caption(
            f":material/info: {len(texts) - len(fitting)} of {len(texts)} texts have fewer than "
            f"{least} or more than {loaded.max_tokens:,} tokens and are left out."
        )
    return replace(texts, texts=fitting)


def _limited(texts: TextSet, usual: int) -> TextSet:
    if len(texts) < 3:
        return texts
    count = st.slider(
        "How many texts (evenly over the classes)",
        2, len(texts), min(usual, len(texts)), key=f"experiment_count:{texts.digest}",
        persist_state="session",
    )  # fmt: skip
    return texts.first(count)


Make = Callable[[LoadedModel], ReadOut]


def _readout(view: View, texts: TextSet, *, last_first: bool) -> tuple[ReadOut, Make, TextSet]:
    """The read-out, how it is made, and the texts with the label sentences that it uses."""
    names = [*_OWN.get(view.loaded.head_kind, {}), SENTENCES]
    usual = names.index(AFTER) if last_first and AFTER in names else 0
    name = st.selectbox(
        "Read-out", names, usual, key=f"experiment_readout:{view.loaded.head_kind}:{usual}",
        persist_state="session",
    )  # fmt: skip
    if name == SENTENCES:
        return _label_sentences(view, texts)
    make = _OWN[view.loaded.head_kind][name]
    return make(view.loaded), make, texts


SENTENCES, AFTER = "label sentences", "next token, after the text"
_OWN: Mapping[str, Mapping[str, Callable[[LoadedModel], ReadOut]]] = {
    "causal LM": {
        "next token, every position": readout.next_token,
        AFTER: lambda loaded: readout.next_token(loaded, where="last"),
    },
    "masked LM": {
        "masked token, 15 % at once": readout.masked_token,
        "masked token, one at a time": lambda loaded: readout.masked_token(loaded, each=True),
    },
    "sequence classification": {"class": readout.classes},
}


def of_this_text(view: View) -> ReadOut:
    """A read-out of the sidebar's text alone: the model's own, or the bundled label sentences."""
    names = [*_OWN.get(view.loaded.head_kind, {}), SENTENCES]
    name = st.selectbox(
        "Read-out", names, key=f"readout:{view.loaded.head_kind}", persist_state="session",
        width=270,
    )  # fmt: skip
    if name == SENTENCES:
        return _embedded(view, data.bundled("topics").sentences, readout.TEMPERATURE)
    if view.loaded.head_kind != "causal LM":
        return _OWN[view.loaded.head_kind][name](view.loaded)
    begin = not view.loaded.reader.prefix and view.tokens.special[0]
    return readout.next_token(view.loaded, where="last" if name == AFTER else "all", begin=begin)


def _label_sentences(view: View, texts: TextSet) -> tuple[ReadOut, Make, TextSet]:
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
    sentences = readout.sentences_of([line for line in value.splitlines() if line.strip()])

    def make(loaded: LoadedModel) -> ReadOut:
        return readout.label_sentences(loaded, sentences, temperature=temperature)

    read = _embedded(view, sentences, temperature)
    return read, make, replace(texts, sentences=sentences)


def _embedded(view: View, sentences: Mapping[str, str], temperature: float) -> ReadOut:
    """Label sentences are embedded once for each model, whatever the text."""
    return computed(
        replace(view, tokens=Tokens("", (), (), (), (), (), 0)),
        "label sentences",
        {"sentences": list(sentences.items()), "temperature": temperature},
        lambda tick: readout.label_sentences(view.loaded, sentences, temperature=temperature),
    )
