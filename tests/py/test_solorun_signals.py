"""Signals to solorun and its ranks: who ends, with which status, and what is told."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from solorun_process import environment
from solorun_script import finish, gone, make


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_stops_the_ranks_and_is_the_exit_status(
    tmp_path: pathlib.Path, number: signal.Signals, status: int
) -> None:
    job = make(
        tmp_path,
        "def leave(number, frame):\n    mark('left')\n    sys.exit(0)\n"
        "for name in ('SIGTERM', 'SIGINT', 'SIGHUP'): signal.signal(getattr(signal, name), leave)\n"
        "mark('up')\ntime.sleep(300)",
    )
    process = job.start("--device_count=2")
    pids = job.marked("up", 2)
    process.send_signal(number)
    code, errors = finish(process)
    assert code == status
    assert f"stopped by {number.name}" in errors
    job.marked("left", 2)
    assert gone(pids)


def test_a_second_interrupt_ends_at_once(tmp_path: pathlib.Path) -> None:
    job = make(
        tmp_path,
        "signal.signal(signal.SIGINT, lambda *_: mark('deaf'))\nmark('up')\n"
        "while True: time.sleep(1)",
    )
    process = job.start()
    pids = job.marked("up")
    process.send_signal(signal.SIGINT)
    job.marked("deaf")
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130
    assert "ended at once" in errors
    assert gone(pids)


def test_usr1_reaches_the_ranks_and_only_them(tmp_path: pathlib.Path) -> None:
    job = make(
        tmp_path,
        "mark('young')\ntime.sleep(1)\n"  # a rank without a handler yet is not killed by it
        "signal.signal(signal.SIGUSR1, lambda *_: (mark('told'), sys.exit(0)))\n"
        "mark('up')\ntime.sleep(60)",
    )
    process = job.start("--device_count=2")
    job.marked("young", 2)
    process.send_signal(signal.SIGUSR1)
    code, errors = finish(process)
    assert code == 0, errors
    job.marked("told", 2)


def test_no_rank_outlives_a_killed_launcher(tmp_path: pathlib.Path) -> None:
    job = make(tmp_path, "mark('up')\ntime.sleep(300)")
    process = job.start("--device_count=2")
    pids = job.marked("up", 2)
    process.kill()
    process.communicate()
    assert gone(pids)


def test_a_rank_whose_agent_died_before_it_looked_ends_too(tmp_path: pathlib.Path) -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    code = "from solo import _rank; _rank.install(); print('alive')"
    env = environment(SOLO_AGENT_PID=str(done.pid))
    rank = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True)
    assert rank.returncode == -signal.SIGKILL


def test_a_dead_agent_that_nobody_has_waited_for_counts_as_dead() -> None:
    agent = subprocess.Popen(["true"])
    os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)  # dead, and stays a zombie
    code = "from solo import _rank; _rank.install(); print('alive')"
    command = ["sh", "-c", f'"{sys.executable}" -c "{code}"; exit $?']  # not the agent's child
    env = environment(SOLO_AGENT_PID=str(agent.pid))
    rank = subprocess.run(command, env=env, capture_output=True)
    agent.wait()
    assert rank.returncode == 128 + signal.SIGKILL


def test_an_exception_is_told_though_a_signal_handler_raises_meanwhile(
    tmp_path: pathlib.Path,
) -> None:
    code = (
        "import signal\n"
        "from solo import _rank\n"
        "_rank.tell_exception()\n"
        "first = _rank.traceback.format_exception_only\n"
        "def dies(number, frame): raise RuntimeError('a worker died')\n"
        "signal.signal(signal.SIGCHLD, dies)\n"
        "def interrupted(kind, value):\n"
        "    _rank.traceback.format_exception_only = first\n"
        "    signal.raise_signal(signal.SIGCHLD)\n"
        "_rank.traceback.format_exception_only = interrupted\n"
        "raise ValueError('mine')\n"
    )
    told = tmp_path / "error.json"
    env = environment(TORCHELASTIC_ERROR_FILE=str(told))
    subprocess.run([sys.executable, "-c", code], env=env, capture_output=True)
    assert "ValueError: mine" in told.read_text()


def test_a_killed_worker_of_a_dataloader_is_the_reason_that_is_told(tmp_path: pathlib.Path) -> None:
    done = make(
        tmp_path,
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Rows(Dataset):\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, row): os.kill(os.getpid(), signal.SIGKILL)\n"
        "for row in DataLoader(Rows(), num_workers=2): pass\n",  # nothing is half sent when it dies
    ).run()
    assert done.returncode == 1
    assert "RuntimeError: DataLoader worker (pid" in done.stderr.split("SOLO-E080")[1]


def test_the_pid_is_torchruns(tmp_path: pathlib.Path) -> None:
    job = make(tmp_path, "print(os.getppid(), os.environ['SOLO_AGENT_PID'])")
    process = job.start()
    out, _ = process.communicate(timeout=60)
    assert out.split() == [str(process.pid)] * 2
