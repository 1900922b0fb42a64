"""Odd paths, full disks, killed writers: nothing hangs, nothing is half there."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from load_files import assert_same, packed, save_dcp, write

import solo
from solo import CheckpointError
from solo._load import memory

OLD = {"x": torch.zeros(1000)}


def error_of(where: Any, **options: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        solo.load(where, **options)
    return caught.value


# ---- paths ----


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "/"])
def test_devices_and_the_root_are_refused_at_once(path: str) -> None:
    assert error_of(path).reason in ("io", "format", "empty", "permission")


@pytest.mark.parametrize("where", ["", ".", "\0", "a" * 5000, "a\nb", "~nobody/x", "$NOT_SET/x.pt"])
def test_strange_names_are_an_error_of_their_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert error_of(where).reason in ("not_found", "format", "argument", "io")
    with pytest.raises(CheckpointError):
        solo.inspect(where)


@pytest.mark.parametrize("where", [None, 7, 2.5, ["x.pt"], object()])
def test_what_is_no_path_at_all_is_told(where: Any) -> None:
    assert error_of(where).reason == "argument"


def test_a_fifo_and_a_socket_do_not_hang(tmp_path: pathlib.Path) -> None:
    import socket

    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("fifo", "socket"):
            assert error_of(tmp_path / name).reason == "io"
            assert error_of(tmp_path / name, wait_stable=0.2).reason == "io"
    save_dcp({"w": torch.ones(3)}, tmp_path / "d")
    data = next((tmp_path / "d").glob("*.distcp"))
    data.unlink()
    os.mkfifo(data)
    assert error_of(tmp_path / "d").reason in ("io", "missing")


def test_a_loop_of_links_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.pt").symlink_to("b.pt")
    (tmp_path / "b.pt").symlink_to("a.pt")
    assert "symbolic link" in str(error_of(tmp_path / "a.pt"))
    (tmp_path / "d").symlink_to("d")
    assert error_of(tmp_path / "d" / "x.pt").reason in ("not_found", "io")


@pytest.mark.parametrize("name", ["模型 ☃.pt", "a b\tc.pt", "-rf.pt", "x.pt ", "%s%n.pt", "é" * 60])
def test_any_name_that_a_file_can_have_is_loaded_and_saved(
    tmp_path: pathlib.Path, name: str
) -> None:
    solo.save(OLD, tmp_path / name)
    assert_same(solo.load(tmp_path / name), OLD)
    assert solo.inspect(tmp_path / name).names == ["x"]


def test_a_name_that_is_no_utf_8_is_loaded(tmp_path: pathlib.Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe.pt"
    with open(path, "wb") as stream:
        stream.write(packed(OLD))
    assert_same(solo.load(path), OLD)


def test_names_of_tensors_may_be_anything(tmp_path: pathlib.Path) -> None:
    names = ["", ".", "a..b", "模型.☃", "a" * 10_000, "\0", "\ud800", "x\ny", "__class__"]
    obj = {name: torch.full((2,), float(n)) for n, name in enumerate(names)}
    loaded = solo.load(write(tmp_path, "x.pt", packed(obj)))
    assert_same(loaded, obj)
    names.remove("\ud800")  # no text: shown as \\xed\\xa0\\x80, and not found under it
    target = {name: torch.zeros(2) for name in names}
    solo.load_into(target, tmp_path / "x.pt", strict=False)
    assert_same(target, {name: obj[name] for name in names})
    assert solo.inspect(tmp_path / "x.pt").text()


def test_a_directory_without_rights_is_told(tmp_path: pathlib.Path) -> None:
    """As another user, where this one may do everything."""
    folder = tmp_path / "closed"
    path = write(folder, "x.pt", packed(OLD))
    (folder / "y.pt").write_bytes(b"")
    path.chmod(0)
    script = (
        "import os, solo\nsolo.load(os.environ['GOOD'])\n"
        "if os.getuid() == 0:\n    os.setgroups([])\n    os.setresuid(65534, 65534, 65534)\n"
        "for path in (os.environ['CLOSED'],):\n"
        "    try:\n        solo.load(path)\n"
        "    except solo.CheckpointError as error:\n        print(error.reason)\n"
    )
    good = write(tmp_path, "good.pt", packed(OLD))
    for parent in (tmp_path, *tmp_path.parents):
        with contextlib.suppress(PermissionError):
            if parent.owner() != "root" or parent.stat().st_mode & 0o777 == 0o700:
                parent.chmod(parent.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "CLOSED": str(path), "GOOD": str(good)},
    )
    assert done.stdout == "permission\n", done.stdout + done.stderr


# ---- shapes of content ----


def test_tensors_without_elements_or_dimensions_go_every_way(tmp_path: pathlib.Path) -> None:
    obj = {"scalar": torch.tensor(3.0), "none": torch.zeros(0), "flat": torch.zeros(0, 7),
           "wide": torch.zeros(3, 0, 1 << 40), "one": torch.ones(1)}  # fmt: skip
    for mode in ("copy", "mmap"):
        assert_same(solo.load(write(tmp_path, "x.pt", packed(obj)), mode=mode), obj)
    solo.save(obj, tmp_path / "x.safetensors")
    loaded = solo.load(tmp_path / "x.safetensors")
    assert {n: t.shape for n, t in loaded.items()} == {n: t.shape for n, t in obj.items()}
    target = {name: torch.full_like(tensor, -1) for name, tensor in obj.items()}
    solo.load_into(target, tmp_path / "x.pt")
    assert target["scalar"] == 3 and target["one"] == 1
    assert solo.load(tmp_path / "x.pt", "meta")["wide"].shape == (3, 0, 1 << 40)
    assert solo.load(write(tmp_path, "e.pt", packed({}))) == {}
    assert solo.load(write(tmp_path, "n.pt", packed(None))) is None


def test_a_download_whose_end_was_only_reserved_is_told(tmp_path: pathlib.Path) -> None:
    data = packed({"x": torch.ones(100_000)})
    half = data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
    error = error_of(write(tmp_path, "x.pt", half))
    assert error.reason in ("truncated", "zeros", "damaged") and error.fix


def test_a_file_that_shrinks_while_it_is_loaded_is_an_error_or_whole(
    tmp_path: pathlib.Path,
) -> None:
    """Cut at whatever moment: an error, or what was there before; never a signal or a hang."""
    obj = {str(n): torch.full((50_000,), float(n)) for n in range(40)}
    data = packed(obj)
    for delay in (0.0, 0.001, 0.003, 0.006):
        path = write(tmp_path, "x.pt", data)
        timer = threading.Timer(delay, os.truncate, (path, 5000))
        timer.start()
        try:
            assert_same(solo.load(path, threads=1), obj)
        except CheckpointError as error:
            assert error.reason in ("changed", "truncated", "checksum", "mismatch", "damaged")
        timer.join()


# ---- saving ----


class Dies:
    """Kills its process when it is pickled: the first half of the file has been written."""

    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        return (int, ())


@pytest.mark.parametrize("format", ["pt", "safetensors", "shards"])
def test_kill_9_in_the_middle_of_a_save_leaves_the_old_file(
    tmp_path: pathlib.Path, format: str
) -> None:
    path = tmp_path / ("d" if format == "shards" else f"x.{format}")
    options: dict[str, Any] = {"shard_size": 5000} if format == "shards" else {}
    solo.save({str(n): torch.zeros(1000) for n in range(3)}, path, **options)
    before = {f: f.read_bytes() for f in sorted(path.glob("*") if path.is_dir() else [path])}
    script = (
        "import os, signal, sys, torch, solo\n"
        "sent = 0\n"
        "class Stream:\n"
        "    def __init__(self, stream):\n        self.stream = stream\n"
        "    def __getattr__(self, name):\n        return getattr(self.stream, name)\n"
        "    def __enter__(self):\n        return self\n"
        "    def __exit__(self, *rest):\n        self.stream.close()\n"
        "    def write(self, data):\n"
        "        global sent\n        sent += memoryview(data).nbytes\n"
        "        done = self.stream.write(data)\n"
        "        if sent > 6000:\n"
        "            self.stream.flush()\n            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return done\n"
        "real = os.fdopen\n"
        "os.fdopen = lambda *a, **o: Stream(real(*a, **o))\n"
        f"solo.save({{str(n): torch.ones(1000) for n in range(3)}}, sys.argv[1], **{options!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert all(file.read_bytes() == content for file, content in before.items())
    assert float(sum(t.sum() for t in solo.load(path).values())) == 0
    solo.save({"x": torch.ones(2)}, path, **options)  # and what it left behind is in no one's way
    assert solo.load(path)["x"].sum() == 2


@contextlib.contextmanager
def full_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True
    )
    if done.returncode:
        pytest.skip("may not mount a small file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("format", ["pt", "safetensors"])
def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: pathlib.Path, format: str) -> None:
    with full_disk(tmp_path) as folder:
        path = folder / f"x.{format}"
        solo.save(OLD, path)
        with pytest.raises(CheckpointError) as caught:
            solo.save({"x": torch.ones(100_000)}, path)
        assert caught.value.reason == "io" and "No space left" in str(caught.value)
        assert "what was there before is unchanged" in str(caught.value)
        assert [f.name for f in folder.iterdir()] == [path.name]
        assert_same(solo.load(path), OLD)


@pytest.mark.parametrize("kind", [TypeError, KeyboardInterrupt])
def test_what_the_caller_was_handling_is_not_the_cause_of_what_stops_a_save(
    tmp_path: pathlib.Path, kind: type[BaseException]
) -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise kind("stubborn")

    with pytest.raises(kind, match="stubborn"):
        try:
            raise OSError("the first attempt")
        except OSError:
            solo.save({"x": Stubborn()}, tmp_path / "x.pt")


@pytest.mark.parametrize("format", ["pt", "safetensors"])
def test_a_file_size_limit_is_an_error_like_a_full_disk(
    tmp_path: pathlib.Path, format: str
) -> None:
    path = tmp_path / f"x.{format}"
    solo.save(OLD, path)
    script = (
        "import resource, sys, torch, solo\n"
        "import solo.load\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n    solo.save({'x': torch.ones(100_000)}, sys.argv[1])\n"
        "except solo.CheckpointError as error:\n    print(error.reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert done.stdout == "io\n", done.stdout + done.stderr
    assert_same(solo.load(path), OLD)
    assert [f.name for f in tmp_path.iterdir()] == [path.name]


def test_where_nothing_can_be_written_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "file" / "x.pt", tmp_path / "folder", pathlib.Path("/proc/x.pt")):
        with pytest.raises(CheckpointError) as caught:
            solo.save(OLD, target)
        assert caught.value.reason == "io"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["file", "folder"]
    assert list((tmp_path / "folder").iterdir()) == []


def test_an_object_that_cannot_be_pickled_leaves_nothing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Exception, match=r"pickle|local object"):
        solo.save({"f": lambda: None}, tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


# ---- memory ----


@pytest.mark.parametrize(
    ("names", "stat"),
    [
        (("memory.max", "memory.current", "memory.stat"), "inactive_file 1000\nfoo 3\n"),
        (
            ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
            "cache 5\ntotal_inactive_file 1000\n",
        ),
    ],
    ids=["cgroup v2", "cgroup v1"],
)
def test_the_limit_of_a_container_counts_and_its_page_cache_is_free(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], stat: str
) -> None:
    for name, text in zip(names, ("50000\n", "30000\n", stat), strict=True):
        write(tmp_path, name, text.encode())
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.host_free() == 21_000
    path = write(tmp_path, "x.pt", packed({"x": torch.ones(10_000)}))
    assert "cpu needs 39.1 KiB, 20.5 KiB are free" in str(error_of(path))
    (tmp_path / names[0]).write_text("max\n")
    assert memory.host_free() > 1 << 20
    assert io.BytesIO()


def test_shards_that_are_saved_again_take_the_place_of_the_old_all_at_once(
    tmp_path: pathlib.Path,
) -> None:
    """The index is what changes; files of the old one are gone afterwards, others stay."""
    old = {str(n): torch.zeros(1000) for n in range(3)}
    names = {pathlib.Path(p).name for p in solo.save(old, tmp_path, shard_size=5000)}
    (tmp_path / "notes.txt").write_text("mine")
    new = {str(n): torch.ones(1000) for n in range(3)}
    written = {pathlib.Path(p).name for p in solo.save(new, tmp_path, shard_size=5000)}
    assert written & names == {"pytorch_model.bin.index.json"}
    assert {f.name for f in tmp_path.iterdir()} == written | {"notes.txt"}
    assert_same(solo.load(tmp_path), new)
