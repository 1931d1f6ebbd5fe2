"""The command line gives the engine's numbers, or one sentence and status 2."""

import io
import json
import subprocess
import sys

import pandas as pd
import pytest

import attnprobe as ap
from attnprobe.analyses import scaling
from attnprobe.cli import COMMANDS, main
from attnprobe.theory import EXPERIMENTS

TEXT = "the cat sat on the mat"


@pytest.fixture
def model(tiny_folder):
    return str(tiny_folder("gpt2"))


def test_heads_prints_the_table_of_the_python_call(model, capsys):
    assert main(["heads", "--model", model, "--text", TEXT, "--format", "csv"]) == 0
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    expected = ap.head_table(ap.trace(ap.load(model), TEXT))
    pd.testing.assert_frame_equal(printed, expected, check_dtype=False, rtol=1e-6)


def test_json_and_table_hold_the_same_heads(model, capsys):
    main(["heads", "--model", model, "--text", TEXT, "--format", "json"])
    rows = json.loads(capsys.readouterr().out)
    assert [(row["layer"], row["head"]) for row in rows] == [
        (layer, head) for layer in range(3) for head in range(5)
    ]
    main(["heads", "--model", model, "--text", TEXT])
    assert len(capsys.readouterr().out.splitlines()) == 16


def test_certify_is_green(model, capsys):
    assert main(["certify", "--model", model, "--text", TEXT, "--format", "csv"]) == 0
    frame = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert frame.ok.all()
    assert {"layer", "stage", "max_abs_error", "tolerance"} <= set(frame)


def test_a_file_reads_like_its_text_and_a_result_is_written_whole(model, tmp_path, capsys):
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    out = tmp_path / "new" / "heads.csv"
    call = ["heads", "--model", model, "--format", "csv"]
    assert main([*call, "--file", str(tmp_path / "text.txt"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    main([*call, "--text", TEXT])
    assert out.read_text() == capsys.readouterr().out
    assert [path.name for path in out.parent.iterdir()] == ["heads.csv"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--text", ""], "empty"),
        (["--text", "a" * 65], "65 tokens"),
        (["--file", "no/such/file"], "cannot be read"),
        (["--text", "a", "--device", "tpu"], "choose"),
        (["--text", "a", "--window", "5", "2"], "starts at token 5"),
        (["--text", "a", "--out", "/proc/nowhere/x.csv"], "could not be written"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_status_two(model, arguments, part, capsys):
    assert main(["heads", "--model", model, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert part in printed.err
    assert len(printed.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "command"),
        (["nothing"], "invalid choice"),
        (["heads"], "--text --file"),
        (["heads", "--text", "a", "--format", "xml"], "choose from"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_status_two(arguments, part, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.out) == (2, "")
    assert part in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_a_file_that_is_not_utf8_is_one_sentence(model, tmp_path, capsys):
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert main(["heads", "--model", model, "--file", str(tmp_path / "latin")]) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_models_lists_what_is_bundled(capsys):
    assert main(["models", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in rows] == ["bundled:bert", "bundled:gpt2"]
    assert all(row["licence"] == "Apache-2.0" and row["parameters"] > 1e6 for row in rows)


def test_every_command_says_what_it_does():
    for command in COMMANDS:
        assert command.HELP
        assert command.__doc__
        assert callable(command.add_arguments)
        assert callable(command.run)


def test_the_module_runs_as_a_program(model):
    call = [sys.executable, "-m", "attnprobe", "heads", "--model", model, "--text", TEXT]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    failed = subprocess.run(
        [*call[:-1], ""], capture_output=True, text=True, timeout=120, check=False
    )
    assert failed.returncode == 2
    assert len(failed.stderr.strip().splitlines()) == 1


def frames_of(arguments, out) -> dict[str, pd.DataFrame]:
    assert main([*arguments, "--format", "csv", "--out", str(out)]) == 0
    return {path.stem: pd.read_csv(path) for path in out.glob("*.csv")}


def test_scaling_writes_the_frames_of_the_page(model, tmp_path):
    call = ["scaling", "--model", model, "--text", TEXT, "--layer", "1", "--head", "2"]
    frames = frames_of([*call, "--in-model"], tmp_path / "scaling")
    expected = {"spread", "causes", "asymmetry", "histogram", "what_if", "in_model"}
    assert set(frames) == expected
    expected = scaling.what_if(ap.trace(ap.load(model), TEXT), 1, 2)
    pd.testing.assert_frame_equal(frames["what_if"], expected, check_dtype=False, rtol=1e-6)


def test_scratch_with_a_fault_is_red_and_the_head_s_facts_hold(model, tmp_path):
    call = ["scratch", "--model", model, "--text", TEXT, "--layer", "0", "--head", "0"]
    frames = frames_of([*call, "--fault", "no_scale"], tmp_path / "scratch")
    assert not frames["certificate"].ok.all()
    assert frames["properties"].holds.all()


def test_jacobian_writes_rows_gradients_and_sinks(model, tmp_path):
    frames = frames_of(["jacobian", "--model", model, "--text", TEXT], tmp_path / "jacobian")
    several = {"heads", "rows", "gradient_heads", "gradient_rows", "sinks", "without_special"}
    assert set(frames) == several
    assert len(frames["gradient_heads"]) == 15


def test_a_theory_experiment_is_its_frame(capsys):
    assert main(["theory", "softmax", "--format", "csv"]) == 0
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    pd.testing.assert_frame_equal(printed, EXPERIMENTS["softmax"].run(), check_dtype=False)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["scaling", "--head", "1"], "without --layer"),
        (["scaling", "--layer", "9"], "has 3 layers"),
        (["scratch", "--layer", "0", "--head", "-1"], "has 5 heads"),
    ],
)
def test_heads_that_are_not_there_are_one_sentence(model, arguments, part, capsys):
    assert main([*arguments, "--model", model, "--text", TEXT]) == 2
    assert part in capsys.readouterr().err


def test_an_unknown_part_of_an_experiment_names_those_there_are(capsys):
    assert main(["theory", "variance", "--part", "nothing"]) == 2
    assert "quarter-root" in capsys.readouterr().err
