"""`python -m attnprobe prune`: the frames of the analyses, files, and one sentence on bad input."""

import json

import pandas as pd
import pytest

import attnprobe as ap
from attnprobe import cli, data, readout
from attnprobe.analyses.pruning import effects, importance, ranking

LINES = ["text,label", "the cat sat,0", "a dog ran,1", "it was tired,2", "zebra apple mango,3"]
LINES += ["the mat,0", "then came a dog,1", "because it was,2", "an apple,3"]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("\n".join(LINES))
    return path


def test_the_command_gives_the_frames_of_the_analyses(tiny_folder, tmp_path, texts):
    folder, out = tiny_folder("bert-classifier"), tmp_path / "out"
    options = ["--model", str(folder), "--device", "cpu", "--data", str(texts), "--random", "3"]
    options += ["--curve", "--keep-one", "--rescore", "--cut", "2", "--tokens", "8"]
    assert cli.main(["prune", *options, "--format", "csv", "--out", str(out)]) == 0
    frames = {path.stem: pd.read_csv(path) for path in out.glob("*.csv")}
    assert set(frames) == {"heads", "kept", "curve", "falls", "saved", "latency"}
    loaded = ap.load(str(folder), device="cpu")
    read, (scoring, _) = readout.default(loaded), data.read_file(texts).split()
    heads = ranking.table(
        importance.importance(read, scoring), effects.one_head_off(read, scoring).frame()
    )
    for column in ("importance", "loss_change", "loss_low", "metric_high"):
        assert frames["heads"][column].to_numpy() == pytest.approx(heads[column].to_numpy())
    assert set(frames["curve"]["order"]) == {
        "importance", "reverse", "effect", "random", "re-scored",
    }  # fmt: skip
    cut = ap.load(str(out / "cut_model"), device="cpu")
    least = heads.nsmallest(2, "importance")
    assert cut.removed == set(zip(least["layer"], least["head"], strict=True))


def test_frames_can_be_printed_as_json(tiny_folder, capsys, texts):
    options = ["--model", str(tiny_folder("bert-classifier")), "--data", str(texts)]
    assert cli.main(["prune", *options, "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "nowhere.txt"], "cannot be read"),
        (["--cut", "7"], "--cut is 7 and the model has 6 heads"),
        (["--limit", "0"], "at least 1"),
        (["--readout", "next-token"], "needs a causal LM"),
        (["--readout", "label-sentences", "--sentence", "sport"], "no '='"),
    ],
)
def test_bad_options_give_one_sentence_and_status_two(tiny_folder, capsys, texts, options, said):
    given = ["--model", str(tiny_folder("bert-classifier")), "--data", str(texts), *options]
    assert cli.main(["prune", *given]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
