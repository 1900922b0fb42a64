"""Loads of several processes on one host see each other; what was loaded is told."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pathlib
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest
import torch
from load_files import packed, write

import solo
import solo.load
from solo import CheckpointError
from solo._load import ledger, memory

MIB = 1 << 20


@pytest.fixture(autouse=True)
def book(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    path = tmp_path / "ledger"
    monkeypatch.setenv("SOLO_LEDGER", str(path))
    return path


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return write(tmp_path, "x.pt", packed({"x": torch.ones(MIB)}))


@contextlib.contextmanager
def another_process(path: pathlib.Path, limit: str) -> Iterator[subprocess.Popen[str]]:
    """Loads within a limit and stays."""
    script = (
        "import sys, solo\n"
        f"kept = solo.load({str(path)!r}, memory_limit={limit!r})\n"
        "print('loaded', flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdin is not None
    try:
        assert child.stdout.readline() == "loaded\n"
        yield child
    finally:
        child.stdin.close()
        child.wait(30)
        child.stdout.close()


def test_what_another_process_promised_itself_is_not_free(
    tmp_path: pathlib.Path, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write(tmp_path, "other.pt", path.read_bytes())
    with another_process(other, "2GiB") as child:
        monkeypatch.setattr(memory, "host_free", lambda: 1 << 30)
        with pytest.raises(CheckpointError) as caught:
            solo.load(path, memory_limit="8MiB")
        text = str(caught.value)
        assert caught.value.reason == "memory" and "cpu needs 4.0 MiB" in text
        assert f"process {child.pid}" in text and str(other) in text
        assert "4.0 MiB loaded, 2.0 GiB promised" in text
    assert solo.load(path, memory_limit="8MiB")["x"].shape == (MIB,)  # it is gone


def test_the_promise_of_a_killed_process_is_dropped(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with another_process(path, "2GiB") as child:
        child.kill()
        child.wait(30)
        monkeypatch.setattr(memory, "host_free", lambda: 1 << 30)
        assert solo.load(path, memory_limit="8MiB")["x"].shape == (MIB,)


def test_plan_names_who_else_holds_memory(path: pathlib.Path) -> None:
    with another_process(path, "1GiB") as child:
        done = subprocess.run(
            [sys.executable, "-m", "solo.load", "plan", str(path)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert f"beside it, process {child.pid}" in done.stdout and "fits" in done.stdout


def entries() -> list[ledger.Entry]:
    with ledger.opened() as book:
        assert book is not None
        return list(book.entries)


def test_a_promise_is_kept_until_it_is_released_or_made_again(path: pathlib.Path) -> None:
    for _ in range(2):  # the same checkpoint again is one promise
        solo.load(path, memory_limit="64MiB")
        (entry,) = entries()
        assert entry.promised == 64 * MIB and entry.loaded == 4 * MIB
    solo.load.release(str(path))
    assert entries() == []


def test_a_failed_load_promises_nothing(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum"):
        solo.load(path, memory_limit="64MiB")
    assert entries() == []


def test_a_small_load_without_a_limit_writes_nothing_down(
    path: pathlib.Path, book: pathlib.Path
) -> None:
    solo.load(path)
    assert not book.exists()


def test_a_large_load_without_a_limit_promises_nothing_beyond_itself(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "SMALL_BYTES", MIB)
    solo.load(path)
    (entry,) = entries()
    assert entry.promised == 0 and entry.loaded == 4 * MIB


@pytest.mark.parametrize(
    "content", [b"no json", b"[1, {}]", b'[{"pid": "1"}]', b"[" * 5000, b'{"a": 1}', b"5"]
)
def test_a_damaged_ledger_is_begun_anew(
    path: pathlib.Path, book: pathlib.Path, content: bytes
) -> None:
    book.write_bytes(content)
    solo.load(path, memory_limit="8MiB")
    assert len(entries()) == 1


def test_a_ledger_that_cannot_be_had_stops_nobody(
    path: pathlib.Path, book: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "WAIT_S", 0.05)
    with book.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert solo.load(path, memory_limit="8MiB")["x"].shape == (MIB,)
    book.unlink()
    book.symlink_to(path)  # not followed: a link is somebody else's doing
    before = path.read_bytes()
    solo.load(path, memory_limit="8MiB")
    assert path.read_bytes() == before
    monkeypatch.setenv("SOLO_LEDGER", "")
    solo.load(path, memory_limit="8MiB")


def test_another_start_time_is_another_process() -> None:
    with ledger.opened() as book:
        assert book is not None
        book.add("x", MIB, {})
        book.entries[0].started -= 1  # as if the number had been given again
    assert entries() == []


def test_a_gpu_promise_counts_for_others_alone_until_it_is_loaded() -> None:
    claim = ledger.Claim("x", None, 10 * MIB)
    with ledger.opened() as book:
        assert book is not None
        claim.enter(book, {"cuda:0": 4 * MIB})
        assert book.outstanding_on("cuda:0") == 10 * MIB
    claim.settle({"cuda:0": 4 * MIB}, False)
    with ledger.opened() as book:
        assert book is not None and book.outstanding_on("cuda:0") == 6 * MIB
        assert book.outstanding_on("cuda:1") == 0


def test_the_first_gpu_of_two_processes_may_be_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is where each rank has a CUDA_VISIBLE_DEVICES of its own."""
    seen = types.SimpleNamespace(uuid="GPU-a")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: seen)
    first = torch.device("cuda:0")
    with ledger.opened() as book:
        assert book is not None
        ledger.Claim("x", None, 10 * MIB).enter(book, {"cuda:0": 4 * MIB})
        assert memory._taken(book, first) == 10 * MIB
        seen.uuid = "GPU-b"
        assert memory._taken(book, first) == 0


