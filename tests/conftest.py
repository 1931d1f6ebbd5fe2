"""Shared fixtures: no network, one thread, and tiny models that are saved and loaded once."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import tiny
import torch
from hypothesis import settings

import attnprobe as ap

torch.set_num_threads(1)
# How long an example takes says nothing on a busy machine; the same examples every time do.
settings.register_profile("attnprobe", deadline=None, derandomize=True)
settings.load_profile("attnprobe")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """The folder of a tiny model by kind (see `tiny.KINDS`), made once."""
    made = {}

    def folder(kind: str):
        if kind not in made:
            made[kind] = tiny.save(tmp_path_factory.mktemp(kind) / kind, kind)
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_folder):
    """A tiny loaded model by kind and dtype, loaded once."""
    made = {}

    def model(kind: str, dtype: str = "float32"):
        if (kind, dtype) not in made:
            made[kind, dtype] = ap.load(str(tiny_folder(kind)), device="cpu", dtype=dtype)
        return made[kind, dtype]

    return model


@pytest.fixture(scope="session")
def bundled_bert():
    return ap.load("bundled:bert", device="cpu")


@pytest.fixture(scope="module")
def address():
    """The app on a port of its own."""
    from tools.screenshots import server

    with server() as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    """A Chromium. A laptop without one skips and says why; under CI that is a failure."""
    from tools.screenshots import NoBrowser, chromium

    try:
        with chromium() as browser:
            yield browser
    except NoBrowser as missing:
        if "CI" in os.environ:
            pytest.fail(f"{missing}; under CI a browser has to be there")
        pytest.skip(f"drives a real Chromium, and {missing}")
