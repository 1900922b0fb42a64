"""The progress bar: late, on a terminal alone, and never in the way."""

from __future__ import annotations

import gc
import pathlib

import pytest
import torch
from load_files import packed, write

import solo
from solo._load import progress, quiet


def test_the_bar_waits_two_seconds_and_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOLO_PROGRESS", raising=False)
    with progress.Progress("x") as shown:
        shown(1, 2, 0)
        assert shown.bar is None  # stderr is no terminal here
    monkeypatch.setenv("SOLO_PROGRESS", "1")
    with progress.Progress("x") as shown:
        shown(1, 2, 0)
        assert shown.bar is None
        shown.started -= 3
        shown(1, 2, 0)
        assert shown.bar is not None
    monkeypatch.setenv("SOLO_PROGRESS", "0")
    with progress.Progress("x") as shown:
        shown.started -= 3
        shown(1, 2, 0)
        assert shown.bar is None


def test_garbage_collection_is_back_after_a_load_that_failed(tmp_path: pathlib.Path) -> None:
    assert gc.isenabled()
    with pytest.raises(solo.CheckpointError):
        solo.load(write(tmp_path, "x", b"nothing"))
    assert gc.isenabled()
    gc.disable()
    try:
        with quiet.no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_ctrl_c_ends_a_long_read(tmp_path: pathlib.Path) -> None:
    """An exception of the callback that a read makes now and then ends it; its threads too."""
    from solo import _C

    size = 64 << 20
    path = write(tmp_path, "x.pt", packed({"x": torch.zeros(size, dtype=torch.uint8)}))
    file, arena = _C.File(str(path)), _C.Arena(size, 0)

    def interrupted(done: int, total: int, direct: int) -> None:
        raise KeyboardInterrupt

    reads = [(0, size, arena.address, -1)] * 40
    with pytest.raises(KeyboardInterrupt):
        _C.Reading(file, None, reads, 1, 1, None, 0, True).wait(interrupted)
    assert torch.equal(solo.load(path)["x"][:3], torch.zeros(3, dtype=torch.uint8))
