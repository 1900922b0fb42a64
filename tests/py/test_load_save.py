"""Saving in shards: all of it or nothing, whoever else writes there."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import resource
import stat
from typing import Any

import pytest
import torch

import solo
from solo._load import save
from solo.errors import NotSupported

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

    def interrupted(target: str, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise KeyboardInterrupt
        real(target, *arguments)

    monkeypatch.setattr(save, "atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shards(tmp_path / "m")
    assert not list((tmp_path / "m").iterdir())


def test_a_save_that_is_interrupted_once_it_is_there_stays(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = save.atomically

    def interrupted(target: str, *arguments: Any) -> None:
        real(target, *arguments)
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


@pytest.fixture
def swaps(tmp_path: pathlib.Path) -> None:
    """Leaves a test out where the file system cannot let two names change places."""
    names = [str(tmp_path / name) for name in ("one", "other")]
    for name in names:
        pathlib.Path(name).touch()
    try:
        assert save._C.swap(*names)
    except NotSupported as error:
        pytest.skip(str(error))
    finally:
        for name in names:
            pathlib.Path(name).unlink()


def in_the_middle(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Let ``act`` run once: when the shards are written, just before their index is."""
    real = save.atomically
    acted: list[bool] = []

    def atomically(target: str, *arguments: Any) -> None:
        if target.endswith(".json") and not acted:
            acted.append(True)
            act()
        real(target, *arguments)

    monkeypatch.setattr(save, "atomically", atomically)


@pytest.mark.usefixtures("swaps")
@pytest.mark.parametrize("before", [False, True])
def test_the_last_of_two_savers_takes_away_what_the_other_wrote(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    folder = tmp_path / "m"
    if before:
        shards(folder)
    other = {name: value + 10 for name, value in STATE.items()}
    in_the_middle(monkeypatch, lambda: shards(folder, other))
    mine = shards(folder)
    assert sorted(path.name for path in folder.iterdir()) == mine
    assert torch.equal(solo.load(folder)["w1"], STATE["w1"])


@pytest.mark.parametrize("at", range(5))
def test_ctrl_c_while_old_shards_are_taken_away_leaves_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """When the folder is made durable with its new index, or at the first to fourth of four."""
    folder = tmp_path / "m"
    shards(folder)
    real_fsync, real_unlink = os.fsync, os.unlink
    synced, removed = [0], [0]

    def fsync(number: int) -> None:
        real_fsync(number)
        synced[0] += stat.S_ISDIR(os.fstat(number).st_mode)
        if at == 0 and synced[0] == len(STATE) + 1:
            raise KeyboardInterrupt

    def unlink(path: str) -> None:
        removed[0] += path.endswith(".safetensors")
        if path.endswith(".safetensors") and removed[0] == at:
            raise KeyboardInterrupt
        real_unlink(path)

    monkeypatch.setattr(save.os, "fsync", fsync)
    monkeypatch.setattr(save.os, "unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        shards(folder, {name: value + 10 for name, value in STATE.items()})
    assert len(list(folder.iterdir())) == len(STATE) + 1
    assert torch.equal(solo.load(folder)["w1"], STATE["w1"] + 10)


@pytest.mark.usefixtures("swaps")
def test_many_who_save_at_once_leave_the_files_of_one(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "m"
    states = [{name: value + i for name, value in STATE.items()} for i in range(6)]
    with concurrent.futures.ThreadPoolExecutor(len(states)) as pool:
        written = list(pool.map(lambda state: shards(folder, state), states))
    assert sorted(path.name for path in folder.iterdir()) in written
    assert len(solo.load(folder)) == len(STATE)


def test_where_names_cannot_be_swapped_the_index_is_replaced(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(temporary: str, index: str) -> bool:
        raise NotSupported("not here")

    monkeypatch.setattr(save._C, "swap", refuses)
    shards(tmp_path / "m")
    mine = shards(tmp_path / "m")
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == mine


def test_views_that_stand_for_other_values_are_saved_as_what_they_show(
    tmp_path: pathlib.Path,
) -> None:
    z = torch.randn(4, dtype=torch.complex64)
    state = {"z": z, "conjugate": z.conj(), "negative": z.conj().imag, "imag": z.imag}
    solo.save(state, tmp_path / "x.safetensors")
    loaded = solo.load(tmp_path / "x.safetensors")
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2, device="meta"), "'w' is on meta: it has no data"),
        (torch.eye(2).to_sparse(), "'w' has the layout torch.sparse_coo"),
        ([1], "'w' is list, not a dense tensor"),
    ],
)
def test_what_no_file_of_dense_tensors_can_hold_is_told_with_the_reason(
    tmp_path: pathlib.Path, value: Any, words: str
) -> None:
    with pytest.raises(solo.CheckpointError) as caught:
        solo.save({"w": value}, tmp_path / "x.safetensors")
    assert words in str(caught.value)
