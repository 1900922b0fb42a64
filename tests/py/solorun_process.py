"""Runs the real solorun of this build, with an environment that no scheduler has touched."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

SOLORUN = pathlib.Path(__file__).parents[2] / "build" / "release" / "solorun"
FOREIGN = re.compile(
    r"SOLO_|PET_|SLURM_|SKYPILOT_|NODE_RANK|JOB_COMPLETION|CUDA_VIS|OMP_NUM|XDG_|GLOO_|NCCL_"
)


def environment(**more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    env.update(VIRTUAL_ENV=sys.prefix, NO_COLOR="1", XDG_CONFIG_HOME="/nonexistent")
    return {**env, **more}


def start(
    *words: str | os.PathLike[str],
    cwd: pathlib.Path | None = None,
    output: TextIO | None = None,
    prefix: Sequence[str] = (),
    **env: str,
) -> subprocess.Popen[str]:
    """Starts solorun; both streams go to ``output`` if given, else to pipes."""
    return subprocess.Popen(
        [*prefix, SOLORUN, *words],
        env=environment(**env),
        cwd=cwd,
        text=True,
        stdout=output or subprocess.PIPE,
        stderr=output or subprocess.PIPE,
    )


def run(
    *words: str | os.PathLike[str], cwd: pathlib.Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs solorun to its end, which every test of ours brings about within a minute."""
    return subprocess.run(
        [SOLORUN, *words],
        env=environment(**env),
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=90,
    )


def command_of(
    *words: str | os.PathLike[str], cwd: pathlib.Path | None = None, **env: str
) -> tuple[dict[str, str], list[str]]:
    """What --dry_run says would be executed: the environment that is set, and the words."""
    done = run("--dry_run", *words, cwd=cwd, **env)
    assert done.returncode == 0, done.stderr
    parts = shlex.split(done.stdout)
    assert parts.pop(0) == "env"
    setting: dict[str, str] = {}
    while parts[0] == "-u" or "=" in parts[0]:
        if parts[0] == "-u":
            setting[parts[1]] = "<unset>"
            del parts[:2]
        else:
            name, _, value = parts.pop(0).partition("=")
            setting[name] = value
    return setting, parts


def settings_of(
    *words: str | os.PathLike[str], cwd: pathlib.Path | None = None, **env: str
) -> dict[str, tuple[str, str]]:
    """What --print_config says: name -> (value, source)."""
    done = run("--print_config", *words, cwd=cwd, **env)
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"(?:# )?(\w+(?: \w+)?)(?: =|:) (.*?)  # (.*)", line)
        assert match, line
        found[match[1]] = (match[2].strip('"'), match[3])
    return found


def failure(done: subprocess.CompletedProcess[str], code: int, status: int) -> str:
    """Asserts the code, the exit status and a silent stdout; returns the message."""
    assert f"error SOLO-E{code:03}:" in done.stderr, done.stderr
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    return done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def listening() -> Iterator[int]:
    """A port that this process holds and where it answers nothing."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])
