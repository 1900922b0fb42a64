"""A master, nodes and members of one job as processes, and what is asked of them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from solorun_process import environment, run, start

MEMBER = """
import ctypes, json, sys
from solo import _C
engine = _C.Engine(**json.loads(sys.argv[1]))
data = (ctypes.c_float * 4)()
engine.attach([("weight", 4, _C.F32, _C.PARAM)], [ctypes.addressof(data)])
print("in", flush=True)
sys.stdin.read()
engine.leave(False, "told to")
engine.close()
"""


def status(url: str, *more: str) -> dict[str, Any]:
    done = run("status", "--json", url, *more)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def until(condition: Any, within_s: float = 60) -> Any:
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


@contextlib.contextmanager
def master(url: str, *more: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = start("master", f"--master_url={url}", *more, **env)
    try:
        assert process.stderr
        assert "solorun: master of job" in process.stderr.readline()
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def up(stack: contextlib.ExitStack, *words: str | os.PathLike[str]) -> subprocess.Popen[str]:
    """A node whose script runs; killed when ``stack`` ends."""
    node = start(*words)
    stack.callback(node.kill)
    assert node.stdout and node.stdout.readline() == "up\n"
    return node


@contextlib.contextmanager
def member(url: str, **config: Any) -> Iterator[subprocess.Popen[str]]:
    """A live member of the job, without torch."""
    config = {"master_url": url, "timeout_ms": 20000, "interval": "100", **config}
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, json.dumps(config)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "in\n"
        yield process
    finally:
        process.kill()
        process.wait()


def words_for(url: str, folder: pathlib.Path, rank: int, *more: str) -> list[str]:
    logs = folder / "logs"
    return ["--solo", f"--master_url={url}", f"--node_rank={rank}", f"--log_dir={logs}", *more]
