"""The simulator as tests: the seeds that once failed, and some hundred others."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
SIM = HERE.parents[1] / "build" / "release" / "sim"


def seeds_that_once_failed() -> list[str]:
    lines = (HERE / "regressions.txt").read_text().splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SIM, *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("seed", seeds_that_once_failed())
def test_a_seed_that_once_failed_holds_every_promise(seed: str) -> None:
    done = run("--seed", seed)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("start", range(0, 600, 100))
def test_a_hundred_seeds_hold_every_promise(start: int) -> None:
    done = run("--seeds", "100", "--from", str(start))
    assert done.returncode == 0, done.stdout


def test_a_seed_gives_the_same_run_twice() -> None:
    first, second = (run("--seed", "7", "--trace").stdout for _ in range(2))
    assert first == second
    assert len(first) > 1000
