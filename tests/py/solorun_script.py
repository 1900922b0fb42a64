"""A script under solorun: its marks, its logs, and its end."""

from __future__ import annotations

import pathlib
import subprocess
import time

import psutil
from solorun_process import free_port, run, start

PRELUDE = """
import os, signal, sys, time
from solo import _rank
_rank.install()
rank = int(os.environ["RANK"])
def mark(name):
    open(os.path.join(os.environ["MARKS"], f"{name}.{rank}.{os.getpid()}"), "w").close()
"""


class Job:
    """A script under solorun in a folder of its own, with a port nobody else has."""

    def __init__(self, folder: pathlib.Path, body: str) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(PRELUDE + body)
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.logs = folder / "logs"
        self.words = [
            "--solo",
            f"--master_url=tcp://127.0.0.1:{free_port()}",
            f"--log_dir={self.logs}",
            "--timeout=60",
        ]

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return run(*self.words, *more, self.script, MARKS=str(self.marks))

    def start(self, *more: str) -> subprocess.Popen[str]:
        return start(*self.words, *more, self.script, MARKS=str(self.marks))

    def marked(self, name: str, count: int = 1, within_s: float = 120) -> list[int]:
        """Waits for so many ranks to reach the mark; their process ids."""
        deadline = time.monotonic() + within_s
        while len(found := list(self.marks.glob(f"{name}.*"))) < count:
            assert time.monotonic() < deadline, f"no mark {name}"
            time.sleep(0.02)
        return [int(path.name.split(".")[2]) for path in found]

    def log(self, name: str) -> str:
        return (self.logs / "latest" / name).read_text()


def make(tmp_path: pathlib.Path, body: str) -> Job:
    return Job(tmp_path, body)


def gone(pids: list[int], within_s: float = 60) -> bool:
    deadline = time.monotonic() + within_s
    while any(psutil.pid_exists(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors
