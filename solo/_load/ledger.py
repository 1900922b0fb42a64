"""Who on this host takes how much memory for checkpoints, so that loads see each other.

Two loads that start together both find the same memory free. So each writes down what it is about
to take before it takes it, in one small file of this user in shared memory; and a load with a
``memory_limit`` keeps that promise for as long as its process lives: what a process has promised
and not taken yet is not free for others. Entries of processes that are gone are dropped by
whoever reads the file next. Where the file cannot be had, nothing is written down.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

WAIT_S = 2.0  # for another process that holds the file
FILE_BYTES_MAX = 1 << 20
SMALL_BYTES = 16 << 20  # loads below that, without a limit, are not worth a line


@dataclass
class Entry:
    """One load.

    Attributes:
        pid, started: the process; the kernel's start time tells it from a later one.
        name: the checkpoint.
        promised: bytes of the host that the process may take for it.
        loaded: bytes of the host that were loaded; 0 while it is still being read.
        base: anonymous bytes of the process before its first entry.
        devices: bytes by GPU (memory.physical), promised beyond what is loaded there.
    """

    pid: int
    started: int
    name: str
    promised: int
    loaded: int = 0
    base: int = 0
    devices: dict[str, int] = field(default_factory=dict)


class Book:
    """The entries, while the file is locked."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.changed = False

    def outstanding(self) -> int:
        """Bytes of the host that processes have promised themselves and not taken yet."""
        total = 0
        for pid in {entry.pid for entry in self.entries}:
            own = [entry for entry in self.entries if entry.pid == pid]
            used = anonymous_bytes(pid) - min(entry.base for entry in own)
            total += max(0, sum(entry.promised for entry in own) - max(0, used))
        return total

    def outstanding_on(self, device: str) -> int:
        return sum(entry.devices.get(device, 0) for entry in self.entries)

    def add(self, name: str, promised: int, devices: dict[str, int]) -> Entry:
        """Of the same process and name there is one: a checkpoint that is loaded again."""
        me = os.getpid()
        old = [entry for entry in self.entries if entry.pid == me]
        base = min((entry.base for entry in old), default=anonymous_bytes(me))
        self.drop(name)
        entry = Entry(me, start_of(me), name, promised, 0, base, devices)
        self.entries.append(entry)
        self.changed = True
        return entry

    def drop(self, name: str | None) -> None:
        """Entries of this process with this name; None: all of them."""
        me = os.getpid()
        kept = [e for e in self.entries if e.pid != me or (name is not None and e.name != name)]
        self.changed |= len(kept) != len(self.entries)
        self.entries[:] = kept

    def lines(self) -> list[str]:
        """For people: who holds what."""
        return [
            f"process {e.pid} ({command_of(e.pid)}): {e.name}, "
            + (f"{_human(e.loaded)} loaded" if e.loaded else "being read")
            + (f", {_human(e.promised)} promised" if e.promised else "")
            for e in self.entries
            if e.pid != os.getpid()
        ]


@dataclass
class Claim:
    """What one load writes down: entered with its needs, then settled or taken back."""

    name: str
    memory_limit: int | None = None
    gpu_memory_limit: int | None = None
    entered: bool = False

    def enter(self, book: Book, needed: dict[str, int]) -> None:
        """``needed``: bytes by device, ``"cpu"`` the host."""
        host = needed.get("cpu", 0)
        limit = self.memory_limit
        if limit is None and self.gpu_memory_limit is None and sum(needed.values()) < SMALL_BYTES:
            return
        devices = {
            gpu: max(count, self.gpu_memory_limit or 0) for gpu, count in _gpus(needed).items()
        }
        book.add(self.name, max(host, limit or 0), devices)
        self.entered = True

    def settle(self, needed: dict[str, int], failed: bool) -> None:
        """After the load: what was not promised beyond it is in the kernel's figures now."""
        if not self.entered:
            return
        loaded = _gpus(needed)
        with opened() as book:
            for entry in book.entries if book is not None else ():
                if book is None or entry.pid != os.getpid() or entry.name != self.name:
                    continue
                book.changed = True
                entry.loaded = needed.get("cpu", 0)
                entry.promised = entry.promised if self.memory_limit is not None else 0
                entry.devices = {
                    gpu: max(0, (self.gpu_memory_limit or 0) - loaded.get(gpu, 0))
                    for gpu in entry.devices
                }
            if book is not None and failed:
                book.drop(self.name)


def _gpus(needed: dict[str, int]) -> dict[str, int]:
    """Those of them: under CUDA_VISIBLE_DEVICES the first is another one for each process."""
    from solo._load.memory import physical

    return {physical(name): count for name, count in needed.items() if name.startswith("cuda")}


def release(name: str | None = None) -> None:
    """Give back what this process promised for a checkpoint (None: for all)."""
    with opened() as book:
        if book is not None:
            book.drop(name)


# ---- the file ----


def path_of() -> str:
    """``SOLO_LEDGER`` (empty: none), else in shared memory, else in the user's run directory."""
    named = os.environ.get("SOLO_LEDGER")
    if named is not None:
        return named
    for folder in ("/dev/shm", os.environ.get("XDG_RUNTIME_DIR", "")):
        if folder and os.access(folder, os.W_OK):
            return os.path.join(folder, f"solo-loads-{os.geteuid()}")
    return ""


@contextlib.contextmanager
def opened() -> Iterator[Book | None]:
    """The book, locked; written back if it was changed. None where it cannot be had."""
    number = _open(path_of())
    if number is None:
        yield None
        return
    try:
        book = Book(_read(number))
        yield book
        if book.changed:
            data = json.dumps([asdict(entry) for entry in book.entries]).encode()
            with contextlib.suppress(OSError):  # a full shared memory: nothing is written down
                os.ftruncate(number, 0)
                os.pwrite(number, data, 0)
    finally:
        os.close(number)


def _open(path: str) -> int | None:
    """The file, locked and ours; None if it is not to be had in time."""
    if not path:
        return None
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and _lock(number):
            return number
    except OSError:
        pass
    os.close(number)
    return None


def _lock(number: int) -> bool:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        else:
            return True


def _read(number: int) -> list[Entry]:
    """What can be understood of the file and whose process lives."""
    try:
        rows = json.loads(os.pread(number, FILE_BYTES_MAX, 0) or b"[]")
    except (ValueError, RecursionError):  # half written by a process that was killed: begin anew
        return []
    rows = rows if isinstance(rows, list) else []
    entries = [_entry(row) for row in rows if isinstance(row, dict)]
    return [e for e in entries if e is not None and start_of(e.pid) == e.started]


def _entry(row: dict[str, Any]) -> Entry | None:
    numbers = [row.get(name) for name in ("pid", "started", "promised", "loaded", "base")]
    devices = row.get("devices")
    known = set(row) == {f.name for f in fields(Entry)}
    if not known or not isinstance(devices, dict) or not isinstance(row["name"], str):
        return None
    if any(type(n) is not int or n < 0 for n in [*numbers, *devices.values()]):
        return None
    return Entry(**row)


# ---- processes ----


def start_of(pid: int) -> int:
    """When the process began, in the kernel's ticks; -1 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:  # a name may be any bytes
            text = file.read()
    except OSError:
        return -1
    words = text.rpartition(")")[2].split()
    return -1 if words[0] in ("Z", "X") else int(words[19])


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is not a file's: what counts against the machine."""
    try:
        with open(f"/proc/{pid}/status") as lines:
            for line in lines:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    return " ".join(os.path.basename(word) for word in words[:3] if word)


def _human(count: int) -> str:
    from solo._load.memory import human

    return human(count)
