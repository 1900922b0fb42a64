"""Saving in shards: all of it or nothing, whoever else writes there."""

from __future__ import annotations

import os
import pathlib
import resource
import stat
from typing import Any

import pytest
import torch

import solo
from solo._load import save

STATE = {f"w{i}": torch.full((100,), float(i)) for i in range(4)}


def shards(folder: pathlib.Path, state: Any = None) -> list[str]:
    paths = solo.save(state or STATE, folder, shard_size=400, format="safetensors")
    return sorted(pathlib.Path(path).name for path in paths)


@pytest.mark.parametrize("at", range(5))
def test_an_interrupted_save_leaves_nothing_behind(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Ctrl-C in one of the four shards, or in the index."""
    real = save.atomically
    calls = 0

    def interrupted(target: str, write: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise KeyboardInterrupt
        real(target, write)

    monkeypatch.setattr(save, "atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shards(tmp_path / "m")
    assert not list((tmp_path / "m").iterdir())


def test_a_save_that_is_interrupted_once_it_is_there_stays(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = save.atomically

    def interrupted(target: str, write: Any) -> None:
        real(target, write)
        if target.endswith(".json"):
            raise KeyboardInterrupt

    monkeypatch.setattr(save, "atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shards(tmp_path / "m")
    assert sorted(solo.load(tmp_path / "m")) == sorted(STATE)


def test_two_who_save_at_once_do_not_mix_their_shards(tmp_path: pathlib.Path) -> None:
    """The other one comes in the middle: what is loaded afterwards is of one of them."""
    folder = tmp_path / "m"
    other = {name: value + 10 for name, value in STATE.items()}
    with save._alone(str(folder)) as alone:
        assert alone
        theirs = shards(folder, other)
    assert "model-00001-of-00004.safetensors" not in theirs
    assert torch.equal(solo.load(folder)["w1"], other["w1"])
    mine = shards(folder)
    assert torch.equal(solo.load(folder)["w1"], STATE["w1"])
    assert sorted(path.name for path in folder.iterdir()) == mine


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: pathlib.Path, kind: str) -> None:
    path = tmp_path / "x.pt"
    if kind == "fifo":
        os.mkfifo(path)
    elif os.geteuid() == 0:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    else:
        pytest.skip("making a device needs root")
    with pytest.raises(solo.CheckpointError, match="a device or a pipe"):
        solo.save(STATE, path)
    assert not path.is_file()
    assert [p.name for p in tmp_path.iterdir()] == ["x.pt"]


def test_ctrl_c_in_a_save_is_ctrl_c(tmp_path: pathlib.Path) -> None:
    """torch.save, interrupted, fails once more while it closes its archive."""

    class Interrupting:
        def __reduce__(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solo.save({"x": torch.ones(3), "y": Interrupting()}, tmp_path / "x.pt")
    assert not list(tmp_path.iterdir())

    def write(stream: Any) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("unexpected pos")

    with pytest.raises(KeyboardInterrupt):
        save.atomically(str(tmp_path / "x.pt"), write)
    assert not list(tmp_path.iterdir())


def test_more_shards_than_files_may_be_open_are_told_as_that(tmp_path: pathlib.Path) -> None:
    state = {f"w{i}": torch.ones(4) for i in range(100)}
    solo.save(state, tmp_path / "m", shard_size=16, format="safetensors")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    here = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (here + 50, limits[1]))
    try:
        with pytest.raises(solo.CheckpointError, match="its 100 shards are more") as caught:
            solo.load(tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "ulimit -n" in caught.value.fix
    assert len(solo.load(tmp_path / "m")) == 100
