"""Real processes of one job for the end-to-end tests: a master and members (member.c)."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
MEMBER = ROOT / "build" / os.environ.get("SOLO_TEST_FLAVOR", "release") / "member"
PATIENCE = 60.0 if "SOLO_TEST_FLAVOR" in os.environ else 25.0

Row = dict[str, Any]


class Process:
    """One member or master; its JSON lines are read as they come."""

    def __init__(self, name: str, arguments: list[str], env: dict[str, str]) -> None:
        self.name = name
        self.rows: list[Row] = []
        self.log: list[str] = []
        self.changed = threading.Condition()
        self.popen = subprocess.Popen(
            [str(MEMBER), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self.threads = [
            threading.Thread(target=self._read_rows, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def _read_rows(self) -> None:
        assert self.popen.stdout
        for line in self.popen.stdout:
            with self.changed:
                self.rows.append(json.loads(line))
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def _read_log(self) -> None:
        assert self.popen.stderr
        for line in self.popen.stderr:
            with self.changed:
                self.log.append(line.rstrip())
                self.changed.notify_all()

    @property
    def pid(self) -> int:
        return self.popen.pid

    def rounds(self) -> list[Row]:
        return [row for row in list(self.rows) if row["event"] == "round"]

    def row(self, event: str) -> Row:
        """The first row of this kind, waited for."""
        found: Row = self.until(lambda: [r for r in self.rows if r["event"] == event])[0]
        return found

    def until(self, look: Callable[[], Any], patience: float = PATIENCE) -> Any:
        """What look() gives once it is truthy; an error with the log after `patience` seconds."""
        deadline = time.monotonic() + patience
        with self.changed:
            while not (found := look()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"{self.name}: waited in vain\n{self.text()}")
                self.changed.wait(min(left, 0.2))
        return found

    def reach(self, version: int) -> Row:
        """The first round row at this version or beyond."""
        found: Row = self.until(lambda: [r for r in self.rounds() if r["version"] >= version])[0]
        return found

    def together(self, count: int) -> Row:
        """The first round that it merged with this many members."""
        found: Row = self.until(lambda: [r for r in self.rounds() if r["members"] == count])[0]
        return found

    def did(self, rounds: int) -> None:
        """Waits until it has merged so many times."""
        self.until(lambda: len(self.rounds()) >= rounds)

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def end(self, patience: float = PATIENCE) -> int:
        """Its exit status; an error with its log if it does not end."""
        try:
            code = self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end\n{self.text()}") from None
        for thread in self.threads:
            thread.join(5)
        return code

    def text(self) -> str:
        rows = "\n".join(json.dumps(row) for row in self.rows[-8:])
        return f"--- {self.name}\n{rows}\n" + "\n".join(self.log[-60:])


class Job:
    """A job on this host: start a master and members, look at what they print."""

    def __init__(self, directory: pathlib.Path, *, host: str = "127.0.0.1", job: str = "e2e"):
        self.directory = directory
        self.host = host
        self.port = free_port(host)
        self.job = job
        self.url = f"tcp://[{host}]:{self.port}" if ":" in host else f"tcp://{host}:{self.port}"
        self.events_path = directory / "events.jsonl"
        self.processes: list[Process] = []
        self.shared: list[str] = ["--job", job]

    def start(self, name: str, arguments: list[str], env: dict[str, str] | None = None) -> Process:
        process = Process(name, [self.url, *self.shared, *arguments], env or {})
        self.processes.append(process)
        return process

    def master(self, *arguments: str) -> Process:
        process = self.start("master", ["--master", "--events", str(self.events_path), *arguments])
        process.row("listening")
        return process

    def member(self, rank: int, *arguments: str, **env: str) -> Process:
        return self.start(f"member {rank}", ["--rank", str(rank), *arguments], env)

    def events(self, kind: str | None = None) -> list[Row]:
        lines = self.events_path.read_text().splitlines() if self.events_path.exists() else []
        rows = [json.loads(line) for line in lines]
        return [row for row in rows if kind is None or row["event"] == kind]

    def text(self) -> str:
        return "\n".join(process.text() for process in self.processes)

    def close(self) -> None:
        for process in self.processes:
            if process.popen.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.signal(signal.SIGCONT)
                process.kill()


@contextlib.contextmanager
def running(directory: pathlib.Path, **options: str) -> Iterator[Job]:
    """A job whose processes are all gone afterwards; a failure shows their logs."""
    job = Job(directory, **options)
    try:
        yield job
    except BaseException:
        print(job.text())
        raise
    finally:
        job.close()


def free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def all_agree(members: list[Process]) -> None:
    """Every version that two members have reported has one digest."""
    digests: dict[int, tuple[str, str]] = {}
    for member in members:
        for row in member.rounds():
            seen = digests.setdefault(row["version"], (row["digest"], member.name))
            assert seen[0] == row["digest"], (
                f"version {row['version']}: {member.name} and {seen[1]} hold other bits"
            )
