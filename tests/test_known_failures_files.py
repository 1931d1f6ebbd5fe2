"""Files that are written: whole or not at all, where they were asked for and nowhere else."""

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import attnprobe as ap
from attnprobe import cli, cut_models
from attnprobe.errors import AttnprobeError, ExportFailed
from attnprobe.export import files
from attnprobe.export.files import require_place, write

ROOT = Path(__file__).parents[1]
OLD, NEW = b"old" * 400_000, b"new!" * 500_000
TEXT = "the cat sat"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


def killed(work: Callable[[], None], after: float | None = None) -> int:
    """Runs `work` in a child that is killed after some seconds, or kills itself; its signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(3)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def dies(*_args, **_options) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_file_written_over_and_over_is_whole_whenever_the_writer_is_killed(tmp_path):
    target, moment = tmp_path / "figure.svg", random.Random(0)

    def work():
        while True:
            write(target, OLD)
            write(target, NEW)

    for _ in range(12):
        assert killed(work, moment.uniform(0.0, 0.06)) == signal.SIGKILL
        if target.exists():
            assert target.read_bytes() in (OLD, NEW)
    write(target, OLD)
    assert target.read_bytes() == OLD


@pytest.mark.parametrize("point", ["fsync", "replace"])
def test_a_writer_killed_at_its_last_steps_leaves_the_old_file(point, tmp_path, monkeypatch):
    target = tmp_path / "figure.svg"
    write(target, OLD)
    monkeypatch.setattr(files.os, point, dies)
    assert killed(lambda: write(target, NEW)) == signal.SIGKILL
    assert target.read_bytes() == OLD


@pytest.mark.parametrize("point", ["fsync", "replace"])
def test_a_command_killed_while_it_writes_leaves_no_file_of_that_name(
    point, tiny_folder, tmp_path, monkeypatch
):
    out = tmp_path / "heads.csv"
    monkeypatch.setattr(files.os, point, dies)
    model = ["--model", str(tiny_folder("gpt2")), "--text", TEXT, "--format", "csv"]
    assert killed(lambda: cli.main(["heads", *model, "--out", str(out)])) == signal.SIGKILL
    assert not out.exists()


POINTS = [
    (cut_models.shutil, "copyfile"),
    (cut_models, "save_model"),
    (Path, "write_text"),
    (Path, "chmod"),
    (Path, "rename"),
]


@pytest.mark.parametrize(("where", "point"), POINTS, ids=[point for _, point in POINTS])
def test_a_cut_model_killed_half_way_is_not_there(where, point, tiny_model, tmp_path, monkeypatch):
    cut = cut_models.cut(tiny_model("bert"), [(0, 1)])
    monkeypatch.setattr(where, point, dies)
    assert killed(lambda: cut_models.save(cut, tmp_path / "cut")) == signal.SIGKILL
    assert not (tmp_path / "cut").exists()


def test_every_cut_model_that_is_there_is_whole_whenever_its_writer_is_killed(tiny_model, tmp_path):
    cut, moment = cut_models.cut(tiny_model("gpt2"), [(0, 1), (2, 3)]), random.Random(1)

    def work(place: Path):
        for number in range(10**6):
            cut_models.save(cut, place / f"cut{number}")

    found = []
    for turn in range(5):
        place = tmp_path / str(turn)
        place.mkdir()
        killed(lambda place=place: work(place), moment.uniform(0.05, 0.4))
        found += sorted(place.glob("cut*"), key=lambda path: path.stat().st_mtime)[-1:]
    expected = ap.trace(cut, TEXT).output
    for folder in found:
        assert torch.equal(ap.trace(ap.load(str(folder), device="cpu"), TEXT).output, expected)


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/null")],
    ids=["pipe", "folder", "link to a device"],
)  # fmt: skip
def test_what_is_no_ordinary_file_is_never_replaced_by_one(make, tmp_path):
    target = tmp_path / "out"
    make(target)
    kind = target.lstat().st_mode
    with pytest.raises(ExportFailed, match="no ordinary file"):
        write(target, b"x")
    assert target.lstat().st_mode == kind
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


IMPOSSIBLE = ["file/x.csv", "a\0b", "x" * 300, "file/deeper/x.csv"]


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=lambda name: ascii(name)[:20])
@pytest.mark.parametrize("command", ["heads", "prune"])
def test_an_out_that_cannot_be_written_is_one_sentence_before_anything_is_computed(
    command, name, tmp_path, capsys, monkeypatch
):
    (tmp_path / "file").touch()
    monkeypatch.setattr(ap.models, "_read", lambda *_: pytest.fail("a model was loaded"))
    text = {"heads": ["--text", TEXT], "prune": ["--cut", "2"]}[command]
    assert cli.main([command, *text, "--out", f"{tmp_path}/{name}"]) == 2
    said = capsys.readouterr().err
    assert "could not be written" in said
    assert said.count("\n") == 1


def test_a_cut_model_cannot_be_saved_where_there_is_no_place(tiny_model, tmp_path):
    cut = cut_models.cut(tiny_model("bert"), [(0, 1)])
    (tmp_path / "file").touch()
    for name in ("file/x", "nowhere/x", "a\0b", "x" * 300, "file"):
        with pytest.raises(AttnprobeError):
            cut_models.save(cut, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_place_is_made_and_nothing_is_left_in_it(tmp_path):
    require_place(tmp_path / "a" / "b" / "x.csv")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_the_screen_writes_to_no_path():
    """Exports leave through the browser; only the command line writes, and only to --out."""
    writes = re.compile(
        r"write_(bytes|text)\(|\.mkdir\(|open\([^)]*[\"'][wax]|shutil\.|os\.(replace|rename|remove)|"
        r"files import|cut_models\.save\(|unlink\("
    )
    screen = [ROOT / "app.py", *(ROOT / "pages").rglob("*.py")]
    screen += (ROOT / "attnprobe" / "ui").rglob("*.py")
    assert len(screen) > 20
    assert [path.name for path in screen if writes.search(path.read_text("utf-8"))] == []


def test_opening_a_model_by_a_typed_path_writes_nothing_into_its_folder(tiny_folder, tmp_path):
    folder = tiny_folder("bert")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    ap.trace(ap.load(str(folder), device="cpu"), TEXT)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
