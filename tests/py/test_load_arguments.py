"""Arguments that are wrong are told as such, before anything is opened or changed."""

from __future__ import annotations

import concurrent.futures
import io
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from load_files import packed, write

import solo
from solo import CheckpointError

DATA = {"w": torch.ones(2, 3), "n": torch.arange(3)}


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return write(tmp_path, "x.pt", packed(DATA))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "x"}, "mode is 'x'"),
        ({"direct": "x"}, "direct is 'x'"),
        ({"share": "x"}, "share is 'x'"),
        ({"verify": "al"}, "verify is 'al'"),
        ({"dtype": "bfloat16"}, "dtype is 'bfloat16'"),
        ({"limits": {"x": 1}}, "limits has 'x'"),
        ({"limits": {"depth_max": -1}}, "'depth_max': -1"),
        ({"limits": {"depth_max": 10**6}}, "0 to 200"),
        ({"only": [3]}, "no name"),
        ({"safe_globals": ["x"]}, "safe_globals has 'x'"),
        ({"memory_limit": "x"}, "'x' is not a size"),
        ({"memory_limit": -1}, "-1 is not a size"),
        ({"memory_limit": float("nan")}, "nan is not a size"),
        ({"memory_limit": "1.2.3"}, "'1.2.3' is not a size"),
        ({"threads": -1}, "threads is -1, not 0 to 64"),
        ({"threads": 1000}, "threads is 1000"),
        ({"threads": "2"}, "threads is '2'"),
        ({"map_location": lambda storage, tag: 5}, "gave int, not a storage"),
        ({"map_location": ["cpu"]}, "unknown device"),
        ({"device_map": {"": "gpu1"}}, "unknown device 'gpu1'"),
        ({"device_map": {"": None}}, "unknown device 'None'"),
        ({"device_map": "auto", "max_memory": {"cpu": "x"}}, "'x' is not a size"),
        ({"max_memory": {"cpu": 1}}, "are of device_map='auto'"),
        ({"no_split": "layers"}, "are of device_map='auto'"),
        ({"only": 3}, "no name"),
        ({"wait_stable": -5}, "wait_stable is -5"),
        ({"wait_stable": float("nan")}, "wait_stable is nan"),
    ],
)
def test_an_argument_that_is_wrong_is_named(
    path: pathlib.Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        solo.load(path, **options)
    assert caught.value.reason in ("argument", "device") and words in str(caught.value)


def test_an_error_can_be_printed_whatever_a_file_is_called(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        solo.load(os.fsencode(tmp_path) + b"/\xff.pt")
    assert str(caught.value).encode().isascii() and "\\udcff.pt" in str(caught.value)


def test_the_fix_of_a_tensor_that_pretends_to_be_large_is_its_option(
    tmp_path: pathlib.Path,
) -> None:
    path = write(tmp_path, "x.pt", packed(torch.ones(1).expand(10**9)))
    with pytest.raises(CheckpointError, match="spread over") as caught:
        solo.load(path)
    assert "allow_expanded=True" in caught.value.fix
    assert solo.load(path, allow_expanded=True).shape == (10**9,)


def test_an_empty_path_is_not_the_working_directory(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    for nothing in ("", b"", "file://"):
        with pytest.raises(CheckpointError, match="the path is empty"):
            solo.load(nothing)
    assert torch.equal(solo.load(".")["w"], DATA["w"])


def test_a_path_with_a_zero_character_is_told_and_printed_without_it() -> None:
    with pytest.raises(CheckpointError, match="no zero character") as caught:
        solo.load("a\0b")
    assert "a\\x00b" in str(caught.value)


def test_bytes_that_no_path_can_be_are_the_content() -> None:
    assert torch.equal(solo.load(packed(DATA))["w"], DATA["w"])
    assert solo.inspect(packed(DATA)).names == ["w", "n"]
    target = {name: torch.zeros_like(tensor) for name, tensor in DATA.items()}
    solo.load_into(target, packed(DATA))
    assert torch.equal(target["n"], DATA["n"])


def test_one_prefix_of_no_split_is_a_text_or_a_list(tmp_path: pathlib.Path) -> None:
    state = {f"block.{i}.w": torch.ones(10) for i in range(3)}
    path = write(tmp_path, "x.pt", packed(state))
    room = {"meta": 90, "cpu": 1000}
    for prefix in ("block", ["block"]):
        loaded = solo.load(path, device_map="auto", max_memory=room, no_split=prefix)
        assert {tensor.device.type for tensor in loaded.values()} == {"cpu"}


def test_a_limit_that_is_missed_by_a_byte_is_told_in_bytes(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed(torch.ones(4096)))
    with pytest.raises(CheckpointError, match="needs 16384 bytes, 16383 bytes are allowed"):
        solo.load(path, memory_limit=16383)
    assert len(solo.load(path, memory_limit=16384)) == 4096


def test_load_is_a_function_and_the_module_with_the_rest(path: pathlib.Path) -> None:
    """In a process of its own: an import of solo.load elsewhere would hide it."""
    code = (
        "import pickle, solo, inspect, sys; load = solo.load; load(sys.argv[1]); "
        "solo.load.release(sys.argv[1]); solo.load.materialize; from solo.load import Placeholder; "
        "assert solo.load is load is pickle.loads(pickle.dumps(load)); "
        "print(list(inspect.signature(solo.load).parameters)[:2])"
    )
    words = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout.strip() == "['path', 'map_location']", done.stderr


def test_a_stream_of_text_is_told() -> None:
    with pytest.raises(CheckpointError, match="opened as text"):
        solo.load(io.StringIO("x" * 100))


def test_targets_that_cannot_be_filled_are_told_before_any_is(path: pathlib.Path) -> None:
    fine = torch.zeros(3, dtype=torch.int64)
    for target in (torch.ones(1).expand(2, 3), torch.eye(2, 3).to_sparse()):
        with pytest.raises(CheckpointError, match=r"'w' (is expanded|has the layout)"):
            solo.load_into({"n": fine, "w": target}, path)
    assert not fine.any()


@pytest.mark.parametrize(
    ("obj", "target", "options", "words"),
    [
        (DATA, None, {}, "a path is expected"),
        (DATA, "s3://bucket/x.pt", {}, "only files of this machine"),
        (DATA, "a\0b", {}, "no zero character"),
        (DATA, "x", {"format": "x"}, "format is 'x'"),
        (DATA, "x.safetensors", {"metadata": {"a": 5}}, "no text"),
        ({"__metadata__": torch.ones(1)}, "x.safetensors", {}, "a name that a file cannot hold"),
        ({"a\0": torch.ones(1)}, "x.safetensors", {}, "a name that a file cannot hold"),
        ({"\ud800": torch.ones(1)}, "d", {"shard_size": 5}, "a name that a file cannot hold"),
        ({"a": 1}, "x.safetensors", {}, "'a' is int"),
    ],
)
def test_what_cannot_be_saved_is_told_and_writes_nothing(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    obj: Any,
    target: Any,
    options: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        solo.save(obj, target, **options)
    assert words in str(caught.value)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_an_empty_state_is_saved_in_every_form(tmp_path: pathlib.Path) -> None:
    solo.save({}, tmp_path / "x.safetensors")
    solo.save({}, tmp_path / "d", shard_size=10)
    assert solo.load(tmp_path / "x.safetensors") == solo.load(tmp_path / "d") == {}


def test_a_tensor_with_attributes_comes_back_with_them(tmp_path: pathlib.Path) -> None:
    tensor = torch.ones(2)
    tensor.note = "mine"  # type: ignore[attr-defined]
    assert solo.load(write(tmp_path, "x.pt", packed(tensor))).note == "mine"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_legacy_files_of_every_pickle_protocol_are_known(
    tmp_path: pathlib.Path, protocol: int
) -> None:
    options = {"_use_new_zipfile_serialization": False, "pickle_protocol": protocol}
    path = write(tmp_path, "x.pt", packed({"w": torch.ones(3), "b": b""}, **options))
    assert solo.inspect(path).kind == "torch legacy"
    assert torch.equal(solo.load(path)["w"], torch.ones(3)) and solo.load(path)["b"] == b""


def test_bytes_behind_a_bare_pickle_are_not_ignored(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CheckpointError):
        solo.load(write(tmp_path, "x.pkl", pickle.dumps(3, 2) + b"more"))


def fails(path: str) -> None:
    solo.load(path)


def test_an_error_comes_whole_from_another_process(tmp_path: pathlib.Path) -> None:
    context = multiprocessing.get_context("fork")
    pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=context)
    with pool, pytest.raises(CheckpointError) as caught:
        pool.submit(fails, str(tmp_path / "none.pt")).result(60)
    assert caught.value.reason == "not_found" and caught.value.fix in str(caught.value)
    assert "Tried:" in str(caught.value)


def run_cli(*words: str, locale: str = "C.UTF-8") -> subprocess.CompletedProcess[bytes]:
    plain = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "solo.load", *words]
    return subprocess.run(command, capture_output=True, env={**os.environ, **plain})


def test_the_command_line_lists_any_name_in_any_locale(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed({"\u00fc\ud800": torch.ones(1)}))
    done = run_cli("inspect", str(path), locale="C")
    assert done.returncode == 0 and b"\\xfc" in done.stdout and not done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: pathlib.Path) -> None:
    many = {f"tensor.with.a.long.name.{i}": torch.ones(1) for i in range(3000)}
    path = write(tmp_path, "x.pt", packed(many))
    command = f"'{sys.executable}' -m solo.load inspect --limit 0 '{path}' | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert "x.pt" in done.stdout and not done.stderr


@pytest.mark.parametrize("option", ["--device-map={bad", "--max-memory=[1]"])
def test_json_that_is_none_is_told_on_the_command_line(path: pathlib.Path, option: str) -> None:
    words = [sys.executable, "-m", "solo.load", "plan", str(path), option]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and "JSON" in done.stderr and "Traceback" not in done.stderr
