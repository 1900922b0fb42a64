"""A checkpoint that its writer may still be writing: wait until it is whole, with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from solo._load import paths
from solo._load.errors import CheckpointError, fail

QUIET_S = 1.0  # without a change for so long counts as written
POLL_S = 0.1
OLD_S = 60.0  # a file that was written before that is not watched
UNFINISHED = ("truncated", "changed", "empty", "zeros", "missing")

T = TypeVar("T")
State = tuple[tuple[str, int, int, int], ...]  # name, bytes, modified_ns, inode of each file


def when_stable(where: Any, seconds: float, attempt: Callable[[], T]) -> T:
    """Try once the file is quiet; if it turns out unfinished, again after its next change.

    Raises:
        CheckpointError: of the last attempt, or ``changed`` if it was still being written.
    """
    path = _path_of(where)
    if path is None:
        return attempt()
    end = time.monotonic() + seconds
    while True:
        seen = _wait(path, seconds, end)
        try:
            return attempt()
        except CheckpointError as error:
            unfinished = {problem.code for problem in error.problems} & set(UNFINISHED)
            if not unfinished or not _changes(path, seen, end):
                raise


def wait_quiet(where: Any, seconds: float) -> None:
    """Until nothing of it changes any more; without an attempt to load it."""
    path = _path_of(where)
    if path is not None:
        _wait(path, seconds, time.monotonic() + seconds)


def _path_of(where: Any) -> str | None:
    """What can be watched: a path of this machine. Of an index, its directory."""
    try:
        text = os.fsdecode(where)
    except TypeError:
        return None
    if paths.is_url(text):
        return None
    path = paths.find(text)
    if not os.path.isfile(path) and not os.path.isdir(path):
        return None
    return os.path.dirname(path) or "." if path.endswith(".index.json") else path


def _state(path: str) -> State:
    def row(name: str, status: os.stat_result) -> tuple[str, int, int, int]:
        return (name, status.st_size, status.st_mtime_ns, status.st_ino)

    if not os.path.isdir(path):
        try:
            return (row("", os.stat(path)),)
        except FileNotFoundError:  # its writer took it away
            return (("", 0, 0, 0),)
    rows = []
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                rows.append(row(entry.name, entry.stat()))
            except FileNotFoundError:  # renamed since it was listed, or a dangling link
                rows.append((entry.name, 0, 0, 0))
    return tuple(sorted(rows))


def _wait(path: str, seconds: float, end: float) -> State:
    """Until nothing changed for ``QUIET_S``."""
    state = _state(path)
    if time.time() - max((row[2] for row in state), default=0) / 1e9 > OLD_S:
        return state
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < QUIET_S:
        if time.monotonic() >= end:
            size = sum(row[1] for row in state)
            raise fail(
                "changed",
                f"it was still being written after {seconds:g} s ({size} bytes by now)",
                path=path,
                fix="wait longer (wait_stable=), or let its writer rename it into place when done",
            )
        time.sleep(POLL_S)
        now = _state(path)
        if now != state:
            state, quiet_since = now, time.monotonic()
    return state


def _changes(path: str, seen: State, end: float) -> bool:
    """Whether the file becomes another than was seen, before the deadline."""
    while time.monotonic() < end:
        if _state(path) != seen:
            return True
        time.sleep(POLL_S)
    return False
