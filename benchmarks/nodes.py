"""Real nodes for benchmarks and end-to-end tests: each one a solorun with its own torchrun.

    with Job(tmp, options=["--sync_interval", "50"]) as job:
        first = job.start(0, script, arguments)
        second = job.start(1, script, arguments)
        job.wait(600)

On loopback, or inside a netlab.Lab when one is given.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.netlab import Lab

SOLORUN = str(pathlib.Path(sys.executable).parent / "solorun")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def json_lines(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The complete JSON lines of a file that may still be growing, or not yet be there."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


class Node:
    """One started solorun: its process, its output file, its metrics file."""

    def __init__(self, rank: int, process: subprocess.Popen[str], output: pathlib.Path) -> None:
        self.rank = rank
        self.process = process
        self.output = output

    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def kill(self) -> None:
        """SIGKILL to torchrun; its ranks die with it."""
        self.process.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


class Job:
    """Nodes of one job, with one directory for their outputs and the job's logs.

    Args:
        directory: where outputs go; made if needed.
        options: further options of solorun for every node.
        lab: network namespaces to run in, or None for loopback.
        env: further environment.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        options: Sequence[str] = (),
        lab: Lab | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.options = list(options)
        self.lab = lab
        self.env = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
        self.port = free_port()
        self.nodes: list[Node] = []
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        for node in self.nodes:
            if node.process.poll() is None:
                node.kill()
            node.process.wait()

    @property
    def url(self) -> str:
        host = self.lab.address(0) if self.lab else "127.0.0.1"
        return f"tcp://{host}:{self.port}"

    @property
    def log_dir(self) -> pathlib.Path:
        return self.directory / "logs"

    def start(
        self, rank: int, script: str | pathlib.Path, arguments: Sequence[str] = (), *more: str
    ) -> Node:
        """Start node ``rank`` on ``script``; ``more`` are further options of solorun."""
        options = ["--solo", "--node_rank", str(rank), "--master_url", self.url]
        options += ["--log_dir", str(self.log_dir), *self.options, *more]
        if self.lab:
            options.append("--insecure")
        return self.run(rank, [SOLORUN, *options, str(script), *arguments])

    def run(self, rank: int, command: Sequence[str]) -> Node:
        """Start any command as node ``rank``."""
        output = self.directory / f"node{rank}.{len(self.nodes)}.out"
        if self.lab:
            command = self.lab.command(rank, command)
        with output.open("w") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env},
                text=True,
            )
        node = Node(rank, process, output)
        self.nodes.append(node)
        return node

    def wait(self, seconds: float, nodes: Sequence[Node] | None = None) -> list[int]:
        """Exit codes of the nodes once all have ended; TimeoutError names who has not."""
        waited = list(nodes or self.nodes)
        deadline = time.monotonic() + seconds
        for node in waited:
            try:
                node.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise TimeoutError(
                    f"node {node.rank} still runs after {seconds:.0f} s:\n{node.text()[-3000:]}"
                ) from error
        return [node.process.returncode for node in waited]

    def events(self) -> list[dict[str, Any]]:
        """The job's events so far, oldest first."""
        paths = {path.resolve() for path in self.log_dir.glob("*/events.jsonl")}
        return [event for path in sorted(paths) for event in json_lines(path)]
