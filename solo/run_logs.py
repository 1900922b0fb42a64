"""Where the ranks' output goes: ``<job_dir>/node<k>/rank<r>.{out,err}.log``.

torchrun loads ``NodeLogs`` through its entry-point group ``torchrun.logs_specs``. Local rank
0's output is also copied to the console as it comes, without a prefix; a user's ``--tee`` or
``--redirects`` decides instead if given.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import threading
from typing import BinaryIO, TextIO

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import to_map

POLL_S = 0.05
COPY_BYTES = 1 << 16

STARTED = threading.Event()  # the ranks of this node are being started
_copies: list[Copy] = []
_errors: dict[int, str] = {}  # local rank -> its stderr file


class Copy:
    """Copies what a file gains to a stream, byte for byte, until told to finish."""

    def __init__(self, path: pathlib.Path, stream: TextIO) -> None:
        self.path, self.stream = path, stream
        self.finished = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True, name=f"copy {path.name}")
        self.thread.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while self.copy_one():
                pass

    def copy_one(self) -> bool:
        """Copy a file to its end; whether another has taken its place (``solo.log_size``)."""
        with self.path.open("rb") as file:
            last = False
            while True:
                if data := file.read(COPY_BYTES):
                    self.stream.buffer.write(data)
                    self.stream.flush()
                elif last:
                    return self.replaced(file)
                else:  # once more after the end, or after it was replaced, to the very end
                    last = self.finished.wait(POLL_S) or self.replaced(file)

    def replaced(self, file: BinaryIO) -> bool:
        try:
            return self.path.stat().st_ino != os.fstat(file.fileno()).st_ino
        except FileNotFoundError:  # the one is away, the other not there yet
            return False

    def finish(self) -> None:
        self.finished.set()
        self.thread.join(timeout=5)


def drain() -> None:
    """Put what the ranks have written on the console before anything else is said."""
    while _copies:
        _copies.pop().finish()


def log_of(local_rank: int) -> str | None:
    """The stderr file of a local rank."""
    return _errors.get(local_rank)


def fresh(path: pathlib.Path) -> pathlib.Path:
    """An empty file; what an earlier attempt left there is kept once, as ``.1``."""
    if path.exists() and path.stat().st_size:
        path.replace(path.with_name(path.name + ".1"))
    path.write_bytes(b"")
    return path


class NodeLogs(LogsSpecs):
    """Files by node and global rank instead of by attempt and local rank."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._folder = pathlib.Path(log_dir or ".")

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def _on_console(self, local_rank: int, kind: Std) -> bool:
        redirected = to_map(self._redirects, local_rank + 1)[local_rank] & kind
        if self._local_ranks_filter is not None:
            return local_rank in self._local_ranks_filter and not redirected
        return local_rank == 0 and not redirected

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the files of this start and say which stream of which rank goes where."""
        drain()
        self._folder.mkdir(parents=True, exist_ok=True)
        dest = LogsDest()
        tee = to_map(self._tee, len(envs))
        streams = (
            (Std.OUT, "out", dest.stdouts, dest.tee_stdouts, sys.stdout),
            (Std.ERR, "err", dest.stderrs, dest.tee_stderrs, sys.stderr),
        )
        for local_rank, env in envs.items():
            rank = env.get("RANK", str(local_rank))
            for kind, name, files, tees, stream in streams:
                path = fresh(self._folder / f"rank{rank}.{name}.log")
                files[local_rank] = str(path)
                if tee[local_rank] & kind:
                    tees[local_rank] = str(path)
                elif self._on_console(local_rank, kind):
                    _copies.append(Copy(path, stream))
            _errors[local_rank] = dest.stderrs[local_rank]
            error_file = self._folder / f"rank{rank}.error.json"
            error_file.unlink(missing_ok=True)
            env["TORCHELASTIC_ERROR_FILE"] = dest.error_files[local_rank] = str(error_file)
        dest.filtered_stdout = os.fspath(self._folder / "filtered.out.log")
        dest.filtered_stderr = os.fspath(self._folder / "filtered.err.log")
        STARTED.set()
        return dest