def test_what_was_loaded_is_reported_by_device(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "y.pt", packed({"a": torch.ones(MIB), "b": torch.ones(10)}))
    report: dict[str, dict[str, int]] = {}
    with caplog.at_level(logging.INFO, "solo.load"):
        solo.load(path, device_map={"a": "cpu", "b": "meta"}, report=report, empty_cache=True)
    assert report["cpu"]["loaded"] == 4 * MIB and report["cpu"]["free"] > 0
    assert report["meta"]["loaded"] == 40
    assert "4.0 MiB on cpu" in caplog.text


def test_a_sharded_meta_model_must_fit_as_a_whole(tmp_path: pathlib.Path) -> None:
    state = {f"{n}.weight": torch.ones(100, 100) for n in range(4)}
    solo.save(state, tmp_path / "d", shard_size=50_000, format="safetensors")
    assert len(list((tmp_path / "d").glob("*.safetensors"))) == 4
    with torch.device("meta"):
        layers = [torch.nn.Linear(100, 100, bias=False) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    with pytest.raises(CheckpointError, match=r"cpu needs 156\.2 KiB, 97\.7 KiB are allowed"):
        solo.load_into(model, tmp_path / "d", memory_limit=100_000)
    assert all(parameter.is_meta for parameter in model.parameters())
    solo.load_into(model, tmp_path / "d", memory_limit=200_000)
    assert os.environ["SOLO_LEDGER"] and not any(p.is_meta for p in model.parameters())


def test_a_wider_dtype_counts_with_what_it_becomes(tmp_path: pathlib.Path) -> None:
    obj = {"half": torch.ones(1000, dtype=torch.float16), "n": torch.ones(100, dtype=torch.int64)}
    path = write(tmp_path, "z.pt", packed(obj))
    assert solo.load(path, memory_limit=2800)["half"].dtype == torch.float16
    with pytest.raises(CheckpointError, match=r"cpu needs 8\.6 KiB, 4\.9 KiB are allowed"):
        solo.load(path, dtype=torch.float64, memory_limit=5000)
    assert solo.load(path, dtype=torch.bfloat16, memory_limit=2800)["n"].dtype == torch.int64
