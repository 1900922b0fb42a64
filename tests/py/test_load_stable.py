"""Checkpoints that are still being written are waited for, up to a deadline."""

from __future__ import annotations

import os
import pathlib
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from load_files import packed, write

import solo
from solo import CheckpointError
from solo._load import stable

DATA = {str(n): torch.full((1000,), float(n)) for n in range(8)}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stable, "QUIET_S", 0.2)
    monkeypatch.setattr(stable, "POLL_S", 0.01)


class Writer:
    """Appends the parts of a file, one after the other, each after a pause."""

    def __init__(self, path: pathlib.Path, parts: list[bytes], pause_s: float) -> None:
        path.write_bytes(parts[0])
        self.thread = threading.Thread(target=self._run, args=(path, parts[1:], pause_s))
        self.thread.start()

    def _run(self, path: pathlib.Path, parts: list[bytes], pause_s: float) -> None:
        for part in parts:
            time.sleep(pause_s)
            with path.open("ab") as stream:
                stream.write(part)


def parts_of(data: bytes, count: int) -> list[bytes]:
    size = len(data) // count + 1
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    yield tmp_path / "x.pt"


@pytest.mark.parametrize(("pause_s", "count"), [(0.05, 10), (0.5, 3)])
def test_a_file_that_grows_is_loaded_once_it_is_whole(
    path: pathlib.Path, pause_s: float, count: int
) -> None:
    """Also by a writer that rests for longer than what counts as quiet."""
    writer = Writer(path, parts_of(packed(DATA), count), pause_s)
    loaded = solo.load(path, wait_stable=30)
    assert all(torch.equal(loaded[name], DATA[name]) for name in DATA)
    writer.thread.join()


def test_an_index_whose_shards_come_later_is_waited_for(tmp_path: pathlib.Path) -> None:
    files = [pathlib.Path(p) for p in solo.save(DATA, tmp_path / "a", shard_size=9000)]
    target = tmp_path / "b"
    target.mkdir()
    (target / files[-1].name).write_bytes(files[-1].read_bytes())

    def copy() -> None:
        for file in files[:-1]:
            time.sleep(0.3)
            (target / file.name).write_bytes(file.read_bytes())

    thread = threading.Thread(target=copy)
    thread.start()
    assert set(solo.load(target / files[-1].name, wait_stable=30)) == set(DATA)
    thread.join()


def test_load_into_waits_as_well(path: pathlib.Path) -> None:
    writer = Writer(path, parts_of(packed(DATA), 4), 0.05)
    target = {name: torch.zeros(1000) for name in DATA}
    solo.load_into(target, path, wait_stable=30)
    assert torch.equal(target["7"], DATA["7"])
    writer.thread.join()


def test_a_file_that_is_never_done_is_told_at_the_deadline(path: pathlib.Path) -> None:
    writer = Writer(path, [b"x" * 100] * 60, 0.02)
    with pytest.raises(CheckpointError, match=r"still being written after 0\.4 s") as caught:
        solo.load(path, wait_stable=0.4)
    assert caught.value.reason == "changed" and "wait_stable" in caught.value.fix
    writer.thread.join()


def test_a_cut_file_that_nobody_writes_is_truncated(path: pathlib.Path) -> None:
    path.write_bytes(packed(DATA)[:5000])
    with pytest.raises(CheckpointError) as caught:
        solo.load(path, wait_stable=0.6)
    assert caught.value.reason == "truncated"


def test_an_old_file_is_not_watched(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stable, "QUIET_S", 1e9)  # watching it would end in an error
    path.write_bytes(packed(DATA))
    os.utime(path, (1e9, 1e9))
    assert set(solo.load(path, wait_stable=0.1)) == set(DATA)


def test_bytes_and_open_files_are_just_loaded(tmp_path: pathlib.Path) -> None:
    data = packed(DATA)
    assert set(solo.load(bytearray(data), wait_stable=1)) == set(DATA)
    with write(tmp_path, "x.pt", data).open("rb") as stream:
        assert set(solo.load(stream, wait_stable=1)) == set(DATA)


def test_a_file_that_its_writer_takes_away_is_told_as_missing(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"half")

    def away(_: float) -> None:
        path.unlink(missing_ok=True)

    monkeypatch.setattr(stable.time, "sleep", away)
    with pytest.raises(CheckpointError) as caught:
        solo.load(path, wait_stable=30)
    assert caught.value.reason == "not_found"
