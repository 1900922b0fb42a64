"""torch's own distributed tests pass with the backend "solo"."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent

# What no out-of-tree backend can pass, and why.
CANNOT = {
    "test_ddp_logging_data_cpu": "DDP's log takes the name from a list inside torch: 'custom'",
}


def run_suite(world: int, folder: pathlib.Path) -> tuple[set[str], set[str], str]:
    """The names of the tests that passed and that failed, and the log."""
    for name in ("barrier", "test_dir"):
        (folder / name).mkdir()
    environment = {
        **os.environ,
        "BACKEND": "solo",
        "WORLD_SIZE": str(world),
        "INIT_METHOD": "file:///any",
        "TEMP_DIR": str(folder),
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",  # some tests make a gloo group beside ours
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "120",
    }
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-p", "no:cacheprovider", "-q",
               "--timeout=0", "-rA", "--tb=short", "-c", os.devnull, "dist_suite.py"]  # fmt: skip
    done = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=280
    )
    verdicts = re.findall(r"^(PASSED|FAILED|ERROR) \S*::(\w+)", done.stdout, re.MULTILINE)
    passed = {name for verdict, name in verdicts if verdict == "PASSED"}
    failed = {name for verdict, name in verdicts if verdict != "PASSED"}
    ended = f"exit code {done.returncode}\n{done.stderr[-2000:]}"
    return passed, failed, f"{done.stdout}\n{ended}"


@pytest.mark.slow
@pytest.mark.parametrize(("world", "least"), [(2, 85), (3, 99), (4, 102)])
def test_torchs_own_suite_passes(world: int, least: int, tmp_path: pathlib.Path) -> None:
    passed, failed, log = run_suite(world, tmp_path)
    assert failed <= CANNOT.keys(), log[-20000:]
    assert len(passed) >= least, f"{len(passed)} passed: {log[-5000:]}"
