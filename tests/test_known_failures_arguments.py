"""Impossible numbers on the command line: one sentence, before a model is read."""

import pytest

from attnprobe import cli, models

BAD = [
    (["prune", "--tokens", "0"], "0 came and 1 to"),
    (["prune", "--tokens", "-4"], "-4 came and 1 to"),
    (["prune", "--random", "-1"], "-1 came and 0 to"),
    (["prune", "--seed", "99999999999999999999999"], "came and 0 to"),
    (["perturb", "--seed", "-1"], "-1 came and 0 to"),
    (["perturb", "--seed", "x\x00y"], "is no whole number"),
    (["perturb", "--seed", "9" * 5_000], "is no whole number"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=lambda value: ascii(value)[:40])
def test_an_impossible_number_is_refused_before_a_model_is_read(
    arguments, said, monkeypatch, capsys
):
    monkeypatch.setattr(models, "_read", lambda *_: pytest.fail("a model was read"))
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
