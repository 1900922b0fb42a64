"""A progress bar on a terminal, for what takes longer than two seconds."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any

AFTER_S = 2.0


class Progress:
    """Called with (done, total, direct) while data is read. ``SOLO_PROGRESS=0``: never shown,
    ``1``: also where stderr is no terminal."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = time.monotonic()
        self.bar: Any = None
        self.task: Any = None
        setting = os.environ.get("SOLO_PROGRESS", "")
        self.wanted = setting == "1" or (setting != "0" and sys.stderr.isatty())

    def __call__(self, done: int, total: int, direct: int) -> None:
        if not self.wanted or (self.bar is None and time.monotonic() - self.started < AFTER_S):
            return
        if self.bar is None and not self._start(total):
            return
        self.bar.update(self.task, completed=done, total=total)

    def _start(self, total: int) -> bool:
        try:
            from rich import console, progress
        except ImportError:
            self.wanted = False
            return False
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=console.Console(stderr=True),
            transient=True,
        )
        self.task = self.bar.add_task(f"loading {self.name}", total=total)
        self.bar.start()
        return True

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
