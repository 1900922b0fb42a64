"""A rank's log files begin anew when they are too large; the former part is kept as ``.1``.

The rank does it itself: it alone can put a new file in the place of its open one, so that no byte
is lost. A child process that it had started before goes on writing to the former part.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
import threading
import time

LOOK_S = 1.0


def install() -> None:
    """Watch this process's stdout and stderr if ``SOLO_LOG_SIZE`` (bytes) says so."""
    limit = int(os.environ.get("SOLO_LOG_SIZE", "0"))
    files: dict[pathlib.Path, list[int]] = {}  # both may write to one
    for fd in (1, 2):
        if path := path_of(fd):
            files.setdefault(path, []).append(fd)
    if limit and files:
        threading.Thread(target=watch, args=(files, limit), daemon=True, name="solo logs").start()


def path_of(fd: int) -> pathlib.Path | None:
    """The file that a descriptor writes to; None for pipes, terminals and what was removed."""
    link = pathlib.Path(f"/proc/self/fd/{fd}")
    with contextlib.suppress(OSError):
        path = link.readlink()
        if stat.S_ISREG(os.fstat(fd).st_mode) and path.samefile(link):
            return path
    return None


def watch(files: dict[pathlib.Path, list[int]], limit: int) -> None:
    """Look at the sizes now and then, for as long as the process lives."""
    while True:
        time.sleep(LOOK_S)
        for path, fds in files.items():
            with contextlib.suppress(OSError):  # a full disk: the log goes on as it is
                now = path.stat()
                ours = [fd for fd in fds if os.path.samestat(os.fstat(fd), now)]
                if ours and now.st_size > limit:
                    begin_anew(ours, path)


def begin_anew(fds: list[int], path: pathlib.Path) -> None:
    """Keep the file as ``.1`` and let the descriptors write to an empty one of its name."""
    former, empty = (path.with_name(path.name + end) for end in (".1", ".new"))
    fresh = os.open(empty, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    try:
        path.replace(former)
        empty.replace(path)
        for fd in fds:
            os.dup2(fresh, fd)
    finally:
        os.close(fresh)
