"""Where the bytes of a checkpoint come from: a local file, an object store, a file object."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import io
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

from solo import _C
from solo._load.errors import CheckpointError, fail, read_error
from solo.errors import SoloError

if TYPE_CHECKING:
    from solo._load.read import How
    from solo._load.table import Options

Read = tuple[int, int, int, int]  # offset, bytes, address, storage or -1
Tick = Callable[[int, int, int], None]
Wrong = Callable[[], list[int]]

FETCH_ATTEMPTS = 3  # of one range: stores fail now and then
RETRY_S = 0.2  # before the second, then twice that
RANGE_BYTES = 16 << 20  # of one request to an object store
REMOTE_THREADS = 8
EDGE_BYTES = 256 << 10  # of head and tail that are fetched at once and kept
DIRECT = {"auto": 0, "never": 1, "always": 2}


class Source:
    """Bytes by position. ``name`` is for messages."""

    name: str
    size: int
    network = False
    filesystem = ""

    def read(self, offset: int, size: int) -> bytes:
        raise NotImplementedError

    def checkpoint(self, options: Options, base: int = 0, size: int = 0) -> _C.Checkpoint:
        """The index of the checkpoint in these bytes, or in a part of them."""
        try:
            return _C.Checkpoint(
                self._indexed(),
                base,
                size or self.size - base,
                options.allowed,
                options.placeholders,
                options.allow_trailing,
                options.allow_expanded,
                **options.limits,
            )
        except SoloError as error:
            raise read_error(self.name, error) from error

    def _indexed(self) -> Any:
        return self.read

    def begin(
        self, index: _C.Checkpoint | None, reads: list[Read], arena: Any, base: int, how: How
    ) -> Wrong:
        """Read every range to its address. What is given must be called: it waits until all has
        come, which may be there already, and tells the storages whose checksum is wrong.

        Args:
            index: whose storages the reads name.
            reads: ranges; their offsets count from ``base``.
            arena: the memory that holds all addresses, gaps between them included; or None.
            base: where the checkpoint begins.
            how: threads, checksums and so on.
        """
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """What a person needs to tell this file from another."""
        return {"path": self.name, "bytes": self.size}


class LocalSource(Source):
    """A regular file of this machine, or of a mounted file system."""

    def __init__(self, path: str) -> None:
        self.name = path
        self.file = _C.File(path)
        size, self.modified_ns, self.inode, _, network, self.filesystem = self.file.info()
        self.size = size
        self.network = bool(network)

    def read(self, offset: int, size: int) -> bytes:
        try:
            return self.file.read(offset, size)
        except SoloError as error:
            raise read_error(self.name, error) from error

    def _indexed(self) -> Any:
        return self.file

    def begin(
        self, index: _C.Checkpoint | None, reads: list[Read], arena: Any, base: int, how: How
    ) -> Wrong:
        direct = DIRECT[how.direct]
        reading = _C.Reading(self.file, index, reads, how.threads, direct, arena, base, how.verify)
        return functools.partial(reading.wait, how.tick)

    def identity(self) -> dict[str, Any]:
        return {
            "path": self.name,
            "real_path": os.path.realpath(self.name),
            "bytes": self.size,
            "modified_ns": self.modified_ns,
        }


class RangeSource(Source):
    """Bytes fetched by ranges: object stores through fsspec, or any ``fetch``.

    Head and tail are fetched once and kept, so that an index costs few round trips.
    """

    network = True
    filesystem = "remote"

    def __init__(
        self,
        name: str,
        size: int,
        fetch: Callable[[int, int], bytes],
        threads: int,
        fill: Callable[[int, memoryview], int] | None = None,
    ) -> None:
        self.name = name
        self.size = size
        self._fetch = fetch
        self._fill = fill  # where bytes can be had without one more copy
        self._threads = threads
        self._edges: dict[int, bytes] = {}

    def read(self, offset: int, size: int) -> bytes:
        for start, length in ((0, EDGE_BYTES), (max(0, self.size - EDGE_BYTES), EDGE_BYTES)):
            length = min(length, self.size - start)
            if start <= offset and offset + size <= start + length:
                if start not in self._edges:
                    self._edges[start] = self._exactly(start, length)
                return self._edges[start][offset - start : offset - start + size]
        return self._exactly(offset, size)

    def _exactly(self, offset: int, size: int) -> bytes:
        data = self._fetch(offset, size) if size else b""
        if len(data) > size:
            raise fail(
                "unsupported",
                f"{len(data)} bytes came where {size} were asked for: the server knows no ranges",
                path=self.name,
                fix="download it whole, and load the copy",
            )
        if len(data) != size:
            raise fail(
                "truncated",
                f"{len(data)} of {size} bytes came from byte {offset}: it was changed or cut",
                path=self.name,
            )
        return bytes(data)

    def _filled(self, offset: int, target: memoryview) -> None:
        done = 0
        while self._fill is not None and done < len(target):
            count = self._fill(offset + done, target[done:])
            if not count:
                raise fail(
                    "truncated",
                    f"it ended at byte {offset + done}: it was changed or cut",
                    path=self.name,
                )
            done += count

    def begin(
        self, index: _C.Checkpoint | None, reads: list[Read], arena: Any, base: int, how: How
    ) -> Wrong:
        jobs = list(_ranges(reads, base))
        total = sum(size for _, size, _ in jobs)
        done = 0
        lock = threading.Lock()

        def work(job: tuple[int, int, int]) -> None:
            nonlocal done
            offset, size, address = job
            if self._fill is None:
                _C.store(address, self._exactly(offset, size))
            else:
                self._filled(offset, memoryview((ctypes.c_uint8 * size).from_address(address)))
            with lock:
                done += size
            if how.tick is not None and threading.current_thread() is threading.main_thread():
                how.tick(done, total, 0)

        count = max(1, min(how.threads or self._threads, len(jobs) or 1))
        if count == 1:
            for job in jobs:
                work(job)
        else:
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                waiting = {pool.submit(work, job) for job in jobs}
                while waiting:
                    finished, waiting = concurrent.futures.wait(waiting, timeout=0.1)
                    for future in finished:
                        future.result()
                    if how.tick is not None:
                        how.tick(done, total, 0)
        wrong = self._check(index, reads, base, how.verify)
        return lambda: wrong

    def _check(
        self, index: _C.Checkpoint | None, reads: list[Read], base: int, verify: bool
    ) -> list[int]:
        """Headers and checksums, which a local read compares on the way."""
        wrong = []
        rows = index.storages(tuple) if index is not None else []
        for offset, size, address, storage in reads:
            if index is None or storage < 0 or offset != rows[storage][3] or not size:
                continue
            header = index.header_offset(storage)
            if header >= 0:
                try:
                    index.local_check(storage, self.read(base + header, offset - header))
                except SoloError as error:
                    raise fail("mismatch", str(error), path=self.name) from None
            crc = rows[storage][5]
            if verify and crc and size == rows[storage][2] and _C.crc32_at(address, size) != crc:
                wrong.append(storage)
        return wrong


def _ranges(reads: Sequence[Read], base: int) -> list[tuple[int, int, int]]:
    """Requests of at most RANGE_BYTES; neighbours that lie alike in memory become one."""
    runs: list[list[int]] = []
    for offset, size, address, _ in sorted(read for read in reads if read[1]):
        if runs:
            last = runs[-1]
            gap = offset - last[0] - last[1]
            if 0 <= gap <= 4096 and address - last[2] == offset - last[0]:
                last[1] = offset + size - last[0]
                continue
        runs.append([offset, size, address])
    return [
        (base + offset + at, min(RANGE_BYTES, size - at), address + at)
        for offset, size, address in runs
        for at in range(0, size, RANGE_BYTES)
    ]


def of_buffer(data: bytes | bytearray | memoryview, name: str = "<bytes>") -> Source:
    view = memoryview(data).cast("B")
    return RangeSource(name, len(view), lambda at, size: bytes(view[at : at + size]), 1)


def of_object(stream: IO[bytes]) -> tuple[Source, int]:
    """A file object and where in it to begin. A real file is read as one."""
    try:
        base = stream.tell()
        stream.seek(0, io.SEEK_END)
        size = stream.tell()
        stream.seek(base)
    except (AttributeError, OSError, ValueError) as error:
        raise fail(
            "argument",
            f"{type(stream).__name__} cannot seek, which reading a checkpoint needs ({error})",
            fix="pass a path, or io.BytesIO(stream.read())",
        ) from None
    name = str(getattr(stream, "name", f"<{type(stream).__name__}>"))
    number = _regular_file(stream)
    if number is not None:
        source: Source = LocalSource(f"/proc/self/fd/{number}")
        source.name = name
        return source, base
    lock = threading.Lock()

    def fetch(at: int, count: int) -> bytes:
        with lock:
            stream.seek(at)
            data = stream.read(count)
        if isinstance(data, str):
            raise fail("argument", "it is opened as text", path=name, fix="open(path, 'rb')")
        return data

    def fill(at: int, target: memoryview) -> int:
        with lock:
            stream.seek(at)
            return int(stream.readinto(target) or 0)  # type: ignore[attr-defined]

    return RangeSource(name, size, fetch, 1, fill if hasattr(stream, "readinto") else None), base


def _regular_file(stream: IO[bytes]) -> int | None:
    if not isinstance(stream, (io.FileIO, io.BufferedReader, io.BufferedRandom)):
        return None
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return None
    return number if stat.S_ISREG(os.fstat(number).st_mode) else None


def of_url(url: str, storage_options: dict[str, Any] | None, threads: int) -> Source:
    """An object of any store that fsspec knows: s3://, gs://, hdfs://, http(s)://, memory://."""
    scheme = url.partition("://")[0]
    try:
        import fsspec  # type: ignore[import-untyped]

        system, path = fsspec.core.url_to_fs(url, **(storage_options or {}))
    except ImportError as error:
        raise fail(
            "missing_package",
            f"{scheme}:// needs a package that is not installed: {error}",
            path=url,
            fix=f"pip install fsspec {_package(scheme)}".rstrip(),
        ) from None
    except ValueError as error:
        raise fail("argument", f"fsspec does not know this address: {error}", path=url) from None
    try:
        size = system.size(path)
    except FileNotFoundError:
        raise fail("not_found", "there is no such object", path=url) from None
    except Exception as error:  # each store has its own kinds
        raise _unreachable(url, error) from error
    if size is None:
        raise fail("unsupported", "the server does not say how large it is", path=url)

    def fetch(at: int, count: int) -> bytes:
        for attempt in range(FETCH_ATTEMPTS):
            try:
                data: bytes = system.cat_file(path, start=at, end=at + count)
            except Exception as error:
                if attempt + 1 == FETCH_ATTEMPTS:
                    raise _unreachable(url, error) from error
                time.sleep(RETRY_S * 2**attempt)
            else:
                break
        return data

    return RangeSource(url, int(size), fetch, threads or REMOTE_THREADS)


def _unreachable(url: str, error: Exception) -> CheckpointError:
    text = str(error) or type(error).__name__
    return fail("io", text, path=url, fix="see whether the store answers, and with these rights")


def _package(scheme: str) -> str:
    return {
        "s3": "s3fs",
        "gs": "gcsfs",
        "hdfs": "pyarrow",
        "http": "aiohttp",
        "https": "aiohttp",
        "abfs": "adlfs",
        "az": "adlfs",
    }.get(scheme, "")
