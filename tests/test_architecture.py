"""The direction of imports, read from the source without running it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up: a module may import from its own level's rooms and from any level below.
LEVELS = (
    ("errors", "metrics"),
    ("families", "foreign", "text", "hub", "sources", "data", "softmax_stats", "theory"),
    ("capture", "memory"),
    ("cutting",),
    ("loaded",),
    ("cut_models", "proof"),
    ("models",),
    ("trace", "readout", "scratch"),
    ("analyses",),
    ("figures",),
    ("export",),
    ("commands", "ui"),
    ("cli", "__main__", "__init__"),
)
LEVEL = {room: height for height, rooms in enumerate(LEVELS) for room in rooms}
PICTURES = {"figures", "export"}
NUMBERS = {room for room in LEVEL if room not in PICTURES | {"ui"}}


def modules() -> list[Path]:
    return sorted((ROOT / "attnprobe").rglob("*.py"))


def pages() -> list[Path]:
    return [ROOT / "app.py", *sorted((ROOT / "pages").glob("*.py"))]


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def rooms(path: Path) -> set[str]:
    """The rooms of attnprobe that a file imports from."""
    dotted = [name.split(".") for name in imports(path) if name.split(".")[0] == "attnprobe"]
    return {parts[1] if parts[1] in LEVEL else "__init__" for parts in dotted if len(parts) > 1}


def room(path: Path) -> str:
    return path.relative_to(ROOT / "attnprobe").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_its_own_level_and_below(path):
    own = room(path)
    assert own in LEVEL, f"{own} has no level: add it to LEVELS in {Path(__file__).name}"
    above = {other for other in rooms(path) if LEVEL[other] > LEVEL[own]}
    assert not above


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_streamlit_stays_in_ui_and_charts_in_figures_and_export(path):
    if room(path) != "ui":
        assert "streamlit" not in packages(path)
    if room(path) not in PICTURES:
        assert not packages(path) & {"altair", "vl_convert"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pictures_never_compute_with_torch(path):
    if room(path) in PICTURES:
        assert not packages(path) & {"torch", "transformers"}
    if room(path) == "theory":
        assert not packages(path) & {"transformers", "streamlit"}
        assert rooms(path) <= {"theory", "softmax_stats", "errors"}


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_a_page_draws_no_chart_and_loads_no_model_by_itself(path):
    assert not packages(path) & {"altair", "vl_convert", "torch", "transformers"}


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_a_page_is_one_short_file(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 120


def test_nothing_is_unpickled_and_no_remote_code_is_trusted():
    for path in [*modules(), *pages()]:
        assert not packages(path) & {"pickle", "dill", "joblib", "cloudpickle"}
        assert "trust_remote_code=True" not in path.read_text(encoding="utf-8")
