"""What the file system, the mapping and the network do, and what becomes of it."""

from __future__ import annotations

import http.server
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from load_files import assert_same, objects, packed, write

import solo
import solo.load
from solo import CheckpointError
from solo._load import read, source, stage

DATA = {str(n): torch.arange(n, dtype=torch.int32) for n in (10, 70_000, 3, 300_000)}


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return write(tmp_path, "x.pt", packed(DATA))


# ---- mappings ----


def mapped_flags(tensor: torch.Tensor) -> str | None:
    """The kernel's flags of the mapping that a tensor lies in; None if it is not a file's."""
    address = tensor.data_ptr()
    inside = False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+)", line)
        if head:
            inside = int(head[1], 16) <= address < int(head[2], 16) and head[3] != "0"
        elif inside and line.startswith("VmFlags:"):
            return line
    return None


def test_a_mapping_reserves_no_memory(path: pathlib.Path) -> None:
    """Else a file larger than memory and swap could not be mapped at all."""
    loaded = solo.load(path, mode="mmap")
    flags = mapped_flags(loaded["300000"])
    assert flags is not None and " nr" in flags
    assert mapped_flags(solo.load(path)["300000"]) is None


def test_a_file_on_network_storage_is_never_mapped(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = source.LocalSource.__init__

    def on_nfs(self: Any, name: str) -> None:
        opened(self, name)
        self.network, self.filesystem = True, "nfs"

    monkeypatch.setattr(source.LocalSource, "__init__", on_nfs)
    with caplog.at_level(logging.INFO, "solo.load"):
        loaded = solo.load(path, mode="mmap")
    assert_same(loaded, DATA)
    assert mapped_flags(loaded["300000"]) is None
    assert "not mapped but copied: it lies on nfs" in caplog.text
    with pytest.raises(CheckpointError, match="are allowed"):  # so it takes memory
        solo.load(path, mode="mmap", memory_limit=1000)


def test_a_file_system_that_cannot_map_is_read(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arena = read._C.Arena

    class Native:
        def __getattr__(self, name: str) -> Any:
            return getattr(native, name)

        @staticmethod
        def Arena(size: int, congruent: int, file: Any = None) -> Any:
            if file is not None:
                raise OSError(19, "No such device")
            return arena(size, congruent)

    native = read._C
    monkeypatch.setattr(read, "_C", Native())
    with caplog.at_level(logging.INFO, "solo.load"):
        assert_same(solo.load(path, mode="mmap"), DATA)
    assert "No such device" in caplog.text


def test_mmap_of_a_legacy_file_copies_and_says_so(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = packed({"x": torch.ones(10), "y": torch.ones(7)}, _use_new_zipfile_serialization=False)
    with caplog.at_level(logging.INFO, "solo.load"):
        loaded = solo.load(write(tmp_path, "x.pt", data), mode="mmap")
    assert float(loaded["x"].sum() + loaded["y"].sum()) == 17
    assert "not mapped but copied" in caplog.text and "the legacy format" in caplog.text


def test_materialize_brings_mapped_tensors_into_memory(path: pathlib.Path) -> None:
    shared = {"whole": torch.arange(1000.0), "n": 3, "list": [torch.ones(2)]}
    shared["part"] = shared["whole"][10:20]  # type: ignore[index]
    write(path.parent, "x.pt", packed(shared))
    loaded = solo.load(path, mode="mmap")
    assert solo.load.materialize(loaded) == 4008
    assert solo.load.materialize(loaded) == 0
    with path.open("r+b") as stream:
        stream.write(bytes(path.stat().st_size))  # would change what is still mapped
    assert torch.equal(loaded["whole"], torch.arange(1000.0))
    loaded["whole"][10] = -1
    assert loaded["part"][0] == -1 and loaded["list"][0].sum() == 2


def test_materialize_keeps_conjugated_and_negated_views(tmp_path: pathlib.Path) -> None:
    held = torch.tensor([1 + 2j, 3 - 1j])
    other = torch._neg_view(torch.tensor([1.5, -2.0]))
    torch.save({"held": held, "conj": held.conj(), "neg": other}, tmp_path / "c.pt")
    loaded = solo.load(tmp_path / "c.pt", mode="mmap")
    assert solo.load.materialize(loaded) == 24
    assert torch.equal(loaded["conj"], held.conj())
    assert torch.equal(loaded["neg"], other)


def test_materialize_takes_a_module(tmp_path: pathlib.Path) -> None:
    model = torch.nn.Linear(30, 20)
    solo.save(model.state_dict(), tmp_path / "m.safetensors")
    with torch.device("meta"):
        other = torch.nn.Linear(30, 20)
    other.load_state_dict(solo.load(tmp_path / "m.safetensors", mode="mmap"), assign=True)
    weight = other.weight
    assert solo.load.materialize(other) == 2480
    assert other.weight is weight and torch.equal(weight, model.weight)
    assert weight.requires_grad and mapped_flags(weight) is None


# ---- reads ----


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
static int left = -1;
ssize_t preadv(int fd, const struct iovec *vectors, int count, off_t at)
{
    ssize_t (*real)(int, const struct iovec *, int, off_t) = dlsym(RTLD_NEXT, "preadv");
    left = left < 0 ? atoi(getenv("FAIL_TIMES")) : left;
    if (at >= 4096 && left > 0) {
        left--;
        errno = atoi(getenv("FAIL_ERRNO"));
        return -1;
    }
    return real(fd, vectors, count, at);
}
ssize_t preadv64(int fd, const struct iovec *vectors, int count, off_t at)
{
    return preadv(fd, vectors, count, at);
}
"""


def load_with_failing_reads(
    folder: pathlib.Path, path: pathlib.Path, errno: int, times: int
) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "shim.c").write_text(SHIM)
    library = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", folder / "shim.c", "-o", library, "-ldl"]
    subprocess.run(command, check=True)
    script = (
        f"import solo\ntry:\n    print(len(solo.load({str(path)!r}, direct='never')))\n"
        "except solo.CheckpointError as error:\n    print(error.reason, error)\n"
    )
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "FAIL_ERRNO": str(errno),
        "FAIL_TIMES": str(times),
    }
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )


@pytest.mark.parametrize("errno", [5, 116], ids=["EIO", "ESTALE"])
def test_network_storage_that_fails_for_a_moment_is_asked_again(
    tmp_path: pathlib.Path, path: pathlib.Path, errno: int
) -> None:
    done = load_with_failing_reads(tmp_path, path, errno, 2)
    assert done.stdout == "4\n", done.stdout + done.stderr


@pytest.mark.parametrize("errno", [5, 116], ids=["EIO", "ESTALE"])
def test_storage_that_goes_on_failing_is_an_error_with_path_and_place(
    tmp_path: pathlib.Path, path: pathlib.Path, errno: int
) -> None:
    done = load_with_failing_reads(tmp_path, path, errno, 1 << 30)
    assert done.stdout.startswith("io "), done.stdout + done.stderr
    assert str(path) in done.stdout and "reading at byte" in done.stdout


@pytest.mark.parametrize("direct", ["always", "auto", "never"])
def test_a_file_system_without_direct_reads_is_read_all_the_same(direct: str) -> None:
    folder = pathlib.Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        pytest.skip("needs a tmpfs")
    path = folder / f"solo-test-{os.getpid()}.pt"
    try:
        path.write_bytes(packed(DATA))
        assert_same(solo.load(path, direct=direct), DATA)
    finally:
        path.unlink()


def test_a_gpu_that_shares_the_hosts_memory_is_read_past_the_page_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Properties:
        is_integrated = True

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    assert stage.unified(torch.device("cuda", 0))
    Properties.is_integrated = False
    assert not stage.unified(torch.device("cuda", 0)) and not stage.unified(torch.device("cpu"))


def test_every_kind_of_path_is_taken(path: pathlib.Path) -> None:
    for where in (
        path,
        str(path),
        os.fsencode(path),
        path.read_bytes() and bytearray(path.read_bytes()),
    ):
        assert_same(solo.load(where), DATA)
    with path.open("rb") as stream:
        assert_same(solo.load(stream), DATA)


# ---- http ----


class Server(http.server.ThreadingHTTPServer):
    """Serves one folder; knows ranges, unless told not to, and fails as often as told."""

    daemon_threads = True
    ranges = True
    failures = 0
    asked: list[str]

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.asked = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, body: bool) -> None:
        file = self.server.folder / self.path.lstrip("/")
        if not file.is_file():
            self.send_error(404)
            return
        data = file.read_bytes()
        asked = self.headers.get("Range", "") if self.server.ranges else ""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        if body:
            self.server.asked.append(asked)
            if match and self.server.failures > 0:
                self.server.failures -= 1
                self.send_error(503)
                return
        part = data[int(match[1]) : int(match[2]) + 1] if match else data
        self.send_response(206 if match else 200)
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if match:
            self.send_header("Content-Range", f"bytes {match[1]}-{match[2]}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if body:
            self.wfile.write(part)


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    made = Server(tmp_path)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_http_is_read_by_ranges(
    server: Server, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "RANGE_BYTES", 100_000)
    monkeypatch.setattr(source, "EDGE_BYTES", 10_000)
    assert_same(solo.load(f"{server.url}/x.pt"), DATA)
    sizes = [
        int(end) - int(start) + 1
        for start, end in (asked.removeprefix("bytes=").split("-") for asked in server.asked)
    ]
    assert max(sizes) <= 100_000 and len(sizes) > 10
    server.asked.clear()
    assert solo.inspect(f"{server.url}/x.pt").names == list(DATA)
    assert len(server.asked) <= 2


def test_a_sharded_checkpoint_is_read_over_http(server: Server, tmp_path: pathlib.Path) -> None:
    solo.save(DATA, tmp_path, shard_size="1MiB", format="safetensors")
    loaded = solo.load(f"{server.url}/model.safetensors.index.json")
    assert set(loaded) == set(DATA) and all(torch.equal(loaded[k], DATA[k]) for k in DATA)


def test_a_server_that_fails_for_a_moment_is_asked_again(
    server: Server, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "RETRY_S", 0.01)
    server.failures = 2
    assert_same(solo.load(f"{server.url}/x.pt", threads=1), DATA)
    server.failures = 1 << 30
    with pytest.raises(CheckpointError) as caught:
        solo.load(f"{server.url}/x.pt")
    assert caught.value.reason == "io" and "503" in str(caught.value)


def test_a_server_without_ranges_is_told_to_download_from(
    server: Server, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "EDGE_BYTES", 10_000)
    server.ranges = False
    with pytest.raises(CheckpointError) as caught:
        solo.load(f"{server.url}/x.pt")
    assert caught.value.reason == "unsupported" and "download it whole" in caught.value.fix


def test_what_is_not_there_and_who_does_not_answer_are_told(server: Server) -> None:
    with pytest.raises(CheckpointError) as caught:
        solo.load(f"{server.url}/none.pt")
    assert caught.value.reason == "not_found"
    with pytest.raises(CheckpointError) as caught:
        solo.load("http://127.0.0.1:9/x.pt")
    assert caught.value.reason in ("io", "not_found")


@pytest.mark.parametrize("scheme", ["local", "file"])
def test_a_local_file_is_read_through_its_scheme(path: pathlib.Path, scheme: str) -> None:
    pytest.importorskip("fsspec")
    assert_same(solo.load(f"{scheme}://{path}"), DATA)
    assert objects()
