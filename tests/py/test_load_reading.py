"""Data comes while tensors are made: nobody looks at it too early, nothing is written too late."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

import load_files
import pytest
import torch
from load_files import assert_same, packed, write

import solo
from solo import _C
from solo._load.source import LocalSource

SIZE = 64 << 20


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reads that are not even begun before somebody waits for them; what happened, in order."""
    events: list[str] = []
    real = LocalSource.begin

    def begin(*arguments: Any) -> Callable[[], list[int]]:
        def wait() -> list[int]:
            events.append("read")
            return real(*arguments)()

        return wait

    monkeypatch.setattr(LocalSource, "begin", begin)
    return events


@pytest.mark.parametrize("name", sorted(load_files.objects()))
def test_no_object_is_made_of_data_that_has_not_come(
    tmp_path: pathlib.Path, late: list[str], name: str
) -> None:
    path = write(tmp_path, "x.pt", packed(load_files.objects()[name]))
    assert_same(solo.load(path), torch.load(path, weights_only=True))


def test_nothing_the_caller_asked_for_is_done_to_data_that_has_not_come(
    tmp_path: pathlib.Path, late: list[str]
) -> None:
    x = torch.arange(100.0)
    path = write(tmp_path, "x.pt", packed({"x": x}))

    def doubled(storage: Any, tag: str) -> Any:
        assert late, "the caller's function got a storage before its data had come"
        return (torch.tensor(storage.tolist(), dtype=torch.uint8)).untyped_storage()

    assert torch.equal(solo.load(path, dtype=torch.bfloat16)["x"], x.bfloat16())
    late.clear()
    assert torch.equal(solo.load(path, doubled)["x"], x)
    target = {"x": torch.zeros(100, dtype=torch.float64)}
    solo.load_into(target, path)
    assert torch.equal(target["x"], x.double())


def test_tensors_are_made_before_their_data_is_waited_for(
    tmp_path: pathlib.Path, late: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from solo._load import read

    make = read.make_tensors

    def made(*arguments: Any) -> Any:
        late.append("make")
        return make(*arguments)

    monkeypatch.setattr(read, "make_tensors", made)
    solo.load(write(tmp_path, "x.pt", packed({"x": torch.ones(3)})))
    assert late == ["make", "read"]


def test_a_reading_that_is_dropped_writes_nothing_more(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\1" * SIZE)
    arena = _C.Arena(SIZE, 0)
    reading = _C.Reading(
        _C.File(str(path)), None, [(0, SIZE, arena.address, -1)], 2, 1, arena, 0, False
    )
    del reading
    seen = bytes(memoryview(arena))
    time.sleep(0.05)
    assert bytes(memoryview(arena)) == seen


@pytest.mark.parametrize("place", [0, 64, 5000, (6 << 20) + 64])
def test_large_memory_lies_on_huge_pages_as_the_file_does(place: int) -> None:
    """So that two threads, each at its own piece of the file, never fill one huge page."""
    assert (_C.Arena(3 << 20, place).address - place) % (2 << 20) == 0
    assert (_C.Arena(5000, place).address - place) % 4096 == 0


def test_a_reading_is_waited_for_once(tmp_path: pathlib.Path) -> None:
    file = _C.File(str(write(tmp_path, "x", b"abc")))
    arena = _C.Arena(3, 0)
    reading = _C.Reading(file, None, [(0, 3, arena.address, -1)], 1, 1, arena, 0, True)
    assert reading.wait(None) == []
    assert bytes(memoryview(arena)) == b"abc"
    with pytest.raises(ValueError, match="is over"):
        reading.wait(None)


@pytest.mark.parametrize("read", [(0, 3, 0), (0, -3, 0, -1), (1.5, 3, 0, -1), [0, 3, 0, -1]])
def test_a_read_that_is_none_is_refused(tmp_path: pathlib.Path, read: Any) -> None:
    file = _C.File(str(write(tmp_path, "x", b"abc")))
    with pytest.raises((TypeError, OverflowError)):
        _C.Reading(file, None, [read], 1, 1, None, 0, True)


def test_rows_are_of_the_class_that_was_asked_for(tmp_path: pathlib.Path) -> None:
    from solo._load.table import NameRow, StorageRow, TensorRow

    path = write(tmp_path, "x.pt", packed({"x": torch.ones(2, 3), "y": torch.ones(1)}))
    index = _C.Checkpoint(_C.File(str(path)))
    assert index.names(NameRow) == [NameRow("x", 0, 0), NameRow("y", 0, 1)]
    assert index.tensors(TensorRow)[0].sizes == (2, 3)
    assert [row.location for row in index.storages(StorageRow)] == ["cpu", "cpu"]
    assert type(index.names(tuple)[0]) is tuple
    wrong: Any = list
    with pytest.raises(TypeError, match="derived from tuple"):
        index.names(wrong)
