"""``python -m solo.load``: what each command says, and its exit status."""

from __future__ import annotations

import argparse
import json
import pathlib

import pytest
import torch
from load_files import packed, write

import solo
from solo._load import cli

NESTED = {"model": {"a.w": torch.ones(8), "b.w": torch.ones(8, dtype=torch.float16)}, "epoch": 3}


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    return str(write(tmp_path, "x.pt", packed(NESTED)))


@pytest.fixture
def foreign(tmp_path: pathlib.Path) -> str:
    data = packed({"args": argparse.Namespace(lr=1.0), "w": torch.ones(1)})
    return str(write(tmp_path, "foreign.pt", data))


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["plan", "X", "--device-map", "{bad"], 2, "no JSON"),
        (["plan", "X", "--max-memory", "{}"], 2, "device_map='auto'"),
        (["plan", "X", "--memory", "5XB"], 2, "'5XB' is not a size"),
        (["plan", "X", "--dtype", "bf16"], 2, "did you mean bfloat16"),
        (["convert", "X", "out.pt", "--dtype", "flaot16"], 2, "float16"),
        (["verify", "X", "--threads", "65"], 2, "not 0 to 64"),
        (["plan", "X", "--memory", "40"], 1, "needs 48 B, 40 B are allowed"),
        (["inspect", "nowhere.pt"], 1, "no such file"),
    ],
)
def test_usage_that_is_wrong_exits_with_2_and_a_checkpoint_that_is_with_1(
    path: str, capsys: pytest.CaptureFixture[str], words: list[str], status: int, text: str
) -> None:
    assert cli.main([path if word == "X" else word for word in words]) == status
    assert text in capsys.readouterr().err


def test_plan_counts_what_only_and_dtype_and_mmap_leave(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", path, "--only", "model.a", "--dtype", "float64"]) == 0
    assert "cpu: 64 B" in capsys.readouterr().out
    assert cli.main(["plan", path, "--mmap", "--memory", "1"]) == 0
    assert "disk: 48 B" in capsys.readouterr().out


def test_plan_keeps_together_what_no_split_names(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    room = json.dumps({"meta": 40, "cpu": 1000})
    words = ["plan", path, "--device-map", "auto", "--max-memory", room]
    assert cli.main([*words, "--no-split", "model"]) == 0
    assert "meta" not in capsys.readouterr().out


def test_what_load_would_refuse_is_told_by_inspect_and_plan(
    foreign: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert solo.inspect(foreign).refused == ["argparse.Namespace"]
    for command in ("inspect", "plan"):
        assert cli.main([command, foreign]) == 0
        assert "argparse.Namespace (command-line arguments)" in capsys.readouterr().out
    assert cli.main(["inspect", foreign, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["refused"] == ["argparse.Namespace"]


def test_a_nested_object_is_converted_flat_if_asked(
    path: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "x.safetensors")
    assert cli.main(["convert", path, target]) == 2
    assert "--flat" in capsys.readouterr().err
    assert cli.main(["convert", path, target, "--flat"]) == 0
    assert sorted(solo.load(target)) == ["model.a.w", "model.b.w"]


def test_names_that_a_terminal_would_obey_are_written_out(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path, "x.pt", packed({"a\x1b[2J\nb": torch.ones(1)})))
    assert cli.main(["inspect", path]) == 0
    assert cli.main(["plan", path, "--device-map", '{"c": "cpu"}']) == 1
    out, err = capsys.readouterr()
    assert "a\\x1b[2J\\x0ab  [1] float32" in out and "\x1b" not in out + err
